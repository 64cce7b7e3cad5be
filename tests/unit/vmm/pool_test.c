/* tests/unit/vmm/pool_test.c - what the segment pool and its regions promise, on a card that only
 * keeps books. */
#include <criterion/criterion.h>
#include "tests/unit/vmm/fake_driver.h"
#include "vmm/region.h"

#define SEGMENT (512 * MIB)

static struct fake_card card;
static struct vmm_driver driver;
static struct pool pool;
static struct error err;

static void open_pool(uint64_t total_bytes, size_t n_capacity)
{
    fake_driver_open(&driver, &card, total_bytes);
    cr_assert_eq(pool_open(&pool, &driver, SEGMENT, n_capacity, &err), 0, "%s", err.text);
}

static void hold(size_t n)
{
    size_t reached;
    cr_assert_eq(pool_hold(&pool, n, &reached, &err), 0, "%s", err.text);
    cr_assert_eq(reached, n);
}

static uint64_t free_bytes(void)
{
    struct vmm_memory memory;
    cr_assert_eq(driver.memory(&driver, &memory, &err), 0);
    return memory.free_bytes;
}

Test(pool, a_reserve_of_12000_with_8292_free_gives_back_8_segments_of_512)
{
    open_pool((8292 + 32 * 512) * MIB, 32);
    hold(32);
    cr_assert_eq(free_bytes(), 8292 * MIB);
    size_t n = pool_segments_to_release(12000 * MIB, free_bytes(), SEGMENT);
    cr_assert_eq(n, 8);
    hold(32 - n);
    cr_assert_eq(free_bytes(), (8292 + 8 * 512) * MIB);
    cr_assert_geq(free_bytes(), 12000 * MIB);
    cr_assert_eq(pool_segments_to_release(12000 * MIB, free_bytes(), SEGMENT), 0);
    pool_close(&pool);
}

Test(pool, a_need_under_one_segment_still_frees_one)
{
    cr_assert_eq(pool_segments_to_release(8292 * MIB + 1, 8292 * MIB, SEGMENT), 1);
    cr_assert_eq(pool_segments_to_release(8292 * MIB, 8292 * MIB, SEGMENT), 0);
    cr_assert_eq(pool_segments_to_release(8292 * MIB + SEGMENT, 8292 * MIB, SEGMENT), 1);
    cr_assert_eq(pool_segments_to_release(8292 * MIB + SEGMENT + 1, 8292 * MIB, SEGMENT), 2);
    cr_assert_eq(pool_segments_to_release(UINT64_MAX, 0, 1 << 20), (UINT64_MAX >> 20) + 1);
}

Test(pool, a_grow_never_breaks_the_reserve)
{
    uint64_t seed = 17;
    for (int round = 0; round < 2000; round++) {
        open_pool((1000 + random_below(&seed, 40000)) * MIB, 64);
        card.foreign_bytes = random_below(&seed, 5000 * MIB) % card.total_bytes;
        uint64_t reserve = random_below(&seed, 20000 * MIB);
        size_t n = pool_segments_to_take(reserve, free_bytes(), SEGMENT);
        bool could_be_met = free_bytes() >= reserve;
        hold(n < 64 ? n : 64);
        if (could_be_met)
            cr_assert_geq(free_bytes(), reserve);
        else
            cr_assert_eq(n, 0);
        if (could_be_met && n < 64)
            cr_assert_lt(free_bytes() - reserve, SEGMENT);
        pool_close(&pool);
    }
}

Test(pool, segments_are_rounded_up_to_what_the_driver_maps)
{
    fake_driver_open(&driver, &card, 100 * MIB);
    cr_assert_eq(pool_open(&pool, &driver, 5 * MIB, 4, &err), 0);
    cr_assert_eq(pool.segment_bytes, 6 * MIB);
    pool_close(&pool);
    cr_assert_eq(pool_open(&pool, &driver, 0, 4, &err), EBB_EINVAL);
    cr_assert_eq(pool_open(&pool, &driver, MIB, 0, &err), EBB_EINVAL);
    cr_assert_eq(pool_open(&pool, &driver, SIZE_MAX, 4, &err), EBB_EINVAL);
    pool_close(&pool);
}

Test(pool, lent_segments_are_never_destroyed)
{
    struct region region;
    size_t reached;
    open_pool(8 * SEGMENT, 8);
    hold(4);
    cr_assert_eq(region_open(&region, &pool, 3, &err), 0);
    cr_assert_eq(region_back(&region, 0, &err), 0);
    cr_assert_eq(region_back(&region, 2, &err), 0);
    cr_assert_eq(pool_hold(&pool, 1, &reached, &err), EBB_EBUSY);
    cr_assert_eq(reached, 2);
    cr_assert(region_is_backed(&region, 0) && region_is_backed(&region, 2));
    cr_assert_eq(region_back(&region, 1, &err), EBB_EBUSY);
    assert_pool_is_sound(&pool);
    region_close(&region);
    cr_assert_eq(pool.n_free, 2);
    pool_close(&pool);
    cr_assert_eq(card.n_handles + card.n_ranges + card.n_mappings, 0);
}

Test(pool, a_card_that_is_full_says_so_and_how_far_it_got)
{
    size_t reached;
    open_pool(5 * SEGMENT + MIB, 8);
    cr_assert_eq(pool_hold(&pool, 8, &reached, &err), EBB_ENOMEM);
    cr_assert_eq(reached, 5);
    cr_assert_eq(pool_hold(&pool, 9, &reached, &err), EBB_EINVAL);
    cr_assert_eq(reached, 5);
    assert_pool_is_sound(&pool);
    pool_close(&pool);
}

