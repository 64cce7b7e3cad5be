/* exec_cpu.c - the executor of a CPU card: streams are queues with a thread each, loops share a pool of workers.
 *
 * A stream's queue is a list of chunks of operations. The control thread fills the last chunk and raises `n_pushed`;
 * the stream's thread runs operations where they lie and hands emptied chunks back, so a queue that has once been as
 * deep as it gets allocates nothing more. The stream's thread spins for microseconds, then sleeps; the control
 * thread never waits, except in stream_close() and close(), which let everything queued run first.
 *
 * A graph is a private copy of operations, launched as one operation; a queued launch keeps it alive. Events and
 * doorbells are in sync_cpu.c. wake_fd is an eventfd that is written once until wake_clear(): clear, then ask.
 *
 * Refuses: a graph launch inside a capture (EBB_EUNSUPPORTED). CPU operations cannot fail once queued, so
 * event_query() never reports a failure here.
 */
#include "kernels/exec_cpu.h"
#include "kernels/misses.h"
#include "kernels/pool_cpu.h"
#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHUNK_OPS       64
#define THREADS_MAX     1024
#define COPY_GRAIN      (1u << 20) /* bytes; below it a second thread costs more than it saves */
#define GRAPH_OPS_FIRST 64

struct op {
    exec_cpu_job *job;
    size_t args_bytes;
    alignas(16) unsigned char args[EXEC_CPU_ARGS_MAX];
};

struct chunk {
    struct chunk *next;
    struct op ops[CHUNK_OPS];
};

struct exec_graph {
    _Atomic size_t n_refs;
    struct op *ops; /* owned */
    size_t n_ops, n_capacity;
    bool incomplete; /* an operation could not be recorded: capture_end refuses */
};

struct exec_cpu_worker {
    struct pool_cpu *pool; /* borrowed */
};

struct exec {
    struct pool_cpu *pool;
    int wake_fd;
    _Atomic bool woken;          /* wake_fd has been written since the last clear */
    struct exec_stream *streams; /* open ones; control thread */
    int first_cpu;               /* of the first stream's thread; < 0: anywhere, or taken already */
};

struct exec_stream {
    struct exec *e;
    struct exec_stream *next;
    /* Control thread's side. */
    struct chunk *tail, *spare;
    size_t tail_used;
    struct exec_graph *capture; /* NULL when not capturing */
    /* Shared. */
    _Atomic(struct chunk *) emptied; /* chunks handed back by the stream's thread */
    _Atomic uint64_t n_pushed;
    _Atomic bool sleeping, stopping;
    pthread_mutex_t lock;
    pthread_cond_t pushed;
    /* The stream's thread's side. */
    struct chunk *head;
    size_t head_used;
    struct exec_cpu_worker worker;
    unsigned long thread;
};

