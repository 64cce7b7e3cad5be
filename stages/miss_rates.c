/* stages/miss_rates.c - from measured times to shares (see miss_rates.h). */
#include "stages/miss_rates.h"

#define SLOWNESS 16 /* a measurement moves what is known by a 16th of the difference */

void miss_rates_host(struct miss_rates *r, size_t k, double us)
{
    double each = us / (double)k;
    r->host_us_each =
        r->host_us_each > 0 ? r->host_us_each + (each - r->host_us_each) / SLOWNESS : each;
}

double miss_rates_card_us(const struct miss_rates *r, size_t n)
{
    double slope = 0;
    size_t i = 0;
    if (n == 0)
        return 0;
    while (i + 1 < MISS_RATES_PROBES && (size_t)1 << (i + 1) <= n)
        i++;
    if (i + 1 < MISS_RATES_PROBES)
        slope = (r->card_us[i + 1] - r->card_us[i]) / (double)((size_t)1 << i);
    else
        slope = (r->card_us[i] - r->card_us[i - 1]) / (double)((size_t)1 << (i - 1));
    return r->card_us[i] + slope * (double)(n - ((size_t)1 << i));
}

static double host_us(const struct miss_rates *r, size_t k)
{
    return k == 0 ? 0 : MISS_ASK_US + r->host_us_each * (double)k;
}

/* When the later of the two is done. */
static double done_us(const struct miss_rates *r, size_t m, size_t k)
{
    double card = miss_rates_card_us(r, m - k), host = host_us(r, k);
    return card > host ? card : host;
}

void miss_rates_split(const struct miss_rates *r, size_t n, uint16_t *split)
{
    size_t k = 0;
    for (size_t m = 0; m <= n; m++) {
        if (r->percent >= 0) {
            k = (m * (size_t)r->percent + 50) / 100;
        } else { /* more experts never mean fewer for the host */
            while (k < m && done_us(r, m, k + 1) < done_us(r, m, k))
                k++;
        }
        split[m] = (uint16_t)k;
    }
}
