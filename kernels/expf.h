/* kernels/expf.h - e^x in fp32 with the same bits on every device (NUMERICS rule 5).
 *
 * x = n ln 2 + r with n the nearest integer, |r| <= ln 2 / 2; e^r is a polynomial of degree 6 in
 * fused steps (minimax for the relative error, 3.6e-9 before rounding); 2^n is applied in two exact
 * halves, so that a result below the normal range is rounded once. Error < 1 ulp in the normal
 * range.
 *
 * Every operation is one IEEE operation written out, so CPU (-ffp-contract=off), AVX2 (expf_avx2.h),
 * AVX-512 (expf_avx512.h) and CUDA (-fmad=false, no -ftz) agree. x >= 88.73: +inf; x <= -104: +0; between -104 and -87.4
 * results are subnormal, never flushed; a NaN comes back as it is.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define EBB_EXPF_DEVICE __host__ __device__
#else
#define EBB_EXPF_DEVICE
#endif

#define EBB_EXPF_MAX   89.0f   /* from here on the result is +inf anyway */
#define EBB_EXPF_MIN   -104.0f /* e^-104 < 2^-150 rounds to 0 */
#define EBB_EXPF_LOG2E 0x1.715476p+0f
#define EBB_EXPF_ROUND                                                                             \
    0x1.8p+23f /* adding it leaves the nearest integer in the low mantissa bits */
#define EBB_EXPF_LN2_HI 0x1.63p-1f /* 9 bits: n * hi is exact */
#define EBB_EXPF_LN2_LO -0x1.bd0106p-13f
#define EBB_EXPF_C2     0x1.fffffcp-2f
#define EBB_EXPF_C3     0x1.555492p-3f
#define EBB_EXPF_C4     0x1.5558f2p-5f
#define EBB_EXPF_C5     0x1.123a2p-7f
#define EBB_EXPF_C6     0x1.6a23dp-10f

EBB_EXPF_DEVICE static inline float ebb_expf(float x)
{
    if (x != x)
        return x;
    x = x < EBB_EXPF_MAX ? x : EBB_EXPF_MAX;
    x = x > EBB_EXPF_MIN ? x : EBB_EXPF_MIN;

    float shifted = fmaf(x, EBB_EXPF_LOG2E, EBB_EXPF_ROUND);
    float nf = shifted - EBB_EXPF_ROUND;
    int32_t n = (int32_t)nf; /* -150 .. 128 */
    float r = fmaf(nf, -EBB_EXPF_LN2_HI, x);
    r = fmaf(nf, -EBB_EXPF_LN2_LO, r);

    float p = fmaf(EBB_EXPF_C6, r, EBB_EXPF_C5);
    p = fmaf(p, r, EBB_EXPF_C4);
    p = fmaf(p, r, EBB_EXPF_C3);
    p = fmaf(p, r, EBB_EXPF_C2);
    p = fmaf(p, r * r, r);
    p = p + 1.0f;

    int32_t half = n >> 1; /* arithmetic: -75 .. 64 */
    uint32_t bits0 = (uint32_t)(half + 127) << 23, bits1 = (uint32_t)(n - half + 127) << 23;
    float scale0, scale1;
    memcpy(&scale0, &bits0, sizeof scale0);
    memcpy(&scale1, &bits1, sizeof scale1);
    return p * scale0 * scale1;
}

/* silu(g) * u as NUMERICS writes it: g * (1 / (1 + e^-g)) * u, left to right. */
EBB_EXPF_DEVICE static inline float ebb_swiglu(float g, float u)
{
    float sigmoid = 1.0f / (1.0f + ebb_expf(-g));
    return g * sigmoid * u;
}
