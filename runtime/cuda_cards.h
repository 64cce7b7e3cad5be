/* runtime/cuda_cards.h - the CUDA cards of this machine, as the stage's program tells them, and which of them a run takes.
 *
 * The coordinator knows nothing of CUDA: it starts `ebbtide-stage-cuda --list` beside this program, reads its lines and
 * gives it up after CUDA_CARDS_WAIT_S. Nothing is kept; a call starts one process at most and leaves none. Threads: one.
 */
#pragma once
#include "runtime/settings.h"

#define CUDA_CARDS_WAIT_S 20 /* a driver that wakes eight cards takes about half of it */

struct cuda_card {
    uint32_t device;
    char name[128];
    char compute[16]; /* compute capability, "" = not told */
    uint64_t total_mib, free_mib;
    bool usable;
    char why[200]; /* not usable: why */
};

enum cuda_cards_state {
    CUDA_CARDS_LISTED,     /* n cards, 0 among them */
    CUDA_CARDS_NO_PROGRAM, /* ebbtide-stage-cuda does not stand beside this program */
    CUDA_CARDS_NO_DRIVER,  /* it ended with an error: no driver, one too old, no card */
    CUDA_CARDS_BROKEN,     /* it said nothing in time, or what is no list */
};

struct cuda_cards {
    enum cuda_cards_state state;
    char why[300]; /* in every state but CUDA_CARDS_LISTED */
    size_t n;
    struct cuda_card cards[CARDS_MAX];
};

void cuda_cards_list(struct cuda_cards *out);

/* Of `--cards auto`: every usable card in the driver's order, else cpu:0, into s->cards; s->auto_cards and
 * s->auto_why say which and why, s->auto_level how loud that is: something that is broken is a warning, a machine without a GPU is none. */
void cuda_cards_choose(struct settings *s);
