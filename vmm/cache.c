/* vmm/cache.c - residency: keys, slots, heat, and growing. Shrinking is cache_shrink.c.
 *
 * Owns one region and all tables; everything is allocated in cache_open, nothing later. The cache
 * never touches the bytes of a slot: it says where, and the caller copies. One shrink may be
 * pending; until it ends, residency is frozen (insert and grow answer EBB_EBUSY), lookups give the
 * old addresses, and touches count on.
 *
 * Refuses: slots larger than a segment, keys outside groups x indexes (lookups answer "no slot",
 * touches are ignored), more than 2^32 - 2 keys or slots. Threads: one owner.
 */
#include "vmm/cache.h"

#include <stdlib.h>
#include <string.h>
#include "vmm/cache_state.h"

#define SLOT_ALIGNMENT 256

static int settings_check(struct cache *c, const struct cache_settings *s, const struct pool *pool,
                          size_t n_segments_max, struct error *err)
{
    if (s->slot_bytes == 0 || s->slot_bytes > pool->segment_bytes)
        return error_set(err, EBB_EINVAL, "cache: a slot of %zu bytes in a segment of %zu",
                         s->slot_bytes, pool->segment_bytes);
    c->slot_bytes = (s->slot_bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    if (c->slot_bytes > pool->segment_bytes)
        return error_set(err, EBB_EINVAL,
                         "cache: a slot of %zu bytes (rounded to %d) in one of %zu", c->slot_bytes,
                         SLOT_ALIGNMENT, pool->segment_bytes);
    c->slots_per_segment = pool->segment_bytes / c->slot_bytes;
    if (s->n_groups == 0 || s->n_indexes == 0 || s->n_groups > (CACHE_NONE - 1) / s->n_indexes)
        return error_set(err, EBB_EINVAL, "cache: %zu groups of %zu keys", s->n_groups,
                         s->n_indexes);
    if (n_segments_max == 0 || n_segments_max > (CACHE_NONE - 1) / c->slots_per_segment)
        return error_set(err, EBB_EINVAL, "cache: %zu segments of %zu slots", n_segments_max,
                         c->slots_per_segment);
    c->n_groups = s->n_groups;
    c->n_indexes = s->n_indexes;
    c->n_keys = (uint32_t)(s->n_groups * s->n_indexes);
    c->n_slots_max = n_segments_max * c->slots_per_segment;
    return 0;
}

static int tables_open(struct cache *c, size_t n_segments_max, struct error *err)
{
    struct cache_shrink *p = &c->shrink;
    c->position = malloc(c->n_keys * sizeof *c->position);
    c->slot_of_key = malloc(c->n_keys * sizeof *c->slot_of_key);
    c->key_of_slot = malloc(c->n_slots_max * sizeof *c->key_of_slot);
    c->state = calloc(c->n_slots_max, sizeof *c->state);
    c->n_used = calloc(n_segments_max, sizeof *c->n_used);
    p->leaves = calloc(n_segments_max, sizeof *p->leaves);
    p->n_kept = calloc(n_segments_max, sizeof *p->n_kept);
    p->loses = calloc(c->n_slots_max, sizeof *p->loses);
    p->order = calloc(c->n_slots_max, sizeof *p->order);
    p->n_by_moves = calloc(c->slots_per_segment + 1, sizeof *p->n_by_moves);
    p->moves = calloc(c->n_slots_max, sizeof *p->moves);
    p->evicted = calloc(c->n_slots_max, sizeof *p->evicted);
    if (c->position == NULL || c->slot_of_key == NULL || c->key_of_slot == NULL ||
        c->state == NULL || c->n_used == NULL || p->leaves == NULL || p->n_kept == NULL ||
        p->loses == NULL || p->order == NULL || p->n_by_moves == NULL || p->moves == NULL ||
        p->evicted == NULL)
        return error_set(err, EBB_ENOMEM, "cache: no memory for tables of %u keys and %zu slots",
                         c->n_keys, c->n_slots_max);
    memset(c->slot_of_key, 0xff, c->n_keys * sizeof *c->slot_of_key); /* CACHE_NONE */
    memset(c->key_of_slot, 0xff, c->n_slots_max * sizeof *c->key_of_slot);
    return 0;
}

int cache_open(struct cache **out, struct pool *pool, const struct cache_settings *settings,
               size_t n_segments_max, struct error *err)
{
    *out = NULL;
    struct cache *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, EBB_ENOMEM, "cache: no memory");
    int code = settings_check(c, settings, pool, n_segments_max, err);
    if (code == 0)
        code = tables_open(c, n_segments_max, err);
    if (code == 0)
        code = heat_open(&c->heat, c->n_keys, settings->half_life_touches, err);
    if (code == 0)
        code = heat_order_open(&c->resident, &c->heat, c->position, false, err);
    if (code == 0)
        code = heat_order_open(&c->absent, &c->heat, c->position, true, err);
    if (code == 0)
        code = region_open(&c->region, pool, n_segments_max, err);
    if (code != 0) {
        cache_close(c);
        return code;
    }
    cache_orders_rebuild(c);
    *out = c;
    return 0;
}

