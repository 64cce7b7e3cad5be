/* kernels/blocks.h - how GGUF lays out its quantised blocks, and the exact widening of a half
 * float.
 *
 * Source: the GGUF specification and the block structures of ggml (ggml-common.h). Blocks lie at
 * any byte address (a Q8_0 block has 34 bytes), so the structs are packed. Little-endian hosts
 * only, as the files are.
 */
#pragma once
#include <assert.h>
#include <stdint.h>
#include <string.h>

/* value[i] = d * q[i] */
struct block_q8_0 {
    uint16_t d; /* half float */
    int8_t q[32];
} __attribute__((packed));

/* Eight sub-blocks of 32 values: value = (d * sc) * q - (dmin * m), with q of 4 bits, sc and m of 6
 * bits. */
struct block_q4_k {
    uint16_t d, dmin;   /* half floats */
    uint8_t scales[12]; /* q4_k_scale() reads them */
    uint8_t q
        [128]; /* sub-blocks 2c and 2c + 1: the low and the high nibbles of bytes 32c .. 32c + 31 */
} __attribute__((packed));

/* Sixteen sub-blocks of 16 values: value = (d * sc) * (q - 32), with q of 6 bits. Per half h of 128
 * values, value 32k + l has its low four bits in ql[64h + 32 (k % 2) + l] (low nibble for k < 2)
 * and the two above in qh[32h + l]. */
struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d; /* half float */
} __attribute__((packed));

static_assert(sizeof(struct block_q8_0) == 34, "Q8_0 blocks have 34 bytes");
static_assert(sizeof(struct block_q4_k) == 144, "Q4_K blocks have 144 bytes");
static_assert(sizeof(struct block_q6_k) == 210, "Q6_K blocks have 210 bytes");

/* The 6-bit scale and minimum of sub-block j (0..7). */
static inline void q4_k_scale(const uint8_t scales[12], unsigned j, uint8_t *sc, uint8_t *m)
{
    if (j < 4) {
        *sc = scales[j] & 63;
        *m = scales[j + 4] & 63;
    } else {
        *sc = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6 << 4));
        *m = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6 << 4));
    }
}

/* The quants of sub-block j (0..7) of a Q4_K block: 0..15. */
static inline void q4_k_values(const struct block_q4_k *block, unsigned j, int8_t q[32])
{
    const uint8_t *from = block->q + j / 2 * 32;
    unsigned shift = j % 2 * 4;
    for (unsigned i = 0; i < 32; i++)
        q[i] = (int8_t)(from[i] >> shift & 15);
}

/* The quants of values 32j .. 32j + 31 of a Q6_K block, without their offset: -32..31. */
static inline void q6_k_values(const struct block_q6_k *block, unsigned j, int8_t q[32])
{
    unsigned h = j / 4, k = j % 4;
    const uint8_t *low = block->ql + 64 * h + 32 * (k % 2), *high = block->qh + 32 * h;
    unsigned low_shift = k / 2 * 4, high_shift = 2 * k;
    for (unsigned i = 0; i < 32; i++)
        q[i] = (int8_t)((low[i] >> low_shift & 15) + (high[i] >> high_shift & 3) * 16 - 32);
}

/* A bfloat16 as fp32: the upper half of its bits. */
static inline float bfloat_to_float(uint16_t bfloat)
{
    uint32_t bits = (uint32_t)bfloat << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A half float as fp32; every half float is exact in fp32. */
static inline float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 31, mantissa = half & 1023, bits;
    float f;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | mantissa << 13;
        if (mantissa != 0)
            bits |=
                0x400000u; /* a signalling NaN comes out quiet, as the F16C instruction has it */
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        f = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}
