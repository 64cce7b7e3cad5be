/* kernels/tile_reference.c - quantised products, quantisation and SwiGLU in plain C: the truth of
 * tier 1.
 *
 * Written to be read beside NUMERICS rules 1-5: blocks of 32 in ascending k, one chain `acc` and
 * one chain `accm` an output. Everything faster is compared with this file bit for bit. Owns
 * nothing; any thread; refuses nothing, since launchers have checked types and shapes.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/expf.h"
#include "kernels/plain.h"
#include "kernels/tile.h"
#include "kernels/weights.h"

static int32_t sum_sixteen(const int8_t *w, const int8_t *x)
{
    int32_t sum = 0;
    for (size_t i = 0; i < 16; i++)
        sum += w[i] * x[i];
    return sum;
}

/* What b is multiplied with: rule 1's sx, or rule 2's for minima that are folded. */
static float minima_sum(const struct weights *w, const struct activation *x, size_t k)
{
    const int16_t *sum16 = x->sum16 + 2 * k;
    if (!w->folded)
        return x->sx[k];
    return x->d[k] * (float)(w->minimum[0] * sum16[0] + w->minimum[1] * sum16[1]);
}

/* One output of all rows: rule 3, blocks in ascending k. */
static void product_output(const struct tile_matrix *m, size_t out, const struct activation *x,
                           size_t n_rows, float *y, size_t y_stride)
{
    float acc[TILE_ROWS] = {0}, accm[TILE_ROWS] = {0};
    for (size_t k = 0; k < m->n_in / 32; k++) {
        struct weights w = weights_load(m->type, m->weights + out * m->row_bytes, k);
        for (size_t r = 0; r < n_rows; r++) {
            const int8_t *q = x[r].q + 32 * k;
            int32_t isum =
                w.scale[0] * sum_sixteen(w.q, q) + w.scale[1] * sum_sixteen(w.q + 16, q + 16);
            float scale = w.a * x[r].d[k];
            acc[r] = fmaf(scale, (float)isum, acc[r]);
            if (w.minima)
                accm[r] = fmaf(w.b, minima_sum(&w, &x[r], k), accm[r]);
        }
    }
    for (size_t r = 0; r < n_rows; r++)
        y[r * y_stride] = acc[r] - accm[r];
}

static void product_tile(const struct tile_matrix *m, size_t out, size_t n_out,
                         const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    assert(n_rows <= TILE_ROWS && n_out <= TILE_OUTPUTS && tile_type(m->type));
    for (size_t i = 0; i < n_out; i++)
        product_output(m, out + i, x, n_rows, &y[0][i], TILE_OUTPUTS);
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
    .outputs = 8,
    .product = product_tile,
    .quantize = quantize_blocks,
    .swiglu = swiglu_values,
    .plain = plain_tile_reference,
};
