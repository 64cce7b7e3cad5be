/* tests/unit/vmm/cache_test.c - residency, heat and order: what the slot cache promises between
 * shrinks. */
#include "tests/unit/vmm/cache_help.h"

#include <math.h>

static struct fake_card card;
static struct vmm_driver driver;
static struct cache_bench bench;

/* Two groups of eight keys, three slots a segment. */
static const struct cache_settings small = {
    .slot_bytes = 2 * MIB, .n_groups = 2, .n_indexes = 8, .half_life_touches = 100};

static void open_small(size_t n_segments, size_t n_backed)
{
    fake_driver_open(&driver, &card, 1000 * MIB);
    bench_open(&bench, &driver, 6 * MIB, n_segments, &small);
    bench_grow(&bench, n_backed);
}

Test(cache, slots_never_straddle_segments)
{
    static const size_t sizes[] = {1, 256, 257, 100000, MIB - 1, MIB, MIB + 1, 3 * MIB, 4 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct cache_settings settings = {.slot_bytes = sizes[i], .n_groups = 1, .n_indexes = 4};
        size_t step = (sizes[i] + 255) / 256 * 256;
        fake_driver_open(&driver, &card, 100 * MIB);
        bench_open(&bench, &driver, 4 * MIB, 3, &settings);
        bench_grow(&bench, 3);
        cr_assert_eq(cache_slots_per_segment(bench.cache), 4 * MIB / step);
        cr_assert_eq(cache_n_slots(bench.cache), 3 * (4 * MIB / step));
        uintptr_t base = (uintptr_t)cache_slot_address(bench.cache, 0), last = 0;
        for (size_t slot = 0; slot < cache_n_slots(bench.cache); slot++) {
            uintptr_t at = (uintptr_t)cache_slot_address(bench.cache, slot);
            cr_assert_eq((at - base) / (4 * MIB), (at + step - 1 - base) / (4 * MIB));
            cr_assert_eq(at % 256, 0);
            cr_assert(slot == 0 || at >= last + step);
            last = at;
        }
        cr_assert_null(cache_slot_address(bench.cache, cache_n_slots(bench.cache)));
        cr_assert_null(cache_slot_address(bench.cache, CACHE_NO_SLOT));
        bench_close(&bench);
    }
}

Test(cache, warming_adds_heat_and_lets_none_decay)
{
    struct cache_key a = {0, 3}, b = {1, 5}, key;
    open_small(1, 1);
    cache_touch(bench.cache, a, 4.0);
    for (uint32_t i = 0; i < 8; i++)
        cache_warm(bench.cache, (struct cache_key){1, i}, 2.0 + i);
    cr_assert_float_eq(cache_heat(bench.cache, a), 4.0, 1e-12);
    cr_assert_float_eq(cache_heat(bench.cache, b), 7.0, 1e-12);
    cr_assert(cache_hottest_absent(bench.cache, &key));
    cr_assert(key.group == 1 && key.index == 7);
    cache_warm(bench.cache, a, 6.0);
    cache_warm(bench.cache, b, 0.0);
    cache_warm(bench.cache, b, -3.0);
    cache_warm(bench.cache, (struct cache_key){2, 0}, 1.0);
    cr_assert_float_eq(cache_heat(bench.cache, b), 7.0, 1e-12);
    cr_assert(cache_hottest_absent(bench.cache, &key));
    cr_assert(key.group == 0 && key.index == 3);
    bench_close(&bench);
}

Test(cache, addresses_are_stable_over_shrink_and_grow)
{
    void *before[12];
    struct cache_shrink_plan plan;
    size_t reached;
    open_small(4, 4);
    for (size_t i = 0; i < 12; i++)
        before[i] = cache_slot_address(bench.cache, i);
    cr_assert_eq(cache_shrink_begin(bench.cache, 1, &plan, &bench.err), 0);
    cr_assert_eq(cache_shrink_end(bench.cache, &reached, &bench.err), 0);
    for (size_t i = 0; i < 12; i++)
        cr_assert_eq(cache_slot_address(bench.cache, i), i < 3 ? before[i] : NULL);
    bench_grow(&bench, 4);
    for (size_t i = 0; i < 12; i++)
        cr_assert_eq(cache_slot_address(bench.cache, i), before[i]);
    bench_close(&bench);
}