void cache_close(struct cache *c)
{
    if (c == NULL)
        return;
    region_close(&c->region);
    heat_order_close(&c->resident);
    heat_order_close(&c->absent);
    heat_close(&c->heat);
    free(c->position);
    free(c->slot_of_key);
    free(c->key_of_slot);
    free(c->state);
    free(c->n_used);
    free(c->shrink.leaves);
    free(c->shrink.n_kept);
    free(c->shrink.loses);
    free(c->shrink.order);
    free(c->shrink.n_by_moves);
    free(c->shrink.moves);
    free(c->shrink.evicted);
    free(c);
}

void cache_orders_rebuild(struct cache *c)
{
    heat_order_clear(&c->resident);
    heat_order_clear(&c->absent);
    for (uint32_t key = 0; key < c->n_keys; key++) {
        uint32_t slot = c->slot_of_key[key];
        if (slot == CACHE_NONE)
            heat_order_append(&c->absent, key);
        else if (c->state[slot] == CACHE_SLOT_RESIDENT)
            heat_order_append(&c->resident, key);
        else
            c->position[key] = HEAT_NO_POSITION;
    }
    heat_order_rebuild(&c->resident);
    heat_order_rebuild(&c->absent);
}

/* The key's number, or CACHE_NONE. */
static uint32_t key_number(const struct cache *c, struct cache_key key)
{
    if (key.group >= c->n_groups || key.index >= c->n_indexes)
        return CACHE_NONE;
    return (uint32_t)(key.group * c->n_indexes + key.index);
}

size_t cache_slots_per_segment(const struct cache *c)
{
    return c->slots_per_segment;
}

size_t cache_n_segments(const struct cache *c)
{
    return c->region.n_backed;
}

size_t cache_n_slots(const struct cache *c)
{
    return c->region.n_backed * c->slots_per_segment;
}

size_t cache_n_resident(const struct cache *c)
{
    return c->n_resident;
}

size_t cache_n_free(const struct cache *c)
{
    return cache_n_slots(c) - c->n_resident - c->n_filling;
}

void *cache_slot_address(const struct cache *c, size_t slot)
{
    size_t segment = slot / c->slots_per_segment;
    if (slot >= c->n_slots_max || !region_is_backed(&c->region, segment))
        return NULL;
    return c->region.base + segment * c->region.pool->segment_bytes +
           slot % c->slots_per_segment * c->slot_bytes;
}

size_t cache_slot_of(const struct cache *c, struct cache_key key)
{
    uint32_t number = key_number(c, key);
    uint32_t slot = number == CACHE_NONE ? CACHE_NONE : c->slot_of_key[number];
    return slot == CACHE_NONE || c->state[slot] != CACHE_SLOT_RESIDENT ? CACHE_NO_SLOT : slot;
}

static void heat_rose(struct cache *c, uint32_t number, bool was_rescaled)
{
    if (was_rescaled)
        cache_orders_rebuild(c);
    else if (c->slot_of_key[number] == CACHE_NONE)
        heat_order_risen(&c->absent, number);
    else if (c->state[c->slot_of_key[number]] == CACHE_SLOT_RESIDENT)
        heat_order_risen(&c->resident, number);
}

void cache_touch(struct cache *c, struct cache_key key, double weight)
{
    uint32_t number = key_number(c, key);
    if (number != CACHE_NONE)
        heat_rose(c, number, heat_touch(&c->heat, number, weight));
}

void cache_warm(struct cache *c, struct cache_key key, double heat)
{
    uint32_t number = key_number(c, key);
    if (number != CACHE_NONE)
        heat_rose(c, number, heat_add(&c->heat, number, heat));
}

double cache_heat(const struct cache *c, struct cache_key key)
{
    uint32_t number = key_number(c, key);
    return number == CACHE_NONE ? 0.0 : heat_now(&c->heat, number);
}

static bool order_first(const struct cache *c, const struct heat_order *o, struct cache_key *key)
{
    uint32_t number;
    if (!heat_order_first(o, &number))
        return false;
    *key = cache_key_of(c, number);
    return true;
}

bool cache_hottest_absent(const struct cache *c, struct cache_key *key)
{
    return order_first(c, &c->absent, key);
}

