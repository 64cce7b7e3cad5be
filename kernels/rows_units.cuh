/* kernels/rows_units.cuh - what one lane does with 256 weights of one row: the integer sums of eight blocks of 32 and their
 * scales (NUMERICS rules 2 and 3), for all quantised types. Internal to *.cu.
 *
 * A unit is one block of 256, or up to eight blocks of 32. Its bytes lie in shared memory, as in the file: at a multiple of 16
 * for the types of unit_wide(), at any even address for the others, whose words are joined from two. The quants of the
 * activations are shared by all lanes of a row's unit: 256 bytes at a multiple of 16, and a word of two 16-wide sums a block.
 * Offsets of weights (Q6_K: 32) are not taken off each weight: they enter the integer sum once, times the activations' sum.
 *
 * Block layouts and their source: blocks.h. Shared memory is named by byte offsets into rows_shared.
 */
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>
#include "kernels/copy_async.cuh"
#include "kernels/tensor_type.h"

static __host__ __device__ constexpr unsigned unit_bytes(uint32_t type)
{
    return type == TENSOR_Q4_0   ? 8 * 18
           : type == TENSOR_Q4_1 ? 8 * 20
           : type == TENSOR_Q5_0 ? 8 * 22
           : type == TENSOR_Q5_1 ? 8 * 24
           : type == TENSOR_Q8_0 ? 8 * 34
           : type == TENSOR_Q2_K ? 84
           : type == TENSOR_Q3_K ? 110
           : type == TENSOR_Q4_K ? 144
           : type == TENSOR_Q5_K ? 176
                                 : 210;
}

/* A unit is one block of the type. */
static __host__ __device__ constexpr bool unit_super(uint32_t type)
{
    return type == TENSOR_Q2_K || type == TENSOR_Q3_K || type == TENSOR_Q4_K ||
           type == TENSOR_Q5_K || type == TENSOR_Q6_K;
}

static __host__ __device__ constexpr bool unit_wide(uint32_t type)
{
    return type == TENSOR_Q4_K || type == TENSOR_Q5_K;
}

/* The type has a b. */
static __host__ __device__ constexpr bool unit_minima(uint32_t type)
{
    return type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q2_K ||
           type == TENSOR_Q4_K || type == TENSOR_Q5_K;
}

/* b has 16-wide integers, which make a sum of their own. */
static __host__ __device__ constexpr bool unit_folded(uint32_t type)
{
    return type == TENSOR_Q2_K;
}

/* Where a lane finds its operands and puts its sums. Block j of the unit: scale[j * stride] (two floats, a and b, for types
 * with minima), sum[j * stride], and low[j * stride] for folded minima. */
struct unit {
    unsigned weights;        /* offset of its first byte */
    unsigned quants, halves; /* offsets of the activations' */
    float *scale, *sum, *low;
    unsigned stride;
    unsigned n_blocks; /* up to 8; types of 256 have 8 */
};

static __device__ __forceinline__ uint32_t shared_word(unsigned at)
{
    return *(const uint32_t *)(rows_shared + at);
}

static __device__ __forceinline__ uint4 shared_words4(unsigned at)
{
    return *(const uint4 *)(rows_shared + at);
}

static __device__ __forceinline__ float shared_half(unsigned at)
{
    return __half2float(*(const __half *)(rows_shared + at));
}

/* n words from any even offset. */
template <int n> static __device__ __forceinline__ void shared_words(unsigned at, uint32_t (&to)[n])
{
    const unsigned shift = (at & 3) * 8;
    uint32_t word = shared_word(at & ~3u);
#pragma unroll
    for (int i = 0; i < n; i++) {
        uint32_t next = shared_word((at & ~3u) + 4 * i + 4);
        to[i] = __funnelshift_r(word, next, shift);
        word = next;
    }
}

