/* kernels/rows_pairs.cuh - two blocks of 32 weights of one row against the same blocks of activations: scales and integer sums
 * (NUMERICS rules 2 and 3), for all quantised types. Internal to *.cu.
 *
 * A lane keeps the activations of its pair of blocks in registers and meets the same pair of many rows. Pair p is blocks 2p and
 * 2p + 1, for Q6_K the two blocks that share bytes: j and j + 2. The rows lie in shared memory as in the file: at a multiple of 16
 * for the types of pair_wide(), at any even address for the others, whose words are joined from two. Lanes of neighbouring pairs
 * read different banks in either case. Offsets of weights (Q6_K: 32) are not taken off each weight: they enter the integer sum
 * once, times the activations' sum.
 *
 * Block layouts and their source: blocks.h. Shared memory is named by byte offsets into rows_shared.
 */
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>
#include "kernels/activation.cuh"
#include "kernels/block_bytes.cuh"
#include "kernels/copy_async.cuh"

static __host__ __device__ constexpr bool pair_super(uint32_t type)
{
    return block_bytes(type) > 34;
}

static __host__ __device__ constexpr bool pair_wide(uint32_t type)
{
    return type == TENSOR_Q4_K || type == TENSOR_Q5_K;
}

/* The type has a b. */
static __host__ __device__ constexpr bool pair_minima(uint32_t type)
{
    return type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q2_K ||
           type == TENSOR_Q4_K || type == TENSOR_Q5_K;
}

/* Scales are integers, one for 16 weights, in the integer sum. */
static __host__ __device__ constexpr bool pair_sixteen(uint32_t type)
{
    return type == TENSOR_Q2_K || type == TENSOR_Q3_K || type == TENSOR_Q6_K;
}

/* What is taken off every quant as it is stored. */
static __host__ __device__ constexpr int pair_offset(uint32_t type)
{
    return type == TENSOR_Q4_0   ? 8
           : type == TENSOR_Q5_0 ? 16
           : type == TENSOR_Q3_K ? 4
           : type == TENSOR_Q6_K ? 32
                                 : 0;
}

/* Block 0 or 1 of pair p, counted in its row. */
template <uint32_t type>
static __device__ __forceinline__ unsigned pair_block(unsigned p, unsigned i)
{
    return type == TENSOR_Q6_K ? (p / 2) * 4 + p % 2 + 2 * i : 2 * p + i;
}

struct pair_inputs {
    uint4 x[2][2]; /* quants */
    float d[2], sx[2];
    int half[2][2]; /* 16-wide sums */
};

struct pair_weights {
    uint32_t q[2][8];  /* bytes, unsigned but for Q8_0 */
    int scale[2][2];   /* pair_sixteen() */
    int minimum[2][2]; /* Q2_K */
    float a[2], b[2];
};

/* A block past the row's end counts as zeros. */
template <uint32_t type>
static __device__ __forceinline__ void inputs_load(struct pair_inputs *in, const void *a, size_t n,
                                                   unsigned p)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned k = pair_block<type>(p, i);
        if (32 * k >= n) {
            in->x[i][0] = in->x[i][1] = make_uint4(0, 0, 0, 0);
            in->d[i] = in->sx[i] = 0.0f;
            in->half[i][0] = in->half[i][1] = 0;
            continue;
        }
        const uint4 *x = (const uint4 *)(activation_q(a) + 32 * k);
        const int16_t *half = activation_half(a, n) + 2 * k;
        in->x[i][0] = x[0];
        in->x[i][1] = x[1];
        in->d[i] = activation_d(a, n)[k];
        in->sx[i] = activation_sx(a, n)[k];
        in->half[i][0] = half[0];
        in->half[i][1] = half[1];
    }
}

static __device__ __forceinline__ uint32_t shared_word(unsigned at)
{
    return *(const uint32_t *)(rows_shared + at);
}

static __device__ __forceinline__ uint4 shared_words4(unsigned at)
{
    return *(const uint4 *)(rows_shared + at);
}

static __device__ __forceinline__ unsigned shared_pair(unsigned at)
{
    return *(const uint16_t *)(rows_shared + at);
}

static __device__ __forceinline__ float shared_half(unsigned at)
{
    return __half2float(*(const __half *)(rows_shared + at));
}

