/* The promises of workspace that is lent: it moves between regions without anything being made or copied, what is there for life
 * stays where it is, and no refusal of the driver loses a segment.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "stages/forward.h"
#include "tests/unit/vmm/fake_driver.h"

#define SEGMENT    (256 * 1024)
#define N_SEGMENTS 24
#define N_ROWS     500
#define ROWS_BASE  64

/* A card, its pool, a cache beside the workspace. */
struct world {
    struct host_card card;
    struct failing failing;
    struct vmm_driver driver;
    struct pool pool;
    struct region cache;
    struct exec *exec;
    double inv_freq[16];
    struct model_geometry geometry;
    struct forward f;
    struct error err;
};

static void world_open(struct world *w, size_t rows_base, size_t n_cache)
{
    size_t held;
    memset(w, 0, sizeof *w);
    host_card_open(&w->card, 64 * MIB);
    failing_driver_open(&w->driver, &w->failing, &w->card.driver);
    cr_assert_eq(exec_cpu.open(&w->exec, &(struct exec_settings){.n_threads = 1}, &w->err), 0);
    w->geometry = (struct model_geometry){.d_model = 256,
                                          .n_layers = 2,
                                          .n_heads = 8,
                                          .n_kv_heads = 2,
                                          .head_dim = 32,
                                          .n_rot = 32,
                                          .n_experts = 16,
                                          .n_experts_used = 4,
                                          .d_expert = 128,
                                          .n_vocab = 1000};
    w->geometry.inv_freq = w->inv_freq;
    struct forward_shape shape = {.geometry = &w->geometry,
                                  .n_layers = 2,
                                  .n_rows = N_ROWS,
                                  .rows_base = rows_base,
                                  .n_sequences = 4,
                                  .table_stride = 16,
                                  .is_last = true,
                                  .exec = &exec_cpu,
                                  .card = w->exec};
    const struct kernel_set *kernels = kernel_set_cpu("reference", &w->err);
    cr_assert_eq(forward_open(&w->f, &w->driver, kernels, &shape, &w->err), 0, "%s", w->err.text);
    cr_assert_eq(pool_open(&w->pool, &w->driver, SEGMENT, N_SEGMENTS, &w->err), 0);
    cr_assert_eq(region_open(&w->cache, &w->pool, N_SEGMENTS, &w->err), 0);
    cr_assert_eq(forward_lend_open(&w->f, &w->pool, &w->err), 0);
    cr_assert_eq(pool_hold(&w->pool, n_cache, &held, &w->err), 0);
    for (size_t i = 0; i < n_cache; i++)
        cr_assert_eq(region_back(&w->cache, i, &w->err), 0);
}

static void world_close(struct world *w)
{
    struct vmm_memory memory;
    forward_lend_close(&w->f);
    region_close(&w->cache);
    pool_close(&w->pool);
    forward_close(&w->f);
    exec_cpu.close(w->exec);
    cr_assert_eq(w->driver.memory(&w->driver, &memory, &w->err), 0);
    cr_assert_eq(memory.own_bytes, 0, "nothing is left behind");
    host_card_close(&w->card);
}

static void cache_gives(struct world *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(region_unback(&w->cache, w->cache.n_backed - 1, &w->err), 0);
}

static void cache_takes(struct world *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(region_back(&w->cache, w->cache.n_backed, &w->err), 0);
}

Test(workspace, rows_and_the_segments_for_them_agree)
{
    struct world w;
    world_open(&w, ROWS_BASE, 1);
    cr_expect_eq(forward_segments_for(&w.f, 1), 0);
    cr_expect_eq(forward_segments_for(&w.f, ROWS_BASE), 0);
    cr_expect_eq(forward_rows_within(&w.f, 0), ROWS_BASE);
    size_t sizes[] = {128, 256, N_ROWS}, before = 0;
    for (size_t i = 0; i < 3; i++) {
        size_t n = forward_segments_for(&w.f, sizes[i]);
        cr_expect_gt(n, before);
        cr_expect_eq(forward_rows_within(&w.f, n), sizes[i]);
        cr_expect_eq(forward_rows_within(&w.f, n - 1), i > 0 ? sizes[i - 1] : ROWS_BASE);
        before = n;
    }
    cr_expect_eq(forward_segments_for(&w.f, 1 << 20), before, "no step has more rows");
    cr_expect_eq(forward_rows_within(&w.f, 1000), N_ROWS);
    world_close(&w);
}

