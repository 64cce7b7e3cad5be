/* kernels/blocks.h - how GGUF lays out its quantised blocks, and the exact widening of half floats
 * and bfloats. weights.h has the quants and scales of any of them in one form.
 *
 * Source: the GGUF specification and the block structures of ggml (ggml-common.h). Blocks lie at
 * any byte address (a Q8_0 block has 34 bytes), so the structs are packed. Little-endian hosts
 * only, as the files are. Unless said otherwise d, dmin and m are half floats, and a byte holds its
 * first value in the low bits.
 */
#pragma once
#include <assert.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define EBB_BLOCKS_DEVICE __host__ __device__
#else
#define EBB_BLOCKS_DEVICE
#endif

/* Blocks of 32 values. In those of 4 bits, byte i holds values i (low nibble) and 16 + i; of 5 bits,
 * bit i of qh is the bit above of value i. */

/* value = d * (q - 8) */
struct block_q4_0 {
    uint16_t d;
    uint8_t q[16];
} __attribute__((packed));

/* value = d * q + m */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t q[16];
} __attribute__((packed));

/* value = d * (q - 16) */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4], q[16];
} __attribute__((packed));

/* value = d * q + m */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4], q[16];
} __attribute__((packed));

/* value = d * q */
struct block_q8_0 {
    uint16_t d;
    int8_t q[32];
} __attribute__((packed));

/* Blocks of 256 values, in sub-blocks of 16 or 32 with scales of their own. */

/* Sixteen sub-blocks of 16: value = (d * sc) * q - (dmin * m), with q of 2 bits; sc is the low and m
 * the high nibble of a byte of scales. Per half h of 128 values, value 32k + l is bits 2k, 2k + 1 of
 * q[32h + l]. */
struct block_q2_k {
    uint8_t scales[16];
    uint8_t q[64];
    uint16_t d, dmin;
} __attribute__((packed));

/* Sixteen sub-blocks of 16: value = (d * sc) * (q - 4), with q of 3 bits. The two low bits lie as in
 * Q2_K; the bit above of value 32k + l (k < 8) is bit k of qh[l]. */
struct block_q3_k {
    uint8_t qh[32];
    uint8_t q[64];
    uint8_t scales[12]; /* q3_k_scale() reads them */
    uint16_t d;
} __attribute__((packed));

/* Eight sub-blocks of 32: value = (d * sc) * q - (dmin * m), with q of 4 bits, sc and m of 6 bits. */
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12]; /* q4_k_scale() reads them */
    uint8_t q
        [128]; /* sub-blocks 2c and 2c + 1: the low and the high nibbles of bytes 32c .. 32c + 31 */
} __attribute__((packed));

/* As Q4_K with q of 5 bits: the bit above of value l of sub-block j is bit j of qh[l]. */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t q[128];
} __attribute__((packed));

/* Sixteen sub-blocks of 16: value = (d * sc) * (q - 32), with q of 6 bits. Per half h of 128
 * values, value 32k + l has its low four bits in ql[64h + 32 (k % 2) + l] (low nibble for k < 2)
 * and the two above in qh[32h + l]. */
struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
} __attribute__((packed));

static_assert(sizeof(struct block_q4_0) == 18, "Q4_0 blocks have 18 bytes");
static_assert(sizeof(struct block_q4_1) == 20, "Q4_1 blocks have 20 bytes");
static_assert(sizeof(struct block_q5_0) == 22, "Q5_0 blocks have 22 bytes");
static_assert(sizeof(struct block_q5_1) == 24, "Q5_1 blocks have 24 bytes");
static_assert(sizeof(struct block_q8_0) == 34, "Q8_0 blocks have 34 bytes");
static_assert(sizeof(struct block_q2_k) == 84, "Q2_K blocks have 84 bytes");
static_assert(sizeof(struct block_q3_k) == 110, "Q3_K blocks have 110 bytes");
static_assert(sizeof(struct block_q4_k) == 144, "Q4_K blocks have 144 bytes");
static_assert(sizeof(struct block_q5_k) == 176, "Q5_K blocks have 176 bytes");
static_assert(sizeof(struct block_q6_k) == 210, "Q6_K blocks have 210 bytes");

/* The 6-bit scale of sub-block j (0..15) of a Q3_K block: -32..31. */
EBB_BLOCKS_DEVICE static inline int q3_k_scale(const uint8_t scales[12], unsigned j)
{
    unsigned low = scales[j % 8] >> j / 8 * 4 & 15, high = scales[8 + j % 4] >> j / 4 * 2 & 3;
    return (int)(low | high << 4) - 32;
}

/* The 6-bit scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block. */
EBB_BLOCKS_DEVICE static inline void q4_k_scale(const uint8_t scales[12], unsigned j, uint8_t *sc,
                                                uint8_t *m)
{
    if (j < 4) {
        *sc = scales[j] & 63;
        *m = scales[j + 4] & 63;
    } else {
        *sc = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6 << 4));
        *m = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6 << 4));
    }
}

/* A bfloat16 as fp32: the upper half of its bits. */
EBB_BLOCKS_DEVICE static inline float bfloat_to_float(uint16_t bfloat)
{
    uint32_t bits = (uint32_t)bfloat << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A half float as fp32; every half float is exact in fp32. */
EBB_BLOCKS_DEVICE static inline float half_to_float(uint16_t half)
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
