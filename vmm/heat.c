/* vmm/heat.c - decaying heat and heaps of keys by heat.
 *
 * Owns the values and each order's list; nothing is allocated after open. The comparison is a total
 * order (heat, then key number), so what is selected depends on the heat alone, never on the
 * history of a heap. Refuses half-lives under one touch, which would overflow the scale in one
 * step. Threads: one owner.
 */
#include "vmm/heat.h"

#include <stdlib.h>

#define SCALE_MAX 0x1p200
#define SCALE_DOWN                                                                                 \
    0x1p-200 /* a power of two: no value is rounded, order is kept, until it leaves the range */
#define WEIGHT_MAX 0x1p60
#define LN2        0.69314718055994530942

/* 2^(1/half_life) by the series of e^x for x <= ln 2; here, so that the room needs no maths
 * library. */
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

bool heat_add(struct heat *h, uint32_t key, double weight)
{
    if (!(weight > 0.0))
        return false;
    h->value[key] += (weight < WEIGHT_MAX ? weight : WEIGHT_MAX) * h->scale;
    if (h->scale < SCALE_MAX)
        return false;
    for (uint32_t i = 0; i < h->n_keys; i++)
        h->value[i] *= SCALE_DOWN;
    h->scale *= SCALE_DOWN;
    return true;
}

bool heat_touch(struct heat *h, uint32_t key, double weight)
{
    if (!(weight > 0.0))
        return false;
    h->scale *= h->growth;
    return heat_add(h, key, weight);
}

double heat_now(const struct heat *h, uint32_t key)
{
    return h->value[key] / h->scale;
}

/* One pass of Hoare's partition: afterwards keys[low..*j] are no colder than the pivot,
 * keys[*i..high] no hotter. */
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
    o->entries = calloc(heat->n_keys, sizeof *o->entries);
    if (o->entries == NULL)
        return error_set(err, EBB_ENOMEM, "cache: no memory to order %u keys", heat->n_keys);
    return 0;
}

void heat_order_close(struct heat_order *o)
{
    free(o->entries);
    *o = (struct heat_order){0};
}

static bool comes_before(const struct heat_order *o, const struct heat_entry *a,
                         const struct heat_entry *b)
{
    if (a->value != b->value)
        return (a->value > b->value) == o->hottest_first;
    return (a->key < b->key) == o->hottest_first;
}

static void place(const struct heat_order *o, uint32_t at, struct heat_entry entry)
{
    o->entries[at] = entry;
    o->position[entry.key] = at;
}

static uint32_t sift_up(const struct heat_order *o, uint32_t at)
{
    struct heat_entry entry = o->entries[at];
    while (at > 0 && comes_before(o, &entry, &o->entries[(at - 1) / 2])) {
        place(o, at, o->entries[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(o, at, entry);
    return at;
}

static void sift_down(const struct heat_order *o, uint32_t at)
{
    struct heat_entry entry = o->entries[at];
    for (;;) {
        size_t child = 2 * (size_t)at + 1;
        if (child >= o->n)
            break;
        if (child + 1 < o->n && comes_before(o, &o->entries[child + 1], &o->entries[child]))
            child++;
        if (!comes_before(o, &o->entries[child], &entry))
            break;
        place(o, at, o->entries[child]);
        at = (uint32_t)child;
    }
    place(o, at, entry);
}

void heat_order_add(struct heat_order *o, uint32_t key)
{
    heat_order_append(o, key);
    (void)sift_up(o, o->n - 1);
}

void heat_order_remove(struct heat_order *o, uint32_t key)
{
    uint32_t at = o->position[key];
    struct heat_entry last = o->entries[--o->n];
    o->position[key] = HEAT_NO_POSITION;
    if (last.key == key)
        return;
    place(o, at, last);
    sift_down(o, sift_up(o, at));
}

void heat_order_risen(struct heat_order *o, uint32_t key)
{
    if (!o->hottest_first)
        return;
    o->entries[o->position[key]].value = o->heat->value[key];
    (void)sift_up(o, o->position[key]);
}

bool heat_order_first(const struct heat_order *o, uint32_t *key)
{
    if (o->n == 0)
        return false;
    struct heat_entry *first = &o->entries[0];
    while (first->value != o->heat->value[first->key]) {
        first->value = o->heat->value[first->key];
        sift_down(o, 0);
    }
    *key = first->key;
    return true;
}

void heat_order_append(struct heat_order *o, uint32_t key)
{
    place(o, o->n++, (struct heat_entry){.value = o->heat->value[key], .key = key});
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
