/* vmm/heat.c - decaying heat and heaps of keys by heat.
 *
 * Owns the values and each order's list; nothing is allocated after open. The comparison is a total order (heat, then key
 * number), so what is selected depends on the heat alone, never on the history of a heap. Refuses half-lives under one touch,
 * which would overflow the scale in one step. Threads: one owner.
 */
#include "vmm/heat.h"

#include <stdlib.h>

#define SCALE_MAX 0x1p200
#define SCALE_DOWN                                                                                 \
    0x1p-200 /* a power of two: no value is rounded, order is kept, until it leaves the range */
#define WEIGHT_MAX 0x1p60
#define LN2        0.69314718055994530942

/* 2^(1/half_life) by the series of e^x for x <= ln 2; here, so that the room needs no maths library. */
static double growth_of(double half_life)
{
    double x = LN2 / half_life, term = 1.0, sum = 1.0;
    for (int i = 1; i <= 20; i++) {
        term *= x / i;
        sum += term;
    }
    return sum;
}

int heat_open(struct heat *h, uint32_t n_keys, double half_life_touches, struct error *err)
{
    *h = (struct heat){.scale = 1.0, .growth = 1.0, .n_keys = n_keys};
    if (!(half_life_touches == 0.0 || half_life_touches >= 1.0))
        return error_set(err, EBB_EINVAL, "cache: half-life: wants 0 or at least 1 touch, got %g",
                         half_life_touches);
    if (half_life_touches > 0.0)
        h->growth = growth_of(half_life_touches);
    h->value = calloc(n_keys, sizeof *h->value);
    if (h->value == NULL)
        return error_set(err, EBB_ENOMEM, "cache: no memory for the heat of %u keys", n_keys);
    return 0;
}

void heat_close(struct heat *h)
{
    free(h->value);
    *h = (struct heat){0};
}

bool heat_touch(struct heat *h, uint32_t key, double weight)
{
    if (!(weight > 0.0))
        return false;
    h->scale *= h->growth;
    h->value[key] += (weight < WEIGHT_MAX ? weight : WEIGHT_MAX) * h->scale;
    if (h->scale < SCALE_MAX)
        return false;
    for (uint32_t i = 0; i < h->n_keys; i++)
        h->value[i] *= SCALE_DOWN;
    h->scale *= SCALE_DOWN;
    return true;
}

double heat_now(const struct heat *h, uint32_t key)
{
    return h->value[key] / h->scale;
}

/* One pass of Hoare's partition: afterwards keys[low..*j] are no colder than the pivot, keys[*i..high] no hotter. */
static void partition(const struct heat *h, uint32_t *keys, ptrdiff_t low, ptrdiff_t high,
                      ptrdiff_t *i, ptrdiff_t *j)
{
    uint32_t pivot = keys[low + (high - low) / 2];
    *i = low;
    *j = high;
    while (*i <= *j) {
        while (heat_is_hotter(h, keys[*i], pivot))
            ++*i;
        while (heat_is_hotter(h, pivot, keys[*j]))
            --*j;
        if (*i <= *j) {
            uint32_t key = keys[*i];
            keys[(*i)++] = keys[*j];
            keys[(*j)--] = key;
        }
    }
}

void heat_select(const struct heat *h, uint32_t *keys, size_t n, size_t n_first)
{
    if (n_first == 0 || n_first >= n)
        return;
    ptrdiff_t low = 0, high = (ptrdiff_t)n - 1, last = (ptrdiff_t)n_first - 1, i, j;
    while (low < high) {
        partition(h, keys, low, high, &i, &j);
        if (last <= j)
            high = j;
        else if (last >= i)
            low = i;
        else
            return;
    }
}

int heat_order_open(struct heat_order *o, const struct heat *heat, uint32_t *position,
                    bool hottest_first, struct error *err)
{
    *o = (struct heat_order){.heat = heat, .position = position, .hottest_first = hottest_first};
    o->keys = calloc(heat->n_keys, sizeof *o->keys);
    if (o->keys == NULL)
        return error_set(err, EBB_ENOMEM, "cache: no memory to order %u keys", heat->n_keys);
    return 0;
}

void heat_order_close(struct heat_order *o)
{
    free(o->keys);
    *o = (struct heat_order){0};
}

static bool comes_before(const struct heat_order *o, uint32_t a, uint32_t b)
{
    return o->hottest_first ? heat_is_hotter(o->heat, a, b) : heat_is_hotter(o->heat, b, a);
}

static void place(struct heat_order *o, uint32_t at, uint32_t key)
{
    o->keys[at] = key;
    o->position[key] = at;
}

static uint32_t sift_up(struct heat_order *o, uint32_t at)
{
    uint32_t key = o->keys[at];
    while (at > 0 && comes_before(o, key, o->keys[(at - 1) / 2])) {
        place(o, at, o->keys[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(o, at, key);
    return at;
}

static void sift_down(struct heat_order *o, uint32_t at)
{
    uint32_t key = o->keys[at];
    for (;;) {
        size_t child = 2 * (size_t)at + 1;
        if (child >= o->n)
            break;
        if (child + 1 < o->n && comes_before(o, o->keys[child + 1], o->keys[child]))
            child++;
        if (!comes_before(o, o->keys[child], key))
            break;
        place(o, at, o->keys[child]);
        at = (uint32_t)child;
    }
    place(o, at, key);
}

void heat_order_add(struct heat_order *o, uint32_t key)
{
    heat_order_append(o, key);
    (void)sift_up(o, o->n - 1);
}

void heat_order_remove(struct heat_order *o, uint32_t key)
{
    uint32_t at = o->position[key];
    uint32_t last = o->keys[--o->n];
    o->position[key] = HEAT_NO_POSITION;
    if (last == key)
        return;
    place(o, at, last);
    sift_down(o, sift_up(o, at));
}

void heat_order_moved(struct heat_order *o, uint32_t key)
{
    sift_down(o, sift_up(o, o->position[key]));
}

void heat_order_append(struct heat_order *o, uint32_t key)
{
    place(o, o->n++, key);
}

void heat_order_clear(struct heat_order *o)
{
    o->n = 0;
}

void heat_order_rebuild(struct heat_order *o)
{
    for (uint32_t at = o->n / 2; at > 0; at--)
        sift_down(o, at - 1);
}
