/* kernels/weights.h - 32 weights of any quantised type in the one form of NUMERICS rule 2. Internal to the room.
 *
 * value[i] = a * scale[i / 16] * q[i] - b * minimum[i / 16]. What is not there is 1 (scales) or 0 (b), so that the
 * reference product and the dequantiser are each one loop for all types.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "kernels/blocks.h"
#include "kernels/tensor_type.h"

struct weights {
    int8_t q[32];
    int scale[2], minimum[2];
    float a, b;
    bool minima; /* the type has a b */
    bool folded; /* minima have 16-wide integers, so a block's sx is made of them */
};

/* The nibbles of 16 bytes: low ones first. */
EBB_BLOCKS_DEVICE static inline void weights_nibbles(const uint8_t q[16], int8_t to[32])
{
    for (size_t i = 0; i < 16; i++) {
        to[i] = (int8_t)(q[i] & 15);
        to[16 + i] = (int8_t)(q[i] >> 4);
    }
}

/* Bit i of 32 becomes the fifth bit of value i; then `offset` is taken off. */
EBB_BLOCKS_DEVICE static inline void weights_fifth(const uint8_t qh[4], int8_t to[32], int offset)
{
    for (size_t i = 0; i < 32; i++)
        to[i] = (int8_t)((to[i] | (qh[i / 8] >> i % 8 & 1) << 4) - offset);
}

EBB_BLOCKS_DEVICE static inline void weights_q4_0(const struct block_q4_0 *block, struct weights *w)
{
    weights_nibbles(block->q, w->q);
    for (size_t i = 0; i < 32; i++)
        w->q[i] = (int8_t)(w->q[i] - 8);
    w->a = half_to_float(block->d);
}

EBB_BLOCKS_DEVICE static inline void weights_q4_1(const struct block_q4_1 *block, struct weights *w)
{
    weights_nibbles(block->q, w->q);
    w->a = half_to_float(block->d);
    w->b = -half_to_float(block->m);
    w->minima = true;
}

EBB_BLOCKS_DEVICE static inline void weights_q5_0(const struct block_q5_0 *block, struct weights *w)
{
    weights_nibbles(block->q, w->q);
    weights_fifth(block->qh, w->q, 16);
    w->a = half_to_float(block->d);
}

EBB_BLOCKS_DEVICE static inline void weights_q5_1(const struct block_q5_1 *block, struct weights *w)
{
    weights_nibbles(block->q, w->q);
    weights_fifth(block->qh, w->q, 0);
    w->a = half_to_float(block->d);
    w->b = -half_to_float(block->m);
    w->minima = true;
}

EBB_BLOCKS_DEVICE static inline void weights_q8_0(const struct block_q8_0 *block, struct weights *w)
{
    memcpy(w->q, block->q, sizeof w->q);
    w->a = half_to_float(block->d);
}

/* The functions for blocks of 256 take values 32j .. 32j + 31. */
EBB_BLOCKS_DEVICE static inline void weights_q2_k(const struct block_q2_k *block, unsigned j,
                                                  struct weights *w)
{
    const uint8_t *from = block->q + j / 4 * 32;
    for (size_t i = 0; i < 32; i++)
        w->q[i] = (int8_t)(from[i] >> j % 4 * 2 & 3);
    for (unsigned i = 0; i < 2; i++) {
        w->scale[i] = block->scales[2 * j + i] & 15;
        w->minimum[i] = block->scales[2 * j + i] >> 4;
    }
    w->a = half_to_float(block->d);
    w->b = half_to_float(block->dmin);
    w->minima = w->folded = true;
}

EBB_BLOCKS_DEVICE static inline void weights_q3_k(const struct block_q3_k *block, unsigned j,
                                                  struct weights *w)
{
    const uint8_t *from = block->q + j / 4 * 32;
    for (size_t i = 0; i < 32; i++)
        w->q[i] = (int8_t)((from[i] >> j % 4 * 2 & 3) + (block->qh[i] >> j & 1) * 4 - 4);
    w->scale[0] = q3_k_scale(block->scales, 2 * j);
    w->scale[1] = q3_k_scale(block->scales, 2 * j + 1);
    w->a = half_to_float(block->d);
}

