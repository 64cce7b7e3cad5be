/* The promises of KV that grows: its blocks keep their contents and their sharers wherever they are moved, its base stays, every
 * segment is either its own or the pool's, and no refusal of the driver loses any of that.
 */
#include "kv_help.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/vmm/fake_driver.h"

#define N_START     3
#define N_MOST      40
#define N_SEQUENCES 6
#define TABLE       16
#define SEGMENT     40960 /* two blocks and a half: blocks lie across borders */
#define N_SEGMENTS  16

/* A card, and what every block of every sequence should hold. */
struct world {
    struct host_card card;
    struct failing failing;
    struct vmm_driver driver;
    struct pool pool;
    struct kv kv;
    int32_t tables[N_SEQUENCES * TABLE];
    uint64_t marks[N_SEQUENCES][TABLE]; /* by slot */
    uint64_t mark_next;
    unsigned char *base;
    struct error err;
};

static unsigned char *block_at(struct world *w, int32_t block)
{
    return w->kv.base + (size_t)block * kv_block_bytes(&w->kv.shape);
}

static void block_mark(struct world *w, int32_t block, uint64_t mark)
{
    size_t last = kv_block_bytes(&w->kv.shape) - sizeof mark;
    memcpy(block_at(w, block), &mark, sizeof mark);
    memcpy(block_at(w, block) + last, &mark, sizeof mark);
}

static void pool_on_a_card(struct world *w)
{
    memset(w, 0, sizeof *w);
    host_card_open(&w->card, 64 * MIB);
    failing_driver_open(&w->driver, &w->failing, &w->card.driver);
    cr_assert_eq(pool_open(&w->pool, &w->driver, SEGMENT, N_SEGMENTS, &w->err), 0, "%s",
                 w->err.text);
}

static void pool_off(struct world *w)
{
    struct vmm_memory memory;
    pool_close(&w->pool);
    cr_assert_eq(w->driver.memory(&w->driver, &memory, &w->err), 0);
    cr_assert_eq(memory.own_bytes, 0, "nothing is left behind");
    host_card_close(&w->card);
}

static void world_open(struct world *w, enum call_kind kind, size_t fail_at)
{
    struct kv_shape shape = kv_shape_small(N_START, N_MOST, N_SEQUENCES, TABLE);
    size_t held;
    pool_on_a_card(w);
    cr_assert_eq(w->pool.segment_bytes, SEGMENT);
    cr_assert_eq(kv_open(&w->kv, &w->driver, &w->pool, &shape, w->tables, &w->err), 0, "%s",
                 w->err.text);
    cr_assert_eq(pool_hold(&w->pool, N_SEGMENTS, &held, &w->err), 0);
    w->base = w->kv.base;
    w->failing.kind = kind;
    w->failing.fail_at = fail_at > 0 ? w->failing.n_calls[kind] + fail_at : 0;
}

static void world_close(struct world *w)
{
    kv_close(&w->kv);
    pool_off(w);
}

/* The books balance, and what is named holds its mark. */
static void check(struct world *w)
{
    const struct kv *kv = &w->kv;
    cr_assert_eq(kv->base, w->base, "the base is fixed for life");
    kv_books_check(kv, w->tables, N_MOST);
    cr_assert_eq(w->pool.n_held, N_SEGMENTS);
    cr_assert_eq(kv_n_segments(kv) + w->pool.n_free + w->pool.n_owed, N_SEGMENTS);
    for (size_t i = 0; i < kv->region.n_indexes; i++)
        cr_assert_eq(region_is_backed(&kv->region, i), i < kv_n_segments(kv),
                     "backed from the front");
    for (size_t i = 0; i < N_SEQUENCES; i++)
        for (uint32_t b = 0; kv->sequences[i].live && b < kv->sequences[i].n_blocks; b++) {
            int32_t block = w->tables[i * TABLE + b];
            uint64_t first, last;
            memcpy(&first, block_at(w, block), sizeof first);
            memcpy(&last, block_at(w, block) + kv_block_bytes(&kv->shape) - sizeof last,
                   sizeof last);
            cr_assert_eq(first, w->marks[i][b]);
            cr_assert_eq(last, w->marks[i][b]);
        }
}