/* acc + sum of four unsigned bytes times four signed ones. */
static __device__ __forceinline__ int dot_unsigned(uint32_t w, uint32_t x, int acc)
{
    int sum;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(w), "r"(x), "r"(acc));
    return sum;
}

/* Half a block: 16 unsigned weights. */
static __device__ __forceinline__ int dot_half(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3,
                                               uint4 x, int acc)
{
    acc = dot_unsigned(w0, x.x, acc);
    acc = dot_unsigned(w1, x.y, acc);
    acc = dot_unsigned(w2, x.z, acc);
    return dot_unsigned(w3, x.w, acc);
}

/* The two 16-wide sums of a block's activations. */
static __device__ __forceinline__ int2 halves_of(const struct unit &u, unsigned j)
{
    const uint32_t word = shared_word(u.halves + 4 * j);
    return make_int2((int)(int16_t)word, (int)word >> 16);
}

template <uint32_t type>
static __device__ __forceinline__ void unit_put(const struct unit &u, unsigned j, float a, float b,
                                                int sum, int low)
{
    if constexpr (unit_minima(type))
        ((float2 *)u.scale)[j * u.stride] = make_float2(a, b);
    else
        u.scale[j * u.stride] = a;
    u.sum[j * u.stride] = (float)sum;
    if constexpr (unit_folded(type))
        u.low[j * u.stride] = (float)low;
}

/* Q4_0, Q4_1, Q5_0, Q5_1: block j of 32. */
template <uint32_t type>
static __device__ __forceinline__ void block_nibbles(const struct unit &u, unsigned j)
{
    constexpr bool fifth = type == TENSOR_Q5_0 || type == TENSOR_Q5_1, minima = unit_minima(type);
    constexpr unsigned head = minima ? 4 : 2;
    const unsigned at = u.weights + j * (unit_bytes(type) / 8);
    const uint4 x0 = shared_words4(u.quants + 32 * j), x1 = shared_words4(u.quants + 32 * j + 16);
    uint32_t q[4], high[1] = {0};
    shared_words<4>(at + head + (fifth ? 4 : 0), q);
    uint32_t v[8];
    if constexpr (fifth)
        shared_words<1>(at + head, high);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = q[i] & 0x0f0f0f0f;
        v[4 + i] = q[i] >> 4 & 0x0f0f0f0f;
    }
    if constexpr (fifth)
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] |= (high[0] >> 4 * i & 15) * 0x02040810 & 0x10101010; /* bit l to byte l */
    int sum = 0;
    if constexpr (!minima) {
        const int2 half = halves_of(u, j);
        sum = -(fifth ? 16 : 8) * (half.x + half.y);
    }
    sum = dot_half(v[0], v[1], v[2], v[3], x0, sum);
    sum = dot_half(v[4], v[5], v[6], v[7], x1, sum);
    unit_put<type>(u, j, shared_half(at), minima ? -shared_half(at + 2) : 0.0f, sum, 0);
}

static __device__ __forceinline__ void block_q8_0(const struct unit &u, unsigned j)
{
    const unsigned at = u.weights + 34 * j;
    const uint4 x0 = shared_words4(u.quants + 32 * j), x1 = shared_words4(u.quants + 32 * j + 16);
    uint32_t q[8];
    shared_words<8>(at + 2, q);
    int sum = __dp4a((int)q[0], (int)x0.x, 0);
    sum = __dp4a((int)q[1], (int)x0.y, sum);
    sum = __dp4a((int)q[2], (int)x0.z, sum);
    sum = __dp4a((int)q[3], (int)x0.w, sum);
    sum = __dp4a((int)q[4], (int)x1.x, sum);
    sum = __dp4a((int)q[5], (int)x1.y, sum);
    sum = __dp4a((int)q[6], (int)x1.z, sum);
    sum = __dp4a((int)q[7], (int)x1.w, sum);
    unit_put<TENSOR_Q8_0>(u, j, shared_half(at), 0.0f, sum, 0);
}

