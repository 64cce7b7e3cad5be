/* kernels/tiles_weights.cuh - blocks of weights in shared memory, unpacked to int8 and floats for the tensor cores. Internal to
 * *.cu.
 *
 * Work goes in steps of 128 values of k: four chain blocks of 32 (NUMERICS rule 2), which are half a block of a K type. Four
 * lanes share a row of weights: lane `sub` makes words sub and sub + 4 of every chain block and the scales of block number
 * sub. A raw row lies at any even address; where words of it are not whole in memory they are put together from two.
 *
 * The layouts and the order of every product are those of blocks.h and weights.h.
 */
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>
#include "kernels/block_bytes.cuh"
#include "kernels/blocks.h"
#include "kernels/tensor_type.h"

/* What a type's chain needs. TILES_ANY serves all types, chosen when the kernel runs. */
enum tiles_kind { TILES_PLAIN, TILES_MINIMA, TILES_FOLDED, TILES_FOLDED_MINIMA, TILES_ANY };

#define TILES_STEP        128
#define TILES_STEP_BLOCKS 4

/* Integer sums come out of the tensor cores with this added: their bits are then those of the float 1.5 * 2^23 + sum,
 * and one exact subtraction makes them floats. Good for |sum| < 2^22; a chain block has at most 32 * 128 * 127. */
#define TILES_MAGIC      12582912.0f
#define TILES_MAGIC_BITS 0x4b400000

static __host__ __device__ constexpr bool tiles_has_minima(int kind)
{
    return kind == TILES_MINIMA || kind == TILES_FOLDED_MINIMA || kind == TILES_ANY;
}

static __host__ __device__ constexpr bool tiles_is_folded(int kind)
{
    return kind == TILES_FOLDED || kind == TILES_FOLDED_MINIMA || kind == TILES_ANY;
}

/* True where blocks have 256 values. */
static __host__ __device__ constexpr bool tiles_is_wide(uint32_t type)
{
    return type >= TENSOR_Q2_K && type <= TENSOR_Q6_K;
}

static __host__ __device__ constexpr int tiles_kind_of(uint32_t type)
{
    return type == TENSOR_Q4_0 || type == TENSOR_Q5_0 || type == TENSOR_Q8_0 ? TILES_PLAIN
           : type == TENSOR_Q3_K || type == TENSOR_Q6_K                      ? TILES_FOLDED
           : type == TENSOR_Q2_K                                             ? TILES_FOLDED_MINIMA
                                                                             : TILES_MINIMA;
}

/* A row's blocks in shared memory, at any even address. WHOLE: at a multiple of 4, as its words then are. */
template <bool WHOLE> struct tiles_raw {
    const uint8_t *first;
    const uint32_t *even, *odd; /* the words with the first bytes of offsets 0 and 2 */
    unsigned shift;             /* bits from the word at even to offset 0: 0 or 16 */
};

/* base: on 4 bytes; the row begins at base + at. */
template <bool WHOLE>
static __device__ __forceinline__ struct tiles_raw<WHOLE> raw_row(const uint8_t *base,
                                                                  unsigned at) {
    const unsigned even = WHOLE ? at : at & ~3u, odd = at + 2 & ~3u;
    return {base + at, (const uint32_t *)(base + even), (const uint32_t *)(base + odd),
            8 * (at & 2)};
}

/* offset: even. */
template <bool WHOLE>
static __device__ __forceinline__ uint32_t raw_word(struct tiles_raw<WHOLE> r, unsigned offset)
{
    const uint32_t *w = (offset & 2 ? r.odd : r.even) + offset / 4;
    if (WHOLE)
        return w[0];
    return __funnelshift_r(w[0], w[1], offset & 2 ? 16 - r.shift : r.shift);
}

template <bool WHOLE>
static __device__ __forceinline__ unsigned raw_byte(struct tiles_raw<WHOLE> r, unsigned offset)
{
    return r.first[offset];
}

template <bool WHOLE>
static __device__ __forceinline__ unsigned raw_short(struct tiles_raw<WHOLE> r, unsigned offset)
{
    return *(const uint16_t *)(r.first + offset);
}