bool cache_coldest_resident(const struct cache *c, struct cache_key *key)
{
    return order_first(c, &c->resident, key);
}

/* The first free slot of a backed segment, or CACHE_NONE. */
static uint32_t slot_find_free(const struct cache *c)
{
    if (cache_n_free(c) == 0)
        return CACHE_NONE;
    size_t segment = 0;
    while (!region_is_backed(&c->region, segment) || c->n_used[segment] == c->slots_per_segment)
        segment++;
    size_t slot = segment * c->slots_per_segment;
    while (c->state[slot] != CACHE_SLOT_FREE)
        slot++;
    return (uint32_t)slot;
}

/* The coldest resident key loses its slot to `number` if it is colder. Its slot, or CACHE_NONE. */
static uint32_t slot_take_over(struct cache *c, uint32_t number, struct cache_key *evicted)
{
    uint32_t coldest;
    if (!heat_order_first(&c->resident, &coldest) || !heat_is_hotter(&c->heat, number, coldest))
        return CACHE_NONE;
    uint32_t slot = c->slot_of_key[coldest];
    heat_order_remove(&c->resident, coldest);
    heat_order_add(&c->absent, coldest);
    c->slot_of_key[coldest] = CACHE_NONE;
    c->n_used[slot / c->slots_per_segment]--;
    c->n_resident--;
    *evicted = cache_key_of(c, coldest);
    return slot;
}

int cache_insert(struct cache *c, struct cache_key key, size_t *slot_out, bool *did_evict,
                 struct cache_key *evicted, struct error *err)
{
    uint32_t number = key_number(c, key);
    *did_evict = false;
    if (number == CACHE_NONE)
        return error_set(err, EBB_EINVAL, "cache: key (%u, %u) of %zu x %zu", key.group, key.index,
                         c->n_groups, c->n_indexes);
    if (c->slot_of_key[number] != CACHE_NONE)
        return error_set(err, EBB_EINVAL, "cache: key (%u, %u) has slot %u", key.group, key.index,
                         c->slot_of_key[number]);
    if (c->shrink.is_pending)
        return error_set(err, EBB_EBUSY, "cache: a shrink is under way");
    uint32_t slot = slot_find_free(c);
    if (slot == CACHE_NONE) {
        slot = slot_take_over(c, number, evicted);
        if (slot == CACHE_NONE)
            return error_set(err, EBB_EBUSY, "cache: no slot for key (%u, %u) among %zu", key.group,
                             key.index, cache_n_slots(c));
        *did_evict = true;
    }
    heat_order_remove(&c->absent, number);
    c->slot_of_key[number] = slot;
    c->key_of_slot[slot] = number;
    c->state[slot] = CACHE_SLOT_FILLING;
    c->n_used[slot / c->slots_per_segment]++;
    c->n_filling++;
    *slot_out = slot;
    return 0;
}

static bool slot_is_filling(const struct cache *c, size_t slot)
{
    return slot < c->n_slots_max && c->state[slot] == CACHE_SLOT_FILLING;
}

int cache_publish(struct cache *c, size_t slot)
{
    if (!slot_is_filling(c, slot))
        return EBB_EINVAL;
    c->state[slot] = CACHE_SLOT_RESIDENT;
    c->n_filling--;
    c->n_resident++;
    heat_order_add(&c->resident, c->key_of_slot[slot]);
    return 0;
}

int cache_abandon(struct cache *c, size_t slot)
{
    if (!slot_is_filling(c, slot))
        return EBB_EINVAL;
    uint32_t number = c->key_of_slot[slot];
    c->state[slot] = CACHE_SLOT_FREE;
    c->key_of_slot[slot] = CACHE_NONE;
    c->slot_of_key[number] = CACHE_NONE;
    c->n_used[slot / c->slots_per_segment]--;
    c->n_filling--;
    heat_order_add(&c->absent, number);
    return 0;
}

int cache_grow(struct cache *c, size_t n_segments_wanted, size_t *reached, struct error *err)
{
    struct region *r = &c->region;
    int code = 0;
    *reached = r->n_backed;
    if (n_segments_wanted > r->n_indexes)
        return error_set(err, EBB_EINVAL, "cache: wants at most %zu segments, got %zu",
                         r->n_indexes, n_segments_wanted);
    if (c->shrink.is_pending)
        return error_set(err, EBB_EBUSY, "cache: a shrink is under way");
    for (size_t i = 0; code == 0 && r->n_backed < n_segments_wanted; i++)
        if (!region_is_backed(r, i))
            code = region_back(r, i, err);
    *reached = r->n_backed;
    return code;
}