Test(pool, refuses_what_is_not_lent)
{
    open_pool(8 * SEGMENT, 8);
    hold(2);
    cr_assert_eq(pool_take_back(&pool, 0, &err), EBB_EINVAL);
    cr_assert_eq(pool_take_back(&pool, 8, &err), EBB_EINVAL);
    pool_close(&pool);
}

/* Mapped, no access, and no unmapping either: the segment is owed and comes back as soon as the
 * driver allows. */
Test(pool, a_segment_stuck_between_two_refusals_comes_back)
{
    struct failing no_access, no_unmap;
    struct vmm_driver outer, inner;
    struct region region;
    size_t reached;
    fake_driver_open(&driver, &card, 8 * SEGMENT);
    failing_driver_open(&inner, &no_unmap, &driver);
    failing_driver_open(&outer, &no_access, &inner);
    no_unmap.kind = CALL_UNMAP;
    no_unmap.fail_at = 1;
    no_access.kind = CALL_SET_ACCESS;
    no_access.fail_at = 1;
    cr_assert_eq(pool_open(&pool, &outer, SEGMENT, 4, &err), 0);
    hold(1);
    cr_assert_eq(region_open(&region, &pool, 2, &err), 0);
    cr_assert_eq(region_back(&region, 0, &err), EBB_EDRIVER);
    cr_assert_str_eq(err.text, "fake card: set_access: told to fail");
    cr_assert_not(region_is_backed(&region, 0));
    cr_assert_eq(pool.n_owed, 1);
    assert_pool_is_sound(&pool);
    cr_assert_eq(pool_take_back(&pool, 0, &err), EBB_EINVAL, "nobody may take it back twice");
    cr_assert_eq(pool_hold(&pool, 0, &reached, &err), 0, "%s", err.text);
    cr_assert_eq(card.n_handles + card.n_mappings, 0);
    hold(1);
    cr_assert_eq(region_back(&region, 0, &err), 0, "%s", err.text);
    region_close(&region);
    pool_close(&pool);
    cr_assert_eq(card.n_handles + card.n_ranges + card.n_mappings, 0);
}

static void random_region_act(struct region *r, uint64_t *seed)
{
    size_t index = random_below(seed, r->n_indexes + 1);
    bool was_backed = index < r->n_indexes && region_is_backed(r, index);
    bool backs = random_below(seed, 2) == 0;
    size_t n_free = pool.n_free;
    int code = backs ? region_back(r, index, &err) : region_unback(r, index, &err);
    if (index == r->n_indexes || was_backed == backs)
        cr_assert_eq(code, EBB_EINVAL);
    else if (backs && n_free == 0)
        cr_assert_eq(code, EBB_EBUSY);
    else
        cr_assert_eq(code, 0, "%s", err.text);
}

Test(pool, every_count_adds_up_under_ten_thousand_random_operations)
{
    struct region regions[3];
    uint64_t seed = 4;
    open_pool(20 * SEGMENT, 24);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(region_open(&regions[i], &pool, 10, &err), 0);
    for (int n = 0; n < 10000; n++) {
        size_t reached = 0, wanted = random_below(&seed, 26), held = pool.n_held;
        if (random_below(&seed, 4) != 0) {
            random_region_act(&regions[random_below(&seed, 3)], &seed);
        } else {
            card.foreign_bytes = random_below(&seed, 8) * SEGMENT;
            int code = pool_hold(&pool, wanted, &reached, &err);
            cr_assert_eq(reached, pool.n_held);
            cr_assert(code != 0 || reached == wanted);
            cr_assert(code != EBB_EBUSY || (pool.n_free == 0 && wanted < reached));
            cr_assert(code != EBB_ENOMEM || (reached >= held && free_bytes() < SEGMENT));
        }
        assert_pool_is_sound(&pool);
        size_t n_lent = regions[0].n_backed + regions[1].n_backed + regions[2].n_backed;
        cr_assert_eq(pool.n_held - pool.n_free, n_lent);
        cr_assert_eq(card.n_handles, pool.n_held);
        cr_assert_eq(card.n_mappings, n_lent);
        cr_assert_eq(card.own_bytes, pool.n_held * SEGMENT);
    }
    for (size_t i = 0; i < card.n_mappings; i++)
        cr_assert(card.mappings[i].is_accessible);
    for (int i = 0; i < 3; i++)
        region_close(&regions[i]);
    pool_close(&pool);
    cr_assert_eq(card.n_handles + card.n_ranges + card.n_mappings, 0);
}

Test(region, a_fixed_block_is_rounded_up_and_given_back_whole)
{
    struct fixed_block block;
    fake_driver_open(&driver, &card, 100 * MIB);
    cr_assert_eq(fixed_block_open(&block, &driver, 3 * MIB, &err), 0);
    cr_assert_eq(block.bytes, 4 * MIB);
    cr_assert_eq(card.own_bytes, 4 * MIB);
    fixed_block_close(&block);
    fixed_block_close(&block);
    cr_assert_eq(card.n_handles + card.n_ranges + card.n_mappings, 0);
    cr_assert_eq(fixed_block_open(&block, &driver, 0, &err), EBB_EINVAL);
    cr_assert_eq(fixed_block_open(&block, &driver, SIZE_MAX, &err), EBB_EINVAL);
    cr_assert_eq(fixed_block_open(&block, &driver, 101 * MIB, &err), EBB_ENOMEM);
    cr_assert_eq(card.n_handles + card.n_ranges + card.n_mappings, 0);
}

Test(region, a_zeroed_region_may_be_closed)
{
    struct region region = {0};
    region_close(&region);
}
