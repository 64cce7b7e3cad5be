/* stages/refill.c - see refill.h. Owns nothing. */
#include "stages/refill.h"

uint64_t refill_allowance(struct refill *r, uint64_t now_us, bool steps_are_here,
                          uint64_t slot_bytes)
{
    double earned = REFILL_SHARE * (double)(now_us - r->seen_us) * r->speed;
    r->seen_us = now_us;
    if (steps_are_here)
        r->step_us = now_us;
    r->limited = r->step_us != 0 && now_us - r->step_us <= REFILL_QUIET_US;
    if (!r->limited) {
        r->credit = 0.0;
        return UINT64_MAX;
    }
    r->credit += earned;
    if (r->credit >
        (double)slot_bytes + earned) /* no more than this at once, however long it waited */
        r->credit = (double)slot_bytes + earned;
    if (r->speed == 0.0)
        return 1; /* one expert tells the speed */
    return r->credit > 0.0 ? (uint64_t)r->credit + 1 : 0;
}

void refill_started(struct refill *r, uint64_t now_us, uint64_t bytes)
{
    r->batch_bytes = bytes;
    r->batch_us = now_us;
    if (r->limited)
        r->credit -= (double)bytes;
}

void refill_ended(struct refill *r, uint64_t now_us)
{
    double us = now_us > r->batch_us ? (double)(now_us - r->batch_us) : 1.0;
    if ((double)r->batch_bytes / us > r->speed)
        r->speed = (double)r->batch_bytes / us;
}

void refill_progress(struct refill *r, uint64_t n_open)
{
    if (n_open > r->n_wanted - r->n_done) { /* more became free: a refill of its own */
        r->n_wanted = n_open;
        r->n_done = 0;
    } else {
        r->n_done = r->n_wanted - n_open;
    }
}
