/* vmm/cache_shrink.c - shrinking a cache: who stays, which segments leave, what must move.
 *
 * The hottest keys that fit stay, wherever they are; the rest is evicted. A segment that leaves
 * costs one move for each key of it that stays, so the segments with the fewest such keys leave
 * (among equals, the highest index), and no other choice needs fewer moves. Moves go from leaving
 * into remaining segments, each into a slot of its own that is empty or holds an evicted key:
 * sources and destinations never meet, so moves may run in any order or all at once.
 *
 * Begin plans and changes nothing; end applies. From the first copied byte on, the evicted keys'
 * slots hold other bytes while lookups still name them: the caller stops reading evicted keys
 * before it copies. All arrays are the cache's, made at open.
 */
#include <string.h>
#include "vmm/cache_state.h"

/* Splits the resident keys: order[0..n_kept) stay, the rest goes to `evicted`. */
static void plan_evictions(struct cache *c, size_t n_slots_after)
{
    struct cache_shrink *p = &c->shrink;
    size_t n = 0, n_kept = c->n_resident < n_slots_after ? c->n_resident : n_slots_after;
    for (size_t slot = 0; slot < c->n_slots_max; slot++)
        if (c->state[slot] == CACHE_SLOT_RESIDENT)
            p->order[n++] = c->key_of_slot[slot];
    heat_select(&c->heat, p->order, n, n_kept);
    memset(p->loses, 0, c->n_slots_max * sizeof *p->loses);
    memcpy(p->n_kept, c->n_used, c->region.n_indexes * sizeof *p->n_kept);
    p->n_evicted = 0;
    for (size_t i = n_kept; i < n; i++) {
        uint32_t slot = c->slot_of_key[p->order[i]];
        p->loses[slot] = true;
        p->n_kept[slot / c->slots_per_segment]--;
        p->evicted[p->n_evicted++] = cache_key_of(c, p->order[i]);
    }
}

/* Picks the n_leaving backed segments with the fewest kept keys, by counting. */
static void plan_segments(struct cache *c, size_t n_leaving)
{
    struct cache_shrink *p = &c->shrink;
    size_t n_indexes = c->region.n_indexes, limit = 0;
    memset(p->leaves, 0, n_indexes * sizeof *p->leaves);
    memset(p->n_by_moves, 0, (c->slots_per_segment + 1) * sizeof *p->n_by_moves);
    for (size_t i = 0; i < n_indexes; i++)
        if (region_is_backed(&c->region, i))
            p->n_by_moves[p->n_kept[i]]++;
    /* All below `limit` leave, and `n_leaving` of those at it. */
    while (n_leaving > p->n_by_moves[limit])
        n_leaving -= p->n_by_moves[limit++];
    for (size_t i = n_indexes; i-- > 0;) {
        if (!region_is_backed(&c->region, i) || p->n_kept[i] > limit)
            continue;
        if (p->n_kept[i] == limit && n_leaving == 0)
            continue;
        n_leaving -= p->n_kept[i] == limit;
        p->leaves[i] = true;
    }
}

static bool slot_remains(const struct cache *c, size_t slot)
{
    size_t segment = slot / c->slots_per_segment;
    return region_is_backed(&c->region, segment) && !c->shrink.leaves[segment];
}

/* The next slot from *slot on that remains and is empty or loses its key. There is always one: no
 * more keys stay than slots remain. When keys are evicted, every empty slot is needed too. */
static size_t next_destination(const struct cache *c, size_t *slot)
{
    while (!slot_remains(c, *slot) ||
           !(c->state[*slot] == CACHE_SLOT_FREE || c->shrink.loses[*slot]))
        ++*slot;
    return (*slot)++;
}

static void plan_moves(struct cache *c)
{
    struct cache_shrink *p = &c->shrink;
    size_t cursor = 0;
    p->n_moves = 0;
    for (size_t slot = 0; slot < c->n_slots_max; slot++) {
        if (c->state[slot] != CACHE_SLOT_RESIDENT || p->loses[slot] || slot_remains(c, slot))
            continue;
        p->moves[p->n_moves++] = (struct cache_move){.key = cache_key_of(c, c->key_of_slot[slot]),
                                                     .slot_from = slot,
                                                     .slot_to = next_destination(c, &cursor)};
    }
}

int cache_shrink_begin(struct cache *c, size_t n_segments_after, struct cache_shrink_plan *plan,
                       struct error *err)
{
    struct cache_shrink *p = &c->shrink;
    if (p->is_pending)
        return error_set(err, EBB_EBUSY, "cache: a shrink is under way");
    if (c->n_filling > 0)
        return error_set(err, EBB_EBUSY, "cache: %zu slots are being filled", c->n_filling);
    if (n_segments_after > c->region.n_backed)
        return error_set(err, EBB_EINVAL, "cache: a shrink from %zu to %zu segments",
                         c->region.n_backed, n_segments_after);
    plan_evictions(c, n_segments_after * c->slots_per_segment);
    plan_segments(c, c->region.n_backed - n_segments_after);
    plan_moves(c);
    p->is_pending = true;
    *plan = (struct cache_shrink_plan){.moves = p->moves,
                                       .n_moves = p->n_moves,
                                       .evicted = p->evicted,
                                       .n_evicted = p->n_evicted,
                                       .n_segments_after = n_segments_after};
    return 0;
}

static void slot_clear(struct cache *c, uint32_t slot)
{
    c->state[slot] = CACHE_SLOT_FREE;
    c->key_of_slot[slot] = CACHE_NONE;
    c->n_used[slot / c->slots_per_segment]--;
}

static void plan_apply(struct cache *c)
{
    struct cache_shrink *p = &c->shrink;
    for (size_t i = 0; i < p->n_evicted; i++) {
        size_t key = p->evicted[i].group * c->n_indexes + p->evicted[i].index;
        slot_clear(c, c->slot_of_key[key]);
        c->slot_of_key[key] = CACHE_NONE;
        c->n_resident--;
    }
    for (size_t i = 0; i < p->n_moves; i++) {
        uint32_t from = (uint32_t)p->moves[i].slot_from, to = (uint32_t)p->moves[i].slot_to;
        uint32_t key = c->key_of_slot[from];
        slot_clear(c, from);
        c->state[to] = CACHE_SLOT_RESIDENT;
        c->key_of_slot[to] = key;
        c->n_used[to / c->slots_per_segment]++;
        c->slot_of_key[key] = to;
    }
    if (p->n_evicted > 0)
        cache_orders_rebuild(c);
}

int cache_shrink_end(struct cache *c, size_t *reached, struct error *err)
{
    int code = 0;
    *reached = c->region.n_backed;
    if (!c->shrink.is_pending)
        return error_set(err, EBB_EINVAL, "cache: no shrink is under way");
    plan_apply(c);
    c->shrink.is_pending = false;
    /* A segment that the driver keeps stays backed and empty; the others still leave. The first
     * error wins. */
    for (size_t i = 0; i < c->region.n_indexes; i++) {
        if (!c->shrink.leaves[i])
            continue;
        int refused = region_unback(&c->region, i, code == 0 ? err : NULL);
        code = code == 0 ? refused : code;
    }
    *reached = c->region.n_backed;
    return code;
}

void cache_shrink_cancel(struct cache *c)
{
    c->shrink.is_pending = false;
}
