/* The promises of paged key/value memory: blocks are neither lost nor shared by mistake, whatever sequences do. */
#include "kv_help.h"

#include <stdlib.h>
#include <string.h>

#define N_BLOCKS    24
#define N_SEQUENCES 6
#define TABLE       8 /* blocks of the longest sequence */

static struct vmm_driver driver;
static int32_t tables[N_SEQUENCES * TABLE];
static struct kv kv;

static void open_kv(void)
{
    struct error err;
    struct vmm_host_settings host = {.capacity_bytes = 64u << 20,
                                     .name_space = "unit-kv",
                                     .runtime_dir = getenv("EBBTIDE_RUNTIME_DIR")};
    struct kv_shape shape = kv_shape_small(N_BLOCKS, 0, N_SEQUENCES, TABLE);
    cr_assert_eq(vmm_driver_host_open(&driver, &host, &err), 0, "%s", err.text);
    cr_assert_eq(kv_open(&kv, &driver, NULL, &shape, tables, &err), 0, "%s", err.text);
}

static void close_kv(void)
{
    kv_close(&kv);
    driver.close(&driver);
}

TestSuite(kv, .init = open_kv, .fini = close_kv);

static int extend(uint32_t id, uint32_t pos, uint32_t n, size_t *n_copies)
{
    struct kv_copy copies[2];
    size_t copied = 0;
    uint32_t slot;
    int rc = kv_extend(&kv, id, pos, n, &slot, copies, &copied, NULL);
    if (n_copies != NULL)
        *n_copies = copied;
    return rc;
}

Test(kv, a_block_is_taken_only_when_a_position_needs_it)
{
    cr_assert_eq(extend(1, 0, 1, NULL), 0);
    cr_assert_eq(kv.n_free, N_BLOCKS - 1);
    cr_assert_eq(extend(1, 1, KV_BLOCK_TOKENS - 1, NULL), 0);
    cr_assert_eq(kv.n_free, N_BLOCKS - 1);
    cr_assert_eq(extend(1, KV_BLOCK_TOKENS, 1, NULL), 0);
    cr_assert_eq(kv.n_free, N_BLOCKS - 2);
    cr_assert_eq(kv_drop(&kv, 1), 0);
    cr_assert_eq(kv.n_free, N_BLOCKS);
}

Test(kv, a_gap_or_a_position_beyond_the_context_is_refused_and_changes_nothing)
{
    cr_assert_eq(extend(1, 1, 1, NULL), EBB_EINVAL);
    cr_assert_eq(extend(1, 0, 40, NULL), 0);
    cr_assert_eq(extend(1, 41, 1, NULL), EBB_EINVAL);
    cr_assert_eq(extend(1, 40, TABLE * KV_BLOCK_TOKENS, NULL), EBB_EINVAL);
    cr_assert_eq(extend(2, 0, TABLE * KV_BLOCK_TOKENS + 1, NULL), EBB_EINVAL);
    cr_assert_eq(kv_n_sequences(&kv), 1);
    cr_assert_eq(kv.n_free, N_BLOCKS - 2);
}

Test(kv, a_shared_block_is_copied_before_it_is_written)
{
    size_t copies;
    cr_assert_eq(extend(1, 0, 40, NULL), 0);
    cr_assert_eq(kv_fork(&kv, 2, 1, 40, NULL), 0);
    cr_assert_eq(kv.n_free, N_BLOCKS - 2, "a fork takes no block");
    cr_assert_eq(extend(2, 40, 1, &copies), 0);
    cr_assert_eq(copies, 1, "the second block is shared and written");
    cr_assert_neq(tables[1], tables[TABLE + 1]);
    cr_assert_eq(tables[0], tables[TABLE], "the first block stays shared");
    cr_assert_eq(extend(1, 40, 1, &copies), 0);
    cr_assert_eq(copies, 0, "nobody else has it any more");
}

Test(kv, a_fork_at_a_block_border_copies_nothing)
{
    size_t copies;
    cr_assert_eq(extend(1, 0, 2 * KV_BLOCK_TOKENS, NULL), 0);
    cr_assert_eq(kv_fork(&kv, 2, 1, KV_BLOCK_TOKENS, NULL), 0);
    cr_assert_eq(extend(2, KV_BLOCK_TOKENS, 5, &copies), 0);
    cr_assert_eq(copies, 0);
    cr_assert_eq(kv.n_free, N_BLOCKS - 3);
}

Test(kv, when_blocks_run_out_nothing_has_changed)
{
    cr_assert_eq(extend(1, 0, 8 * KV_BLOCK_TOKENS, NULL), 0);
    cr_assert_eq(extend(2, 0, 8 * KV_BLOCK_TOKENS, NULL), 0);
    cr_assert_eq(extend(3, 0, 7 * KV_BLOCK_TOKENS, NULL), 0);
    cr_assert_eq(extend(4, 0, 2 * KV_BLOCK_TOKENS, NULL), EBB_EBUSY);
    cr_assert_eq(kv_n_sequences(&kv), 3);
    cr_assert_eq(kv.n_free, 1);
    cr_assert_eq(extend(4, 0, KV_BLOCK_TOKENS, NULL), 0);
    cr_assert_eq(extend(1, 3, 20, NULL), 0, "what a cut gives back counts");
}

Test(kv, no_block_is_lost_in_10000_random_operations)
{
    unsigned seed = 7;
    for (int i = 0; i < 10000; i++) {
        uint32_t id = (uint32_t)rand_r(&seed) % 9, other = (uint32_t)rand_r(&seed) % 9;
        uint32_t pos = (uint32_t)rand_r(&seed) % 260, n = (uint32_t)rand_r(&seed) % 90;
        switch (rand_r(&seed) % 4) {
        case 0: (void)kv_drop(&kv, id); break;
        case 1: (void)kv_fork(&kv, id, other, pos, NULL); break;
        default: (void)extend(id, pos % 3 == 0 ? 0 : pos, n, NULL); break;
        }
        kv_books_check(&kv, tables, N_BLOCKS);
    }
    kv_drop_all(&kv);
    cr_assert_eq(kv.n_free, N_BLOCKS);
}

Test(kv, a_block_has_the_bytes_of_its_type)
{
    struct kv_shape shape = {.n_layers = 3, .n_kv_heads = 2, .head_dim = 96};
    const size_t values = (size_t)3 * 2 * KV_BLOCK_TOKENS * 2 * 96;
    shape.type = KV_F16;
    cr_assert_eq(kv_block_bytes(&shape), 2 * values);
    shape.type = KV_F32;
    cr_assert_eq(kv_block_bytes(&shape), 4 * values);
    shape.type = KV_Q8_0;
    cr_assert_eq(kv_block_bytes(&shape), values / 32 * 34);
}

Test(kv, layers_of_a_block_do_not_overlap)
{
    struct kv_view first = kv_layer(&kv, 0, NULL, NULL, NULL),
                   second = kv_layer(&kv, 1, NULL, NULL, NULL);
    size_t layer_bytes = (size_t)2 * KV_BLOCK_TOKENS * 2 * 32 * 2;
    cr_assert_eq((unsigned char *)second.base - (unsigned char *)first.base,
                 (ptrdiff_t)layer_bytes);
    cr_assert_eq(first.block_stride, 2 * layer_bytes);
    cr_assert_eq(kv_head_bytes(&kv), N_BLOCKS * 2 * layer_bytes);
}
