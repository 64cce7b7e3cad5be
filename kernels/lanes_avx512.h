/* kernels/lanes_avx512.h - a register of sixteen 32-bit lanes, and sixteen rows of weights turned into such registers;
 * for *_avx512.c only. The names are those of lanes_avx2.h.
 */
#pragma once
#include <immintrin.h>
#include <string.h>
#include "kernels/format.h"

#define LANES 16

typedef __m512i lanes_int;
typedef __m512 lanes_float;
typedef uint16_t lanes_words __attribute__((vector_size(64)));
typedef int16_t lanes_signed_words __attribute__((vector_size(64)));
typedef uint32_t lanes_unsigned __attribute__((vector_size(64)));
typedef int32_t lanes_signed __attribute__((vector_size(64)));

/* Where the rows are read: row i is at quad[i / 4] + i % 4 * row_bytes. With a pointer a row there would be more of
 * them than registers. */
struct lane_rows {
    const uint8_t *quad[4];
    size_t row_bytes;
};

/* Sixteen rows of a matrix whose rows are `row_bytes` long, from the row at `first`. */
INLINE void lane_rows_set(struct lane_rows *rows, const uint8_t *first, size_t row_bytes)
{
    for (size_t i = 0; i < 4; i++)
        rows->quad[i] = first + 4 * i * row_bytes;
    rows->row_bytes = row_bytes;
}

INLINE void lane_rows_advance(struct lane_rows *rows, size_t bytes)
{
    for (int i = 0; i < 4; i++)
        rows->quad[i] += bytes;
}

INLINE __m128i row_load(const struct lane_rows *rows, int i, size_t offset)
{
    const uint8_t *row = rows->quad[i / 4] + (size_t)(i % 4) * rows->row_bytes;
    return _mm_loadu_si128((const __m128i *)(const void *)(row + offset));
}

/* Bytes offset .. offset + 15 of each row: lane r of t[i] = bytes 4i .. 4i + 3 of row r. */
INLINE void turned_load(const struct lane_rows *rows, size_t offset, lanes_int t[4])
{
    __m512i v[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm512_castsi128_si512(row_load(rows, i, offset));
        v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x00f0, row_load(rows, i + 4, offset));
        v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x0f00, row_load(rows, i + 8, offset));
        v[i] = _mm512_mask_broadcast_i32x4(v[i], 0xf000, row_load(rows, i + 12, offset));
    }
    __m512i a0 = _mm512_unpacklo_epi32(v[0], v[1]), a1 = _mm512_unpackhi_epi32(v[0], v[1]);
    __m512i b0 = _mm512_unpacklo_epi32(v[2], v[3]), b1 = _mm512_unpackhi_epi32(v[2], v[3]);
    t[0] = _mm512_unpacklo_epi64(a0, b0);
    t[1] = _mm512_unpackhi_epi64(a0, b0);
    t[2] = _mm512_unpacklo_epi64(a1, b1);
    t[3] = _mm512_unpackhi_epi64(a1, b1);
}

/* Four neighbouring bytes in every lane. */
INLINE lanes_int four_values(const void *q)
{
    int32_t bits;
    memcpy(&bits, q, sizeof bits);
    return _mm512_set1_epi32(bits);
}

/* The same byte, or the same 32 bits, everywhere. */
INLINE lanes_int every_byte(int byte)
{
    return _mm512_set1_epi8((char)byte);
}

INLINE lanes_int every_lane(int bits)
{
    return _mm512_set1_epi32(bits);
}

INLINE lanes_int bits_and(lanes_int a, lanes_int b)
{
    return _mm512_and_si512(a, b);
}

INLINE lanes_int bits_or(lanes_int a, lanes_int b)
{
    return _mm512_or_si512(a, b);
}

/* a | (b & mask) */
INLINE lanes_int bits_or_masked(lanes_int a, lanes_int b, lanes_int mask)
{
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}

INLINE lanes_int bytes_minus(lanes_int a, lanes_int b)
{
    return _mm512_sub_epi8(a, b);
}

/* Moves bits up (positive) or down inside words of 16 bits, or inside lanes. */
INLINE lanes_int words_shifted(lanes_int t, int up)
{
    return up >= 0 ? (lanes_int)((lanes_words)t << up) : (lanes_int)((lanes_words)t >> -up);
}

INLINE lanes_int lanes_shifted(lanes_int t, int up)
{
    return up >= 0 ? (lanes_int)((lanes_unsigned)t << up) : (lanes_int)((lanes_unsigned)t >> -up);
}

/* Each word of 16 bits, or each lane, signed, moved down. */
INLINE lanes_int words_down_signed(lanes_int t, int down)
{
    return (lanes_int)((lanes_signed_words)t >> down);
}

INLINE lanes_int lanes_down_signed(lanes_int t, int down)
{
    return (lanes_int)((lanes_signed)t >> down);
}

/* Byte i of every four lanes' 16 bytes = their byte pick[i], or 0 where the pick is negative; `pick` is four bytes, to
 * which each lane adds four times its number among the four. */
INLINE lanes_int bytes_picked(lanes_int t, int pick)
{
    const __m512i own =
        _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    return _mm512_shuffle_epi8(t, _mm512_add_epi8(_mm512_set1_epi32(pick), own));
}

/* Where the bit `flags` of a byte of t is set, the byte of w with the bits `then` added; w has none of them. */
INLINE lanes_int bytes_flagged(lanes_int w, lanes_int t, lanes_int flags, lanes_int then)
{
    return _mm512_mask_add_epi8(w, _mm512_test_epi8_mask(t, flags), w, then);
}

/* The low 16 bits of each lane, a half float, as fp32. */
INLINE lanes_float turned_half(lanes_int t)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(t));
}

INLINE lanes_float lanes_to_float(lanes_int t)
{
    return _mm512_cvtepi32_ps(t);
}

INLINE lanes_float lanes_times(lanes_float a, lanes_float b)
{
    return _mm512_mul_ps(a, b);
}

INLINE lanes_float lanes_negated(lanes_float a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