Test(cache, a_slot_is_free_then_filling_then_resident)
{
    size_t slot;
    bool did_evict;
    struct cache_key key = {1, 3}, evicted;
    open_small(2, 1);
    cr_assert_eq(cache_insert(bench.cache, key, &slot, &did_evict, &evicted, &bench.err), 0);
    cr_assert_not(did_evict);
    cr_assert_eq(cache_slot_of(bench.cache, key), CACHE_NO_SLOT, "not before it is filled");
    cr_assert_eq(cache_n_resident(bench.cache), 0);
    cr_assert_eq(cache_insert(bench.cache, key, &slot, &did_evict, &evicted, &bench.err),
                 EBB_EINVAL);
    cr_assert_eq(cache_abandon(bench.cache, slot), 0);
    cr_assert_eq(cache_abandon(bench.cache, slot), EBB_EINVAL);
    cr_assert_eq(cache_publish(bench.cache, slot), EBB_EINVAL);
    cr_assert_eq(cache_publish(bench.cache, CACHE_NO_SLOT), EBB_EINVAL);
    cr_assert_eq(bench_fill(&bench, key), slot);
    cr_assert_eq(cache_n_resident(bench.cache), 1);
    cr_assert_eq(cache_publish(bench.cache, slot), EBB_EINVAL);
    cr_assert_eq(cache_abandon(bench.cache, slot), EBB_EINVAL);
    bench_close(&bench);
}

Test(cache, a_hotter_key_takes_the_slot_of_the_coldest)
{
    struct cache_key hot = {0, 5}, cold = {1, 7}, evicted;
    size_t slot, coldest_slot;
    bool did_evict;
    open_small(1, 1);
    for (uint32_t i = 0; i < 3; i++) {
        cache_touch(bench.cache, (struct cache_key){0, i}, 3.0 - i);
        (void)bench_fill(&bench, (struct cache_key){0, i});
    }
    coldest_slot = cache_slot_of(bench.cache, (struct cache_key){0, 2});
    cache_touch(bench.cache, cold, 0.5);
    cr_assert_eq(cache_insert(bench.cache, cold, &slot, &did_evict, &evicted, &bench.err),
                 EBB_EBUSY);
    cr_assert_not(did_evict);
    cache_touch(bench.cache, hot, 9.0);
    cr_assert_eq(cache_insert(bench.cache, hot, &slot, &did_evict, &evicted, &bench.err), 0);
    cr_assert(did_evict && evicted.group == 0 && evicted.index == 2);
    cr_assert_eq(slot, coldest_slot);
    cr_assert_eq(cache_slot_of(bench.cache, evicted), CACHE_NO_SLOT);
    cr_assert_eq(cache_n_resident(bench.cache), 2);
    bench_close(&bench);
}

Test(cache, slots_being_filled_are_nobodys_victims)
{
    size_t slot;
    bool did_evict;
    struct cache_key evicted;
    open_small(1, 1);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(cache_insert(bench.cache, (struct cache_key){0, i}, &slot, &did_evict,
                                  &evicted, &bench.err),
                     0);
    cache_touch(bench.cache, (struct cache_key){1, 1}, 5.0);
    cr_assert_eq(cache_insert(bench.cache, (struct cache_key){1, 1}, &slot, &did_evict, &evicted,
                              &bench.err),
                 EBB_EBUSY);
    bench_close(&bench);
}

Test(cache, keys_outside_are_refused_and_never_counted)
{
    size_t slot;
    bool did_evict;
    struct cache_key outside[] = {{2, 0}, {0, 8}, {UINT32_MAX, UINT32_MAX}}, evicted;
    open_small(1, 1);
    for (size_t i = 0; i < 3; i++) {
        cache_touch(bench.cache, outside[i], 1.0);
        cr_assert_eq(cache_heat(bench.cache, outside[i]), 0.0);
        cr_assert_eq(cache_slot_of(bench.cache, outside[i]), CACHE_NO_SLOT);
        cr_assert_eq(cache_insert(bench.cache, outside[i], &slot, &did_evict, &evicted, &bench.err),
                     EBB_EINVAL);
    }
    bench_close(&bench);
}