static int extend(struct world *w, uint32_t id, uint32_t pos, uint32_t n)
{
    struct kv_copy copy;
    size_t n_copies = 0;
    uint32_t slot, old = pos / KV_BLOCK_TOKENS + (pos % KV_BLOCK_TOKENS != 0);
    int rc = kv_extend(&w->kv, id, pos, n, &slot, &copy, &n_copies, &w->err);
    if (rc != 0)
        return rc;
    if (n_copies > 0)
        memcpy(block_at(w, copy.to), block_at(w, copy.from), kv_block_bytes(&w->kv.shape));
    for (uint32_t b = old; b < w->kv.sequences[slot].n_blocks; b++) {
        w->marks[slot][b] = ++w->mark_next;
        block_mark(w, w->tables[slot * TABLE + b], w->mark_next);
    }
    return 0;
}

static void fork_off(struct world *w, uint32_t new_id, uint32_t old_id, uint32_t n)
{
    uint32_t to, from;
    if (kv_fork(&w->kv, new_id, old_id, n, &w->err) != 0)
        return;
    cr_assert_eq(kv_slot(&w->kv, new_id, &to), 0);
    cr_assert_eq(kv_slot(&w->kv, old_id, &from), 0);
    memcpy(w->marks[to], w->marks[from], sizeof w->marks[to]);
}

/* As a stage does: the moves are copied between begin and end. */
static int shrink(struct world *w, size_t n_segments)
{
    int rc = kv_shrink_begin(&w->kv, n_segments, &w->err);
    for (size_t i = 0; rc == 0 && i < w->kv.n_moves; i++) {
        const struct kv_copy *m = &w->kv.moves[i];
        memcpy(block_at(w, m->to), block_at(w, m->from), kv_block_bytes(&w->kv.shape));
    }
    return rc == 0 ? kv_shrink_end(&w->kv, &w->err) : rc;
}

Test(kv_grow, what_is_asked_is_backed_by_whole_segments_and_never_more_than_the_most)
{
    struct world w;
    world_open(&w, CALL_MAP, 0);
    cr_assert_eq(w.kv.n_blocks, N_START);
    cr_assert_eq(kv_blocks_max(&w.kv), N_MOST);
    for (size_t n = 1; n <= N_MOST + 5; n++) {
        size_t segments = kv_segments_for(&w.kv, n);
        if (segments > N_SEGMENTS)
            break;
        cr_assert_eq(kv_grow(&w.kv, segments, &w.err), 0, "%s", w.err.text);
        cr_assert_geq(w.kv.n_blocks, n < N_MOST ? n : N_MOST);
        cr_assert(segments == 0 || (segments - 1) * SEGMENT + w.kv.region.head_bytes <
                                       (n < N_MOST ? n : N_MOST) * kv_block_bytes(&w.kv.shape),
                  "no segment too many");
        check(&w);
    }
    world_close(&w);
}

Test(kv_grow, a_pool_without_free_segments_says_so_and_what_was_had_stays_in_use)
{
    struct world w;
    world_open(&w, CALL_MAP, 0);
    size_t lent[N_SEGMENTS], base_bytes = (size_t)N_SEGMENTS * SEGMENT;
    void *elsewhere;
    cr_assert_eq(w.driver.reserve(&w.driver, base_bytes, &elsewhere, &w.err), 0);
    for (size_t i = 0; i < N_SEGMENTS - 2; i++)
        cr_assert_eq(pool_lend(&w.pool, (unsigned char *)elsewhere + i * SEGMENT, &lent[i], &w.err),
                     0);
    cr_assert_eq(kv_grow(&w.kv, 5, &w.err), EBB_EBUSY);
    cr_assert_eq(kv_n_segments(&w.kv), 2);
    cr_assert_eq(w.kv.n_blocks, N_START + 5);
    cr_assert_eq(extend(&w, 1, 0, 8 * KV_BLOCK_TOKENS), 0);
    cr_assert_eq(extend(&w, 2, 0, 1), EBB_EBUSY);
    for (size_t i = 0; i < N_SEGMENTS - 2; i++)
        cr_assert_eq(pool_take_back(&w.pool, lent[i], &w.err), 0);
    cr_assert_eq(w.driver.unreserve(&w.driver, elsewhere, base_bytes, &w.err), 0);
    check(&w);
    world_close(&w);
}

