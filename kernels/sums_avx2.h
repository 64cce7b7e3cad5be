/* kernels/sums_avx2.h - the integer sums of turned weights with rows of activations, and the steps of the float chains;
 * for *_avx2.c only.
 *
 * `n` rows of activations (a constant, at most 4) share each vector of weights. No 16-bit step can saturate: format.fit
 * says how many vectors of unsigned quants add up, and of signed ones two products are at most 2 * 128 * 127 = 32512.
 */
#pragma once
#include "kernels/activation.h"
#include "kernels/lanes_avx2.h"

/* Ties a running sum to its place in the source. Without it gcc turns the sum into a tree and keeps
 * all its terms, more than there are registers; loops over four rows then took 1.3 times as long. */
#define IN_PLACE(v) __asm__("" : "+x"(v))

/* Signed times signed is |w| times x with the sign of w. */
INLINE void sums_signed(const __m256i w[8], const int8_t *const q[], int n, __m256i *isum)
{
    UNROLL
    for (int r = 0; r < n; r++)
        isum[r] = _mm256_setzero_si256();
    UNROLL
    for (int i = 0; i < 8; i++) {
        __m256i v = w[i], size = _mm256_abs_epi8(v);
        UNROLL
        for (int r = 0; r < n; r++) {
            __m256i pairs =
                _mm256_maddubs_epi16(size, _mm256_sign_epi8(four_values(q[r] + 4 * i), v));
            isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            IN_PLACE(isum[r]);
        }
    }
}

/* What the quants' offset adds to a block's sum: (q - o) x = q x - o x, and the sums of 16 x are known. `both` are the
 * two sub-scales. */
INLINE __m256i sum_offset(struct format f, __m256i both, const int16_t *sum16)
{
    const __m256i zero = _mm256_setzero_si256();
    if (f.offset < 0)
        return zero;
    if (f.has_sub)
        return _mm256_sub_epi32(
            zero, _mm256_slli_epi32(_mm256_madd_epi16(both, four_values(sum16)), f.offset));
    return _mm256_set1_epi32(-((sum16[0] + sum16[1]) * (1 << f.offset)));
}

/* Adds n_w vectors of unsigned quants, f.fit at a time, times the pairs of 16-bit `scale` (sub-scales, or ones). */
INLINE void sums_add(struct format f, const __m256i *w, int n_w, const int8_t *const q[], int n,
                     __m256i scale, __m256i *isum)
{
    const int steps = f.fit < n_w ? f.fit : n_w;
    UNROLL
    for (int first = 0; first < n_w; first += steps) {
        __m256i pairs[4];
        UNROLL
        for (int r = 0; r < n; r++)
            pairs[r] = _mm256_maddubs_epi16(w[first], four_values(q[r] + 4 * first));
        UNROLL
        for (int i = 1; i < steps; i++) {
            __m256i v = w[first + i];
            UNROLL
            for (int r = 0; r < n; r++) {
                __m256i step = _mm256_maddubs_epi16(v, four_values(q[r] + 4 * (first + i)));
                pairs[r] = _mm256_add_epi16(pairs[r], step);
                IN_PLACE(pairs[r]);
            }
        }
        UNROLL
        for (int r = 0; r < n; r++) {
            isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(pairs[r], scale));
            IN_PLACE(isum[r]);
        }
    }
}

/* One step of acc: NUMERICS rule 3. */
INLINE __m256 chain_step(__m256 acc, __m256 a, float dx, __m256i isum)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(a, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(isum), acc);
}

/* One step of accm for block k of x; `minima` are the two folded ones. */
INLINE __m256 chain_step_b(struct format f, __m256 accm, __m256 b, __m256i minima,
                           const struct activation *x, size_t k)
{
    __m256 sx = _mm256_set1_ps(f.folded ? x->d[k] : x->sx[k]);
    if (f.folded) {
        __m256i sum = _mm256_madd_epi16(minima, four_values(x->sum16 + 2 * k));
        sx = _mm256_mul_ps(sx, _mm256_cvtepi32_ps(sum));
    }
    return _mm256_fmadd_ps(b, sx, accm);
}
