/* kernels/turned_avx2.h - eight rows of quantised weights, turned so that each lane is a row; for
 * *_avx2.c only.
 *
 * "Turned" means: 32-bit lane r of a vector holds four neighbouring bytes of row r. maddubs/madd
 * with four activations broadcast to all lanes then give each row's integer sum in its own lane,
 * with no horizontal additions, and the float chains of NUMERICS run in the same lanes. Turning
 * costs two shuffles for 32 bytes of weights.
 *
 * Here: turning, and what the loops must know of a type. What turned bytes mean is in small_avx2.h
 * (blocks of 32) and super_avx2.h (blocks of 256); sums_avx2.h multiplies.
 */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/blocks.h"
#include "kernels/tensor_type.h"

/* Loops over vectors are short and of constant length; they must be unrolled and inlined at any -O
 * level, or the vectors live in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

/* Ties a running sum to its place in the source. Without it gcc turns the sum into a tree and keeps
 * all its terms, more than there are registers; loops over four rows then took 1.3 times as long. */
#define IN_PLACE(v) __asm__("" : "+x"(v))

/* A type as the loops see it: a constant after inlining. Quants are the format's unsigned numbers, offset included,
 * or signed bytes. */
struct format {
    size_t block_bytes;
    int fit; /* vectors of four quants whose products with activations add up in 16 bits: 2 * largest * 127 each */
    int offset; /* what a quant is more than its value: a power of two, as its exponent; -1: nothing */
    bool is_signed;
    bool is_super; /* blocks of 256; else of 32 */
    bool has_sub;  /* 16-wide sub-scales */
    bool has_b;
    bool folded; /* b has 16-wide integers */
};

INLINE struct format format_of(uint32_t type)
{
    struct format f = {.fit = 8, .offset = -1};
    switch (type) {
    case TENSOR_Q4_0: f.block_bytes = sizeof(struct block_q4_0), f.offset = 3; break;
    case TENSOR_Q4_1: f.block_bytes = sizeof(struct block_q4_1), f.has_b = true; break;
    case TENSOR_Q5_0: f.block_bytes = sizeof(struct block_q5_0), f.fit = 4, f.offset = 4; break;
    case TENSOR_Q5_1: f.block_bytes = sizeof(struct block_q5_1), f.fit = 4, f.has_b = true; break;
    case TENSOR_Q8_0: f.block_bytes = sizeof(struct block_q8_0), f.is_signed = true; break;
    case TENSOR_Q2_K:
        f.block_bytes = sizeof(struct block_q2_k), f.is_super = f.has_sub = true;
        f.fit = 4, f.has_b = f.folded = true;
        break;
    case TENSOR_Q3_K:
        f.block_bytes = sizeof(struct block_q3_k), f.is_super = f.has_sub = true;
        f.fit = 4, f.offset = 2;
        break;
    case TENSOR_Q4_K: f.block_bytes = sizeof(struct block_q4_k), f.is_super = f.has_b = true; break;
    case TENSOR_Q5_K:
        f.block_bytes = sizeof(struct block_q5_k), f.is_super = f.has_b = true;
        f.fit = 4;
        break;
    default: /* Q6_K */
        f.block_bytes = sizeof(struct block_q6_k), f.is_super = f.has_sub = true;
        f.fit = 2, f.offset = 5;
    }
    return f;
}

/* Four neighbouring bytes in every lane. */
INLINE __m256i four_values(const void *q)
{
    int32_t bits;
    memcpy(&bits, q, sizeof bits);
    return _mm256_set1_epi32(bits);
}

/* Bytes offset .. offset + 15 of eight rows: lane r of t[i] = bytes 4i .. 4i + 3 of row r. */
INLINE void turned_load(const uint8_t *const row[8], size_t offset, __m256i t[4])
{
    __m256i v[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m128i *low = (const __m128i *)(const void *)(row[i] + offset);
        const __m128i *high = (const __m128i *)(const void *)(row[i + 4] + offset);
        v[i] = _mm256_blend_epi32(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                  _mm256_broadcastsi128_si256(_mm_loadu_si128(high)), 0xf0);
    }
    __m256i a0 = _mm256_unpacklo_epi32(v[0], v[1]), a1 = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i b0 = _mm256_unpacklo_epi32(v[2], v[3]), b1 = _mm256_unpackhi_epi32(v[2], v[3]);
    t[0] = _mm256_unpacklo_epi64(a0, b0);
    t[1] = _mm256_unpackhi_epi64(a0, b0);
    t[2] = _mm256_unpacklo_epi64(a1, b1);
    t[3] = _mm256_unpackhi_epi64(a1, b1);
}

/* The low 16 bits of each lane, a half float, as fp32. */
INLINE __m256 turned_half(__m256i t)
{
    t = _mm256_and_si256(t, _mm256_set1_epi32(0xffff));
    t = _mm256_permute4x64_epi64(_mm256_packus_epi32(t, t), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(t));
}

/* The high 16 bits of each lane, a half float, as fp32. */
INLINE __m256 turned_half_high(__m256i t)
{
    return turned_half(_mm256_srli_epi32(t, 16));
}

/* Byte j of each lane, unsigned, as fp32. */
INLINE __m256 turned_byte(__m256i t, int j)
{
    t = _mm256_and_si256(_mm256_srli_epi32(t, 8 * j), _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(t);
}

/* Bytes i and j of each lane, signed, as the int16 halves of the lane. */
INLINE __m256i turned_pair(__m256i t, int i, int j)
{
    const int base = (i << 8 | j << 24) + 0x00800080;
    const __m256i pick =
        _mm256_setr_epi32(base, base + 0x04000400, base + 0x08000800, base + 0x0c000c00, base,
                          base + 0x04000400, base + 0x08000800, base + 0x0c000c00);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(t, pick), 8);
}

/* The low and the high nibbles of bytes. */
INLINE __m256i nibbles_low(__m256i t)
{
    return _mm256_and_si256(t, _mm256_set1_epi8(0x0f));
}

INLINE __m256i nibbles_high(__m256i t)
{
    return nibbles_low(_mm256_srli_epi16(t, 4));
}

/* Bits of bytes moved up (positive) or down, then kept where `mask` has them. The shift is of 16 bits at a time: the mask
 * must not have bits that come from the other byte. */
INLINE __m256i bits_moved(__m256i t, int up, int mask)
{
    t = up >= 0 ? _mm256_slli_epi16(t, up) : _mm256_srli_epi16(t, -up);
    return _mm256_and_si256(t, _mm256_set1_epi8((char)mask));
}
