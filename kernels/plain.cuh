/* kernels/plain.cuh - products of fp32 rows with F32, F16 and BF16 weights: one order of addition for all (tier 2). Internal.
 *
 * An element is 32 sums, one a lane of a warp: value i belongs to lane (i / 4) mod 32, added in ascending order with fmaf; then the
 * lanes are joined by a butterfly, lane l with l ^ 16, then ^ 8, ^ 4, ^ 2, ^ 1. Nothing else enters an element's bits, so a warp may
 * compute any number of rows and outputs at once, and a product, the router and the experts agree.
 *
 * Weights may lie at any even address (an expert that is read from the file): where four values cannot be loaded at once, they are
 * loaded one by one.
 */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/blocks.h"

/* Types of weights, as template arguments: a value, and four of them as they are loaded. */
struct plain_f32 {
    float value;
    struct four {
        float4 values;
    };
};
struct plain_f16 {
    uint16_t bits;
    struct four {
        uint2 bits;
    };
};
struct plain_bf16 {
    uint16_t bits;
    struct four {
        uint2 bits;
    };
};

static __device__ inline float plain_value(struct plain_f32 w)
{
    return w.value;
}

static __device__ inline float plain_value(struct plain_f16 w)
{
    return half_to_float(w.bits);
}

static __device__ inline float plain_value(struct plain_bf16 w)
{
    return bfloat_to_float(w.bits);
}

static __device__ inline float4 plain_values(struct plain_f32::four w)
{
    return w.values;
}

static __device__ inline float4 plain_values(struct plain_f16::four w)
{
    float2 a = __half22float2(*(const __half2 *)&w.bits.x);
    float2 b = __half22float2(*(const __half2 *)&w.bits.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

static __device__ inline float4 plain_values(struct plain_bf16::four w)
{
    return make_float4(__uint_as_float(w.bits.x << 16), __uint_as_float(w.bits.x & 0xffff0000u),
                       __uint_as_float(w.bits.y << 16), __uint_as_float(w.bits.y & 0xffff0000u));
}

/* Whether rows of n_in values from these addresses can be read four at a time. */
template <typename W>
static __device__ inline bool plain_aligned(const W *w, const float *x, size_t n_in)
{
    return n_in % 4 == 0 && (uintptr_t)w % sizeof(typename W::four) == 0 && (uintptr_t)x % 16 == 0;
}

/* Adds values i .. i + 3 of STEPS steps of 128; all are loaded before the first is used. */
template <typename W, int R, int O, int STEPS>
static __device__ inline void plain_steps(const W *const *w, const float *const *x, size_t i,
                                          float (&acc)[R * O])
{
    typename W::four ws[STEPS][O];
    float4 xs[STEPS][R];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int o = 0; o < O; o++)
            ws[s][o] = *(const typename W::four *)(w[o] + i + 128 * s);
#pragma unroll
        for (int r = 0; r < R; r++)
            xs[s][r] = *(const float4 *)(x[r] + i + 128 * s);
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int o = 0; o < O; o++) {
            float4 four = plain_values(ws[s][o]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float *sum = &acc[r * O + o];
                *sum = __fmaf_rn(four.x, xs[s][r].x, *sum);
                *sum = __fmaf_rn(four.y, xs[s][r].y, *sum);
                *sum = __fmaf_rn(four.z, xs[s][r].z, *sum);
                *sum = __fmaf_rn(four.w, xs[s][r].w, *sum);
            }
        }
}

/* acc[r * O + o] = this lane's sum of w[o][i] * x[r][i]. STEPS is how much is loaded at once; it does not show in the bits. */
template <typename W, int R, int O, int STEPS>
static __device__ inline void plain_sums(const W *const *w, const float *const *x, size_t n_in,
                                         bool aligned, float (&acc)[R * O])
{
    size_t i = threadIdx.x % 32 * 4;
#pragma unroll
    for (int e = 0; e < R * O; e++)
        acc[e] = 0.0f;
    if (!aligned) {
        for (; i < n_in; i += 128)
            for (size_t j = i; j < i + 4 && j < n_in; j++)
#pragma unroll
                for (int e = 0; e < R * O; e++)
                    acc[e] = __fmaf_rn(plain_value(w[e % O][j]), x[e / O][j], acc[e]);
        return;
    }
    for (; i + 128 * (STEPS - 1) < n_in; i += 128 * STEPS)
        plain_steps<W, R, O, STEPS>(w, x, i, acc);
    for (; STEPS > 1 && i < n_in; i += 128)
        plain_steps<W, R, O, 1>(w, x, i, acc);
}

/* One level of the butterfly and those after it; N elements are still to be joined here. */
template <int D, int N, int TOTAL>
static __device__ inline void plain_join_level(float (&acc)[TOTAL])
{
    constexpr int half = N / 2;
    if constexpr (N == 1)
        acc[0] = acc[0] + __shfl_xor_sync(~0u, acc[0], D);
    bool upper = threadIdx.x & D;
#pragma unroll
    for (int i = 0; i < half; i++) {
        float mine = upper ? acc[i + half] : acc[i], other = upper ? acc[i] : acc[i + half];
        acc[i] = mine + __shfl_xor_sync(~0u, other, D);
    }
    if constexpr (D > 1)
        plain_join_level<D / 2, (N > 1 ? half : 1)>(acc);
}

/* Joins the lanes' sums of N elements (a power of two). Afterwards element plain_first<N>() + j is in acc[j] of this lane,
 * j < plain_count<N>(); with N < 32 several lanes have the same. Halves change hands as the butterfly goes, so N elements take
 * about N + 5 exchanges. */
template <int N> static __device__ inline void plain_join(float (&acc)[N])
{
    plain_join_level<16, N>(acc);
}

template <int N> static __device__ inline int plain_first(void)
{
    int n = N, first = 0;
#pragma unroll
    for (int d = 16; d > 0 && n > 1; d >>= 1) {
        n /= 2;
        first += threadIdx.x & d ? n : 0;
    }
    return first;
}

template <int N> static __device__ inline constexpr int plain_count(void)
{
    return N < 32 ? 1 : N / 32;
}

/* Of lanes that have the same element, one. */
template <int N> static __device__ inline bool plain_owner(void)
{
    return threadIdx.x % (N < 32 ? 32 / N : 1) == 0;
}
