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
#include <string.h>
#include "kernels/blocks.h"
#include "kernels/expf.h"
#include "kernels/kernels.h"

#define PARTITION_BLOCKS (KV_PARTITION_TOKENS / KV_BLOCK_TOKENS)

/* One partition of one sequence and KV head: where each block's keys and values begin, and of KV_Q8_0 their scales. */
struct kv_partition {
    const char *k[PARTITION_BLOCKS], *v[PARTITION_BLOCKS];
    const uint16_t *k_scales[PARTITION_BLOCKS], *v_scales[PARTITION_BLOCKS];
    size_t n_tokens;
    size_t token_bytes;  /* from a token's key to the next token's */
    size_t token_scales; /* from a token's first scale to the next token's */
};

/* One key or value of one KV head. */
struct kv_row {
    const char *values;     /* [head_dim] halves, floats or quants */
    const uint16_t *scales; /* of KV_Q8_0: [head_dim / KV_QUANTS] */
};

/* Bytes of one half float, float or quant. */
static inline size_t kv_value_bytes(enum kv_type type)
{
    return type == KV_F16 ? sizeof(uint16_t) : type == KV_F32 ? sizeof(float) : sizeof(int8_t);
}

static inline struct kv_row kv_key(const struct kv_partition *p, size_t t)
{
    size_t b = t / KV_BLOCK_TOKENS, i = t % KV_BLOCK_TOKENS;
    return (struct kv_row){p->k[b] + i * p->token_bytes, p->k_scales[b] + i * p->token_scales};
}

static inline struct kv_row kv_value(const struct kv_partition *p, size_t t)
{
    size_t b = t / KV_BLOCK_TOKENS, i = t % KV_BLOCK_TOKENS;
    return (struct kv_row){p->v[b] + i * p->token_bytes, p->v_scales[b] + i * p->token_scales};
}

/* A row of n values as fp32. */
static inline void kv_row_widen(float *to, struct kv_row from, size_t n, enum kv_type type)
{
    if (type == KV_F16)
        for (size_t d = 0; d < n; d++)
            to[d] = half_to_float(((const uint16_t *)(const void *)from.values)[d]);
    else if (type == KV_F32)
        memcpy(to, from.values, n * sizeof *to);
    else
        for (size_t d = 0; d < n; d++)
            to[d] =
                half_to_float(from.scales[d / KV_QUANTS]) * (float)((const int8_t *)from.values)[d];
}

/* The partition that begins at position `first` of a row whose own position is `position` >= first. */
static inline struct kv_partition kv_partition_at(const struct kv_view *kv, size_t row,
                                                  size_t kv_head, size_t first, size_t position)
{
    const int32_t *table =
        kv->tables + (size_t)kv->row_sequence[row] * kv->table_stride + first / KV_BLOCK_TOKENS;
    size_t bytes = kv_value_bytes(kv->type), n = position + 1 - first;
    size_t values = kv->n_kv_heads * kv->head_dim;
    struct kv_partition p = {.token_bytes = values * bytes,
                             .token_scales = kv->type == KV_Q8_0 ? values / KV_QUANTS : 0};
    p.n_tokens = n < KV_PARTITION_TOKENS ? n : KV_PARTITION_TOKENS;
    for (size_t b = 0; b * KV_BLOCK_TOKENS < p.n_tokens; b++) {
        const char *block = (const char *)kv->base + (size_t)table[b] * kv->block_stride;
        size_t half = kv_values_bytes(kv->type, KV_BLOCK_TOKENS * values);
        p.k[b] = block + kv_head * kv->head_dim * bytes;
        p.v[b] = p.k[b] + half;
        if (kv->type != KV_Q8_0)
            continue;
        block += KV_BLOCK_TOKENS * values;
        p.k_scales[b] =
            (const uint16_t *)(const void *)block + kv_head * (kv->head_dim / KV_QUANTS);
        p.v_scales[b] =
            (const uint16_t *)(const void *)(block + half) + kv_head * (kv->head_dim / KV_QUANTS);
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