Test(cache, settings_that_cannot_be_are_refused_before_anything_is_taken)
{
    static const struct {
        struct cache_settings settings;
        size_t n_segments;
    } bad[] = {{{0, 1, 1, 0}, 1},        {{9 * MIB, 1, 1, 0}, 1},
               {{SIZE_MAX, 1, 1, 0}, 1}, {{MIB, 0, 1, 0}, 1},
               {{MIB, 1, 0, 0}, 1},      {{MIB, (size_t)1 << 40, (size_t)1 << 40, 0}, 1},
               {{MIB, 1, 1, 0}, 0},      {{MIB, 1, 1, 0}, SIZE_MAX},
               {{MIB, 1, 1, 0.5}, 1},    {{MIB, 1, 1, -1}, 1},
               {{MIB, 1, 1, NAN}, 1}};
    struct cache *cache;
    open_small(1, 0);
    size_t n_ranges = card.n_ranges;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(
            cache_open(&cache, &bench.pool, &bad[i].settings, bad[i].n_segments, &bench.err),
            EBB_EINVAL, "case %zu", i);
        cr_assert_null(cache);
    }
    cr_assert_eq(card.n_ranges, n_ranges);
    bench_close(&bench);
}

Test(cache, heat_halves_in_one_half_life_of_touches)
{
    struct cache_key a = {0, 0}, b = {0, 1};
    open_small(1, 0);
    cache_touch(bench.cache, a, 8.0);
    cr_assert_float_eq(cache_heat(bench.cache, a), 8.0, 1e-12);
    for (int i = 0; i < 100; i++)
        cache_touch(bench.cache, b, 1.0);
    cr_assert_float_eq(cache_heat(bench.cache, a), 4.0, 1e-12);
    for (int i = 0; i < 200; i++)
        cache_touch(bench.cache, b, 1.0);
    cr_assert_float_eq(cache_heat(bench.cache, a), 1.0, 1e-12);
    bench_close(&bench);
}

Test(cache, heat_outlives_any_number_of_touches)
{
    double model[16] = {0}, decay = exp2(-1.0 / 100);
    uint64_t seed = 5;
    open_small(1, 0);
    for (int n = 0; n < 200000; n++) { /* 2000 half-lives: the scale starts again ten times */
        size_t key = random_below(&seed, 15);
        double weight = 0.1 + (double)random_below(&seed, 10);
        for (int i = 0; i < 16; i++)
            model[i] *= decay;
        model[key] += weight;
        cache_touch(bench.cache, key_at(&small, key), weight);
    }
    for (size_t i = 0; i < 16; i++)
        cr_assert_float_eq(cache_heat(bench.cache, key_at(&small, i)), model[i],
                           1e-9 * model[i] + 1e-300);
    bench_close(&bench);
}

Test(cache, weights_that_are_no_weights_change_nothing)
{
    struct cache_key key = {0, 1};
    open_small(1, 0);
    cache_touch(bench.cache, key, 1.0);
    cache_touch(bench.cache, key, 0.0);
    cache_touch(bench.cache, key, -5.0);
    cache_touch(bench.cache, key, NAN);
    cr_assert_eq(cache_heat(bench.cache, key), 1.0);
    cache_touch(bench.cache, key, INFINITY);
    cr_assert(isfinite(cache_heat(bench.cache, key)));
    bench_close(&bench);
}

/* Hotter by heat, then by the lower key, as a plain scan over all keys sees it. */
static bool is_hotter(struct cache_key a, struct cache_key b)
{
    double x = cache_heat(bench.cache, a), y = cache_heat(bench.cache, b);
    return x != y ? x > y : a.group != b.group ? a.group < b.group : a.index < b.index;
}

