/* tools/comfy-handoff/handoff.h - one hand-over: reserve, run a workflow, see ComfyUI let go, give back.
 *
 * Whatever happens in between (an error of HTTP, a workflow that fails, a time limit, a signal, ComfyUI's or the engine's
 * end), what follows the reserve is taken back in the reverse order: the job is cancelled if it may still run, ComfyUI is
 * asked to free and is waited for, the reserve is given back. handoff_stop() may be called from a signal's handler: the first
 * time it ends the job, the second time the waiting for ComfyUI too.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "protocol/exit_status.h"
#include "tools/comfy-handoff/comfy.h"
#include "tools/comfy-handoff/hold.h"

struct handoff_settings {
    const char *url, *control, *name;
    const char *learn, *workflow_name; /* learn NULL: nothing is learned */
    json_t *workflow;                  /* borrowed, in API format */
    bool has_device, has_reserve, anyway, quiet;
    uint32_t device;
    uint64_t reserve_mib, residue_mib;
    double timeout_s, free_timeout_s, poll_s;
};

struct handoff {
    const struct handoff_settings *settings;
    struct comfy comfy;
    struct hold hold;
    struct comfy_memory before; /* with the reserve in force, before the job */
    struct comfy_job job;
    char id[COMFY_ID_BYTES]; /* of the job; "" before it is queued */
    uint32_t device;
    uint64_t reserve_mib, freed_mib, shortfall_mib, learned_mib;
    int64_t torch_peak, peak; /* bytes: of torch alone, and of what the job took of the card */
    double run_s, let_go_s;   /* let_go_s below 0: it did not, or was not asked to */
    bool has_ended, comfy_gone, has_reserve, given_back;
};

/* Runs it to its end; the exit status. err: the first thing that went wrong, if any. */
int handoff_run(struct handoff *h, const struct handoff_settings *settings, struct error *err);
void handoff_stop(int signal_number);
/* What happened, as one JSON object on one line. EBB_ENOMEM, EBB_EIO. */
int handoff_report(FILE *out, const struct handoff *h, int status, struct error *err);
