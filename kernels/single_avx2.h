/* kernels/single_avx2.h - products of eight outputs with one row of activations, weights never
 * leaving registers.
 *
 * Decode is bound by unpacking: each weight is used once. Storing a chunk first (turned_avx2.h)
 * takes longer here (NOTES.md), so these loops multiply what they have just unpacked. Same bits. Each
 * carries the two chains over one chunk that starts at block `block` of the row.
 */
#pragma once
#include "kernels/activation.h"
#include "kernels/turned_avx2.h"

INLINE __m256 chain_step(__m256 acc, __m256 a, float dx, __m256i isum)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(a, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(isum), acc);
}

/* Adds maddubs(w[i], x[4i .. 4i + 3]) for i < 4 to the 16-bit sums. */
INLINE __m256i sixteen_values(__m256i sums, const __m256i w[4], const int8_t *x)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(w[i], four_values(x + 4 * i)));
        IN_PLACE(sums);
    }
    return sums;
}

INLINE void single_q4_k(const uint8_t *const row[8], const struct activation *x, size_t block,
                        __m256 *acc, __m256 *accm)
{
    const __m256i four = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
    struct scales_q4_k s = scales_load_q4_k(row);
    UNROLL
    for (int pair = 0; pair < 4; pair++) {
        const int8_t *q = x->q + 32 * block + 64 * pair;
        const float *d = x->d + block + 2 * pair, *sx = x->sx + block + 2 * pair;
        __m256i low = _mm256_setzero_si256(), high = low;
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m256i t[4], l[4], h[4];
            turned_load(row, (size_t)(16 + 32 * pair + 16 * half), t);
            UNROLL
            for (int i = 0; i < 4; i++) {
                l[i] = _mm256_and_si256(t[i], four);
                h[i] = _mm256_and_si256(_mm256_srli_epi16(t[i], 4), four);
            }
            low = sixteen_values(low, l, q + 16 * half);
            high = sixteen_values(high, h, q + 32 + 16 * half);
        }
        int j = 2 * pair % 4;
        __m256i sc = s.sc[pair / 2], m = s.m[pair / 2];
        *acc = chain_step(*acc, _mm256_mul_ps(s.d, turned_byte(sc, j)), d[0],
                          _mm256_madd_epi16(low, ones));
        *accm =
            _mm256_fmadd_ps(_mm256_mul_ps(s.dmin, turned_byte(m, j)), _mm256_set1_ps(sx[0]), *accm);
        *acc = chain_step(*acc, _mm256_mul_ps(s.d, turned_byte(sc, j + 1)), d[1],
                          _mm256_madd_epi16(high, ones));
        *accm = _mm256_fmadd_ps(_mm256_mul_ps(s.dmin, turned_byte(m, j + 1)), _mm256_set1_ps(sx[1]),
                                *accm);
    }
}

/* The two steps of NUMERICS rule 2 for one block of 16: pairs of maddubs fit in 16 bits, their sums
 * do not. */
INLINE __m256i sixteen_q6_k(__m256i isum, const __m256i w[4], const int8_t *x, __m256i sub)
{
    UNROLL
    for (int i = 0; i < 4; i += 2) {
        __m256i pairs = _mm256_maddubs_epi16(w[i], four_values(x + 4 * i));
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[i + 1], four_values(x + 4 * i + 4)));
        isum = _mm256_add_epi32(isum, _mm256_madd_epi16(pairs, sub));
        IN_PLACE(isum);
    }
    return isum;
}

INLINE void single_q6_k(const uint8_t *const row[8], const struct activation *x, size_t block,
                        __m256 *acc)
{
    __m256i t[4];
    __m256 d = scales_load_q6_k(row, t);
    UNROLL
    for (size_t h = 0; h < 2; h++) {
        const size_t first = block + 4 * h;
        __m256i isum[4];
        UNROLL
        for (int k = 0; k < 4; k++)
            isum[k] = offset_q6_k(turned_pair(t[2 * h + (size_t)k / 2], k % 2 * 2, k % 2 * 2 + 1),
                                  x->sum16 + 2 * (first + (size_t)k));
        UNROLL
        for (int part = 0; part < 2; part++) {
            struct part_q6_k p;
            part_load_q6_k(&p, row, h, (size_t)part);
            UNROLL
            for (int k = 0; k < 4; k++) {
                const int at = k % 2 * 2 + part;
                __m256i w[4];
                UNROLL
                for (int i = 0; i < 4; i++)
                    w[i] = part_value_q6_k(&p, k, i);
                isum[k] = sixteen_q6_k(isum[k], w, x->q + 32 * (first + (size_t)k) + 16 * part,
                                       turned_pair(t[2 * h + (size_t)k / 2], at, at));
            }
        }
        UNROLL
        for (size_t k = 0; k < 4; k++)
            *acc = chain_step(*acc, d, x->d[first + k], isum[k]);
    }
}
