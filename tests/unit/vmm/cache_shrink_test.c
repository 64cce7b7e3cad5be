/* tests/unit/vmm/cache_shrink_test.c - what a shrink promises, held against a model that sorts
 * everything. */
#include "tests/unit/vmm/cache_help.h"

#include <jansson.h>
#include <stdlib.h>

#define N_KEYS_MAX 256

static struct fake_card card;
static struct vmm_driver driver;
static struct cache_bench bench;
static struct cache_settings settings;

struct model_key {
    struct cache_key key;
    double heat;
    size_t slot;
};

static int hottest_first(const void *a, const void *b)
{
    const struct model_key *x = a, *y = b;
    if (x->heat != y->heat)
        return x->heat > y->heat ? -1 : 1;
    if (x->key.group != y->key.group)
        return x->key.group < y->key.group ? -1 : 1;
    return x->key.index < y->key.index ? -1 : 1;
}

/* All resident keys, the hottest first. */
static size_t model_of(struct model_key *keys)
{
    size_t n = 0;
    for (size_t i = 0; i < settings.n_groups * settings.n_indexes; i++) {
        struct cache_key key = key_at(&settings, i);
        size_t slot = cache_slot_of(bench.cache, key);
        if (slot != CACHE_NO_SLOT)
            keys[n++] = (struct model_key){key, cache_heat(bench.cache, key), slot};
    }
    qsort(keys, n, sizeof *keys, hottest_first);
    return n;
}

