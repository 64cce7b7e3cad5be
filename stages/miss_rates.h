/* stages/miss_rates.h - how many of a layer's absent experts the host computes, so that it and the card are done together.
 *
 * The card reads n experts over the bus in card_us[n]; the host computes k of them in host_us(k). Of m, the k with the smallest larger
 * of card_us[m - k] and host_us(k) goes to the host. Bits do not depend on the choice (NUMERICS.md), so it may follow what is measured:
 * the card's times at load, the host's at every answer, slowly. Pure: no clock, no memory of its own.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MISS_RATES_PROBES 4 /* numbers of experts that are timed at load: 1, 2, 4, 8 */
#define MISS_ASK_US       10.0 /* what an ask and its answer cost the two sides, beside the computing */
#define MISS_SHARE_AUTO   (-1)

struct miss_rates {
    double card_us[MISS_RATES_PROBES]; /* of 1, 2, 4, 8 experts; 0: not measured */
    double host_us_each;               /* of one expert, by the host; 0: not measured */
    int percent; /* of absent experts, where it is fixed; else MISS_SHARE_AUTO */
};

/* One more measurement of the host: k experts took so long. */
void miss_rates_host(struct miss_rates *r, size_t k, double us);

/* What n absent experts take the card; n beyond what was measured by the last two. 0 experts: 0. */
double miss_rates_card_us(const struct miss_rates *r, size_t n);

/* split[m], m <= n: how many of m absent experts the host computes. */
void miss_rates_split(const struct miss_rates *r, size_t n, uint16_t *split);
