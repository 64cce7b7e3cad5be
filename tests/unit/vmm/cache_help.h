/* tests/unit/vmm/cache_help.h - a cache on a card of either kind, and the shortcuts its tests
 * share. */
#pragma once
#include <criterion/criterion.h>
#include "tests/unit/vmm/fake_driver.h"
#include "vmm/cache.h"

struct cache_bench {
    struct vmm_driver *driver;
    struct pool pool;
    struct cache *cache;
    struct error err;
};

static inline struct cache_key key_at(const struct cache_settings *s, size_t number)
{
    return (struct cache_key){(uint32_t)(number / s->n_indexes), (uint32_t)(number % s->n_indexes)};
}

/* A pool of n_segments, all held, and a cache over them with none backed. */
static inline void bench_open(struct cache_bench *b, struct vmm_driver *driver,
                              size_t segment_bytes, size_t n_segments,
                              const struct cache_settings *settings)
{
    size_t reached;
    *b = (struct cache_bench){.driver = driver};
    cr_assert_eq(pool_open(&b->pool, driver, segment_bytes, n_segments, &b->err), 0);
    cr_assert_eq(pool_hold(&b->pool, n_segments, &reached, &b->err), 0, "%s", b->err.text);
    cr_assert_eq(cache_open(&b->cache, &b->pool, settings, n_segments, &b->err), 0, "%s",
                 b->err.text);
}

static inline void bench_close(struct cache_bench *b)
{
    cache_close(b->cache);
    cr_assert_eq(b->pool.n_free, b->pool.n_held);
    pool_close(&b->pool);
}

static inline void bench_grow(struct cache_bench *b, size_t n_segments)
{
    size_t reached;
    cr_assert_eq(cache_grow(b->cache, n_segments, &reached, &b->err), 0, "%s", b->err.text);
    cr_assert_eq(reached, n_segments);
    cr_assert_eq(cache_n_segments(b->cache), n_segments);
}

/* Inserts and publishes; the slot, or CACHE_NO_SLOT where the cache has none for it. */
static inline size_t bench_fill(struct cache_bench *b, struct cache_key key)
{
    size_t slot;
    bool did_evict;
    struct cache_key evicted;
    int code = cache_insert(b->cache, key, &slot, &did_evict, &evicted, &b->err);
    if (code == EBB_EBUSY)
        return CACHE_NO_SLOT;
    cr_assert_eq(code, 0, "%s", b->err.text);
    cr_assert_eq(cache_slot_of(b->cache, key), CACHE_NO_SLOT);
    cr_assert_eq(cache_publish(b->cache, slot), 0);
    cr_assert_eq(cache_slot_of(b->cache, key), slot);
    return slot;
}
