/* vmm/cache_state.h - what cache.c (residency) and cache_shrink.c (plans) share: the cache from
 * inside. Of no use to anyone else; the contract is vmm/cache.h.
 *
 * A key's number is group * n_indexes + index, so that the order of numbers is the order of keys. A
 * slot's number is segment index * slots_per_segment + place. What must hold between calls:
 *   state[s] == FREE  <=>  key_of_slot[s] == NONE;  else slot_of_key[key_of_slot[s]] == s
 *   a key is in `absent` (no slot), in `resident` (its slot is), or in neither (slot is FILLING)
 *   slots of segments that are not backed are FREE;  n_used[i] = slots of segment i that are not
 */
#pragma once
#include "vmm/cache.h"
#include "vmm/heat.h"

#define CACHE_NONE UINT32_MAX

struct cache_shrink { /* one plan, from begin to end or cancel; arrays owned, sized at open */
    bool is_pending;
    bool *leaves;       /* [n_indexes of the region] */
    bool *loses;        /* [n_slots_max]: the slot's key is evicted */
    uint32_t *order;    /* [n_slots_max]: keys, kept ones first */
    size_t *n_by_moves; /* [slots_per_segment + 1]: segments by moves they would cost */
    size_t
        *n_kept; /* [n_indexes of the region]: keys that stay resident, hence moves if it leaves */
    struct cache_move *moves;
    struct cache_key *evicted; /* both [n_slots_max] */
    size_t n_moves, n_evicted;
};

struct cache {
    struct region region;
    size_t slot_bytes, slots_per_segment, n_slots_max;
    size_t n_groups, n_indexes;
    uint32_t n_keys;
    struct heat heat;
    struct heat_order resident, absent; /* coldest first; hottest first */
    uint32_t *position;                 /* [n_keys], of both orders */
    uint32_t *slot_of_key;              /* [n_keys] */
    uint32_t *key_of_slot;              /* [n_slots_max] */
    unsigned char *state;               /* [n_slots_max], enum cache_slot_state */
    size_t *n_used;                     /* [n_indexes of the region] */
    size_t n_resident, n_filling;
    struct cache_shrink shrink;
};

static inline struct cache_key cache_key_of(const struct cache *c, uint32_t number)
{
    return (struct cache_key){.group = (uint32_t)(number / c->n_indexes),
                              .index = (uint32_t)(number % c->n_indexes)};
}

/* Makes both orders anew from the slots' states. O(keys). */
void cache_orders_rebuild(struct cache *c);
