/* kernels/activation.h - a row of activations as products read it (NUMERICS tier 1, rule 1).
 *
 * n values are cut into n / 32 blocks. A row is four parts, each starting on 64 bytes:
 *   int8_t q[n]; float d[n / 32];     value ~ d * q
 *   float sx[n / 32];                 d * (float)(sum of the block's q)
 *   int16_t sum16[n / 16];            sums of 16 q: what offsets of weights are multiplied with
 * Rows follow each other every activation_row_bytes(n).
 *
 * What the rule leaves open is fixed here: amax is the largest magnitude, where a NaN counts above
 * infinity; if it is not finite, q = 0 and d = amax / 127 (infinite or NaN), so that the row's
 * products show it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define ACTIVATION_BLOCK 32
#define ACTIVATION_TINY  0x1p-100f /* a block with smaller values is zero */

/* Where the parts of one row lie; borrowed from the row. */
struct activation {
    int8_t *q;
    float *d, *sx;
    int16_t *sum16;
};

static inline size_t activation_part_bytes(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Bytes of one row of n values, a multiple of 64. */
static inline size_t activation_row_bytes(size_t n)
{
    size_t n_blocks = (n + ACTIVATION_BLOCK - 1) / ACTIVATION_BLOCK;
    return activation_part_bytes(n) + 3 * activation_part_bytes(n_blocks * sizeof(float));
}

/* The parts of row `row` of n values each. The caller keeps to reading where `rows` was const. */
static inline struct activation activation_at(const void *rows, size_t n, size_t row)
{
    uint8_t *base = (uint8_t *)(uintptr_t)rows + row * activation_row_bytes(n);
    size_t n_blocks = (n + ACTIVATION_BLOCK - 1) / ACTIVATION_BLOCK;
    struct activation a;
    a.q = (int8_t *)base;
    a.d = (float *)(void *)(base + activation_part_bytes(n));
    a.sx = (float *)(void *)((uint8_t *)a.d + activation_part_bytes(n_blocks * sizeof(float)));
    a.sum16 =
        (int16_t *)(void *)((uint8_t *)a.sx + activation_part_bytes(n_blocks * sizeof(float)));
    return a;
}
