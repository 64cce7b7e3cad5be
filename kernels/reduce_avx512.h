/* kernels/reduce_avx512.h - kernels/reduce.h with its 16 lanes in one register, bit for bit; for *_avx512.c only.
 *
 * The end of a row that is no multiple of 16 long is a step whose mask leaves the other lanes as they are.
 */
#pragma once
#include "kernels/reduce_avx2.h"

#define REDUCE_ALL ((__mmask16)0xffff)

/* The lanes of the last n < 16 values of a row. */
static inline __mmask16 reduce_mask(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

/* The values at p that `mask` has, the others 0 and not read. */
static inline __m512 reduce_load(const void *p, __mmask16 mask)
{
    return mask == REDUCE_ALL ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(mask, p);
}

/* fmaf(a, b, s) in the lanes that `mask` has. */
static inline __m512 reduce_step(__m512 a, __m512 b, __m512 s, __mmask16 mask)
{
    return mask == REDUCE_ALL ? _mm512_fmadd_ps(a, b, s) : _mm512_mask3_fmadd_ps(a, b, s, mask);
}

static inline float reduce_join16(__m512 s)
{
    return reduce_join8(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
}

/* Four trees at once: lane i of the result is the sum of row i. */
static inline __m128 reduce_join16x4(const __m512 s[4])
{
    __m256 low[4], high[4];
    for (int i = 0; i < 4; i++) {
        low[i] = _mm512_castps512_ps256(s[i]);
        high[i] = _mm512_extractf32x8_ps(s[i], 1);
    }
    return reduce_join8x4(low, high);
}

static inline float reduce_dot16(const float *a, const float *b, size_t n)
{
    __m512 s = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES)
        s = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), s);
    const __mmask16 rest = reduce_mask(n - i);
    return reduce_join16(reduce_step(reduce_load(a + i, rest), reduce_load(b + i, rest), s, rest));
}

static inline float reduce_sum16(const float *a, size_t n)
{
    __m512 s = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES)
        s = _mm512_add_ps(s, _mm512_loadu_ps(a + i));
    const __mmask16 rest = reduce_mask(n - i);
    return reduce_join16(_mm512_mask_add_ps(s, rest, s, reduce_load(a + i, rest)));
}
