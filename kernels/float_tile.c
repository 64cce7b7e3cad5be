/* kernels/float_tile.c - the float set's quantised operations: weights dequantised, activations as
 * they are, fp64 sums.
 *
 * This set measures: it is what golden logits are compared with, so it leaves out the int8 rounding
 * of activations and nothing else. Its bits are promised to no other set, only to be the same for a
 * row in any batch. A piece of weights is dequantised once for up to FLOAT_ROWS rows. Owns nothing;
 * any thread; refuses types without a dequantiser.
 */
#include "kernels/float_tile.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernels/dequantise.h"
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

#define PIECE 256 /* values of a row that are dequantised at a time: the largest block */

/* Two sums an output, of even and of odd k, as vectors that every processor of the architecture
 * has. */
typedef double pair __attribute__((vector_size(16)));
typedef float pair_f32 __attribute__((vector_size(8)));

/* Adds the piece's products for one row; n is even, as every block is. */
static void row_add(pair (*w)[PIECE / 2], const float *x, size_t n, double y[FLOAT_OUTPUTS])
{
    pair s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (size_t k = 0; k < n / 2; k++) {
        pair_f32 narrow;
        memcpy(&narrow, x + 2 * k, sizeof narrow);
        pair v = __builtin_convertvector(narrow, pair);
        s0 += w[0][k] * v;
        s1 += w[1][k] * v;
        s2 += w[2][k] * v;
        s3 += w[3][k] * v;
    }
    y[0] += s0[0] + s0[1];
    y[1] += s1[0] + s1[1];
    y[2] += s2[0] + s2[1];
    y[3] += s3[0] + s3[1];
}

void float_tile(uint32_t type, const void *weights, size_t n_in, size_t out, size_t n_out,
                const float *const *x, size_t n_rows, double (*y)[FLOAT_OUTPUTS])
{
    const uint8_t *base = weights;
    size_t row_bytes = tensor_row_bytes(type, n_in);
    pair w[FLOAT_OUTPUTS][PIECE / 2];
    float values[PIECE];

    assert(n_rows <= FLOAT_ROWS && n_out >= 1 && n_out <= FLOAT_OUTPUTS && n_in % 2 == 0);
    memset(w, 0, sizeof w);
    for (size_t r = 0; r < n_rows; r++)
        memset(y[r], 0, sizeof y[r]);
    for (size_t k = 0; k < n_in; k += PIECE) {
        size_t n = n_in - k < PIECE ? n_in - k : PIECE;
        for (size_t i = 0; i < n_out; i++) {
            size_t piece_at = k == 0 ? 0 : tensor_row_bytes(type, k);
            dequantise(type, base + (out + i) * row_bytes + piece_at, values, n);
            for (size_t j = 0; j < n; j++)
                w[i][j / 2][j % 2] = values[j];
        }
        for (size_t r = 0; r < n_rows; r++)
            row_add(w, x[r] + k, n, y[r]);
    }
}

size_t activation_bytes_float(size_t n)
{
    (void)n;
    return 64; /* nothing is stored, but buffers of no bytes are a nuisance to whoever allocates */
}

int quantize_float(const struct quantize_args *args, struct exec_stream *s)
{
    (void)s;
    return args->n % ACTIVATION_BLOCK == 0 ? EBB_OK : EBB_EUNSUPPORTED;
}

static void product_tiles(void *ctx, size_t first, size_t last)
{
    const struct product_args *p = ctx;
    const float *x[FLOAT_ROWS];
    double sums[FLOAT_ROWS][FLOAT_OUTPUTS];
    for (size_t row = 0; row < p->n_rows; row += FLOAT_ROWS) {
        size_t n_rows = p->n_rows - row < FLOAT_ROWS ? p->n_rows - row : FLOAT_ROWS;
        for (size_t r = 0; r < n_rows; r++)
            x[r] = p->x + (row + r) * p->n_in;
        for (size_t tile = first; tile < last; tile++) {
            size_t out = tile * FLOAT_OUTPUTS;
            size_t n_out = p->n_out - out < FLOAT_OUTPUTS ? p->n_out - out : FLOAT_OUTPUTS;
            float_tile(p->type, p->weights, p->n_in, out, n_out, x, n_rows, sums);
            for (size_t r = 0; r < n_rows; r++)
                for (size_t i = 0; i < n_out; i++) {
                    float *y = p->y + (row + r) * p->n_out + out + i;
                    float element = (float)sums[r][i];
                    if (p->bias != NULL)
                        element += p->bias[out + i];
                    *y = p->accumulate ? *y + element : element;
                }
        }
    }
}

static void product_outputs(void *ctx, size_t first, size_t last)
{
    product_rows_unquantised_float(ctx, first, last);
}

static void product_run(const void *args, struct exec_cpu_worker *w)
{
    struct product_args p = *(const struct product_args *)args;
    if (tile_type(p.type))
        exec_cpu_parallel_for(w, (p.n_out + FLOAT_OUTPUTS - 1) / FLOAT_OUTPUTS,
                              tile_grain(8 * FLOAT_OUTPUTS, p.n_in, p.n_rows), product_tiles, &p);
    else
        exec_cpu_parallel_for(w, p.n_out, tile_grain(8, p.n_in, p.n_rows), product_outputs, &p);
}

int product_float(const struct product_args *args, struct exec_stream *s)
{
    if (tensor_row_bytes(args->type, args->n_in) == 0)
        return EBB_EUNSUPPORTED;
    if (args->n_out == 0 || args->n_rows == 0)
        return EBB_OK;
    assert(args->x != NULL);
    return exec_cpu_push(s, product_run, args, sizeof *args);
}

static void swiglu_range(void *ctx, size_t first, size_t last)
{
    const struct swiglu_args *p = ctx;
    for (size_t i = first; i < last; i++) {
        double g = p->gate[i], u = p->up[i];
        p->y[i] = (float)(g / (1.0 + exp(-g)) * u);
    }
}

static void swiglu_run(const void *args, struct exec_cpu_worker *w)
{
    struct swiglu_args p = *(const struct swiglu_args *)args;
    exec_cpu_parallel_for(w, p.n_rows * p.n, 4096, swiglu_range, &p);
}

int swiglu_float(const struct swiglu_args *args, struct exec_stream *s)
{
    if (args->n_rows * args->n == 0)
        return EBB_OK;
    return exec_cpu_push(s, swiglu_run, args, sizeof *args);
}
