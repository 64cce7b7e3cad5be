/* stages/refill.c - see refill.h. Owns nothing. */
#include "stages/refill.h"

#include <stdlib.h>

static double share_of(const struct refill *r)
{
    return r->share > 0.0 ? r->share : REFILL_SHARE;
}

/* The window has its steps beside uploads and still needs some without. */
static bool holds_back(const struct refill *r)
{
    return r->n_beside == REFILL_BESIDE && r->n_alone < REFILL_ALONE;
}

uint64_t refill_allowance(struct refill *r, uint64_t now_us, bool steps_are_here,
                          uint64_t slot_bytes)
{
    double earned = share_of(r) * (double)(now_us - r->seen_us) * r->speed;
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
    if (holds_back(r))
        return 0;
    if (r->speed == 0.0)
        return 1; /* one expert tells the speed */
    return r->credit > 0.0 ? (uint64_t)r->credit + 1 : 0;
}

void refill_started(struct refill *r, uint64_t now_us, uint64_t bytes)
{
    r->batch_bytes = bytes;
    r->batch_us = now_us;
    r->is_out = r->was_out = true;
    if (r->limited)
        r->credit -= (double)bytes;
}

void refill_ended(struct refill *r, uint64_t now_us)
{
    double us = now_us > r->batch_us ? (double)(now_us - r->batch_us) : 1.0;
    if ((double)r->batch_bytes / us > r->speed)
        r->speed = (double)r->batch_bytes / us;
    r->is_out = false;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

/* The window is whole. */
static void share_adapt(struct refill *r)
{
    double slower = median(r->beside_us, REFILL_BESIDE) / median(r->alone_us, REFILL_ALONE) - 1.0;
    if (slower > REFILL_SLOWER)
        r->share = share_of(r) / 2.0 > REFILL_SHARE ? share_of(r) / 2.0 : REFILL_SHARE;
    else if (slower < REFILL_SLOWER / 2.0)
        r->share = share_of(r) * 2.0 < 1.0 ? share_of(r) * 2.0 : 1.0;
}

void refill_step(struct refill *r, size_t n_rows, uint64_t us)
{
    bool beside = r->was_out;
    r->was_out = r->is_out;
    bool again = n_rows == r->n_rows_last;
    r->n_rows_last = n_rows;
    if (n_rows != r->n_rows && again && (r->n_rows == 0 || r->n_others >= REFILL_OTHERS)) {
        r->n_rows = n_rows;
        r->n_alone = r->n_beside = 0;
    }
    r->n_others = n_rows == r->n_rows ? 0 : r->n_others + 1;
    if (n_rows != r->n_rows)
        return;
    if (r->n_done == r->n_wanted) { /* nothing to fill */
        r->n_alone = r->n_beside = 0;
        return;
    }
    if (beside && r->n_beside < REFILL_BESIDE)
        r->beside_us[r->n_beside++] = (double)us;
    else if (!beside && r->n_alone < REFILL_ALONE)
        r->alone_us[r->n_alone++] = (double)us;
    if (r->n_beside < REFILL_BESIDE || r->n_alone < REFILL_ALONE)
        return;
    share_adapt(r);
    r->n_alone = r->n_beside = 0;
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