template <bool WHOLE>
static __device__ __forceinline__ float raw_half(struct tiles_raw<WHOLE> r, unsigned offset)
{
    return __half2float(__ushort_as_half((unsigned short)raw_short(r, offset)));
}

/* Four bytes v (0..127) become v - offset. */
static __device__ __forceinline__ uint32_t bytes_less(uint32_t v, unsigned offset)
{
    return (v + 0x01010101u * (0x80 - offset)) ^ 0x80808080u;
}

/* Four low bits become the bits 4 of four bytes. */
static __device__ __forceinline__ uint32_t bits_fifth(uint32_t bits)
{
    return ((bits & 15) * 0x00204081u & 0x01010101u) << 4;
}

/* Words sub and sub + 4 of the block of 32 that begins at `at`: of nibbles, those of word sub of 16 bytes. */
template <uint32_t TYPE, bool WHOLE>
static __device__ __forceinline__ void unpack_narrow(struct tiles_raw<WHOLE> r, unsigned at,
                                                     unsigned sub, uint32_t *low, uint32_t *high)
{
    const bool five = TYPE == TENSOR_Q5_0 || TYPE == TENSOR_Q5_1;
    const unsigned header = at + (TYPE == TENSOR_Q4_1 || TYPE == TENSOR_Q5_1 ? 4 : 2);
    if (TYPE == TENSOR_Q8_0) {
        *low = raw_word(r, header + 4 * sub), *high = raw_word(r, header + 16 + 4 * sub);
        return;
    }
    const uint32_t q = raw_word(r, header + (five ? 4 : 0) + 4 * sub);
    uint32_t l = q & 0x0f0f0f0fu, h = q >> 4 & 0x0f0f0f0fu;
    if (five) {
        const uint32_t fifth = raw_word(r, header);
        l |= bits_fifth(fifth >> 4 * sub), h |= bits_fifth(fifth >> (16 + 4 * sub));
    }
    if (TYPE == TENSOR_Q4_0)
        l = bytes_less(l, 8), h = bytes_less(h, 8);
    if (TYPE == TENSOR_Q5_0)
        l = bytes_less(l, 16), h = bytes_less(h, 16);
    *low = l, *high = h;
}

/* Words `word` (0..7) of the four chain blocks in half h of a block of 256. */
template <uint32_t TYPE, bool WHOLE>
static __device__ __forceinline__ void unpack_wide(struct tiles_raw<WHOLE> r, unsigned h,
                                                   unsigned word, uint32_t to[4])
{
    const bool nibbles = TYPE == TENSOR_Q4_K || TYPE == TENSOR_Q5_K;
    if (nibbles || TYPE == TENSOR_Q6_K) {
        const unsigned q = (TYPE == TENSOR_Q4_K   ? 16
                            : TYPE == TENSOR_Q5_K ? 48
                                                  : 0) +
                           64 * h + 4 * word;
        const uint32_t first = raw_word(r, q), second = raw_word(r, q + 32);
        to[0] = first & 0x0f0f0f0fu, to[nibbles ? 1 : 2] = first >> 4 & 0x0f0f0f0fu;
        to[nibbles ? 2 : 1] = second & 0x0f0f0f0fu, to[3] = second >> 4 & 0x0f0f0f0fu;
    }
    if (TYPE == TENSOR_Q5_K) {
        const uint32_t fifth = raw_word(r, 16 + 4 * word) >> 4 * h;
        for (unsigned k = 0; k < 4; k++)
            to[k] |= (fifth >> k & 0x01010101u) << 4;
    }
    if (TYPE == TENSOR_Q6_K) {
        const uint32_t high = raw_word(r, 128 + 32 * h + 4 * word);
        for (unsigned k = 0; k < 4; k++)
            to[k] = bytes_less(to[k] | (high >> 2 * k & 0x03030303u) << 4, 32);
    }
    if (TYPE == TENSOR_Q2_K || TYPE == TENSOR_Q3_K) {
        const uint32_t q = raw_word(r, (TYPE == TENSOR_Q2_K ? 16 : 32) + 32 * h + 4 * word);
        for (unsigned k = 0; k < 4; k++)
            to[k] = q >> 2 * k & 0x03030303u;
    }
    if (TYPE == TENSOR_Q3_K) {
        const uint32_t high = raw_word(r, 4 * word) >> 4 * h;
        for (unsigned k = 0; k < 4; k++)
            to[k] = bytes_less(to[k] | (high >> k & 0x01010101u) << 2, 4);
    }
}

