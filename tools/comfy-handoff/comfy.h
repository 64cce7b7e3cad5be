/* tools/comfy-handoff/comfy.h - a ComfyUI server over HTTP: its card's memory, its queue, a job of it, and its models' release.
 *
 * Speaks the endpoints that ComfyUI has: GET /system_stats, POST /prompt, GET /history/<id>, GET /queue, POST /queue,
 * POST /interrupt, POST /free. Every call ends within its time limit, or at once when should_stop() says so (EBB_ECANCEL).
 * Errors: EBB_EIO, the server cannot be reached or the connection broke; EBB_EPEER, it refused or answered what cannot be.
 * Nothing of an answer is trusted: sizes are bounded, types are checked. Threads: one owner.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "protocol/error.h"

#define COMFY_ID_BYTES   128
#define COMFY_TEXT_BYTES 256

struct comfy {
    void *curl; /* owned */
    char base[512];
    bool (*should_stop)(void);
    long timeout_ms;
};

/* EBB_EINVAL: no http:// or https:// address. */
int comfy_open(struct comfy *c, const char *url, bool (*should_stop)(void), struct error *err);
void comfy_close(struct comfy *c);

/* The first card that it computes on. Bytes. */
struct comfy_memory {
    char name[COMFY_TEXT_BYTES]; /* "cuda:0 NVIDIA H200 : cudaMallocAsync" */
    char uuid[COMFY_TEXT_BYTES]; /* "" where it is not told, as ComfyUI's own server does not */
    int64_t index;               /* as ComfyUI counts; below 0: not told */
    int64_t total, free;         /* free counts what torch keeps without using it */
    int64_t torch_total,
        torch_free; /* what torch took from the driver, and of it what it does not use; below 0: not told */
};
int comfy_memory(struct comfy *c, struct comfy_memory *m, struct error *err);
/* Where the server that answered last listens, if that is on this host; else 0. */
unsigned comfy_port_here(const struct comfy *c);
/* What the driver calls free: without what torch keeps. */
int64_t comfy_driver_free(const struct comfy_memory *m);

/* Queues a workflow in API format; its id. A node that ComfyUI finds wrong refuses the whole (EBB_EPEER names it), also
 * where ComfyUI would run the rest: that is taken from its queue again. After a failure id is empty.
 * Not stopped by should_stop(). */
int comfy_queue(struct comfy *c, json_t *workflow, char id[static COMFY_ID_BYTES],
                struct error *err);

enum comfy_state { COMFY_PENDING, COMFY_RUNNING, COMFY_DONE, COMFY_FAILED, COMFY_UNKNOWN };
struct comfy_job {
    enum comfy_state state;
    size_t n_ahead;             /* pending: jobs before it */
    char why[COMFY_TEXT_BYTES]; /* failed: the node and its words */
};
int comfy_job(struct comfy *c, const char *id, struct comfy_job *job, struct error *err);
/* Takes the job out of the queue, and interrupts it if it is the one that runs. */
int comfy_cancel(struct comfy *c, const char *id, struct error *err);
/* Asks it to unload its models and to free its memory. It does so later, when its worker comes to it. */
int comfy_free(struct comfy *c, struct error *err);
