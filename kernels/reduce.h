/* kernels/reduce.h - the one way in which the CPU sets add up a row in fp32 (NUMERICS tier 2).
 *
 * 16 virtual lanes: value i goes to lane i mod 16, in ascending order, with one fmaf; then one fixed tree:
 *   t[i] = s[i] + s[i + 8]   i < 8
 *   u[i] = t[i] + t[i + 4]   i < 4
 *   v[i] = u[i] + u[i + 2]   i < 2
 *   sum  = v[0] + v[1]
 * A row that is no multiple of 16 long leaves the lanes past its end as they are: adding a zero is not nothing
 * (it turns -0 into +0). reduce_avx2.h and reduce_avx512.h give the same bits.
 */
#pragma once
#include <math.h>
#include <stddef.h>

#define REDUCE_LANES 16

static inline float reduce_join(const float s[REDUCE_LANES])
{
    float t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = s[i] + s[i + 8];
    for (int i = 0; i < 4; i++)
        u[i] = t[i] + t[i + 4];
    return (u[0] + u[2]) + (u[1] + u[3]);
}

/* sum of a[i] * b[i] */
static inline float reduce_dot(const float *a, const float *b, size_t n)
{
    float s[REDUCE_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % REDUCE_LANES] = fmaf(a[i], b[i], s[i % REDUCE_LANES]);
    return reduce_join(s);
}

/* sum of a[i]: fmaf(a, 1, s) is a + s */
static inline float reduce_sum(const float *a, size_t n)
{
    float s[REDUCE_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % REDUCE_LANES] += a[i];
    return reduce_join(s);
}
