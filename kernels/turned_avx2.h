/* kernels/turned_avx2.h - eight rows of quantised weights, turned so that each lane is a row; for
 * *_avx2.c only.
 *
 * "Turned" means: 32-bit lane r of a vector holds four neighbouring bytes of row r. maddubs/madd
 * with four activations broadcast to all lanes then give each row's integer sum in its own lane,
 * with no horizontal additions, and the float chains of NUMERICS run in the same lanes. Turning
 * costs two shuffles for 32 bytes of weights.
 *
 * A chunk is up to 8 blocks of 32 values. For `w[block][i]`, lane r holds values 4i .. 4i + 3 of
 * the block in row r: Q4_K 0..15, Q6_K 0..63 (the format's value + 32), Q8_0 -128..127.
 */
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/blocks.h"

#define CHUNK_BLOCKS 8

/* Loops over vectors are short and of constant length; they must be unrolled and inlined at any -O
 * level, or the vectors live in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

struct chunk {
    __m256i w[CHUNK_BLOCKS][8];
    __m256i sub[CHUNK_BLOCKS][3]; /* Q6_K: sub-scales as int16: first twice, second twice, both */
    __m256 a[CHUNK_BLOCKS], b[CHUNK_BLOCKS]; /* NUMERICS rule 2; b for Q4_K only */
};

/* Ties a running sum to its place in the source. Without it gcc turns the sum into a tree and keeps
 * all its terms, more than there are registers; loops over four rows then took 1.3 times as long. */
#define IN_PLACE(v) __asm__("" : "+x"(v))

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
INLINE __m256 turned_half(__m256i t)
{
    t = _mm256_and_si256(t, _mm256_set1_epi32(0xffff));
    t = _mm256_permute4x64_epi64(_mm256_packus_epi32(t, t), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(t));
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

/* Blocks at `row[r]`: n_blocks of Q8_0. */
INLINE void chunk_load_q8_0(struct chunk *c, const uint8_t *const row[8], size_t n_blocks)
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

/* The header of a Q4_K block of each row: byte j % 4 of sc[j / 4] and m[j / 4] belong to sub-block
 * j. */
struct scales_q4_k {
    __m256 d, dmin;
    __m256i sc[2], m[2];
};

INLINE struct scales_q4_k scales_load_q4_k(const uint8_t *const row[8])
{
    const __m256i six = _mm256_set1_epi8(0x3f), four = _mm256_set1_epi8(0x0f);
    const __m256i top = _mm256_set1_epi8(0x30);
    struct scales_q4_k s;
    __m256i t[4];
    turned_load(row, 0, t); /* d and dmin, then the twelve bytes of scales: see q4_k_scale() */
    s.d = turned_half(t[0]);
    s.dmin = turned_half(_mm256_srli_epi32(t[0], 16));
    s.sc[0] = _mm256_and_si256(t[1], six);
    s.m[0] = _mm256_and_si256(t[2], six);
    s.sc[1] = _mm256_or_si256(_mm256_and_si256(t[3], four),
                              _mm256_and_si256(_mm256_srli_epi32(t[1], 2), top));
    s.m[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(t[3], 4), four),
                             _mm256_and_si256(_mm256_srli_epi32(t[2], 2), top));
    return s;
}

/* One Q4_K block of each row. */
INLINE void chunk_load_q4_k(struct chunk *c, const uint8_t *const row[8])
{
    const __m256i four = _mm256_set1_epi8(0x0f);
    struct scales_q4_k s = scales_load_q4_k(row);
    __m256i t[4];
    UNROLL
    for (int j = 0; j < 8; j++) {
        c->a[j] = _mm256_mul_ps(s.d, turned_byte(s.sc[j / 4], j % 4));
        c->b[j] = _mm256_mul_ps(s.dmin, turned_byte(s.m[j / 4], j % 4));
    }
    UNROLL
    for (size_t pair = 0; pair < 4; pair++)
        UNROLL
    for (size_t half = 0; half < 2; half++) {
        turned_load(row, 16 + 32 * pair + 16 * half, t);
        UNROLL
        for (size_t i = 0; i < 4; i++) {
            c->w[2 * pair][4 * half + i] = _mm256_and_si256(t[i], four);
            c->w[2 * pair + 1][4 * half + i] = _mm256_and_si256(_mm256_srli_epi16(t[i], 4), four);
        }
    }
}

/* 32 (sc0 sum0 + sc1 sum1), subtracted: what the offset of Q6_K's quants adds to a block's integer
 * sum. */
INLINE __m256i offset_q6_k(__m256i both, const int16_t *sum16)
{
    __m256i sums = _mm256_madd_epi16(both, four_values(sum16));
    return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sums, 5));
}

/* The 16 values at 16 * part of the four 32-blocks of half h of a Q6_K block, as bytes. */
struct part_q6_k {
    __m256i low[2][4], high[4];
};

INLINE void part_load_q6_k(struct part_q6_k *p, const uint8_t *const row[8], size_t h, size_t part)
{
    turned_load(row, 64 * h + 16 * part, p->low[0]);
    turned_load(row, 64 * h + 32 + 16 * part, p->low[1]);
    turned_load(row, 128 + 32 * h + 16 * part, p->high);
}

/* Values 4i .. 4i + 3 of block k of the four: the low nibbles, then the two bits above. */
INLINE __m256i part_value_q6_k(const struct part_q6_k *p, int k, int i)
{
    const __m256i four = _mm256_set1_epi8(0x0f), two = _mm256_set1_epi8(0x30);
    __m256i l = k < 2 ? p->low[k][i] : _mm256_srli_epi16(p->low[k - 2][i], 4), h = p->high[i];
    h = k == 0   ? _mm256_slli_epi16(h, 4)
        : k == 1 ? _mm256_slli_epi16(h, 2)
        : k == 3 ? _mm256_srli_epi16(h, 2)
                 : h;
    return _mm256_or_si256(_mm256_and_si256(l, four), _mm256_and_si256(h, two));
}

/* The end of a Q6_K block of each row: four bytes of sub-scales a vector, and d. */
INLINE __m256 scales_load_q6_k(const uint8_t *const row[8], __m256i t[4])
{
    turned_load(row, sizeof(struct block_q6_k) - 16, t);
    __m256 d = turned_half(_mm256_srli_epi32(t[3], 16));
    turned_load(row, 192, t);
    return d;
}

/* One Q6_K block of each row. */
INLINE void chunk_load_q6_k(struct chunk *c, const uint8_t *const row[8])
{
    __m256i t[4];
    __m256 d = scales_load_q6_k(row, t);
    UNROLL
    for (int j = 0; j < 8; j++) {
        int at = j % 2 * 2;
        c->a[j] = d;
        c->sub[j][0] = turned_pair(t[j / 2], at, at);
        c->sub[j][1] = turned_pair(t[j / 2], at + 1, at + 1);
        c->sub[j][2] = turned_pair(t[j / 2], at, at + 1);
    }
    UNROLL
    for (size_t h = 0; h < 2; h++)
        UNROLL
    for (size_t part = 0; part < 2; part++) {
        struct part_q6_k p;
        part_load_q6_k(&p, row, h, part);
        UNROLL
        for (int k = 0; k < 4; k++)
            UNROLL
        for (int i = 0; i < 4; i++)
            c->w[4 * h + (size_t)k][4 * part + (size_t)i] = part_value_q6_k(&p, k, i);
    }
}
