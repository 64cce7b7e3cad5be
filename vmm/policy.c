/* vmm/policy.c - the shipped policy: see policy.h. No state: all of it is in the cache. */
#include "vmm/policy.h"

const struct policy policy_shipped = {.half_life_uses = 6.0, .ratio = 1.25, .margin = 0.5};

double policy_half_life_touches(const struct policy *p, size_t n_keys)
{
    return p->half_life_uses * (double)n_keys;
}

bool policy_next(const struct policy *p, const struct cache *c, bool may_exchange,
                 struct cache_key *key)
{
    struct cache_key cold;
    if (!cache_hottest_absent(c, key))
        return false;
    if (cache_n_free(c) > 0)
        return true;
    return may_exchange && cache_coldest_resident(c, &cold) &&
           cache_heat(c, *key) > p->ratio * cache_heat(c, cold) + p->margin;
}