/* Rule 2's factors of one chain block; what a type has not is 1 (sc, m) or 0 (b). */
struct tiles_scales {
    float a, b, sc0, sc1, m0, m1;
};

/* j: the chain block's number in its block of 256, or of the block of 32 among those at r. */
template <uint32_t TYPE, bool WHOLE>
static __device__ __forceinline__ struct tiles_scales scales_load(struct tiles_raw<WHOLE> r,
                                                                  unsigned j)
{
    struct tiles_scales s = {0.0f, 0.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    if (TYPE == TENSOR_Q4_K || TYPE == TENSOR_Q5_K) {
        const unsigned i = j & 3;
        unsigned sc = raw_byte(r, 4 + i), m = raw_byte(r, 8 + i);
        if (j < 4) {
            sc &= 63, m &= 63;
        } else {
            const unsigned low = raw_byte(r, 12 + i);
            sc = (low & 15) | sc >> 6 << 4, m = low >> 4 | m >> 6 << 4;
        }
        s.a = __fmul_rn(raw_half(r, 0), (float)sc);
        s.b = __fmul_rn(raw_half(r, 2), (float)m);
    } else if (TYPE == TENSOR_Q2_K) {
        const unsigned pair = raw_short(r, 2 * j);
        s.sc0 = (float)(pair & 15), s.m0 = (float)(pair >> 4 & 15);
        s.sc1 = (float)(pair >> 8 & 15), s.m1 = (float)(pair >> 12);
        s.a = raw_half(r, 80), s.b = raw_half(r, 82);
    } else if (TYPE == TENSOR_Q3_K) {
        /* 2j and 2j + 1 of q3_k_scale() */
        const unsigned low = raw_short(r, 96 + 2 * (j & 3)) >> j / 4 * 4;
        const unsigned high = raw_short(r, 104 + 2 * (j & 1)) >> j / 2 * 2;
        s.sc0 = (float)((int)((low & 15) | (high & 3) << 4) - 32);
        s.sc1 = (float)((int)((low >> 8 & 15) | (high >> 8 & 3) << 4) - 32);
        s.a = raw_half(r, 108);
    } else if (TYPE == TENSOR_Q6_K) {
        const unsigned pair = raw_short(r, 192 + 2 * j);
        s.sc0 = (float)(int8_t)pair, s.sc1 = (float)(int8_t)(pair >> 8);
        s.a = raw_half(r, 208);
    } else {
        const unsigned at = j * block_bytes(TYPE);
        s.a = raw_half(r, at);
        if (TYPE == TENSOR_Q4_1 || TYPE == TENSOR_Q5_1)
            s.b = -raw_half(r, at + 2);
    }
    return s;
}

/* Half h of the blocks at r: words sub and sub + 4 of chain block k to words[2 * k] and words[2 * k + 1], and the
 * scales of chain block `sub` of the step. Blocks of 32 have no halves; r begins at the step's first. */
template <uint32_t TYPE, bool WHOLE>
static __device__ __forceinline__ struct tiles_scales
unpack_step(struct tiles_raw<WHOLE> r, unsigned h, unsigned sub, uint32_t words[8])
{
    if (tiles_is_wide(TYPE)) {
        uint32_t low[4], high[4];
        unpack_wide<TYPE>(r, h, sub, low);
        unpack_wide<TYPE>(r, h, sub + 4, high);
#pragma unroll
        for (unsigned k = 0; k < TILES_STEP_BLOCKS; k++)
            words[2 * k] = low[k], words[2 * k + 1] = high[k];
    } else {
#pragma unroll
        for (unsigned k = 0; k < TILES_STEP_BLOCKS; k++)
            unpack_narrow<TYPE>(r, k * block_bytes(TYPE), sub, &words[2 * k],
                                &words[2 * k + 1]);
    }
    return scales_load<TYPE>(r, tiles_is_wide(TYPE) ? 4 * h + sub : sub);
}