/* Q4_K's scales and the nibbles of one of its sub-blocks; Q5_K has the same. */
EBB_BLOCKS_DEVICE static inline void weights_pair(const uint8_t scales[12], uint16_t d,
                                                  uint16_t dmin, const uint8_t q[128], unsigned j,
                                                  struct weights *w)
{
    uint8_t sc, m;
    q4_k_scale(scales, j, &sc, &m);
    for (size_t i = 0; i < 32; i++)
        w->q[i] = (int8_t)(q[j / 2 * 32 + i] >> j % 2 * 4 & 15);
    w->a = half_to_float(d) * (float)sc;
    w->b = half_to_float(dmin) * (float)m;
    w->minima = true;
}

EBB_BLOCKS_DEVICE static inline void weights_q4_k(const struct block_q4_k *block, unsigned j,
                                                  struct weights *w)
{
    weights_pair(block->scales, block->d, block->dmin, block->q, j, w);
}

EBB_BLOCKS_DEVICE static inline void weights_q5_k(const struct block_q5_k *block, unsigned j,
                                                  struct weights *w)
{
    weights_pair(block->scales, block->d, block->dmin, block->q, j, w);
    for (size_t i = 0; i < 32; i++)
        w->q[i] = (int8_t)(w->q[i] | (block->qh[i] >> j & 1) << 4);
}

EBB_BLOCKS_DEVICE static inline void weights_q6_k(const struct block_q6_k *block, unsigned j,
                                                  struct weights *w)
{
    unsigned h = j / 4, k = j % 4;
    const uint8_t *low = block->ql + 64 * h + 32 * (k % 2), *high = block->qh + 32 * h;
    for (size_t i = 0; i < 32; i++)
        w->q[i] = (int8_t)((low[i] >> k / 2 * 4 & 15) + (high[i] >> 2 * k & 3) * 16 - 32);
    w->scale[0] = block->scales[2 * j];
    w->scale[1] = block->scales[2 * j + 1];
    w->a = half_to_float(block->d);
}

/* Values 32k .. 32k + 31 of a row of a quantised type. */
EBB_BLOCKS_DEVICE static inline struct weights weights_load(uint32_t type, const void *row,
                                                            size_t k)
{
    struct weights w = {{0}, {1, 1}, {1, 1}, 0.0f, 0.0f, false, false};
    unsigned j = k % 8;
    switch (type) {
    case TENSOR_Q4_0: weights_q4_0((const struct block_q4_0 *)row + k, &w); break;
    case TENSOR_Q4_1: weights_q4_1((const struct block_q4_1 *)row + k, &w); break;
    case TENSOR_Q5_0: weights_q5_0((const struct block_q5_0 *)row + k, &w); break;
    case TENSOR_Q5_1: weights_q5_1((const struct block_q5_1 *)row + k, &w); break;
    case TENSOR_Q8_0: weights_q8_0((const struct block_q8_0 *)row + k, &w); break;
    case TENSOR_Q2_K: weights_q2_k((const struct block_q2_k *)row + k / 8, j, &w); break;
    case TENSOR_Q3_K: weights_q3_k((const struct block_q3_k *)row + k / 8, j, &w); break;
    case TENSOR_Q4_K: weights_q4_k((const struct block_q4_k *)row + k / 8, j, &w); break;
    case TENSOR_Q5_K: weights_q5_k((const struct block_q5_k *)row + k / 8, j, &w); break;
    case TENSOR_Q6_K: weights_q6_k((const struct block_q6_k *)row + k / 8, j, &w); break;
    default: assert(!"a type without blocks");
    }
    return w;
}