Test(kv_grow, shared_blocks_move_once_and_all_who_share_them_follow)
{
    struct world w;
    world_open(&w, CALL_MAP, 0);
    cr_assert_eq(kv_grow(&w.kv, 6, &w.err), 0);
    cr_assert_eq(extend(&w, 1, 0, 10 * KV_BLOCK_TOKENS), 0);
    cr_assert_eq(extend(&w, 2, 0, 5 * KV_BLOCK_TOKENS), 0);
    fork_off(&w, 3, 2, 5 * KV_BLOCK_TOKENS - 7);
    fork_off(&w, 4, 2, 2 * KV_BLOCK_TOKENS);
    cr_assert_eq(kv_drop(&w.kv, 1), 0);
    w.kv.changed = false;
    cr_assert_eq(shrink(&w, kv_segments_for(&w.kv, 5)), 0, "%s", w.err.text);
    cr_assert(w.kv.changed, "the tables' copy is to be renewed");
    cr_assert_eq(kv_n_segments(&w.kv), kv_segments_for(&w.kv, 5));
    uint32_t two, three, four;
    cr_assert(kv_slot(&w.kv, 2, &two) == 0 && kv_slot(&w.kv, 3, &three) == 0 &&
              kv_slot(&w.kv, 4, &four) == 0);
    cr_assert_eq(memcmp(&w.tables[two * TABLE], &w.tables[three * TABLE], 5 * sizeof(int32_t)), 0);
    cr_assert_eq(memcmp(&w.tables[two * TABLE], &w.tables[four * TABLE], 2 * sizeof(int32_t)), 0);
    check(&w);
    world_close(&w);
}

Test(kv_grow, a_shrink_below_what_is_in_use_is_refused_and_changes_nothing)
{
    struct world w;
    world_open(&w, CALL_MAP, 0);
    cr_assert_eq(kv_grow(&w.kv, 4, &w.err), 0);
    cr_assert_eq(extend(&w, 1, 0, 9 * KV_BLOCK_TOKENS), 0);
    size_t n_free = w.kv.n_free;
    cr_assert_eq(kv_shrink_begin(&w.kv, 1, &w.err), EBB_EBUSY);
    cr_assert(kv_n_segments(&w.kv) == 4 && w.kv.n_free == n_free);
    check(&w);
    world_close(&w);
}

static void live(struct world *w, unsigned seed, int n_steps)
{
    for (int i = 0; i < n_steps; i++) {
        uint32_t id = (uint32_t)rand_r(&seed) % 8, other = (uint32_t)rand_r(&seed) % 8;
        uint32_t pos = (uint32_t)rand_r(&seed) % 400, n = (uint32_t)rand_r(&seed) % 200;
        size_t has = kv_n_segments(&w->kv);
        switch (rand_r(&seed) % 6) {
        case 0: (void)kv_drop(&w->kv, id); break;
        case 1: fork_off(w, id, other, pos); break;
        case 2: (void)kv_grow(&w->kv, has + n % (w->kv.region.n_indexes - has + 1), &w->err); break;
        case 3: (void)shrink(w, n % (has + 1)); break;
        default: (void)extend(w, id, pos % 3 == 0 ? 0 : pos, n); break;
        }
        check(w);
    }
}

Test(kv_grow, nothing_is_lost_in_5000_random_moves)
{
    struct world w;
    world_open(&w, CALL_MAP, 0);
    live(&w, 11, 5000);
    kv_drop_all(&w.kv);
    cr_assert_eq(shrink(&w, 0), 0);
    cr_assert(w.kv.n_free == N_START && w.pool.n_free == N_SEGMENTS);
    world_close(&w);
}

Test(kv_grow, whichever_call_the_driver_refuses_nothing_is_lost)
{
    static const enum call_kind kinds[] = {CALL_MAP, CALL_SET_ACCESS, CALL_UNMAP};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t n = 1; n <= 40; n++) {
            struct world w;
            world_open(&w, kinds[k], n);
            live(&w, (unsigned)n, 120);
            cr_assert(w.failing.n_refused > 0 || n > 10, "call %zu of kind %d was never made", n,
                      (int)kinds[k]);
            world_close(&w);
        }
}

Test(kv_grow, an_open_that_the_driver_refuses_leaves_nothing)
{
    static const enum call_kind kinds[] = {CALL_RESERVE, CALL_CREATE, CALL_MAP, CALL_SET_ACCESS};
    struct kv_shape shape = kv_shape_small(N_START, N_MOST, N_SEQUENCES, TABLE);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct world w;
        pool_on_a_card(&w);
        w.failing.kind = kinds[k];
        w.failing.fail_at = 1;
        cr_assert_lt(kv_open(&w.kv, &w.driver, &w.pool, &shape, w.tables, &w.err), 0);
        cr_assert_eq(w.kv.base, NULL);
        pool_off(&w);
    }
}