static void check_extremes(const bool *is_filling)
{
    struct cache_key best, worst, got;
    bool has_absent = false, has_resident = false;
    for (size_t i = 0; i < small.n_groups * small.n_indexes; i++) {
        struct cache_key key = key_at(&small, i);
        if (is_filling[i])
            continue;
        if (cache_slot_of(bench.cache, key) == CACHE_NO_SLOT) {
            best = !has_absent || is_hotter(key, best) ? key : best;
            has_absent = true;
        } else {
            worst = !has_resident || is_hotter(worst, key) ? key : worst;
            has_resident = true;
        }
    }
    cr_assert_eq(cache_hottest_absent(bench.cache, &got), has_absent);
    cr_assert(!has_absent || memcmp(&got, &best, sizeof got) == 0);
    cr_assert_eq(cache_coldest_resident(bench.cache, &got), has_resident);
    cr_assert(!has_resident || memcmp(&got, &worst, sizeof got) == 0);
}

Test(cache, the_hottest_absent_and_the_coldest_resident_are_what_a_scan_finds)
{
    bool is_filling[16] = {false};
    size_t filling_slot[16];
    uint64_t seed = 99;
    open_small(3, 2);
    for (int n = 0; n < 50000; n++) {
        size_t i = random_below(&seed, 16);
        struct cache_key key = key_at(&small, i), evicted;
        bool did_evict;
        if (random_below(&seed, 4) != 0) {
            cache_touch(bench.cache, key, 1.0 + (double)random_below(&seed, 3));
        } else if (is_filling[i]) {
            bool publishes = random_below(&seed, 2) == 0;
            cr_assert_eq(publishes ? cache_publish(bench.cache, filling_slot[i])
                                   : cache_abandon(bench.cache, filling_slot[i]),
                         0);
            is_filling[i] = false;
        } else if (cache_slot_of(bench.cache, key) == CACHE_NO_SLOT) {
            int code =
                cache_insert(bench.cache, key, &filling_slot[i], &did_evict, &evicted, &bench.err);
            is_filling[i] = code == 0;
            cr_assert(code == 0 || code == EBB_EBUSY);
            cr_assert(!did_evict || is_hotter(key, evicted));
        }
        check_extremes(is_filling);
    }
    bench_close(&bench);
}

Test(cache, growing_fills_the_lowest_holes_first)
{
    struct cache_shrink_plan plan;
    size_t reached;
    open_small(4, 4);
    for (uint32_t i = 0; i < 12; i++) { /* segment 0 is coldest, so it leaves and leaves a hole */
        cache_touch(bench.cache, key_at(&small, i), 1.0 + i);
        cr_assert_eq(bench_fill(&bench, key_at(&small, i)), i);
    }
    cr_assert_eq(cache_shrink_begin(bench.cache, 3, &plan, &bench.err), 0);
    cr_assert_eq(plan.n_moves, 0);
    cr_assert_eq(cache_shrink_end(bench.cache, &reached, &bench.err), 0);
    cr_assert_null(cache_slot_address(bench.cache, 0));
    cr_assert_not_null(cache_slot_address(bench.cache, 11));
    bench_grow(&bench, 4);
    cr_assert_not_null(cache_slot_address(bench.cache, 0));
    cr_assert_eq(bench_fill(&bench, key_at(&small, 0)), 0);
    bench_close(&bench);
}

Test(cache, a_grow_says_how_far_the_pool_let_it)
{
    size_t reached;
    open_small(4, 1);
    cr_assert_eq(pool_hold(&bench.pool, 3, &reached, &bench.err), 0);
    cr_assert_eq(cache_grow(bench.cache, 4, &reached, &bench.err), EBB_EBUSY);
    cr_assert_eq(reached, 3);
    cr_assert_eq(cache_n_segments(bench.cache), 3);
    cr_assert_eq(cache_grow(bench.cache, 5, &reached, &bench.err), EBB_EINVAL);
    cr_assert_eq(reached, 3);
    cr_assert_eq(cache_grow(bench.cache, 1, &reached, &bench.err), 0, "a grow never shrinks");
    cr_assert_eq(reached, 3);
    bench_close(&bench);
}
