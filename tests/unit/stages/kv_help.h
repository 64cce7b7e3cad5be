/* kv_help.h - what the tests of KV share: a small shape, and the books that have to balance. */
#pragma once
#include <criterion/criterion.h>

#include "stages/kv.h"

#define KV_TEST_BLOCKS_MAX 64

static inline struct kv_shape kv_shape_small(size_t n_blocks, size_t n_blocks_max,
                                             size_t n_sequences, size_t table_stride)
{
    return (struct kv_shape){.n_layers = 2,
                             .n_kv_heads = 2,
                             .head_dim = 32,
                             .type = KV_F16,
                             .n_blocks = n_blocks,
                             .n_blocks_max = n_blocks_max,
                             .n_sequences = n_sequences,
                             .table_stride = table_stride};
}

/* Every block that is backed is free, or named by exactly as many tables as it has references; no other one is either. */
static inline void kv_books_check(const struct kv *kv, const int32_t *tables, size_t n_most)
{
    uint32_t named[KV_TEST_BLOCKS_MAX] = {0};
    bool is_free[KV_TEST_BLOCKS_MAX] = {false};
    for (size_t i = 0; i < kv->shape.n_sequences; i++)
        for (uint32_t b = 0; kv->sequences[i].live && b < kv->sequences[i].n_blocks; b++) {
            int32_t block = tables[i * kv->shape.table_stride + b];
            cr_assert_lt((size_t)block, kv->n_blocks, "a table names what is backed");
            named[block]++;
        }
    for (size_t i = 0; i < kv->n_free; i++) {
        cr_assert_not(is_free[kv->free_blocks[i]], "a block is free twice");
        is_free[kv->free_blocks[i]] = true;
    }
    for (size_t b = 0; b < n_most; b++) {
        cr_assert_eq(named[b], kv->references[b]);
        cr_assert_eq(is_free[b], named[b] == 0 && b < kv->n_blocks);
    }
}
