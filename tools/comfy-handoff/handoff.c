/* tools/comfy-handoff/handoff.c - the order of a hand-over, and the way back from every place in it. */
#include "tools/comfy-handoff/handoff.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "tools/comfy-handoff/card.h"
#include "tools/comfy-handoff/learn.h"
#include "tools/kit/kit.h"

#define MIB           ((int64_t)1 << 20)
#define GONE_S        3.0 /* a server that has not answered for so long, and so many times, is gone */
#define GONE_FAILURES 3

static volatile sig_atomic_t n_signals, n_signals_borne, first_signal;

void handoff_stop(int signal_number)
{
    if (n_signals == 0)
        first_signal = signal_number;
    n_signals = n_signals < 100 ? n_signals + 1 : n_signals;
}

static bool is_stopped(void)
{
    return n_signals > n_signals_borne;
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Ends early where a signal comes. */
static void pause_s(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    if (!is_stopped())
        (void)nanosleep(&t, NULL);
}

__attribute__((format(printf, 2, 3))) static void say(const struct handoff *h, const char *format,
                                                      ...)
{
    va_list args;
    if (h->settings->quiet)
        return;
    va_start(args, format);
    fputs("ebbtide comfy-handoff: ", stderr);
    (void)vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static int reserve_choose(struct handoff *h, struct error *err)
{
    const struct handoff_settings *s = h->settings;
    int code = 0;
    h->reserve_mib = s->reserve_mib;
    if (!s->has_reserve && s->learn != NULL)
        code = learn_read(s->learn, s->workflow_name, &h->reserve_mib, err);
    if (code == 0 && h->reserve_mib == 0)
        code = error_set(err, EBB_EINVAL, "no reserve: say --reserve MIB%s",
                         s->learn != NULL ? " the first time; it is learned from the run" : "");
    return code;
}

/* --device, else the card that ComfyUI's is: told by its UUID, or looked up where ComfyUI runs on this host, else by its name. */
static int card_choose(struct handoff *h, struct error *err)
{
    struct comfy_memory *m = &h->before;
    h->device = h->settings->device;
    if (h->settings->has_device)
        return 0;
    if (m->uuid[0] == '\0' && m->index >= 0 && m->index <= UINT32_MAX)
        (void)card_uuid_find(comfy_port_here(&h->comfy), (uint32_t)m->index, m->uuid,
                             sizeof m->uuid);
    return hold_card_find(&h->hold, m->name, m->uuid, &h->device, err);
}

/* The reserve is in force, or STATUS_* says why not. */
static int take(struct handoff *h, struct error *err)
{
    const struct handoff_settings *s = h->settings;
    struct vram_receipt receipt = {0};
    int code = reserve_choose(h, err);
    if (code != 0)
        return code == EBB_EINVAL ? STATUS_USAGE : STATUS_FAILED;
    code = hold_open(&h->hold, s->control, s->name, err);
    if (code != 0)
        return code == EBB_ENOENT || code == EBB_EBUSY ? STATUS_NO_ENGINE : STATUS_FAILED;
    if (comfy_memory(&h->comfy, &h->before, err) != 0)
        return STATUS_FAILED;
    if (card_choose(h, err) != 0)
        return STATUS_FAILED;
    if (hold_take(&h->hold, h->device, h->reserve_mib, &receipt, err) != 0)
        return STATUS_FAILED;
    h->has_reserve = true;
    h->freed_mib = receipt.freed_mib > 0 ? (uint64_t)receipt.freed_mib : 0;
    h->shortfall_mib = receipt.shortfall_mib;
    uint64_t attach = kit_attach_mib(&h->hold.channel, h->device);
    if (receipt.free_mib < attach)
        say(h, "warning: " KIT_ATTACH_WORDS, h->device, receipt.free_mib, attach);
    if (!h->hold.is_lease)
        say(h, "warning: this engine has no leases: if this program is killed, the reserve stays");
    say(h, "card %" PRIu32 " leaves %" PRIu64 " MiB free (%" PRIu64 " freed, %" PRIu64 " free)",
        h->device, h->reserve_mib, h->freed_mib, receipt.free_mib);
    if (receipt.shortfall_mib == 0 || s->anyway)
        return STATUS_DONE;
    (void)error_set(err, EBB_ENOMEM,
                    "card %" PRIu32 ": %" PRIu64 " of %" PRIu64
                    " MiB are missing (%s); --anyway runs the job all the same",
                    h->device, receipt.shortfall_mib, h->reserve_mib, receipt.reason);
    return STATUS_SHORTFALL;
}

static void peak_take(struct handoff *h, const struct comfy_memory *now)
{
    int64_t torch = now->torch_total - (h->before.torch_total > 0 ? h->before.torch_total : 0);
    int64_t taken = comfy_driver_free(&h->before) - comfy_driver_free(now);
    if (now->torch_total > h->torch_peak)
        h->torch_peak = now->torch_total;
    taken = torch > taken ? torch : taken;
    h->peak = taken > h->peak ? taken : h->peak;
}

struct patience {
    size_t n_failures;
    double since;
};

/* Whether a failed call is to be borne: not for ever. */
static bool is_borne(struct patience *p, int code)
{
    if (code == 0) {
        p->n_failures = 0;
        return true;
    }
    if (p->n_failures++ == 0)
        p->since = now_s();
    return code != EBB_ECANCEL && (p->n_failures < GONE_FAILURES || now_s() - p->since < GONE_S);
}

static void progress_say(const struct handoff *h, const struct comfy_job *before)
{
    if (h->job.state == COMFY_PENDING &&
        (before->state != COMFY_PENDING || before->n_ahead != h->job.n_ahead))
        say(h, "job %s waits, %zu before it", h->id, h->job.n_ahead);
    if (h->job.state == COMFY_RUNNING && before->state != COMFY_RUNNING)
        say(h, "job %s runs", h->id);
}

/* Once around: the job's state and the card's memory. */
static int look(struct handoff *h, struct patience *patience, size_t *n_unknown, struct error *err)
{
    struct comfy_memory memory;
    struct comfy_job before = h->job, now;
    int code = comfy_job(&h->comfy, h->id, &now, err);
    if (code == 0 && comfy_memory(&h->comfy, &memory, NULL) == 0)
        peak_take(h, &memory);
    if (!is_borne(patience, code)) {
        h->comfy_gone = code != EBB_ECANCEL;
        return code;
    }
    if (code != 0)
        return 0;
    h->job = now;
    progress_say(h, &before);
    *n_unknown = now.state == COMFY_UNKNOWN ? *n_unknown + 1 : 0;
    h->has_ended = now.state == COMFY_DONE || now.state == COMFY_FAILED;
    if (now.state == COMFY_FAILED)
        return error_set(err, EBB_EPEER, "the workflow failed: %s", now.why);
    if (*n_unknown >= GONE_FAILURES) {
        h->has_ended = true;
        return error_set(err, EBB_EPEER, "ComfyUI no longer knows the job %s", h->id);
    }
    return 0;
}

static int wait_for_job(struct handoff *h, struct error *err)
{
    struct patience patience = {0};
    double begin = now_s();
    size_t n_unknown = 0;
    int code = 0;
    while (code == 0 && !h->has_ended) {
        if (is_stopped())
            code = error_set(err, EBB_ECANCEL, "stopped by a signal");
        else if (now_s() - begin > h->settings->timeout_s)
            code = error_set(err, EBB_EAGAIN, "the job took longer than %g s (--timeout)",
                             h->settings->timeout_s);
        else
            code = look(h, &patience, &n_unknown, err);
        if (code == 0 && !h->has_ended)
            pause_s(h->settings->poll_s);
    }
    h->run_s = now_s() - begin;
    return code;
}

static int work(struct handoff *h, struct error *err)
{
    int code = comfy_memory(&h->comfy, &h->before, err);
    if (code == 0)
        code = comfy_queue(&h->comfy, h->settings->workflow, h->id, err);
    if (code != 0) {
        h->comfy_gone = code == EBB_EIO;
        return code;
    }
    say(h, "job %s is queued", h->id);
    code = wait_for_job(h, err);
    if (code == 0)
        say(h, "job %s is done after %.1f s; it took up to %" PRId64 " MiB", h->id, h->run_s,
            h->peak / MIB);
    return code;
}

static bool has_let_go(const struct handoff *h, const struct comfy_memory *now)
{
    int64_t residue = (int64_t)h->settings->residue_mib * MIB;
    return comfy_driver_free(now) + residue >= comfy_driver_free(&h->before) ||
           (h->torch_peak > residue && now->torch_total >= 0 && now->torch_total <= residue);
}

/* Asks ComfyUI to free, again where it was busy, and waits until it has. */
static int let_go(struct handoff *h, struct error *err)
{
    double begin = now_s();
    struct patience patience = {0};
    int code = comfy_free(&h->comfy, err);
    bool is_asked = code == 0;
    while (is_borne(&patience, code)) {
        struct comfy_memory now = {0};
        code = is_asked ? comfy_memory(&h->comfy, &now, err) : comfy_free(&h->comfy, err);
        if (code == 0 && is_asked && has_let_go(h, &now)) {
            h->let_go_s = now_s() - begin;
            say(h, "ComfyUI has let go after %.1f s", h->let_go_s);
            return 0;
        }
        is_asked = is_asked || code == 0;
        if (is_stopped())
            return error_set(err, EBB_ECANCEL, "stopped by a signal before ComfyUI had let go");
        if (now_s() - begin > h->settings->free_timeout_s)
            return error_set(err, EBB_EAGAIN,
                             "ComfyUI still holds %" PRId64 " MiB %g s after it was asked to free",
                             (comfy_driver_free(&h->before) - comfy_driver_free(&now)) / MIB,
                             h->settings->free_timeout_s);
        pause_s(h->settings->poll_s);
    }
    h->comfy_gone = code != EBB_ECANCEL;
    return code;
}

/* The way back. Returns the first error of it. */
static int give_back(struct handoff *h, struct error *err)
{
    struct vram_receipt receipt = {0};
    struct error said = {0};
    int code = 0, back;
    n_signals_borne = n_signals; /* one more ends the waiting */
    if (h->id[0] != '\0' && !h->comfy_gone) {
        if (!h->has_ended && comfy_cancel(&h->comfy, h->id, NULL) == 0)
            say(h, "job %s is cancelled", h->id);
        code = let_go(h, err);
    }
    if (!h->has_reserve && !h->hold.is_open)
        return code;
    back = hold_give_back(&h->hold, &receipt, &said);
    h->given_back = h->has_reserve;
    if (back != 0) /* an engine that is gone holds nothing */
        say(h, "warning: the engine did not answer when its memory was given back: %s", said.text);
    else if (h->has_reserve)
        say(h, "card %" PRIu32 " has its memory back: it took %" PRId64 " MiB", h->device,
            receipt.freed_mib < 0 ? -receipt.freed_mib : 0);
    if (back != 0 && back != EBB_EGONE && !h->hold.is_lease && code == 0)
        code = error_set(err, back, "%s", said.text);
    return code;
}

static int status_of(int code)
{
    if (first_signal != 0)
        return first_signal == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED;
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

int handoff_run(struct handoff *h, const struct handoff_settings *settings, struct error *err)
{
    struct error later = {0};
    int code, status;
    memset(h, 0, sizeof *h);
    h->settings = settings;
    h->let_go_s = -1;
    code = comfy_open(&h->comfy, settings->url, is_stopped, err);
    if (code != 0)
        return code == EBB_EINVAL ? STATUS_USAGE : STATUS_FAILED;
    status = take(h, err);
    if (status == STATUS_DONE) {
        code = work(h, err);
        status = status_of(code);
    }
    if (give_back(h, &later) != 0 && status == STATUS_DONE)
        status = status_of(EBB_EIO);
    if (err->code == 0)
        *err = later;
    if (first_signal != 0)
        status = status_of(EBB_ECANCEL);
    if (status == STATUS_DONE && settings->learn != NULL &&
        learn_write(settings->learn, settings->workflow_name, (uint64_t)((h->peak + MIB - 1) / MIB),
                    &h->learned_mib, err) != 0)
        status = STATUS_FAILED;
    if (h->learned_mib > 0)
        say(h, "learned: %" PRIu64 " MiB for %s", h->learned_mib, settings->workflow_name);
    comfy_close(&h->comfy);
    return status;
}

int handoff_report(FILE *out, const struct handoff *h, int status, struct error *err)
{
    json_t *document = json_pack(
        "{s:i, s:I, s:I, s:I, s:I, s:f, s:b, s:b}", "status", status, "reserve_mib",
        (json_int_t)h->reserve_mib, "freed_mib", (json_int_t)h->freed_mib, "shortfall_mib",
        (json_int_t)h->shortfall_mib, "peak_mib", (json_int_t)(h->peak / MIB), "run_s", h->run_s,
        "given_back", h->given_back ? 1 : 0, "lease", h->hold.is_lease ? 1 : 0);
    int failed = document == NULL;
    failed |= json_object_set_new(document, "device",
                                  h->has_reserve ? json_integer(h->device) : json_null()) != 0;
    failed |= h->id[0] != '\0' && json_object_set_new(document, "prompt_id", json_string(h->id));
    failed |= json_object_set_new(document, "let_go_s",
                                  h->let_go_s < 0 ? json_null() : json_real(h->let_go_s)) != 0;
    if (h->learned_mib > 0)
        failed |= json_object_set_new(document, "learned_mib",
                                      json_integer((json_int_t)h->learned_mib)) != 0;
    if (failed == 0)
        failed = json_dumpf(document, out, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(document);
    fputc('\n', out);
    if (failed != 0)
        return error_set(err, EBB_ENOMEM, "the report could not be written as JSON");
    return fflush(out) == 0 ? 0 : error_set(err, EBB_EIO, "the report could not be written");
}
