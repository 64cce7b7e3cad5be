/* kernels/dequantise.c - weights as fp32, for the embedding and for the float set.
 *
 * Owns nothing; any thread. Each value is built with the roundings of the format's definition: a
 * product of a half float and a small integer is exact in fp32, so that there is one rounding a
 * value whatever the order of the factors. Unknown types and broken lengths are the caller's bug:
 * whoever calls has checked them with tensor_row_bytes().
 */
#include "kernels/dequantise.h"
#include <assert.h>
#include "kernels/blocks.h"
#include "kernels/tensor_type.h"

static void dequantise_f16(const uint8_t *from, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        to[i] = half_to_float(half);
    }
}

static void dequantise_bf16(const uint8_t *from, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t bfloat;
        memcpy(&bfloat, from + 2 * i, sizeof bfloat);
        to[i] = bfloat_to_float(bfloat);
    }
}

static void dequantise_q8_0(const struct block_q8_0 *blocks, float *to, size_t n)
{
    for (size_t k = 0; k < n / 32; k++) {
        float d = half_to_float(blocks[k].d);
        for (size_t i = 0; i < 32; i++)
            to[32 * k + i] = d * (float)blocks[k].q[i];
    }
}

static void dequantise_q4_k(const struct block_q4_k *blocks, float *to, size_t n)
{
    for (size_t k = 0; k < n / 32; k++) {
        const struct block_q4_k *block = &blocks[k / 8];
        uint8_t sc, m;
        int8_t q[32];
        q4_k_scale(block->scales, k % 8, &sc, &m);
        q4_k_values(block, k % 8, q);
        float a = half_to_float(block->d) * (float)sc;
        float b = half_to_float(block->dmin) * (float)m;
        for (size_t i = 0; i < 32; i++)
            to[32 * k + i] = a * (float)q[i] - b;
    }
}

static void dequantise_q6_k(const struct block_q6_k *blocks, float *to, size_t n)
{
    for (size_t k = 0; k < n / 32; k++) {
        const struct block_q6_k *block = &blocks[k / 8];
        const int8_t *sc = block->scales + 2 * (k % 8);
        float d = half_to_float(block->d);
        int8_t q[32];
        q6_k_values(block, k % 8, q);
        for (size_t i = 0; i < 32; i++)
            to[32 * k + i] = d * (float)sc[i / 16] * (float)q[i];
    }
}

void dequantise(uint32_t type, const void *from, float *to, size_t n)
{
    assert(n == 0 || tensor_row_bytes(type, n) != 0);
    switch (type) {
    case TENSOR_F32: memcpy(to, from, n * sizeof *to); break;
    case TENSOR_F16: dequantise_f16(from, to, n); break;
    case TENSOR_BF16: dequantise_bf16(from, to, n); break;
    case TENSOR_Q8_0: dequantise_q8_0(from, to, n); break;
    case TENSOR_Q4_K: dequantise_q4_k(from, to, n); break;
    case TENSOR_Q6_K: dequantise_q6_k(from, to, n); break;
    default: assert(!"a type that is not computed with");
    }
}
