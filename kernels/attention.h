/* kernels/attention.h - internal to the room: where keys and values lie, and how partitions are merged.
 *
 * Per row and head, partition by partition from position 0 (all sets but "float", which keeps the order in fp64):
 *   score[t] = dot(q, k[t]) * scale         16 lanes (reduce.h), then one multiplication
 *   e[t]     = ebb_expf(score[t] - max)     max over the partition
 *   part[d]  = fmaf(e[t], v[t][d], part[d]) ascending t from 0
 *   sum      = 16-lane sum of e
 * then attention_merge() into the running state, and out[d] = out[d] * (1 / sum) at the end. A row's steps depend on
 * its own position only, so decode and prefill of it give the same bits.
 */
#pragma once
#include <math.h>
#include "kernels/expf.h"
#include "kernels/kernels.h"

#define PARTITION_BLOCKS (KV_PARTITION_TOKENS / KV_BLOCK_TOKENS)

/* One partition of one sequence and KV head: where each block's keys and values begin. */
struct kv_partition {
    const char *k[PARTITION_BLOCKS], *v[PARTITION_BLOCKS];
    size_t n_tokens;
    size_t token_bytes; /* from a token's key to the next token's */
};

static inline size_t kv_value_bytes(enum kv_type type)
{
    return type == KV_F16 ? sizeof(uint16_t) : sizeof(float);
}

/* The partition that begins at position `first` of a row whose own position is `position` >= first. */
static inline struct kv_partition kv_partition_at(const struct kv_view *kv, size_t row,
                                                  size_t kv_head, size_t first, size_t position)
{
    const int32_t *table =
        kv->tables + (size_t)kv->row_sequence[row] * kv->table_stride + first / KV_BLOCK_TOKENS;
    size_t bytes = kv_value_bytes(kv->type), n = position + 1 - first;
    struct kv_partition p = {.token_bytes = kv->n_kv_heads * kv->head_dim * bytes};
    p.n_tokens = n < KV_PARTITION_TOKENS ? n : KV_PARTITION_TOKENS;
    for (size_t b = 0; b * KV_BLOCK_TOKENS < p.n_tokens; b++) {
        const char *block = (const char *)kv->base + (size_t)table[b] * kv->block_stride;
        p.k[b] = block + kv_head * kv->head_dim * bytes;
        p.v[b] = p.k[b] + KV_BLOCK_TOKENS * p.token_bytes;
    }
    return p;
}

struct attention_state {
    float max, sum;
};

static inline void attention_merge(struct attention_state *s, float *out, const float *part,
                                   size_t head_dim, float max, float sum)
{
    float both = max > s->max ? max : s->max;
    float old_scale = ebb_expf(s->max - both), new_scale = ebb_expf(max - both);
    s->sum = fmaf(s->sum, old_scale, sum * new_scale);
    s->max = both;
    for (size_t d = 0; d < head_dim; d++)
        out[d] = fmaf(out[d], old_scale, part[d] * new_scale);
}
