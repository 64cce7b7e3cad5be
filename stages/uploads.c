/* stages/uploads.c - experts on their way into the card's cache: when they start, how many at once (see stage.h, refill.h).
 *
 * Finished uploads are published at boundaries. New ones into free slots start right after a step was launched, so that the step does not
 * wait for the calls that start them; an exchange starts at a boundary, where nobody reads the slot that it takes. A VRAM command waits
 * for the uploads that run: a batch takes UPLOAD_BATCH_US at most. Threads: the control thread. Owns nothing.
 */
#include "stages/stage.h"

#define UPLOAD_BATCH_US 1500

static bool steps_are_here(struct stage *s)
{
    return s->state == STAGE_SERVING &&
           (s->run.phase != RUN_IDLE || queue_first(&s->queue) != NULL);
}

int uploads_settle(struct stage *s, struct error *err)
{
    struct experts *x = &s->experts;
    struct trace *t = &s->trace;
    uint64_t n_batches = x->n_batches, now = now_us();
    size_t n = x->n_uploading;
    int rc = experts_settle(x, err);
    refill_progress(&s->refill, experts_n_open(x));
    if (n == 0 || n_batches == x->n_batches)
        return rc;
    refill_ended(&s->refill, now);
    if (trace_is_on(t))
        trace_span(t, TRACE_UPLOAD, t->upload_us, now,
                   "name=experts n=%zu bytes=%llu promoted=%llu", n,
                   (unsigned long long)t->upload_bytes, (unsigned long long)t->upload_promoted);
    return rc;
}

int uploads_start(struct stage *s, bool at_boundary, struct error *err)
{
    struct experts *x = &s->experts;
    if (x->n_uploading > 0)
        return 0;
    if (at_boundary && steps_are_here(s) && experts_is_filling(x))
        return 0;
    uint64_t bytes = x->upload_bytes, promoted = x->n_promoted, now = now_us();
    uint64_t may = refill_allowance(&s->refill, now, steps_are_here(s), x->slot_bytes);
    uint64_t most = (uint64_t)(s->refill.speed * UPLOAD_BATCH_US);
    if (most > 0 && may > most)
        may = most;
    int rc = experts_upload(x, may, at_boundary, err);
    if (x->upload_bytes == bytes)
        return rc;
    refill_started(&s->refill, now, x->upload_bytes - bytes);
    s->trace.upload_us = now;
    s->trace.upload_bytes = x->upload_bytes - bytes;
    s->trace.upload_promoted = x->n_promoted - promoted;
    return rc;
}
