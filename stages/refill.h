/* stages/refill.h - how much may be uploaded into the cache while steps run, and how far a refill is.
 *
 * A card where no step came for a while, or that is loading, fills as fast as its bus goes. While steps run, uploads get a share of the
 * time at the best speed seen, and one upload that overdraws is earned before the next. The share begins where a step could not become
 * longer by more than REFILL_SLOWER even if each copy stopped the card. Then it follows what is measured: of short windows of equal
 * steps, some run beside uploads and some without; as long as their medians hardly differ the share grows, and where they differ by
 * more than REFILL_SLOWER it falls. So a card whose copies go beside its work fills at nearly the speed of the bus, and one that reads
 * its missing experts over the same bus does not. Pure: it is told the time. Threads: the control thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REFILL_SHARE    0.04  /* of the time, while steps run: the least */
#define REFILL_SLOWER   0.05  /* a step beside uploads, of one without */
#define REFILL_BESIDE   16    /* steps of a window beside uploads, */
#define REFILL_OTHERS   32    /* after so many steps of other rows those make the window */
#define REFILL_ALONE    6     /* and without */
#define REFILL_QUIET_US 50000 /* after this long without a step there is nobody to slow down */

struct refill {
    double speed;     /* bytes a microsecond, the best seen; 0: none yet */
    double credit;    /* bytes */
    uint64_t seen_us; /* when the credit was counted */
    uint64_t step_us; /* when a step was last there; 0: never */
    uint64_t batch_bytes, batch_us;
    bool limited;                       /* by the last allowance */
    double share;                       /* of the time; 0: REFILL_SHARE */
    bool is_out, was_out;               /* an upload: now; at some time of the step that runs */
    size_t n_rows, n_rows_last;         /* of the steps of the window, of the last step */
    size_t n_alone, n_beside, n_others; /* others: steps of other rows since the last of these */
    double alone_us[REFILL_ALONE], beside_us[REFILL_BESIDE];
    uint64_t n_done, n_wanted; /* slots of the refill that runs or was the last */
};

/* Bytes whose upload may start now: the last of them may be any byte of an expert. UINT64_MAX: no limit. */
uint64_t refill_allowance(struct refill *r, uint64_t now_us, bool steps_are_here,
                          uint64_t slot_bytes);
void refill_started(struct refill *r, uint64_t now_us, uint64_t bytes);
void refill_ended(struct refill *r, uint64_t now_us); /* what started last is in its slots */
/* A step of so many rows has taken so long. */
void refill_step(struct refill *r, size_t n_rows, uint64_t us);
/* n_open: slots that are free now and have an expert that could fill them. */
void refill_progress(struct refill *r, uint64_t n_open);
