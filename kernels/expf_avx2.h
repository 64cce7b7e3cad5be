/* kernels/expf_avx2.h - kernels/expf.h in eight lanes, bit for bit; for sources ending in _avx2.c
 * only. */
#pragma once
#include <immintrin.h>
#include "kernels/expf.h"

static inline __m256 ebb_expf8(__m256 x)
{
    const __m256 round = _mm256_set1_ps(EBB_EXPF_ROUND);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    /* min and max return the second operand where one is a NaN; such lanes are replaced at the
     * end. */
    __m256 v = _mm256_min_ps(x, _mm256_set1_ps(EBB_EXPF_MAX));
    v = _mm256_max_ps(v, _mm256_set1_ps(EBB_EXPF_MIN));

    __m256 nf = _mm256_sub_ps(_mm256_fmadd_ps(v, _mm256_set1_ps(EBB_EXPF_LOG2E), round), round);
    __m256i n = _mm256_cvttps_epi32(nf);
    __m256 r = _mm256_fmadd_ps(nf, _mm256_set1_ps(-EBB_EXPF_LN2_HI), v);
    r = _mm256_fmadd_ps(nf, _mm256_set1_ps(-EBB_EXPF_LN2_LO), r);

    __m256 p = _mm256_set1_ps(EBB_EXPF_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EBB_EXPF_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EBB_EXPF_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EBB_EXPF_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EBB_EXPF_C2));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));

    __m256i half = _mm256_srai_epi32(n, 1);
    __m256i rest = _mm256_sub_epi32(n, half);
    __m256 scale0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 scale1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    __m256 y = _mm256_mul_ps(_mm256_mul_ps(p, scale0), scale1);
    return _mm256_blendv_ps(y, x, nan);
}

static inline __m256 ebb_swiglu8(__m256 g, __m256 u)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 minus_g = _mm256_xor_ps(g, _mm256_set1_ps(-0.0f));
    __m256 sigmoid = _mm256_div_ps(one, _mm256_add_ps(one, ebb_expf8(minus_g)));
    return _mm256_mul_ps(_mm256_mul_ps(g, sigmoid), u);
}
