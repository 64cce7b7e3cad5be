/* stages/miss_rates.h - how many of a layer's absent experts the host computes, so that it and the card are done soonest.
 *
 * What a choice costs is seen, not reckoned: the time from one ask to the next, for m absent experts of which k were the host's. Of each
 * m up to MISS_RATES_MOST the k with the shortest is taken; now and then its neighbour, so that times which change are noticed. What has
 * not been seen, and every larger m, is reckoned from a probe at load: the card reads n experts over the bus in card_us, the host computes
 * one in host_us_each, and the later of the two counts. Bits do not depend on the choice (NUMERICS.md).
 *
 * Threads: what is measured comes from the host's thread, all else is the control thread's; what both touch is atomic. No memory of its
 * own.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MISS_RATES_PROBES 4 /* numbers of experts that are timed at load: 1, 2, 4, 8 */
#define MISS_RATES_MOST   8
#define MISS_SIZES        4 /* steps of up to 1, 2, 4, 8 rows: their times have nothing in common */
#define MISS_ASK_US       10.0 /* what an ask and its answer cost, beside the computing: reckoned */
#define MISS_SHARE_AUTO   (-1)

struct miss_rates {
    double card_us[MISS_RATES_PROBES]; /* of 1, 2, 4, 8 experts; 0: not measured */
    _Atomic double host_us_each;       /* of one expert, by the host; 0: not measured */
    int percent;      /* of absent experts, where it is fixed; else MISS_SHARE_AUTO */
    uint32_t n_steps; /* splits made */
    /* Nanoseconds from ask to ask, [size][m][k]; 0: not seen. */
    _Atomic uint32_t seen_ns[MISS_SIZES][MISS_RATES_MOST + 1][MISS_RATES_MOST + 1];
    _Atomic int32_t beside_ns[MISS_SIZES]; /* of that, what is not reckoned: the rest of a layer */
};

/* One more measurement of the host: k experts took so long. */
void miss_rates_host(struct miss_rates *r, size_t k, double us);

/* What n absent experts take the card; n beyond what was measured by the last two. 0 experts: 0. */
double miss_rates_card_us(const struct miss_rates *r, size_t n);

/* From an ask with m absent experts, k of them the host's, to the next ask of the step. */
void miss_rates_seen(struct miss_rates *r, size_t size, size_t m, size_t k, double us);

/* For the next step: split[m], m <= n: how many of m absent experts the host computes. */
void miss_rates_split(struct miss_rates *r, size_t size, size_t n, uint16_t *split);
