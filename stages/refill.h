/* stages/refill.h - how much may be uploaded into the cache while steps run, and how far a refill is.
 *
 * A card where no step came for a while, or that is loading, fills as fast as its bus goes. While steps run, uploads get a share of the
 * time, counted as if each stopped the card for as long as its copy takes at the best speed seen: so a token becomes no longer than by
 * that share, and one upload that overdraws is earned before the next. Pure: it is told the time. Threads: the control thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define REFILL_SHARE    0.04  /* of the time, while steps run */
#define REFILL_QUIET_US 50000 /* after this long without a step there is nobody to slow down */

struct refill {
    double speed;     /* bytes a microsecond, the best seen; 0: none yet */
    double credit;    /* bytes */
    uint64_t seen_us; /* when the credit was counted */
    uint64_t step_us; /* when a step was last there; 0: never */
    uint64_t batch_bytes, batch_us;
    bool limited;              /* by the last allowance */
    uint64_t n_done, n_wanted; /* slots of the refill that runs or was the last */
};

/* Bytes whose upload may start now: the last of them may be any byte of an expert. UINT64_MAX: no limit. */
uint64_t refill_allowance(struct refill *r, uint64_t now_us, bool steps_are_here,
                          uint64_t slot_bytes);
void refill_started(struct refill *r, uint64_t now_us, uint64_t bytes);
void refill_ended(struct refill *r, uint64_t now_us); /* what started last is in its slots */
/* n_open: slots that are free now and have an expert that could fill them. */
void refill_progress(struct refill *r, uint64_t n_open);
