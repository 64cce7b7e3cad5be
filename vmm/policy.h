/* vmm/policy.h - who is in a cache: how fast heat decays, and when a hot key comes in for a cold one.
 *
 * Free slots are filled hottest first. When all are taken, the hottest absent key replaces the
 * coldest resident one as soon as it is clearly hotter: ratio keeps keys of nearly the same heat
 * from changing places for ever, margin keeps noise among cold ones out. An exchange costs one
 * upload, so the owner starts at most one at a time. The half-life is counted in uses of each key
 * on average, so that it means the same for a cache of any size.
 *
 * The numbers are those that did best over the first halves of the recorded texts, with and without
 * a change of text (tests/policies replays them; the table is in MULTI_GPU.md).
 */
#pragma once
#include "vmm/cache.h"

struct policy {
    double half_life_uses; /* of each key, on average */
    double ratio, margin;  /* an exchange: absent > ratio * resident + margin, in uses */
};

extern const struct policy policy_shipped;

/* For cache_settings of a cache of n_keys. */
double policy_half_life_touches(const struct policy *p, size_t n_keys);
/* The key that should come in now, hottest first: always when a slot is free, else, where may_exchange,
 * when it is clearly hotter than the coldest resident. False: none. */
bool policy_next(const struct policy *p, const struct cache *c, bool may_exchange,
                 struct cache_key *key);
