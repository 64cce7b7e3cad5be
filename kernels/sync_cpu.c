/* sync_cpu.c - what the control thread learns from CPU streams: events and doorbells.
 *
 * Both are counted: an operation in a queue holds one reference, the opener another, so closing one whose work is
 * still queued is safe. An event counts its records and is done when the number of its last record has been reached;
 * event_query() only loads an atomic. A stream that waits sleeps in its own thread, never in the control thread.
 * Deadlock cannot arise: a wait names the last record made before it, and every stream runs in order.
 *
 * Refuses: anything here inside a capture (EBB_EUNSUPPORTED): a graph would repeat one number for ever.
 */
#include "kernels/exec_cpu.h"
#include "kernels/pool_cpu.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct exec_event {
    _Atomic size_t n_refs;
    uint64_t n_recorded; /* control thread */
    _Atomic uint64_t n_done;
    pthread_mutex_t lock;
    pthread_cond_t done;
};

struct exec_doorbell {
    _Atomic size_t n_refs;
    _Atomic uint64_t value;
};

int sync_cpu_event_open(struct exec *e, struct exec_event **out, struct error *err)
{
    (void)e;
    struct exec_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return error_set(err, EBB_ENOMEM, "cpu event: no memory");
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->done, NULL);
    atomic_store(&event->n_refs, 1);
    *out = event;
    return 0;
}

void sync_cpu_event_close(struct exec_event *event)
{
    if (event == NULL || atomic_fetch_sub(&event->n_refs, 1) != 1)
        return;
    pthread_cond_destroy(&event->done);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

struct event_op {
    struct exec *e;
    struct exec_event *event; /* counted */
    uint64_t number;
};

static int event_push(struct exec_stream *s, exec_cpu_job *job, struct exec_event *event,
                      uint64_t number)
{
    struct event_op op = {exec_cpu_of(s), event, number};
    if (exec_cpu_capturing(s))
        return EBB_EUNSUPPORTED;
    atomic_fetch_add(&event->n_refs, 1);
    int rc = exec_cpu_push(s, job, &op, sizeof op);
    if (rc != 0)
        atomic_fetch_sub(&event->n_refs, 1);
    return rc;
}

/* Records of one event on two streams complete in the order they were made: else the later one would let a wait for
 * the earlier one pass. On one stream there is never anything to wait for here. */
static void event_record_job(const void *args, struct exec_cpu_worker *w)
{
    (void)w;
    const struct event_op *op = args;
    struct exec_event *event = op->event;
    pthread_mutex_lock(&event->lock);
    while (atomic_load(&event->n_done) < op->number - 1)
        pthread_cond_wait(&event->done, &event->lock);
    atomic_store(&event->n_done, op->number);
    pthread_cond_broadcast(&event->done);
    pthread_mutex_unlock(&event->lock);
    exec_cpu_wake(op->e);
    sync_cpu_event_close(event);
}

int sync_cpu_event_record(struct exec_event *event, struct exec_stream *s)
{
    int rc = event_push(s, event_record_job, event, event->n_recorded + 1);
    if (rc == 0)
        event->n_recorded++;
    return rc;
}

int sync_cpu_event_query(struct exec_event *event)
{
    return atomic_load(&event->n_done) >= event->n_recorded;
}

static void stream_wait_job(const void *args, struct exec_cpu_worker *w)
{
    (void)w;
    const struct event_op *op = args;
    struct exec_event *event = op->event;
    for (int i = 0; i < CPU_SPINS && atomic_load(&event->n_done) < op->number; i++)
        cpu_relax();
    if (atomic_load(&event->n_done) < op->number) {
        pthread_mutex_lock(&event->lock);
        while (atomic_load(&event->n_done) < op->number)
            pthread_cond_wait(&event->done, &event->lock);
        pthread_mutex_unlock(&event->lock);
    }
    sync_cpu_event_close(event);
}

int sync_cpu_stream_wait(struct exec_stream *s, struct exec_event *event)
{
    if (!exec_cpu_capturing(s) && sync_cpu_event_query(event))
        return 0;
    return event_push(s, stream_wait_job, event, event->n_recorded);
}

int sync_cpu_doorbell_open(struct exec *e, struct exec_doorbell **bell, struct error *err)
{
    (void)e;
    struct exec_doorbell *b = calloc(1, sizeof *b);
    if (b == NULL)
        return error_set(err, EBB_ENOMEM, "cpu doorbell: no memory");
    atomic_store(&b->n_refs, 1);
    *bell = b;
    return 0;
}

void sync_cpu_doorbell_close(struct exec_doorbell *bell)
{
    if (bell != NULL && atomic_fetch_sub(&bell->n_refs, 1) == 1)
        free(bell);
}

struct ring_op {
    struct exec *e;
    struct exec_doorbell *bell; /* counted */
    uint64_t value;
};

static void ring_job(const void *args, struct exec_cpu_worker *w)
{
    (void)w;
    const struct ring_op *op = args;
    atomic_store(&op->bell->value, op->value);
    exec_cpu_wake(op->e);
    sync_cpu_doorbell_close(op->bell);
}

int sync_cpu_doorbell_ring(struct exec_doorbell *bell, struct exec_stream *s, uint64_t value)
{
    struct ring_op op = {exec_cpu_of(s), bell, value};
    if (exec_cpu_capturing(s))
        return EBB_EUNSUPPORTED;
    atomic_fetch_add(&bell->n_refs, 1);
    int rc = exec_cpu_push(s, ring_job, &op, sizeof op);
    if (rc != 0)
        atomic_fetch_sub(&bell->n_refs, 1);
    return rc;
}

uint64_t sync_cpu_doorbell_read(const struct exec_doorbell *bell)
{
    return atomic_load(&bell->value);
}
