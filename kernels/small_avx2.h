/* kernels/small_avx2.h - turned blocks of 32 values: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0; for *_avx2.c only. */
#pragma once
#include "kernels/turned_avx2.h"

/* One block of each row: lane r of w[i] = quants 4i .. 4i + 3 of row r; a and b as NUMERICS rule 2 has them. */
struct small_block {
    __m256i w[8];
    __m256 a, b;
};

/* Puts the fifth bits, 32 in a lane, into quants of 4 bits. Quant 4i + j has its bit in byte i / 2 at 4 (i % 2) + j. */
INLINE void small_fifth(__m256i bits, __m256i w[8])
{
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        const int at = i / 2 * 0x01010101;
        const __m256i pick =
            _mm256_setr_epi32(at, at + 0x04040404, at + 0x08080808, at + 0x0c0c0c0c, at,
                              at + 0x04040404, at + 0x08080808, at + 0x0c0c0c0c);
        __m256i byte = _mm256_shuffle_epi8(bits, pick);
        UNROLL
        for (int j = 0; j < 2; j++) {
            const __m256i one = _mm256_set1_epi32(j == 0 ? 0x08040201 : (int)0x80402010);
            __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, one), one);
            w[i + j] = _mm256_or_si256(w[i + j], _mm256_and_si256(is_set, _mm256_set1_epi8(0x10)));
        }
    }
}

/* The block `at` bytes into each row. */
INLINE void small_load(uint32_t type, const uint8_t *const row[8], size_t at,
                       struct small_block *block)
{
    const struct format f = format_of(type);
    const size_t q_bytes = f.is_signed ? 32 : 16;
    __m256i head[4], t[4];
    turned_load(row, at, head);
    block->a = turned_half(head[0]);
    if (f.has_b) /* value = a q + m: b = -m */
        block->b = _mm256_xor_ps(turned_half_high(head[0]), _mm256_set1_ps(-0.0f));
    if (f.is_signed) {
        turned_load(row, at + f.block_bytes - q_bytes, &block->w[0]);
        turned_load(row, at + f.block_bytes - q_bytes + 16, &block->w[4]);
        return;
    }
    turned_load(row, at + f.block_bytes - q_bytes, t);
    UNROLL
    for (int i = 0; i < 4; i++) {
        block->w[i] = nibbles_low(t[i]);
        block->w[4 + i] = nibbles_high(t[i]);
    }
    if (type == TENSOR_Q5_1)
        small_fifth(head[1], block->w);
    if (type == TENSOR_Q5_0) /* two bytes of the bits are in each of the first lanes */
        small_fifth(_mm256_or_si256(_mm256_srli_epi32(head[0], 16), _mm256_slli_epi32(head[1], 16)),
                    block->w);
}
