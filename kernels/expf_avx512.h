/* kernels/expf_avx512.h - kernels/expf.h in sixteen lanes, bit for bit; for sources ending in _avx512.c
 * only. */
#pragma once
#include <immintrin.h>
#include "kernels/expf.h"

static inline __m512 ebb_expf16(__m512 x)
{
    const __m512 round = _mm512_set1_ps(EBB_EXPF_ROUND);
    const __m512i bias = _mm512_set1_epi32(127);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    /* min and max return the second operand where one is a NaN; such lanes are replaced at the
     * end. */
    __m512 v = _mm512_min_ps(x, _mm512_set1_ps(EBB_EXPF_MAX));
    v = _mm512_max_ps(v, _mm512_set1_ps(EBB_EXPF_MIN));

    __m512 nf = _mm512_sub_ps(_mm512_fmadd_ps(v, _mm512_set1_ps(EBB_EXPF_LOG2E), round), round);
    __m512i n = _mm512_cvttps_epi32(nf);
    __m512 r = _mm512_fmadd_ps(nf, _mm512_set1_ps(-EBB_EXPF_LN2_HI), v);
    r = _mm512_fmadd_ps(nf, _mm512_set1_ps(-EBB_EXPF_LN2_LO), r);

    __m512 p = _mm512_set1_ps(EBB_EXPF_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EBB_EXPF_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EBB_EXPF_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EBB_EXPF_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EBB_EXPF_C2));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));

    __m512i half = _mm512_srai_epi32(n, 1);
    __m512i rest = _mm512_sub_epi32(n, half);
    __m512 scale0 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    __m512 scale1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23));
    __m512 y = _mm512_mul_ps(_mm512_mul_ps(p, scale0), scale1);
    return _mm512_mask_blend_ps(nan, y, x);
}

static inline __m512 ebb_swiglu16(__m512 g, __m512 u)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 minus_g = _mm512_xor_ps(g, _mm512_set1_ps(-0.0f));
    __m512 sigmoid = _mm512_div_ps(one, _mm512_add_ps(one, ebb_expf16(minus_g)));
    return _mm512_mul_ps(_mm512_mul_ps(g, sigmoid), u);
}
