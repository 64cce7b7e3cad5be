/* kernels/turned_avx2.h - eight rows of quantised weights, turned so that each lane is a row; for *_avx2.c only.
 *
 * "Turned" means: 32-bit lane r of a vector holds four neighbouring bytes of row r. maddubs/madd with four activations
 * broadcast to all lanes then give each row's integer sum in its own lane, with no horizontal additions, and the
 * float chains of NUMERICS run in the same lanes. Turning costs two shuffles for 32 bytes of weights.
 *
 * A chunk is up to 8 blocks of 32 values. For `w[block][i]`, lane r holds values 4i .. 4i + 3 of the block in row r:
 * Q4_K 0..15, Q6_K -32..31, Q8_0 -128..127.
 */
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/blocks.h"

#define CHUNK_BLOCKS 8

struct chunk {
    __m256i w[CHUNK_BLOCKS][8];
    __m256i sub[CHUNK_BLOCKS][2];            /* Q6_K: the two sub-scales as int16, each twice */
    __m256 a[CHUNK_BLOCKS], b[CHUNK_BLOCKS]; /* NUMERICS rule 2; b for Q4_K only */
};

/* Bytes offset .. offset + 15 of eight rows: lane r of t[i] = bytes 4i .. 4i + 3 of row r. */
static inline void turned_load(const uint8_t *const row[8], size_t offset, __m256i t[4])
{
    __m256i v[4];
    for (int i = 0; i < 4; i++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(row[i] + offset));
        __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(row[i + 4] + offset));
        v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    __m256i a0 = _mm256_unpacklo_epi32(v[0], v[1]), a1 = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i b0 = _mm256_unpacklo_epi32(v[2], v[3]), b1 = _mm256_unpackhi_epi32(v[2], v[3]);
    t[0] = _mm256_unpacklo_epi64(a0, b0);
    t[1] = _mm256_unpackhi_epi64(a0, b0);
    t[2] = _mm256_unpacklo_epi64(a1, b1);
    t[3] = _mm256_unpackhi_epi64(a1, b1);
}

/* The low 16 bits of each lane, a half float, as fp32. */
static inline __m256 turned_half(__m256i t)
{
    t = _mm256_and_si256(t, _mm256_set1_epi32(0xffff));
    t = _mm256_permute4x64_epi64(_mm256_packus_epi32(t, t), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(t));
}

/* Byte j of each lane, unsigned, as fp32. */
static inline __m256 turned_byte(__m256i t, int j)
{
    t = _mm256_and_si256(_mm256_srli_epi32(t, 8 * j), _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(t);
}

/* Byte j of each lane, signed, as int16 in both halves of the lane. */
static inline __m256i turned_pair(__m256i t, int j)
{
    const int pick = j << 8 | j << 24 | 0x00800080;
    const __m256i lanes = _mm256_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00, 0, 0x04000400,
                                            0x08000800, 0x0c000c00);
    __m256i mask =
        _mm256_or_si256(_mm256_add_epi32(_mm256_set1_epi32(pick), lanes), _mm256_setzero_si256());
    return _mm256_srai_epi16(_mm256_shuffle_epi8(t, mask), 8);
}

/* Blocks at `row[r]`: n_blocks of Q8_0. */
static inline void chunk_load_q8_0(struct chunk *c, const uint8_t *const row[8], size_t n_blocks)
{
    for (size_t k = 0; k < n_blocks; k++) {
        size_t at = k * sizeof(struct block_q8_0);
        __m256i head[4];
        turned_load(row, at, head);
        c->a[k] = turned_half(head[0]);
        turned_load(row, at + 2, &c->w[k][0]);
        turned_load(row, at + 18, &c->w[k][4]);
    }
}

/* One Q4_K block of each row. */
static inline void chunk_load_q4_k(struct chunk *c, const uint8_t *const row[8])
{
    const __m256i six = _mm256_set1_epi8(0x3f), four = _mm256_set1_epi8(0x0f),
                  top = _mm256_set1_epi8(0x30);
    __m256i t[4], sc[2], m[2];
    turned_load(row, 0, t); /* d and dmin, then the twelve bytes of scales: see q4_k_scale() */
    __m256 d = turned_half(t[0]), dmin = turned_half(_mm256_srli_epi32(t[0], 16));
    sc[0] = _mm256_and_si256(t[1], six);
    m[0] = _mm256_and_si256(t[2], six);
    sc[1] = _mm256_or_si256(_mm256_and_si256(t[3], four),
                            _mm256_and_si256(_mm256_srli_epi32(t[1], 2), top));
    m[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(t[3], 4), four),
                           _mm256_and_si256(_mm256_srli_epi32(t[2], 2), top));
    for (int j = 0; j < 8; j++) {
        c->a[j] = _mm256_mul_ps(d, turned_byte(sc[j / 4], j % 4));
        c->b[j] = _mm256_mul_ps(dmin, turned_byte(m[j / 4], j % 4));
    }
    for (size_t pair = 0; pair < 4; pair++)
        for (size_t half = 0; half < 2; half++) {
            turned_load(row, 16 + 32 * pair + 16 * half, t);
            for (size_t i = 0; i < 4; i++) {
                c->w[2 * pair][4 * half + i] = _mm256_and_si256(t[i], four);
                c->w[2 * pair + 1][4 * half + i] =
                    _mm256_and_si256(_mm256_srli_epi16(t[i], 4), four);
            }
        }
}

/* The 16 values at 16 * part of the four 32-blocks of half h of a Q6_K block: low nibbles, then the two bits above. */
static inline void chunk_load_q6_k_part(struct chunk *c, const uint8_t *const row[8], size_t h,
                                        size_t part)
{
    const __m256i four = _mm256_set1_epi8(0x0f), two = _mm256_set1_epi8(0x30),
                  bias = _mm256_set1_epi8(32);
    __m256i low[2][4], high[4];
    turned_load(row, 64 * h + 16 * part, low[0]);
    turned_load(row, 64 * h + 32 + 16 * part, low[1]);
    turned_load(row, 128 + 32 * h + 16 * part, high);
    for (size_t i = 0; i < 4; i++) {
        __m256i bits[4] = {_mm256_slli_epi16(high[i], 4), _mm256_slli_epi16(high[i], 2), high[i],
                           _mm256_srli_epi16(high[i], 2)};
        for (size_t k = 0; k < 4; k++) {
            __m256i l = k < 2 ? low[k][i] : _mm256_srli_epi16(low[k - 2][i], 4);
            __m256i q = _mm256_or_si256(_mm256_and_si256(l, four), _mm256_and_si256(bits[k], two));
            c->w[4 * h + k][4 * part + i] = _mm256_sub_epi8(q, bias);
        }
    }
}

/* One Q6_K block of each row. */
static inline void chunk_load_q6_k(struct chunk *c, const uint8_t *const row[8])
{
    __m256i t[4];
    turned_load(row, sizeof(struct block_q6_k) - 16, t);
    __m256 d = turned_half(_mm256_srli_epi32(t[3], 16));
    turned_load(row, 192, t);
    for (int j = 0; j < 8; j++) {
        c->a[j] = d;
        c->sub[j][0] = turned_pair(t[j / 2], j % 2 * 2);
        c->sub[j][1] = turned_pair(t[j / 2], j % 2 * 2 + 1);
    }
    for (size_t h = 0; h < 2; h++)
        for (size_t part = 0; part < 2; part++)
            chunk_load_q6_k_part(c, row, h, part);
}