/* Words from an even offset, as one string of bits. */
struct string {
    unsigned at, shift; /* of the word that holds its first byte, and how far behind it begins */
};

static __device__ __forceinline__ struct string string_at(unsigned at)
{
    const struct string s = {at & ~3u, (at & 3) * 8};
    return s;
}

/* n words, `bytes` (a multiple of 4) behind the beginning, moved right by `right` bits; what comes into the last word's top is
 * arbitrary. */
template <int n>
static __device__ __forceinline__ void shared_words(struct string s, unsigned bytes, unsigned right,
                                                    uint32_t (&to)[n])
{
    uint32_t word = shared_word(s.at + bytes);
#pragma unroll
    for (int i = 0; i < n; i++) {
        const uint32_t next = shared_word(s.at + bytes + 4 * i + 4);
        to[i] = __funnelshift_r(word, next, s.shift + right);
        word = next;
    }
}

static __device__ __forceinline__ void words_split(uint4 first, uint4 second, uint32_t to[8])
{
    to[0] = first.x, to[1] = first.y, to[2] = first.z, to[3] = first.w;
    to[4] = second.x, to[5] = second.y, to[6] = second.z, to[7] = second.w;
}

/* Where a pair lies in a row, and how: what does not change from row to row. */
struct pair_place {
    unsigned base;        /* of its block of 256, or its first block of 32 */
    unsigned low, high;   /* from base: quants, or the other block of 32; upper bits or scales */
    unsigned shift, more; /* bits before it in bytes that it shares */
    uint32_t above, below;
};

/* A value that the compiler keeps instead of making it anew in each turn of a loop. */
static __device__ __forceinline__ void keep(unsigned &value)
{
    asm volatile("" : "+r"(value));
}

template <uint32_t type>
static __device__ __forceinline__ struct pair_place place_of(unsigned p, bool second)
{
    const unsigned c = p % 4;
    struct pair_place at = {(pair_super(type) ? p / 4 : 2 * p) * block_bytes(type)};
    if constexpr (type == TENSOR_Q4_K || type == TENSOR_Q5_K) {
        /* Scales of the later blocks lie apart: two bits above, four below. */
        at.low = (type == TENSOR_Q4_K ? 16 : 48) + 32 * c;
        at.high = 2 * c;
        at.shift = c % 2 * 16;
        at.more = at.shift + (c < 2 ? 0 : 2);
        at.above = c < 2 ? 0x3f3f : 0x3030;
        at.below = c < 2 ? 0 : 0x0f0f;
    } else if constexpr (type == TENSOR_Q6_K) {
        at.low = 64 * (c / 2) + 32 * (c % 2);
        at.high = 128 + 32 * (c / 2);
        at.more = 192 + 8 * (c / 2) + 2 * (c % 2);
        at.shift = 2 * (c % 2);
    } else if constexpr (type == TENSOR_Q2_K) {
        at.low = 16 + 32 * (c / 2);
        at.high = 4 * c;
        at.shift = 4 * (c % 2);
    } else if constexpr (type == TENSOR_Q3_K) {
        at.low = 32 + 32 * (c / 2);
        at.high = 96 + 4 * (c % 2);
        at.shift = 4 * (c % 2);
        at.more = 4 * (c / 2);
        at.above = 2 * c;
    } else {
        at.low = second ? block_bytes(type) : 0;
    }
    keep(at.base), keep(at.low), keep(at.high), keep(at.shift), keep(at.more);
    keep(at.above), keep(at.below);
    return at;
}

/* One block of Q4_0, Q4_1, Q5_0 or Q5_1. */
template <uint32_t type>
static __device__ __forceinline__ void nibbles_read(unsigned at, int i, struct pair_weights *w)
{
    constexpr bool fifth = type == TENSOR_Q5_0 || type == TENSOR_Q5_1;
    constexpr unsigned head = pair_minima(type) ? 4 : 2;
    const struct string s = string_at(at + head);
    uint32_t q[4], high[1] = {0};
    shared_words<4>(s, fifth ? 4 : 0, 0, q);
    if constexpr (fifth)
        shared_words<1>(s, 0, 0, high);
#pragma unroll
    for (int l = 0; l < 8; l++) {
        w->q[i][l] = (l < 4 ? q[l % 4] : q[l % 4] >> 4) & 0x0f0f0f0f;
        if constexpr (fifth)
            w->q[i][l] |= (high[0] >> 4 * l & 15) * 0x02040810 & 0x10101010; /* bit n to byte n */
    }
    w->a[i] = shared_half(at);
    w->b[i] = pair_minima(type) ? -shared_half(at + 2) : 0.0f;
}

