/* kernels/exec.h - where work runs: streams, events, graphs, copies, host registration and doorbells of one card.
 *
 * One `struct exec` is one card's executor, a table of functions that the CPU (exec_cpu.c: one plain queue and
 * thread a stream, a shared pool of workers for the loops inside an operation) and CUDA (exec_cuda.c) fill alike.
 * Work is put on a stream and runs in its order. The control thread puts work and asks; it never waits in here:
 * event_query() says done or not, and wake_fd() becomes readable when something finished (or is -1, and the
 * caller polls). Per-step values sit in fixed-address buffers; what is passed to a launch is fixed at capture.
 *
 * Threads: one control thread calls everything here. Lifetime: close streams, events and graphs before the exec.
 * Failure: a call that fails put nothing on the stream.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct exec;
struct exec_stream;
struct exec_event;
struct exec_graph;
struct exec_doorbell;

struct exec_settings {
    int device;    /* the card's number as its driver counts; CPU: only a name */
    int n_threads; /* CPU: workers of a stream's loops, the stream's own thread counted; >= 1 */
    /* CPU: thread i keeps to processor cpus[i mod n_cpus], the thread of the stream opened first being thread 0; other
     * streams' threads, and all where this is NULL, run where the thread that opens them may. Read in open() only. */
    const int *cpus;
    size_t n_cpus;
};

struct exec_driver {
    const char *name; /* "cpu" | "cuda" */
    /* The card is a device of its own: reading host memory costs a kernel time, and every launch costs the control thread some.
     * Per-step values are then copied to the card, and short steps are recorded as graphs. */
    bool is_device;
    int (*open)(struct exec **e, const struct exec_settings *settings, struct error *err);
    void (*close)(struct exec *e); /* NULL is fine; drains first */

    int (*stream_open)(struct exec *e, struct exec_stream **s, struct error *err);
    void (*stream_close)(struct exec_stream *s);
    /* The stream as a library of the card's maker takes it (CUDA: its cudaStream_t; CPU: itself). */
    void *(*stream_handle)(struct exec_stream *s);
    /* Called on a thread beside the control thread, before it calls such a library for this card; anything else stays with the control
     * thread. */
    int (*thread_enter)(struct exec *e);

    /* An event is done when all work put on the stream before the last record is done; a fresh one is done. */
    int (*event_open)(struct exec *e, struct exec_event **event, struct error *err);
    void (*event_close)(struct exec_event *event);
    int (*event_record)(struct exec_event *event, struct exec_stream *s);
    int (*event_query)(struct exec_event *event); /* 1 done, 0 not yet, < 0 a launch failed */
    int (*stream_wait)(struct exec_stream *s,
                       struct exec_event *event); /* s runs on only after the event */

    int (*copy)(struct exec_stream *s, void *to, const void *from, size_t bytes);
    int (*fill)(struct exec_stream *s, void *to, int byte, size_t bytes);

    /* Between begin and end, work put on s is recorded, not run. A graph may be launched any number of times. */
    int (*capture_begin)(struct exec_stream *s);
    int (*capture_end)(struct exec_stream *s, struct exec_graph **graph, struct error *err);
    int (*graph_launch)(struct exec_graph *graph, struct exec_stream *s);
    void (*graph_close)(struct exec_graph *graph);

    /* Makes host pages readable by kernels. Ranges of different calls share no page. CPU: nothing to do. */
    int (*host_register)(struct exec *e, const void *base, size_t bytes, struct error *err);
    void (*host_unregister)(struct exec *e, const void *base, size_t bytes);

    /* Memory that kernels and the control thread both see at one address, zeroed: the per-step buffers. */
    int (*shared_alloc)(struct exec *e, size_t bytes, void **base, struct error *err);
    void (*shared_free)(struct exec *e, void *base); /* NULL is fine */

    /* A number that a stream publishes in order and the control thread reads without a call into the driver. */
    int (*doorbell_open)(struct exec *e, struct exec_doorbell **bell, struct error *err);
    void (*doorbell_close)(struct exec_doorbell *bell);
    int (*doorbell_ring)(struct exec_doorbell *bell, struct exec_stream *s, uint64_t value);
    uint64_t (*doorbell_read)(const struct exec_doorbell *bell);

    int (*wake_fd)(
        struct exec
            *e); /* readable after an event, doorbell or failure since the last wake_clear; or -1 */
    void (*wake_clear)(struct exec *e);
};

extern const struct exec_driver exec_cpu;
extern const struct exec_driver exec_cuda; /* in programs linked with the room's CUDA half */

/* For operations of the CPU kernel sets only (exec_cpu.c). A job runs on the stream's own thread with a private
 * copy of args (args_bytes <= EXEC_CPU_ARGS_MAX); parallel_for() cuts [0, n) into pieces of at least `grain` for
 * the pool and returns when all ran. The result of a job must not depend on the number of workers. */
#define EXEC_CPU_ARGS_MAX 320
struct exec_cpu_worker; /* opaque: the stream's hold on the pool */
typedef void exec_cpu_job(const void *args, struct exec_cpu_worker *w);
typedef void exec_cpu_range(void *ctx, size_t first, size_t last);
int exec_cpu_push(struct exec_stream *s, exec_cpu_job *job, const void *args, size_t args_bytes);
void exec_cpu_parallel_for(struct exec_cpu_worker *w, size_t n, size_t grain, exec_cpu_range *body,
                           void *ctx);

#ifdef __cplusplus
}
#endif
