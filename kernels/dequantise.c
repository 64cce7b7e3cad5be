/* kernels/dequantise.c - weights as fp32, for the embedding and for the float set.
 *
 * Owns nothing; any thread. Each value is built with the roundings of the format's definition: a
 * product of a half float and a small integer is exact in fp32, so that there is one rounding a
 * product whatever the order of the factors (the order still shows in the sign of a zero). Unknown
 * types and broken lengths are the caller's bug: whoever calls has checked them with
 * tensor_row_bytes().
 */
#include "kernels/dequantise.h"
#include <assert.h>
#include "kernels/weights.h"

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

static void dequantise_blocks(uint32_t type, const void *from, float *to, size_t n)
{
    for (size_t k = 0; k < n / 32; k++) {
        struct weights w = weights_load(type, from, k);
        for (size_t i = 0; i < 32; i++) {
            float value = w.a * (float)w.scale[i / 16] * (float)w.q[i];
            to[32 * k + i] = w.minima ? value - w.b * (float)w.minimum[i / 16] : value;
        }
    }
}

void dequantise(uint32_t type, const void *from, float *to, size_t n)
{
    assert(n == 0 || tensor_row_bytes(type, n) != 0);
    switch (type) {
    case TENSOR_F32: memcpy(to, from, n * sizeof *to); break;
    case TENSOR_F16: dequantise_f16(from, to, n); break;
    case TENSOR_BF16: dequantise_bf16(from, to, n); break;
    default: dequantise_blocks(type, from, to, n);
    }
}