static __device__ __forceinline__ void q8_0_read(unsigned at, int i, struct pair_weights *w)
{
    shared_words<8>(string_at(at + 2), 0, 0, w->q[i]);
    w->a[i] = shared_half(at);
}

/* Q4_K or Q5_K: blocks 2c and 2c + 1 are the low and high nibbles of the same bytes. Q4_K keeps the high ones in their place. */
template <uint32_t type>
static __device__ __forceinline__ void pairs_read(unsigned at, const struct pair_place *p,
                                                  struct pair_weights *w)
{
    constexpr bool fifth = type == TENSOR_Q5_K;
    const uint4 head = shared_words4(at);
    const uint32_t sc = (head.y >> p->more & p->above) | (head.w >> p->shift & p->below);
    const uint32_t m = (head.z >> p->more & p->above) | (head.w >> p->shift >> 4 & p->below);
    const float d = __half2float(__ushort_as_half((unsigned short)head.x));
    const float dmin = __half2float(__ushort_as_half((unsigned short)(head.x >> 16)));
    uint32_t q[8], high[8];
    words_split(shared_words4(at + p->low), shared_words4(at + p->low + 16), q);
    if constexpr (fifth)
        words_split(shared_words4(at + 16), shared_words4(at + 32), high);
#pragma unroll
    for (int l = 0; l < 8; l++) {
        w->q[0][l] = q[l] & 0x0f0f0f0f;
        w->q[1][l] = fifth ? q[l] >> 4 & 0x0f0f0f0f : q[l] & 0xf0f0f0f0;
        if constexpr (fifth) {
            const uint32_t bits = high[l] >> p->high;
            w->q[0][l] |= bits << 4 & 0x10101010;
            w->q[1][l] |= bits << 3 & 0x10101010;
        }
    }
    w->a[0] = d * (float)(sc & 255), w->a[1] = d * (float)(sc >> 8 & 255);
    w->b[0] = dmin * (float)(m & 255), w->b[1] = dmin * (float)(m >> 8 & 255);
}

/* Blocks j and j + 2, j = 4 (c / 2) + c % 2. */
static __device__ __forceinline__ void q6_k_read(unsigned at, const struct pair_place *p,
                                                 struct pair_weights *w)
{
    const struct string s = string_at(at);
    const unsigned s0 = shared_pair(at + p->more), s1 = shared_pair(at + p->more + 4);
    uint32_t low[8], high[8];
    shared_words<8>(s, p->low, 0, low);
    shared_words<8>(s, p->high, p->shift, high);
#pragma unroll
    for (int l = 0; l < 8; l++) {
        w->q[0][l] = (low[l] & 0x0f0f0f0f) | (high[l] << 4 & 0x30303030);
        w->q[1][l] = (low[l] >> 4 & 0x0f0f0f0f) | (high[l] & 0x30303030);
    }
    w->scale[0][0] = (int8_t)s0, w->scale[0][1] = (int8_t)(s0 >> 8);
    w->scale[1][0] = (int8_t)s1, w->scale[1][1] = (int8_t)(s1 >> 8);
    w->a[0] = w->a[1] = shared_half(at + 208);
}

static __device__ __forceinline__ void q2_k_read(unsigned at, const struct pair_place *p,
                                                 struct pair_weights *w)
{
    const struct string s = string_at(at);
    uint32_t q[8], scales[1];
    shared_words<1>(s, p->high, 0, scales);
    shared_words<8>(s, p->low, p->shift, q);
#pragma unroll
    for (int l = 0; l < 8; l++) {
        w->q[0][l] = q[l] & 0x03030303;
        w->q[1][l] = q[l] >> 2 & 0x03030303;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w->scale[i / 2][i % 2] = (int)(scales[0] >> 8 * i & 15);
        w->minimum[i / 2][i % 2] = (int)(scales[0] >> (8 * i + 4) & 15);
    }
    w->a[0] = w->a[1] = shared_half(at + 80);
    w->b[0] = w->b[1] = shared_half(at + 82);
}

