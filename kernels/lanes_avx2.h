/* kernels/lanes_avx2.h - a register of eight 32-bit lanes, and eight rows of weights turned into such registers; for
 * *_avx2.c only.
 *
 * turned.h, small_turned.h and super_turned.h are written in these names; lanes_avx512.h has the same ones for sixteen
 * lanes. Operations on bytes and 16-bit words do not look at lanes.
 */
#pragma once
#include <immintrin.h>
#include <string.h>
#include "kernels/format.h"

#define LANES 8

typedef __m256i lanes_int;
typedef __m256 lanes_float;

/* Where the rows are read, one a lane. */
struct lane_rows {
    const uint8_t *row[LANES];
};

/* The rows of a matrix whose rows are `row_bytes` long, from the row at `first`; lanes past the n-th have the n-th. */
INLINE void lane_rows_set(struct lane_rows *rows, const uint8_t *first, size_t row_bytes, size_t n)
{
    for (size_t i = 0; i < LANES; i++)
        rows->row[i] = first + (i < n ? i : n - 1) * row_bytes;
}

INLINE void lane_rows_advance(struct lane_rows *rows, size_t bytes)
{
    for (int i = 0; i < LANES; i++)
        rows->row[i] += bytes;
}

/* Bytes offset .. offset + 15 of each row: lane r of t[i] = bytes 4i .. 4i + 3 of row r. */
INLINE void turned_load(const struct lane_rows *rows, size_t offset, lanes_int t[4])
{
    __m256i v[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m128i *low = (const __m128i *)(const void *)(rows->row[i] + offset);
        const __m128i *high = (const __m128i *)(const void *)(rows->row[i + 4] + offset);
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

/* Four neighbouring bytes in every lane. */
INLINE lanes_int four_values(const void *q)
{
    int32_t bits;
    memcpy(&bits, q, sizeof bits);
    return _mm256_set1_epi32(bits);
}

/* The same byte, or the same 32 bits, everywhere. */
INLINE lanes_int every_byte(int byte)
{
    return _mm256_set1_epi8((char)byte);
}

INLINE lanes_int every_lane(int bits)
{
    return _mm256_set1_epi32(bits);
}

INLINE lanes_int bits_and(lanes_int a, lanes_int b)
{
    return _mm256_and_si256(a, b);
}

INLINE lanes_int bits_or(lanes_int a, lanes_int b)
{
    return _mm256_or_si256(a, b);
}

/* a | (b & mask) */
INLINE lanes_int bits_or_masked(lanes_int a, lanes_int b, lanes_int mask)
{
    return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}

INLINE lanes_int bytes_minus(lanes_int a, lanes_int b)
{
    return _mm256_sub_epi8(a, b);
}

/* Moves bits up (positive) or down inside words of 16 bits, or inside lanes. */
INLINE lanes_int words_shifted(lanes_int t, int up)
{
    return up >= 0 ? _mm256_slli_epi16(t, up) : _mm256_srli_epi16(t, -up);
}

INLINE lanes_int lanes_shifted(lanes_int t, int up)
{
    return up >= 0 ? _mm256_slli_epi32(t, up) : _mm256_srli_epi32(t, -up);
}

/* Each word of 16 bits, or each lane, signed, moved down. */
INLINE lanes_int words_down_signed(lanes_int t, int down)
{
    return _mm256_srai_epi16(t, down);
}

INLINE lanes_int lanes_down_signed(lanes_int t, int down)
{
    return _mm256_srai_epi32(t, down);
}

/* Byte i of every four lanes' 16 bytes = their byte pick[i], or 0 where the pick is negative; `pick` is four bytes, to
 * which each lane adds four times its number among the four. */
INLINE lanes_int bytes_picked(lanes_int t, int pick)
{
    const __m256i own = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                          0x08080808, 0x0c0c0c0c);
    return _mm256_shuffle_epi8(t, _mm256_add_epi8(_mm256_set1_epi32(pick), own));
}

/* Where the bit `flags` of a byte of t is set, the byte of w with the bits `then` added; w has none of them. */
INLINE lanes_int bytes_flagged(lanes_int w, lanes_int t, lanes_int flags, lanes_int then)
{
    __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(t, flags), flags);
    return _mm256_or_si256(w, _mm256_and_si256(is_set, then));
}

/* The low 16 bits of each lane, a half float, as fp32. */
INLINE lanes_float turned_half(lanes_int t)
{
    t = _mm256_and_si256(t, _mm256_set1_epi32(0xffff));
    t = _mm256_permute4x64_epi64(_mm256_packus_epi32(t, t), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(t));
}

INLINE lanes_float lanes_to_float(lanes_int t)
{
    return _mm256_cvtepi32_ps(t);
}

INLINE lanes_float lanes_times(lanes_float a, lanes_float b)
{
    return _mm256_mul_ps(a, b);
}

INLINE lanes_float lanes_negated(lanes_float a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
