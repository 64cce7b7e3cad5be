/* vmm/cache.h - a cache of equal slots in a region: which (group, index) is where, how hot each key
 * is, who goes first.
 *
 * Slots never straddle segments: slots_per_segment = segment_bytes / slot_bytes, so any segment can
 * leave. The cache decides and accounts; it copies nothing. Who moves bytes is the caller, in three
 * kinds of plan:
 *   insert   cache_insert() gives a key a slot (free, or the coldest evictable one): fill it, then
 *            cache_publish()
 *   shrink   cache_shrink_begin() picks the segments that leave and lists moves so that afterwards
 *            the resident keys are exactly the hottest that fit; copy them, wait, then
 *            cache_shrink_end() unbacks and returns the segments
 *   grow     cache_grow() backs more segments with free segments of the pool; slots are empty
 *
 * Keys are (group, index): the cache knows no layers. Heat decays exponentially, in O(1) a touch:
 * values are kept relative to a growing scale. Ties in heat: the lower (group, index) counts as
 * hotter, so that a plan is a function of the heat. Threads: one owner. Failure: the cache is as
 * before, unless said.
 */
#pragma once
#include <stdbool.h>
#include "vmm/region.h"

#define CACHE_NO_SLOT SIZE_MAX

struct cache_key {
    uint32_t group, index;
};

enum cache_slot_state { CACHE_SLOT_FREE = 0, CACHE_SLOT_FILLING, CACHE_SLOT_RESIDENT };

struct cache; /* opaque */

struct cache_settings {
    size_t slot_bytes; /* rounded up to 256 by the cache */
    size_t n_groups, n_indexes;
    double half_life_touches; /* touches (over all keys) after which heat halves; 0 = never */
};

struct cache_move {
    struct cache_key key;
    size_t slot_from, slot_to;
};

struct cache_shrink_plan {
    struct cache_move *moves; /* owned by the cache, valid until the next plan */
    size_t n_moves;
    struct cache_key *evicted; /* keys that lose residency */
    size_t n_evicted;
    size_t n_segments_after;
};

/* The region is made for n_segments_max segments, none backed. */
int cache_open(struct cache **c, struct pool *pool, const struct cache_settings *settings,
               size_t n_segments_max, struct error *err);
void cache_close(struct cache *c);

size_t cache_slots_per_segment(const struct cache *c);
size_t cache_n_segments(const struct cache *c); /* backed now */
size_t cache_n_slots(const struct cache *c);    /* in backed segments */
size_t cache_n_resident(const struct cache *c);
size_t cache_n_free(const struct cache *c); /* slots neither resident nor being filled */
void *cache_slot_address(const struct cache *c, size_t slot);
/* CACHE_NO_SLOT unless resident. */
size_t cache_slot_of(const struct cache *c, struct cache_key key);

void cache_touch(struct cache *c, struct cache_key key, double weight);
/* Heat known from before, as of now: nothing else decays. */
void cache_warm(struct cache *c, struct cache_key key, double heat);
double cache_heat(const struct cache *c, struct cache_key key); /* decayed to now */

/* The hottest key without a slot and the coldest one with, for promotion. false: there is none. */
bool cache_hottest_absent(const struct cache *c, struct cache_key *key);
bool cache_coldest_resident(const struct cache *c, struct cache_key *key);

/* Gives `key` a slot, FILLING. Where none is free, the coldest resident key is evicted if it is
 * colder than `key` (*evicted says which; its address must be unpublished before the slot is
 * filled). EBB_EBUSY: no slot for it; EBB_EINVAL: it has one. */
int cache_insert(struct cache *c, struct cache_key key, size_t *slot, bool *did_evict,
                 struct cache_key *evicted, struct error *err);
int cache_publish(struct cache *c, size_t slot); /* FILLING -> RESIDENT */
int cache_abandon(struct cache *c, size_t slot); /* FILLING -> FREE */

int cache_grow(struct cache *c, size_t n_segments_wanted, size_t *reached, struct error *err);
/* EBB_EBUSY while a slot is FILLING: publish or abandon it first. */
int cache_shrink_begin(struct cache *c, size_t n_segments_after, struct cache_shrink_plan *plan,
                       struct error *err);
int cache_shrink_end(struct cache *c, size_t *reached, struct error *err);
void cache_shrink_cancel(struct cache *c); /* before any byte was moved */