Test(workspace, a_hundred_loans_make_nothing_copy_nothing_and_move_nothing_that_is_there_for_life)
{
    struct world w;
    world_open(&w, ROWS_BASE, N_SEGMENTS);
    struct forward start = w.f;
    struct vmm_memory before, now;
    size_t n = forward_segments_for(&w.f, N_ROWS), n_created = w.failing.n_calls[CALL_CREATE],
           n_destroyed = w.failing.n_calls[CALL_DESTROY];
    cr_assert_eq(w.driver.memory(&w.driver, &before, &w.err), 0);
    for (int i = 0; i < 100; i++) {
        cache_gives(&w, n);
        cr_assert_eq(forward_back(&w.f, n, &w.err), 0, "%s", w.err.text);
        cr_assert_eq(w.f.rows, N_ROWS);
        cr_assert_eq((unsigned char *)w.f.normed, w.f.lent.base);
        w.f.expert_outputs[(size_t)N_ROWS * 4 * 256 - 1] = 1; /* backed to its end */
        cr_assert_eq(w.f.hidden, start.hidden);
        cr_assert_eq(w.f.angles, start.angles);
        cr_assert_eq(w.f.logits, start.logits);
        cr_assert_eq(w.driver.memory(&w.driver, &now, &w.err), 0);
        cr_assert_eq(now.own_bytes, before.own_bytes);
        cr_assert_eq(forward_back(&w.f, 0, &w.err), 0);
        cache_takes(&w, n);
        cr_assert_eq(w.f.rows, ROWS_BASE);
        cr_assert_eq(w.f.normed, start.normed, "recorded steps find their buffers");
        cr_assert_eq(w.f.experts_scratch, start.experts_scratch);
    }
    cr_expect_eq(w.failing.n_calls[CALL_CREATE], n_created);
    cr_expect_eq(w.failing.n_calls[CALL_DESTROY], n_destroyed);
    world_close(&w);
}

Test(workspace, what_the_driver_refuses_leaves_the_rows_that_are_backed)
{
    for (enum call_kind kind = CALL_MAP; kind < CALL_N_KINDS; kind++) {
        struct world w;
        world_open(&w, ROWS_BASE, N_SEGMENTS);
        size_t n = forward_segments_for(&w.f, N_ROWS);
        cache_gives(&w, n);
        w.failing.kind = kind;
        if (kind == CALL_UNMAP)
            cr_assert_eq(forward_back(&w.f, n, &w.err), 0);
        w.failing.fail_at = w.failing.n_calls[kind] + 2;
        cr_expect_neq(forward_back(&w.f, kind == CALL_UNMAP ? 0 : n, &w.err), 0);
        w.failing.fail_at = 0;
        size_t n_left = forward_n_segments(&w.f);
        cr_expect_eq(n_left, kind == CALL_UNMAP ? n - 1 : 1);
        cr_expect_eq(w.f.rows, forward_rows_within(&w.f, n_left));
        cr_expect_eq(w.pool.n_free + n_left, n, "no segment is lost");
        cr_expect_eq(forward_back(&w.f, n, &w.err), 0, "%s", w.err.text);
        cr_expect_eq(w.f.rows, N_ROWS);
        cr_expect_eq(forward_back(&w.f, 0, &w.err), 0);
        world_close(&w);
    }
}

Test(workspace, without_a_base_it_is_all_there_for_life)
{
    struct world w;
    world_open(&w, 0, 1);
    cr_expect_eq(w.f.rows, N_ROWS);
    cr_expect_eq(forward_lendable_bytes(&w.f), 0);
    cr_expect_eq(forward_segments_for(&w.f, N_ROWS), 0);
    cr_expect_eq(forward_rows_within(&w.f, 5), N_ROWS);
    world_close(&w);
}