static int ascending(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* The fewest moves any choice of leaving segments can need when keys[0..n_kept) stay. */
static size_t fewest_moves(const struct model_key *keys, size_t n_kept, size_t n_segments_max,
                           size_t n_leaving)
{
    size_t cost[64] = {0}, n = 0, sum = 0, per_segment = cache_slots_per_segment(bench.cache);
    for (size_t segment = 0; segment < n_segments_max; segment++) {
        if (cache_slot_address(bench.cache, segment * per_segment) == NULL)
            continue;
        for (size_t i = 0; i < n_kept; i++)
            cost[n] += keys[i].slot / per_segment == segment;
        n++;
    }
    qsort(cost, n, sizeof *cost, ascending);
    for (size_t i = 0; i < n_leaving; i++)
        sum += cost[i];
    return sum;
}

static bool is_evicted(const struct cache_shrink_plan *plan, struct cache_key key)
{
    for (size_t i = 0; i < plan->n_evicted; i++)
        if (memcmp(&plan->evicted[i], &key, sizeof key) == 0)
            return true;
    return false;
}

/* Sources hold the key that moves; no slot is named twice, as a source or a destination; a
 * destination is empty or holds a key that goes. */
static void check_moves(const struct cache_shrink_plan *plan, const struct model_key *keys,
                        size_t n, size_t n_slots_max)
{
    enum { EMPTY, KEPT, EVICTED };
    unsigned char holds[1024] = {0}, named[1024] = {0};
    for (size_t i = 0; i < n; i++)
        holds[keys[i].slot] = is_evicted(plan, keys[i].key) ? EVICTED : KEPT;
    for (size_t i = 0; i < plan->n_moves; i++) {
        const struct cache_move *m = &plan->moves[i];
        cr_assert(m->slot_from < n_slots_max && m->slot_to < n_slots_max);
        cr_assert_eq(cache_slot_of(bench.cache, m->key), m->slot_from);
        cr_assert_not_null(cache_slot_address(bench.cache, m->slot_to));
        cr_assert_eq(holds[m->slot_from], KEPT);
        cr_assert_neq(holds[m->slot_to], KEPT);
        cr_assert_eq(named[m->slot_from]++, 0);
        cr_assert_eq(named[m->slot_to]++, 0);
    }
}

/* One shrink, checked from plan to end. */
static void shrink_and_check(size_t n_after, size_t n_segments_max)
{
    static struct model_key keys[N_KEYS_MAX];
    struct cache_shrink_plan plan;
    size_t n = model_of(keys), per_segment = cache_slots_per_segment(bench.cache), reached;
    size_t n_before = cache_n_segments(bench.cache);
    size_t n_kept = n < n_after * per_segment ? n : n_after * per_segment;
    size_t n_free = bench.pool.n_free;
    size_t fewest = fewest_moves(keys, n_kept, n_segments_max, n_before - n_after);
    cr_assert_eq(cache_shrink_begin(bench.cache, n_after, &plan, &bench.err), 0, "%s",
                 bench.err.text);
    cr_assert_eq(plan.n_segments_after, n_after);
    cr_assert_eq(plan.n_evicted, n - n_kept);
    cr_assert_eq(plan.n_moves, fewest);
    check_moves(&plan, keys, n, n_segments_max * per_segment);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(cache_slot_of(bench.cache, keys[i].key), keys[i].slot, "old until the end");
    cr_assert_eq(cache_shrink_end(bench.cache, &reached, &bench.err), 0, "%s", bench.err.text);
    cr_assert_eq(reached, n_after);
    cr_assert_eq(cache_n_segments(bench.cache), n_after);
    cr_assert_eq(bench.pool.n_free, n_free + n_before - n_after);
    cr_assert_eq(cache_n_resident(bench.cache), n_kept);
    for (size_t i = 0; i < n; i++) {
        size_t slot = cache_slot_of(bench.cache, keys[i].key);
        cr_assert_eq(slot != CACHE_NO_SLOT, i < n_kept, "the %zu-th hottest of %zu", i, n_kept);
        cr_assert(slot == CACHE_NO_SLOT || cache_slot_address(bench.cache, slot) != NULL);
    }
    assert_pool_is_sound(&bench.pool);
}

static void open_cache(size_t slots_per_segment, size_t n_segments, size_t n_groups,
                       size_t n_indexes, double half_life)
{
    settings = (struct cache_settings){.slot_bytes = 4 * MIB / slots_per_segment / 256 * 256,
                                       .n_groups = n_groups,
                                       .n_indexes = n_indexes,
                                       .half_life_touches = half_life};
    fake_driver_open(&driver, &card, 4096 * MIB);
    bench_open(&bench, &driver, 4 * MIB, n_segments, &settings);
    cr_assert_eq(cache_slots_per_segment(bench.cache), slots_per_segment);
}

Test(shrink, keeps_exactly_the_hottest_with_the_fewest_moves)
{
    uint64_t seed = 1;
    for (int round = 0; round < 300; round++) {
        size_t per_segment = 1 + random_below(&seed, 9), n_max = 1 + random_below(&seed, 12);
        size_t n_indexes = 1 + random_below(&seed, 40), n_groups = 1 + random_below(&seed, 6);
        size_t n_keys = n_indexes * n_groups;
        open_cache(per_segment, n_max, n_groups, n_indexes, random_below(&seed, 2) * 50.0);
        for (int cycle = 0; cycle < 4; cycle++) {
            bench_grow(&bench, random_below(&seed, n_max + 1) < cache_n_segments(bench.cache)
                                   ? cache_n_segments(bench.cache)
                                   : n_max);
            for (size_t i = 0; i < 2 * n_keys; i++) { /* whole weights, so that there are ties */
                struct cache_key key = key_at(&settings, random_below(&seed, n_keys));
                cache_touch(bench.cache, key, (double)random_below(&seed, 4));
                if (random_below(&seed, 3) == 0 && cache_slot_of(bench.cache, key) == CACHE_NO_SLOT)
                    (void)bench_fill(&bench, key);
            }
            shrink_and_check(random_below(&seed, cache_n_segments(bench.cache) + 1), n_max);
        }
        bench_close(&bench);
    }
}

/* One text of the recorded trace: every 250 tokens of an always-full cache, a shrink and a grow. */
static void replay(const json_t *text)
{
    const json_t *layers = json_object_get(text, "experts");
    size_t n_layers = json_array_size(layers);
    size_t n_tokens = json_array_size(json_array_get(layers, 0));
    uint64_t seed = 3;
    open_cache(4, 20, n_layers, 16, 2000);
    bench_grow(&bench, 20);
    for (size_t token = 0; token < n_tokens; token++) {
        for (size_t layer = 0; layer < n_layers; layer++) {
            const json_t *experts = json_array_get(json_array_get(layers, layer), token);
            for (size_t i = 0; i < json_array_size(experts); i++) {
                size_t index = (size_t)json_integer_value(json_array_get(experts, i));
                struct cache_key key = {(uint32_t)layer, (uint32_t)index};
                cache_touch(bench.cache, key, 1.0);
                if (cache_slot_of(bench.cache, key) == CACHE_NO_SLOT)
                    (void)bench_fill(&bench, key);
            }
        }
        if (token % 250 == 249) {
            shrink_and_check(random_below(&seed, cache_n_segments(bench.cache) + 1), 20);
            bench_grow(&bench, 1 + random_below(&seed, 20) > cache_n_segments(bench.cache)
                                   ? 20
                                   : cache_n_segments(bench.cache));
        }
    }
    bench_close(&bench);
}

Test(shrink, keeps_exactly_the_hottest_of_recorded_texts)
{
    json_error_t error;
    json_t *trace = json_load_file(EBBTIDE_TEST_DATA "/routing.json", 0, &error);
    cr_assert_not_null(trace, "%s", error.text);
    const char *name;
    json_t *text;
    json_object_foreach(trace, name, text) replay(text);
    json_decref(trace);
}

/* A cache that holds everything, at many moments of a text: down to k segments, any k, stay the k * slots hottest of all. */
static void replay_whole(const json_t *text)
{
    const json_t *layers = json_object_get(text, "experts");
    size_t n_layers = json_array_size(layers),
           n_tokens = json_array_size(json_array_get(layers, 0));
    static struct model_key keys[N_KEYS_MAX];
    struct cache_shrink_plan plan;
    open_cache(4, 32, n_layers, 16, 768);
    bench_grow(&bench, 32);
    for (size_t i = 0; i < 128; i++)
        cr_assert_neq(bench_fill(&bench, key_at(&settings, i)), CACHE_NO_SLOT);
    for (size_t token = 0; token < n_tokens; token++) {
        for (size_t layer = 0; layer < n_layers; layer++) {
            const json_t *experts = json_array_get(json_array_get(layers, layer), token);
            for (size_t i = 0; i < json_array_size(experts); i++)
                cache_touch(bench.cache,
                            (struct cache_key){(uint32_t)layer, (uint32_t)json_integer_value(
                                                                    json_array_get(experts, i))},
                            1.0);
        }
        for (size_t k = 0; token % 100 == 99 && k <= 32; k++) {
            cr_assert_eq(model_of(keys), 128);
            cr_assert_eq(cache_shrink_begin(bench.cache, k, &plan, &bench.err), 0);
            cr_assert_eq(plan.n_evicted, 128 - 4 * k);
            for (size_t i = 0; i < 128; i++)
                cr_assert_eq(is_evicted(&plan, keys[i].key), i >= 4 * k, "the %zu-th hottest", i);
            cache_shrink_cancel(bench.cache);
        }
    }
    bench_close(&bench);
}

Test(shrink, of_a_whole_cache_keeps_exactly_the_hottest_of_all)
{
    json_error_t error;
    json_t *trace = json_load_file(EBBTIDE_TEST_DATA "/routing.json", 0, &error);
    cr_assert_not_null(trace, "%s", error.text);
    const char *name;
    json_t *text;
    json_object_foreach(trace, name, text) replay_whole(text);
    json_decref(trace);
}

Test(shrink, leaves_with_empty_segments_and_cold_slots_first)
{
    struct cache_shrink_plan plan;
    open_cache(2, 3, 1, 8, 0);
    bench_grow(&bench, 3);
    for (uint32_t i = 0; i < 6; i++) {
        cache_touch(bench.cache, (struct cache_key){0, i}, 10.0 + i);
        if (i != 0)
            (void)bench_fill(&bench, (struct cache_key){0, i});
    }
    /* Keys 1..5 in slots 0..4, slot 5 is empty: to two segments, key 1 (slot 0) goes. */
    cr_assert_eq(cache_shrink_begin(bench.cache, 2, &plan, &bench.err), 0);
    cr_assert_eq(plan.n_evicted, 1);
    cr_assert_eq(plan.evicted[0].index, 1);
    cr_assert_eq(plan.n_moves, 1);
    cr_assert(plan.moves[0].slot_to == 0 || plan.moves[0].slot_to == 5);
    cache_shrink_cancel(bench.cache);
    /* To one segment and back: two segments are empty, and one of them leaves. */
    size_t reached;
    cr_assert_eq(cache_shrink_begin(bench.cache, 1, &plan, &bench.err), 0);
    cr_assert_eq(plan.n_evicted, 3);
    cr_assert_eq(cache_shrink_end(bench.cache, &reached, &bench.err), 0);
    bench_grow(&bench, 3);
    cr_assert_eq(cache_shrink_begin(bench.cache, 2, &plan, &bench.err), 0);
    cr_assert_eq(plan.n_evicted + plan.n_moves, 0, "an empty segment leaves");
    cache_shrink_cancel(bench.cache);
    bench_close(&bench);
}

Test(shrink, waits_for_slots_being_filled)
{
    struct cache_shrink_plan plan;
    size_t slot, reached;
    bool did_evict;
    struct cache_key evicted;
    open_cache(2, 2, 1, 8, 0);
    bench_grow(&bench, 2);
    cr_assert_eq(cache_insert(bench.cache, (struct cache_key){0, 0}, &slot, &did_evict, &evicted,
                              &bench.err),
                 0);
    cr_assert_eq(cache_shrink_begin(bench.cache, 1, &plan, &bench.err), EBB_EBUSY);
    cr_assert_eq(cache_shrink_end(bench.cache, &reached, &bench.err), EBB_EINVAL);
    cr_assert_eq(reached, 2);
    cr_assert_eq(cache_publish(bench.cache, slot), 0);
    cr_assert_eq(cache_shrink_begin(bench.cache, 3, &plan, &bench.err), EBB_EINVAL);
    cr_assert_eq(cache_shrink_begin(bench.cache, 1, &plan, &bench.err), 0);
    bench_close(&bench);
}

Test(shrink, freezes_residency_until_it_ends_or_is_cancelled)
{
    struct cache_shrink_plan plan;
    size_t slot, reached;
    bool did_evict;
    struct cache_key key = {0, 7}, evicted;
    open_cache(2, 3, 1, 8, 0);
    bench_grow(&bench, 2);
    (void)bench_fill(&bench, (struct cache_key){0, 1});
    cr_assert_eq(cache_shrink_begin(bench.cache, 0, &plan, &bench.err), 0);
    cr_assert_eq(plan.n_evicted, 1);
    cr_assert_eq(cache_insert(bench.cache, key, &slot, &did_evict, &evicted, &bench.err),
                 EBB_EBUSY);
    cr_assert_eq(cache_grow(bench.cache, 3, &reached, &bench.err), EBB_EBUSY);
    cr_assert_eq(cache_shrink_begin(bench.cache, 0, &plan, &bench.err), EBB_EBUSY);
    cache_touch(bench.cache, key, 1.0);
    cache_shrink_cancel(bench.cache);
    cr_assert_eq(cache_slot_of(bench.cache, (struct cache_key){0, 1}), 0);
    cr_assert_eq(cache_n_segments(bench.cache), 2);
    cr_assert_eq(bench_fill(&bench, key), 1);
    bench_close(&bench);
}

static unsigned char pattern_of(struct cache_key key, size_t at)
{
    return (unsigned char)(key.group * 31 + key.index * 7 + at * 13 + 1);
}

static void pattern_write(struct cache_key key, size_t slot, size_t n)
{
    unsigned char *bytes = cache_slot_address(bench.cache, slot);
    for (size_t i = 0; i < n; i++)
        bytes[i] = pattern_of(key, i);
}

static void patterns_check(size_t n)
{
    for (size_t k = 0; k < settings.n_groups * settings.n_indexes; k++) {
        struct cache_key key = key_at(&settings, k);
        size_t slot = cache_slot_of(bench.cache, key);
        if (slot == CACHE_NO_SLOT)
            continue;
        const unsigned char *bytes = cache_slot_address(bench.cache, slot);
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(bytes[i], pattern_of(key, i), "key %zu, byte %zu", k, i);
    }
}

/* Real memory: what every resident key reads after any number of shrinks and grows is its own
 * bytes, with the moves run from the last to the first as well. */
Test(shrink, bytes_follow_their_keys)
{
    enum { SLOT = 1000, N_MAX = 8 };
    struct host_card host;
    struct cache_shrink_plan plan;
    uint64_t seed = 7;
    size_t reached;
    settings = (struct cache_settings){
        .slot_bytes = SLOT, .n_groups = 4, .n_indexes = 12, .half_life_touches = 60};
    host_card_open(&host, 64 * 1024);
    bench_open(&bench, &host.driver, 8192, N_MAX, &settings);
    for (int round = 0; round < 200; round++) {
        bench_grow(&bench, N_MAX - random_below(&seed, N_MAX - cache_n_segments(bench.cache) + 1));
        for (int i = 0; i < 60; i++) {
            struct cache_key key = key_at(&settings, random_below(&seed, 48));
            cache_touch(bench.cache, key, 1.0);
            size_t slot = cache_slot_of(bench.cache, key);
            if (slot == CACHE_NO_SLOT && (slot = bench_fill(&bench, key)) != CACHE_NO_SLOT)
                pattern_write(key, slot, SLOT);
        }
        size_t n_after = random_below(&seed, cache_n_segments(bench.cache) + 1);
        cr_assert_eq(cache_shrink_begin(bench.cache, n_after, &plan, &bench.err), 0);
        for (size_t i = 0; i < plan.n_moves; i++) {
            const struct cache_move *m = &plan.moves[round % 2 ? plan.n_moves - 1 - i : i];
            memcpy(cache_slot_address(bench.cache, m->slot_to),
                   cache_slot_address(bench.cache, m->slot_from), SLOT);
        }
        cr_assert_eq(cache_shrink_end(bench.cache, &reached, &bench.err), 0);
        patterns_check(SLOT);
        cr_assert_eq(pool_hold(&bench.pool, n_after, &reached, &bench.err), 0);
        struct vmm_memory memory;
        cr_assert_eq(host.driver.memory(&host.driver, &memory, &bench.err), 0);
        cr_assert_eq(memory.own_bytes, n_after * 8192);
        cr_assert_eq(memory.free_bytes, (N_MAX - n_after) * 8192);
        cr_assert_eq(pool_hold(&bench.pool, N_MAX, &reached, &bench.err), 0);
    }
    bench_close(&bench);
    host_card_close(&host);
}
