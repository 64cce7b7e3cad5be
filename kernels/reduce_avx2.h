/* kernels/reduce_avx2.h - kernels/reduce.h with two registers of eight lanes, bit for bit; for *_avx2.c only. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include "kernels/reduce.h"

/* Lanes 0..7 in lo, 8..15 in hi. */
static inline __m128 reduce_fold8(__m256 lo, __m256 hi)
{
    __m256 t = _mm256_add_ps(lo, hi);
    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

static inline float reduce_join8(__m256 lo, __m256 hi)
{
    __m128 u = reduce_fold8(lo, hi);
    __m128 v = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

/* Four trees at once: lane i of the result is the sum of row i. */
static inline __m128 reduce_join8x4(const __m256 lo[4], const __m256 hi[4])
{
    __m128 a = reduce_fold8(lo[0], hi[0]), b = reduce_fold8(lo[1], hi[1]);
    __m128 c = reduce_fold8(lo[2], hi[2]), d = reduce_fold8(lo[3], hi[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d));
}

static inline float reduce_dot8(const float *a, const float *b, size_t n)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    size_t i = 0;
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES) {
        lo = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), lo);
        hi = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8), hi);
    }
    if (i == n)
        return reduce_join8(lo, hi);
    float s[REDUCE_LANES];
    _mm256_storeu_ps(s, lo);
    _mm256_storeu_ps(s + 8, hi);
    for (size_t lane = 0; i + lane < n; lane++)
        s[lane] = fmaf(a[i + lane], b[i + lane], s[lane]);
    return reduce_join(s);
}

static inline float reduce_sum8(const float *a, size_t n)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    size_t i = 0;
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES) {
        lo = _mm256_add_ps(lo, _mm256_loadu_ps(a + i));
        hi = _mm256_add_ps(hi, _mm256_loadu_ps(a + i + 8));
    }
    if (i == n)
        return reduce_join8(lo, hi);
    float s[REDUCE_LANES];
    _mm256_storeu_ps(s, lo);
    _mm256_storeu_ps(s + 8, hi);
    for (size_t lane = 0; i + lane < n; lane++)
        s[lane] += a[i + lane];
    return reduce_join(s);
}