void exec_cpu_wake(struct exec *e)
{
    const uint64_t one = 1;
    if (!atomic_exchange(&e->woken, true))
        while (write(e->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
}

struct exec *exec_cpu_of(const struct exec_stream *s)
{
    return s->e;
}

bool exec_cpu_capturing(const struct exec_stream *s)
{
    return s->capture != NULL;
}

static void *cpu_stream_handle(struct exec_stream *s)
{
    return s;
}

static int cpu_thread_enter(struct exec *e)
{
    (void)e;
    return 0;
}

static int cpu_wake_fd(struct exec *e)
{
    return e->wake_fd;
}

/* The descriptor is emptied before the flag falls: work that finishes between the two does not write, but the
 * caller, who asks its events after this call, sees it. The other order would lose that wake-up for good. */
static void cpu_wake_clear(struct exec *e)
{
    uint64_t count;
    while (read(e->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    atomic_exchange(&e->woken, false);
}

static void chunk_recycle(struct exec_stream *s, struct chunk *c)
{
    c->next = atomic_load(&s->emptied);
    while (!atomic_compare_exchange_weak(&s->emptied, &c->next, c))
        ;
}

static struct op *op_next(struct exec_stream *s)
{
    if (s->head_used == CHUNK_OPS) {
        struct chunk *old = s->head;
        s->head = old->next;
        s->head_used = 0;
        chunk_recycle(s, old);
    }
    return &s->head->ops[s->head_used++];
}

/* Waits until more than n_run operations have been pushed; returns their count, n_run when the stream ends. */
static uint64_t work_wait(struct exec_stream *s, uint64_t n_run)
{
    uint64_t n;
    for (int i = 0; i < CPU_SPINS; i++) {
        if ((n = atomic_load(&s->n_pushed)) != n_run)
            return n;
        cpu_relax();
    }
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->sleeping, true);
    while ((n = atomic_load(&s->n_pushed)) == n_run && !atomic_load(&s->stopping)) {
        pthread_cond_wait(&s->pushed, &s->lock);
        atomic_store(&s->sleeping, true);
    }
    atomic_store(&s->sleeping, false);
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void *stream_main(void *arg)
{
    struct exec_stream *s = arg;
    uint64_t n_run = 0, n_pushed;
    while ((n_pushed = work_wait(s, n_run)) != n_run) {
        pool_cpu_busy(s->worker.pool, true);
        for (; n_run != n_pushed; n_run++) {
            struct op *op = op_next(s);
            op->job(op->args, &s->worker);
        }
        pool_cpu_busy(s->worker.pool, false);
    }
    return NULL;
}

void exec_cpu_parallel_for(struct exec_cpu_worker *w, size_t n, size_t grain, exec_cpu_range *body,
                           void *ctx)
{
    pool_cpu_for(w->pool, n, grain, body, ctx);
}

static void op_set(struct op *op, exec_cpu_job *job, const void *args, size_t args_bytes)
{
    op->job = job;
    op->args_bytes = args_bytes;
    if (args_bytes > 0)
        memcpy(op->args, args, args_bytes);
}

static int graph_append(struct exec_graph *g, exec_cpu_job *job, const void *args,
                        size_t args_bytes)
{
    if (g->n_ops == g->n_capacity) {
        size_t n = g->n_capacity > 0 ? 2 * g->n_capacity : GRAPH_OPS_FIRST;
        struct op *ops = realloc(g->ops, n * sizeof *ops);
        if (ops == NULL) {
            g->incomplete = true;
            return EBB_ENOMEM;
        }
        g->ops = ops;
        g->n_capacity = n;
    }
    op_set(&g->ops[g->n_ops++], job, args, args_bytes);
    return 0;
}

static struct chunk *chunk_take(struct exec_stream *s)
{
    if (s->spare == NULL)
        s->spare = atomic_exchange(&s->emptied, NULL);
    struct chunk *c = s->spare;
    if (c == NULL)
        return malloc(sizeof *c);
    s->spare = c->next;
    return c;
}

int exec_cpu_push(struct exec_stream *s, exec_cpu_job *job, const void *args, size_t args_bytes)
{
    if (args_bytes > EXEC_CPU_ARGS_MAX)
        return EBB_EINVAL;
    if (s->capture != NULL)
        return graph_append(s->capture, job, args, args_bytes);
    if (s->tail_used == CHUNK_OPS) {
        struct chunk *c = chunk_take(s);
        if (c == NULL)
            return EBB_ENOMEM;
        c->next = NULL;
        s->tail->next = c;
        s->tail = c;
        s->tail_used = 0;
    }
    op_set(&s->tail->ops[s->tail_used++], job, args, args_bytes);
    atomic_fetch_add(&s->n_pushed, 1);
    if (atomic_load(&s->sleeping)) {
        pthread_mutex_lock(&s->lock);
        atomic_store(&s->sleeping, false); /* the next push need not signal again */
        pthread_cond_signal(&s->pushed);
        pthread_mutex_unlock(&s->lock);
    }
    return 0;
}

struct copy_op {
    void *to;
    const void *from;
    size_t bytes;
    int byte;
};

static void copy_range(void *ctx, size_t first, size_t last)
{
    const struct copy_op *c = ctx;
    memcpy((char *)c->to + first, (const char *)c->from + first, last - first);
}

static void copy_job(const void *args, struct exec_cpu_worker *w)
{
    struct copy_op c = *(const struct copy_op *)args;
    exec_cpu_parallel_for(w, c.bytes, COPY_GRAIN, copy_range, &c);
}

static int cpu_copy(struct exec_stream *s, void *to, const void *from, size_t bytes)
{
    struct copy_op c = {.to = to, .from = from, .bytes = bytes};
    return exec_cpu_push(s, copy_job, &c, sizeof c);
}

static void fill_range(void *ctx, size_t first, size_t last)
{
    const struct copy_op *c = ctx;
    memset((char *)c->to + first, c->byte, last - first);
}

static void fill_job(const void *args, struct exec_cpu_worker *w)
{
    struct copy_op c = *(const struct copy_op *)args;
    exec_cpu_parallel_for(w, c.bytes, COPY_GRAIN, fill_range, &c);
}

static int cpu_fill(struct exec_stream *s, void *to, int byte, size_t bytes)
{
    struct copy_op c = {.to = to, .bytes = bytes, .byte = byte};
    return exec_cpu_push(s, fill_job, &c, sizeof c);
}

static void cpu_graph_close(struct exec_graph *g)
{
    if (g == NULL || atomic_fetch_sub(&g->n_refs, 1) != 1)
        return;
    free(g->ops);
    free(g);
}

static int cpu_capture_begin(struct exec_stream *s)
{
    if (s->capture != NULL)
        return EBB_EINVAL;
    s->capture = calloc(1, sizeof *s->capture);
    if (s->capture == NULL)
        return EBB_ENOMEM;
    atomic_store(&s->capture->n_refs, 1);
    return 0;
}

static int cpu_capture_end(struct exec_stream *s, struct exec_graph **graph, struct error *err)
{
    struct exec_graph *g = s->capture;
    if (g == NULL)
        return error_set(err, EBB_EINVAL,
                         "cpu graph: capture ended on a stream that captures nothing");
    s->capture = NULL;
    if (g->incomplete) {
        int rc = error_set(err, EBB_ENOMEM, "cpu graph: no memory after %zu operations", g->n_ops);
        cpu_graph_close(g);
        return rc;
    }
    struct op *fitted = g->n_ops > 0 ? realloc(g->ops, g->n_ops * sizeof *fitted) : NULL;
    if (fitted != NULL) {
        g->ops = fitted;
        g->n_capacity = g->n_ops;
    }
    *graph = g;
    return 0;
}

void exec_cpu_graph_run(const struct exec_graph *graph, struct exec_cpu_worker *w)
{
    for (size_t i = 0; i < graph->n_ops; i++)
        graph->ops[i].job(graph->ops[i].args, w);
}

struct graph_op {
    struct exec_graph *graph; /* counted */
};

static void graph_job(const void *args, struct exec_cpu_worker *w)
{
    struct exec_graph *g = ((const struct graph_op *)args)->graph;
    exec_cpu_graph_run(g, w);
    cpu_graph_close(g);
}

static int cpu_graph_launch(struct exec_graph *graph, struct exec_stream *s)
{
    struct graph_op op = {graph};
    if (s->capture != NULL)
        return EBB_EUNSUPPORTED;
    atomic_fetch_add(&graph->n_refs, 1);
    int rc = exec_cpu_push(s, graph_job, &op, sizeof op);
    if (rc != 0)
        atomic_fetch_sub(&graph->n_refs, 1);
    return rc;
}

static int cpu_host_register(struct exec *e, const void *base, size_t bytes, struct error *err)
{
    (void)e, (void)base, (void)bytes, (void)err;
    return 0;
}

/* The CPU's kernels see all host memory; lines of their own keep buffers from sharing one. */
static int cpu_shared_alloc(struct exec *e, size_t bytes, void **base, struct error *err)
{
    (void)e;
    size_t rounded = (bytes + 63) / 64 * 64;
    *base = rounded >= bytes ? aligned_alloc(64, rounded > 0 ? rounded : 64) : NULL;
    if (*base == NULL)
        return error_set(err, EBB_ENOMEM, "exec: no memory for %zu shared bytes", bytes);
    memset(*base, 0, rounded);
    return 0;
}

static void cpu_shared_free(struct exec *e, void *base)
{
    (void)e;
    free(base);
}

static void cpu_host_unregister(struct exec *e, const void *base, size_t bytes)
{
    (void)bytes;
    (void)e, (void)base;
}

static void chunks_free(struct chunk *c)
{
    while (c != NULL) {
        struct chunk *next = c->next;
        free(c);
        c = next;
    }
}

static void stream_free(struct exec_stream *s)
{
    cpu_graph_close(s->capture);
    chunks_free(s->head);
    chunks_free(s->spare);
    chunks_free(atomic_load(&s->emptied));
    pthread_cond_destroy(&s->pushed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int cpu_stream_open(struct exec *e, struct exec_stream **out, struct error *err)
{
    struct exec_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, EBB_ENOMEM, "cpu stream: no memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->pushed, NULL);
    s->e = e;
    s->worker.pool = e->pool;
    s->head = s->tail = calloc(1, sizeof *s->head);
    s->spare = calloc(1, sizeof *s->spare);
    if (s->head == NULL || s->spare == NULL) {
        stream_free(s);
        return error_set(err, EBB_ENOMEM, "cpu stream: no memory for its queue");
    }
    int rc = cpu_thread_start(stream_main, s, "ebb-stream", e->first_cpu, &s->thread);
    if (rc != 0) {
        stream_free(s);
        return error_set(err, cpu_thread_code(rc), "cpu stream: its thread could not start: %s",
                         strerror(rc));
    }
    e->first_cpu = -1;
    s->next = e->streams;
    e->streams = s;
    *out = s;
    return 0;
}

/* Lets what is queued run, then ends the thread. */
static void cpu_stream_close(struct exec_stream *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->stopping, true);
    pthread_cond_signal(&s->pushed);
    pthread_mutex_unlock(&s->lock);
    cpu_thread_join(s->thread);
    struct exec_stream **link = &s->e->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    stream_free(s);
}

static void cpu_close(struct exec *e)
{
    if (e == NULL)
        return;
    while (e->streams != NULL)
        cpu_stream_close(e->streams);
    pool_cpu_close(e->pool);
    if (e->wake_fd >= 0)
        close(e->wake_fd);
    free(e);
}

static int cpu_open(struct exec **out, const struct exec_settings *settings, struct error *err)
{
    int n_threads = settings->n_threads;
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return error_set(err, EBB_EINVAL, "cpu:%d: wants 1 to %d threads, got %d", settings->device,
                         THREADS_MAX, n_threads);
    struct exec *e = calloc(1, sizeof *e);
    if (e == NULL)
        return error_set(err, EBB_ENOMEM, "cpu:%d: no memory", settings->device);
    int rc;
    e->first_cpu = settings->n_cpus > 0 ? settings->cpus[0] : -1;
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->wake_fd < 0)
        rc = error_set(err, EBB_EIO, "cpu:%d: eventfd: %s", settings->device, strerror(errno));
    else
        rc = pool_cpu_open(&e->pool, n_threads - 1, settings, err);
    if (rc != 0) {
        cpu_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

const struct exec_driver exec_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_handle = cpu_stream_handle,
    .thread_enter = cpu_thread_enter,
    .event_open = sync_cpu_event_open,
    .event_close = sync_cpu_event_close,
    .event_record = sync_cpu_event_record,
    .event_query = sync_cpu_event_query,
    .stream_wait = sync_cpu_stream_wait,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .graph_launch = cpu_graph_launch,
    .graph_close = cpu_graph_close,
    .host_register = cpu_host_register,
    .host_unregister = cpu_host_unregister,
    .shared_alloc = cpu_shared_alloc,
    .shared_free = cpu_shared_free,
    .doorbell_open = sync_cpu_doorbell_open,
    .doorbell_close = sync_cpu_doorbell_close,
    .doorbell_ring = sync_cpu_doorbell_ring,
    .doorbell_read = sync_cpu_doorbell_read,
    .wake_fd = cpu_wake_fd,
    .wake_clear = cpu_wake_clear,
};
