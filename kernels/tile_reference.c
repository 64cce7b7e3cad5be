/* kernels/tile_reference.c - quantised products, quantisation and SwiGLU in plain C: the truth of tier 1.
 *
 * Written to be read beside NUMERICS rules 1-5: one output at a time, blocks of 32 in ascending k, one chain `acc` and
 * one chain `accm`. Everything faster is compared with this file bit for bit. Owns nothing; any thread; refuses
 * nothing, since launchers have checked types and shapes.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/blocks.h"
#include "kernels/expf.h"
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

static float element_q8_0(const struct block_q8_0 *w, struct activation x, size_t n_blocks)
{
    float acc = 0.0f;
    for (size_t k = 0; k < n_blocks; k++) {
        int32_t isum = 0;
        for (size_t i = 0; i < 32; i++)
            isum += w[k].q[i] * x.q[32 * k + i];
        float scale = half_to_float(w[k].d) * x.d[k];
        acc = fmaf(scale, (float)isum, acc);
    }
    return acc;
}

static float element_q4_k(const struct block_q4_k *w, struct activation x, size_t n_blocks)
{
    float acc = 0.0f, accm = 0.0f;
    for (size_t k = 0; k < n_blocks; k++) {
        const struct block_q4_k *block = &w[k / 8];
        const uint8_t *q = block->q + k % 8 / 2 * 32;
        unsigned shift = k % 2 * 4;
        int32_t isum = 0;
        for (size_t i = 0; i < 32; i++)
            isum += (q[i] >> shift & 15) * x.q[32 * k + i];
        uint8_t sc, m;
        q4_k_scale(block->scales, k % 8, &sc, &m);
        float a = half_to_float(block->d) * (float)sc;
        float b = half_to_float(block->dmin) * (float)m;
        float scale = a * x.d[k];
        acc = fmaf(scale, (float)isum, acc);
        accm = fmaf(b, x.sx[k], accm);
    }
    return acc - accm;
}

static float element_q6_k(const struct block_q6_k *w, struct activation x, size_t n_blocks)
{
    float acc = 0.0f;
    for (size_t k = 0; k < n_blocks; k++) {
        const struct block_q6_k *block = &w[k / 8];
        int32_t sum[2] = {0, 0};
        for (unsigned i = 0; i < 32; i++)
            sum[i / 16] += q6_k_value(block, 32 * (unsigned)(k % 8) + i) * x.q[32 * k + i];
        const int8_t *sc = block->scales + 2 * (k % 8);
        int32_t isum = sc[0] * sum[0] + sc[1] * sum[1];
        float scale = half_to_float(block->d) * x.d[k];
        acc = fmaf(scale, (float)isum, acc);
    }
    return acc;
}

static void product_tile(const struct tile_matrix *m, size_t out, size_t n_out,
                         const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    size_t n_blocks = m->n_in / 32;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < n_out; i++) {
            const void *w = m->weights + (out + i) * m->row_bytes;
            switch (m->type) {
            case TENSOR_Q8_0: y[r][i] = element_q8_0(w, x[r], n_blocks); break;
            case TENSOR_Q4_K: y[r][i] = element_q4_k(w, x[r], n_blocks); break;
            case TENSOR_Q6_K: y[r][i] = element_q6_k(w, x[r], n_blocks); break;
            default: assert(!"a type without a tile product");
            }
        }
}

/* The magnitudes' bits order like the magnitudes, with NaN above infinity. */
static float largest_magnitude(const float *x)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < 32; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    float amax;
    memcpy(&amax, &largest, sizeof amax);
    return amax;
}

/* Block k of a row. */
static void quantize_block(const float *x, size_t k, struct activation a)
{
    float amax = largest_magnitude(x);
    bool tiny = amax < ACTIVATION_TINY, finite = isfinite(amax);
    float id = 127.0f / amax;
    int sum[2] = {0, 0};
    for (size_t i = 0; i < 32; i++) {
        float v = tiny || !finite ? 0.0f : rintf(x[i] * id);
        v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
        a.q[32 * k + i] = (int8_t)v;
        sum[i / 16] += (int8_t)v;
    }
    a.d[k] = tiny ? 0.0f : amax / 127.0f;
    a.sx[k] = a.d[k] * (float)(sum[0] + sum[1]);
    a.sum16[2 * k] = (int16_t)sum[0];
    a.sum16[2 * k + 1] = (int16_t)sum[1];
}

static void quantize_blocks(const float *x, size_t n_blocks, struct activation a)
{
    for (size_t k = 0; k < n_blocks; k++)
        quantize_block(x + 32 * k, k, a);
}

static void swiglu_values(const float *gate, const float *up, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ebb_swiglu(gate[i], up[i]);
}

const struct tile_ops tile_ops_reference = {
    .product = product_tile,
    .quantize = quantize_blocks,
    .swiglu = swiglu_values,
    .unquantised = product_rows_unquantised_reference,
};
