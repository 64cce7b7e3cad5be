/* stages/pin.h - which processors a CPU card's threads keep to: its setting and the host's processors come to numbers here.
 *
 * The cards of one run on one host share its cores or memory nodes out among themselves: card `share` of `n_shares` takes its
 * part of them, in the machine's own order. Where there are fewer than cards, several cards have the same.
 * Pure, but for pin_bind() and pin_unbind(), which move the calling thread; threads that it starts afterwards stay with it.
 */
#pragma once
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/pin.h"

struct processor {
    int number;     /* the system's */
    int core, node; /* equal for processors of one core, of one memory node */
};

struct pin_choice {
    int processors[PIN_PROCESSORS_MAX]; /* ascending by core; n of them, 0: not pinned */
    size_t n;
    bool one_each; /* thread i keeps to processors[i mod n]; else any thread to all of them */
};

struct pin_bound { /* of a thread that was moved; zeroed: it was not */
    bool is_bound;
    cpu_set_t before;
};

/* `all`: the processors that may be used, in the machine's order: those of a core, of a node side by side.
 * EBB_EINVAL: a listed processor is not among them. */
int pin_choose(struct pin_choice *choice, const struct pin *pin, const struct processor *all,
               size_t n_all, uint32_t share, uint32_t n_shares, struct error *err);

/* The calling thread keeps to the choice (nothing happens where it is empty). EBB_EIO. */
int pin_bind(struct pin_bound *bound, const struct pin_choice *choice, struct error *err);
void pin_unbind(struct pin_bound *bound);

size_t pin_processors_allowed(void); /* that the calling thread may use; at least 1 */
