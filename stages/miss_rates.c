/* stages/miss_rates.c - from times to shares (see miss_rates.h). */
#include "stages/miss_rates.h"

#define SLOWNESS     16 /* a measurement moves what is known by a 16th of the difference */
#define OUTLIER      3  /* and counts for no more than so many times what is known */
#define TRY_EVERY    16 /* steps: then the neighbour of what is best */
#define SEEN_MOST_US 1e5

static double host_us_each(const struct miss_rates *r)
{
    return atomic_load_explicit(&r->host_us_each, memory_order_relaxed);
}

void miss_rates_host(struct miss_rates *r, size_t k, double us)
{
    double each = us / (double)k, known = host_us_each(r);
    atomic_store_explicit(&r->host_us_each, known > 0 ? known + (each - known) / SLOWNESS : each,
                          memory_order_relaxed);
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

/* When the later of the two is done, as it is reckoned. */
static double reckoned_us(const struct miss_rates *r, size_t m, size_t k)
{
    double card = miss_rates_card_us(r, m - k);
    double host = k > 0 ? MISS_ASK_US + host_us_each(r) * (double)k : 0;
    return card > host ? card : host;
}

void miss_rates_seen(struct miss_rates *r, size_t size, size_t m, size_t k, double us)
{
    if (m > MISS_RATES_MOST || k > m || us > SEEN_MOST_US)
        return;
    _Atomic uint32_t *seen = &r->seen_ns[size][m][k];
    double known = atomic_load_explicit(seen, memory_order_relaxed);
    double beside = atomic_load_explicit(&r->beside_ns[size], memory_order_relaxed);
    double ns = 1e3 * us, rest = ns - 1e3 * reckoned_us(r, m, k);
    if (known > 0) {
        ns = ns > OUTLIER * known ? OUTLIER * known : ns;
        ns = known + (ns - known) / SLOWNESS;
    }
    beside = beside != 0 ? beside + (rest - beside) / SLOWNESS : rest;
    atomic_store_explicit(seen, (uint32_t)ns + 1, memory_order_relaxed);
    atomic_store_explicit(&r->beside_ns[size], (int32_t)beside, memory_order_relaxed);
}

static double cost_ns(const struct miss_rates *r, size_t size, size_t m, size_t k)
{
    uint32_t seen = atomic_load_explicit(&r->seen_ns[size][m][k], memory_order_relaxed);
    if (seen > 0)
        return seen;
    return 1e3 * reckoned_us(r, m, k) +
           atomic_load_explicit(&r->beside_ns[size], memory_order_relaxed);
}

static size_t best_seen(const struct miss_rates *r, size_t size, size_t m)
{
    size_t best = 0;
    for (size_t k = 1; k <= m; k++)
        if (cost_ns(r, size, m, k) < cost_ns(r, size, m, best))
            best = k;
    return best;
}

/* The best, or every now and then one more or one less. */
static size_t tried(const struct miss_rates *r, size_t best, size_t m)
{
    if (r->n_steps % TRY_EVERY != 0 || m == 0)
        return best;
    bool more = r->n_steps / TRY_EVERY % 2 == 0;
    return more ? best + (best < m) : best - (best > 0);
}

void miss_rates_split(struct miss_rates *r, size_t size, size_t n, uint16_t *split)
{
    size_t k = 0;
    r->n_steps++;
    for (size_t m = 0; m <= n; m++) {
        if (r->percent >= 0) {
            split[m] = (uint16_t)((m * (size_t)r->percent + 50) / 100);
        } else if (m <= MISS_RATES_MOST) {
            k = best_seen(r, size, m);
            split[m] = (uint16_t)tried(r, k, m);
        } else { /* more experts never mean fewer for the host */
            while (k < m && reckoned_us(r, m, k + 1) < reckoned_us(r, m, k))
                k++;
            split[m] = (uint16_t)k;
        }
    }
}