static __device__ __forceinline__ unsigned byte_of(uint32_t word, unsigned i)
{
    return word >> 8 * i & 255;
}

/* Scales and minima of Q4_K and Q5_K as bytes: sc and m of block j at byte j % 4 of [j / 4]. */
static __device__ __forceinline__ void pair_scales(uint4 head, uint32_t sc[2], uint32_t m[2])
{
    sc[0] = head.y & 0x3f3f3f3f;
    m[0] = head.z & 0x3f3f3f3f;
    sc[1] = (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030);
    m[1] = (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030);
}

/* Q4_K and Q5_K: the block and its header begin at a multiple of 16. */
template <uint32_t type> static __device__ __forceinline__ void unit_pairs(const struct unit &u)
{
    constexpr bool fifth = type == TENSOR_Q5_K;
    const uint4 head = shared_words4(u.weights);
    const float d = __half2float(__ushort_as_half((unsigned short)head.x));
    const float dmin = __half2float(__ushort_as_half((unsigned short)(head.x >> 16)));
    uint32_t sc[2], m[2], high[8] = {0};
    pair_scales(head, sc, m);
    if constexpr (fifth) {
        const uint4 h0 = shared_words4(u.weights + 16), h1 = shared_words4(u.weights + 32);
        high[0] = h0.x, high[1] = h0.y, high[2] = h0.z, high[3] = h0.w;
        high[4] = h1.x, high[5] = h1.y, high[6] = h1.z, high[7] = h1.w;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const unsigned at = u.weights + (fifth ? 48 : 16) + 32 * c;
        const uint4 q0 = shared_words4(at), q1 = shared_words4(at + 16);
        const uint32_t q[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
#pragma unroll
        for (int top = 0; top < 2; top++) {
            const int j = 2 * c + top;
            const uint4 x0 = shared_words4(u.quants + 32 * j);
            const uint4 x1 = shared_words4(u.quants + 32 * j + 16);
            uint32_t v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = q[i] >> 4 * top & 0x0f0f0f0f;
                if constexpr (fifth)
                    v[i] |= (j < 4 ? high[i] << (4 - j) : high[i] >> (j - 4)) & 0x10101010;
            }
            int sum = dot_half(v[0], v[1], v[2], v[3], x0, 0);
            sum = dot_half(v[4], v[5], v[6], v[7], x1, sum);
            unit_put<type>(u, j, d * (float)byte_of(sc[j / 4], j % 4),
                           dmin * (float)byte_of(m[j / 4], j % 4), sum, 0);
        }
    }
}

static __device__ __forceinline__ void unit_q6_k(const struct unit &u)
{
    uint32_t scales[4];
    shared_words<4>(u.weights + 192, scales);
    const float d = shared_half(u.weights + 208);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t high[8];
        shared_words<8>(u.weights + 128 + 32 * h, high);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            uint32_t low[8];
            shared_words<8>(u.weights + 64 * h + 32 * side, low);
#pragma unroll
            for (int top = 0; top < 2; top++) {
                const int k = 2 * top + side, j = 4 * h + k;
                const uint4 x0 = shared_words4(u.quants + 32 * j);
                const uint4 x1 = shared_words4(u.quants + 32 * j + 16);
                const int2 half = halves_of(u, j);
                uint32_t v[8];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = (low[i] >> 4 * top & 0x0f0f0f0f) |
                           ((k < 2 ? high[i] << (4 - 2 * k) : high[i] >> (2 * k - 4)) & 0x30303030);
                const int s0 = dot_half(v[0], v[1], v[2], v[3], x0, -32 * half.x);
                const int s1 = dot_half(v[4], v[5], v[6], v[7], x1, -32 * half.y);
                const int sc0 = (int8_t)byte_of(scales[j / 2], 2 * (j % 2));
                const int sc1 = (int8_t)byte_of(scales[j / 2], 2 * (j % 2) + 1);
                unit_put<TENSOR_Q6_K>(u, j, d, 0.0f, sc0 * s0 + sc1 * s1, 0);
            }
        }
    }
}

