/* kernels/activation.cuh - how CUDA keeps a quantised row of activations (NUMERICS rule 1). Internal to *.cu.
 *
 *   int8_t  q[n]          the quants
 *   float   d[n / 32]     the scales
 *   float   sx[n / 32]    d * (float)sum of the block's quants
 *   int16_t half[n / 16]  sums of 16 quants, for types whose minima have 16-wide integers (Q2_K)
 *
 * Every part begins at a multiple of 16 bytes, and a row takes a multiple of 64; n is a multiple of 32.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

static __host__ __device__ inline size_t activation_round(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static __host__ __device__ inline size_t activation_d_at(size_t n)
{
    return n;
}

static __host__ __device__ inline size_t activation_sx_at(size_t n)
{
    return n + activation_round(n / 32 * sizeof(float), 16);
}

static __host__ __device__ inline size_t activation_half_at(size_t n)
{
    return activation_sx_at(n) + activation_round(n / 32 * sizeof(float), 16);
}

static __host__ __device__ inline size_t activation_row_bytes(size_t n)
{
    return activation_round(activation_half_at(n) + n / 16 * sizeof(int16_t), 64);
}

static __device__ inline const int8_t *activation_q(const void *row)
{
    return (const int8_t *)row;
}

static __device__ inline const float *activation_d(const void *row, size_t n)
{
    return (const float *)((const char *)row + activation_d_at(n));
}

static __device__ inline const float *activation_sx(const void *row, size_t n)
{
    return (const float *)((const char *)row + activation_sx_at(n));
}

static __device__ inline const int16_t *activation_half(const void *row, size_t n)
{
    return (const int16_t *)((const char *)row + activation_half_at(n));
}