static __device__ __forceinline__ void q3_k_read(unsigned at, const struct pair_place *p,
                                                 struct pair_weights *w)
{
    const struct string s = string_at(at);
    uint32_t q[8], high[8], low4[1], high2[1];
    shared_words<8>(s, 0, p->above, high);
    shared_words<8>(s, p->low, p->shift, q);
    shared_words<1>(s, p->high, p->more, low4);
    shared_words<1>(s, 104, p->above, high2);
    const uint32_t scales = (low4[0] & 0x0f0f0f0f) | (high2[0] << 4 & 0x30303030);
#pragma unroll
    for (int l = 0; l < 8; l++) {
        w->q[0][l] = (q[l] & 0x03030303) | (high[l] << 2 & 0x04040404);
        w->q[1][l] = (q[l] >> 2 & 0x03030303) | (high[l] << 1 & 0x04040404);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        w->scale[i / 2][i % 2] = (int)(scales >> 8 * i & 255) - 32;
    w->a[0] = w->a[1] = shared_half(at + 108);
}

/* The pair of the row that begins at `row`. */
template <uint32_t type>
static __device__ __forceinline__ void weights_read(unsigned row, const struct pair_place *p,
                                                    struct pair_weights *w)
{
    const unsigned at = row + p->base;
    w->b[0] = w->b[1] = 0.0f;
    if constexpr (type == TENSOR_Q4_K || type == TENSOR_Q5_K)
        pairs_read<type>(at, p, w);
    else if constexpr (type == TENSOR_Q6_K)
        q6_k_read(at, p, w);
    else if constexpr (type == TENSOR_Q2_K)
        q2_k_read(at, p, w);
    else if constexpr (type == TENSOR_Q3_K)
        q3_k_read(at, p, w);
    else if constexpr (type == TENSOR_Q8_0)
        q8_0_read(at, 0, w), q8_0_read(at + p->low, 1, w);
    else
        nibbles_read<type>(at, 0, w), nibbles_read<type>(at + p->low, 1, w);
}

/* acc + sum of four bytes times four signed ones. */
template <uint32_t type>
static __device__ __forceinline__ int dot_four(uint32_t w, uint32_t x, int acc)
{
    int sum;
    if constexpr (type == TENSOR_Q8_0)
        return __dp4a((int)w, (int)x, acc);
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(w), "r"(x), "r"(acc));
    return sum;
}

template <uint32_t type>
static __device__ __forceinline__ int dot_sixteen(const uint32_t *w, uint4 x, int acc)
{
    acc = dot_four<type>(w[0], x.x, acc);
    acc = dot_four<type>(w[1], x.y, acc);
    acc = dot_four<type>(w[2], x.z, acc);
    return dot_four<type>(w[3], x.w, acc);
}

/* Rule 3's isum of block i. */
template <uint32_t type>
static __device__ __forceinline__ int pair_sum(const struct pair_weights *w,
                                               const struct pair_inputs *in, int i)
{
    constexpr int offset = pair_offset(type);
    if constexpr (pair_sixteen(type)) {
        const int s0 = dot_sixteen<type>(w->q[i], in->x[i][0], -offset * in->half[i][0]);
        const int s1 = dot_sixteen<type>(w->q[i] + 4, in->x[i][1], -offset * in->half[i][1]);
        return w->scale[i][0] * s0 + w->scale[i][1] * s1;
    }
    int sum = offset == 0 ? 0 : -offset * (in->half[i][0] + in->half[i][1]);
    sum = dot_sixteen<type>(w->q[i], in->x[i][0], sum);
    sum = dot_sixteen<type>(w->q[i] + 4, in->x[i][1], sum);
    return type == TENSOR_Q4_K && i == 1 ? sum >> 4 : sum; /* exact: high nibbles in their place */
}

/* What block i's b is multiplied with. */
template <uint32_t type>
static __device__ __forceinline__ float pair_low(const struct pair_weights *w,
                                                 const struct pair_inputs *in, int i)
{
    if constexpr (type == TENSOR_Q2_K)
        return in->d[i] *
               (float)(w->minimum[i][0] * in->half[i][0] + w->minimum[i][1] * in->half[i][1]);
    return in->sx[i];
}