static __device__ __forceinline__ void unit_q2_k(const struct unit &u)
{
    uint32_t scales[4];
    shared_words<4>(u.weights, scales);
    const float d = shared_half(u.weights + 80), dmin = shared_half(u.weights + 82);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t q[8];
        shared_words<8>(u.weights + 16 + 32 * h, q);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int j = 4 * h + k;
            const uint4 x0 = shared_words4(u.quants + 32 * j);
            const uint4 x1 = shared_words4(u.quants + 32 * j + 16);
            const int2 half = halves_of(u, j);
            uint32_t v[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = q[i] >> 2 * k & 0x03030303;
            const int s0 = dot_half(v[0], v[1], v[2], v[3], x0, 0);
            const int s1 = dot_half(v[4], v[5], v[6], v[7], x1, 0);
            const int b0 = (int)byte_of(scales[j / 2], 2 * (j % 2));
            const int b1 = (int)byte_of(scales[j / 2], 2 * (j % 2) + 1);
            unit_put<TENSOR_Q2_K>(u, j, d, dmin, (b0 & 15) * s0 + (b1 & 15) * s1,
                                  (b0 >> 4) * half.x + (b1 >> 4) * half.y);
        }
    }
}

static __device__ __forceinline__ void unit_q3_k(const struct unit &u)
{
    uint32_t high[8], raw[3];
    shared_words<8>(u.weights, high);
    shared_words<3>(u.weights + 96, raw);
    /* Scale j, still with its offset of 32, at byte j % 4 of [j / 4]. */
    const uint32_t scales[4] = {(raw[0] & 0x0f0f0f0f) | (raw[2] << 4 & 0x30303030),
                                (raw[1] & 0x0f0f0f0f) | (raw[2] << 2 & 0x30303030),
                                (raw[0] >> 4 & 0x0f0f0f0f) | (raw[2] & 0x30303030),
                                (raw[1] >> 4 & 0x0f0f0f0f) | (raw[2] >> 2 & 0x30303030)};
    const float d = shared_half(u.weights + 108);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t q[8];
        shared_words<8>(u.weights + 32 + 32 * h, q);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int j = 4 * h + k;
            const uint4 x0 = shared_words4(u.quants + 32 * j);
            const uint4 x1 = shared_words4(u.quants + 32 * j + 16);
            const int2 half = halves_of(u, j);
            uint32_t v[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = (q[i] >> 2 * k & 0x03030303) |
                       ((j < 2 ? high[i] << (2 - j) : high[i] >> (j - 2)) & 0x04040404);
            const int s0 = dot_half(v[0], v[1], v[2], v[3], x0, -4 * half.x);
            const int s1 = dot_half(v[4], v[5], v[6], v[7], x1, -4 * half.y);
            const int sc0 = (int)byte_of(scales[j / 2], 2 * (j % 2)) - 32;
            const int sc1 = (int)byte_of(scales[j / 2], 2 * (j % 2) + 1) - 32;
            unit_put<TENSOR_Q3_K>(u, j, d, 0.0f, sc0 * s0 + sc1 * s1, 0);
        }
    }
}

template <uint32_t type> static __device__ __forceinline__ void unit_run(const struct unit &u)
{
    if constexpr (type == TENSOR_Q4_K || type == TENSOR_Q5_K)
        unit_pairs<type>(u);
    else if constexpr (type == TENSOR_Q6_K)
        unit_q6_k(u);
    else if constexpr (type == TENSOR_Q2_K)
        unit_q2_k(u);
    else if constexpr (type == TENSOR_Q3_K)
        unit_q3_k(u);
    else
#pragma unroll 2
        for (unsigned j = 0; j < u.n_blocks; j++)
            if constexpr (type == TENSOR_Q8_0)
                block_q8_0(u, j);
            else
                block_nibbles<type>(u, j);
}
