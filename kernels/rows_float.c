/* rows_float.c - the inner loops of the measuring set: every sum in fp64, results rounded to fp32 once.
 *
 * Sums still run in 16 lanes, only so that the compiler can put them side by side; no other set must match them.
 * Owns nothing, any thread, refuses nothing.
 */
#include "kernels/blocks.h"
#include "kernels/expf.h"
#include "kernels/half.h"
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"
#include "kernels/sum_float.h"

static void rmsnorm_row(const float *x, const float *weight, float *y, size_t n, float eps)
{
    double r = 1.0 / sqrt(sum_float_dot(x, x, n) / (double)n + (double)eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(x[i] * r * weight[i]);
}

static void rotate_head(float *x, const float *angles, size_t n_half, bool halves)
{
    size_t step = halves ? 1 : 2, apart = halves ? n_half : 1;
    for (size_t i = 0; i < n_half; i++) {
        float *first = x + i * step, *second = first + apart;
        double a = *first, b = *second, c = angles[2 * i], s = angles[2 * i + 1];
        *first = (float)(a * c - b * s);
        *second = (float)(a * s + b * c);
    }
}

static void halves_store(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = float_to_half(from[i]);
}

static void exponentials(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = ebb_expf(x[i]);
}

static void softmax_row(float *p, size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = p[i] > max ? p[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += exp(p[i] - max);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(exp(p[i] - max) / sum);
}

/* A weight row is widened piece by piece: its length is the caller's, this buffer is not. */
#define PIECE 512

static double dot_narrow(uint32_t type, const uint16_t *w, const float *x, size_t n)
{
    float wide[PIECE];
    double sum = 0;
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = n - i < PIECE ? n - i : PIECE;
        for (size_t j = 0; j < m; j++)
            wide[j] = type == TENSOR_F16 ? half_to_float(w[i + j]) : bfloat_to_float(w[i + j]);
        sum += sum_float_dot(wide, x + i, m);
    }
    return sum;
}

void product_rows_unquantised_float(const struct product_args *a, size_t out_first, size_t out_last)
{
    for (size_t o = out_first; o < out_last; o++)
        for (size_t r = 0; r < a->n_rows; r++) {
            const float *x = a->x + r * a->n_in;
            float *y = a->y + r * a->n_out + o;
            double v =
                a->type != TENSOR_F32
                    ? dot_narrow(a->type, (const uint16_t *)a->weights + o * a->n_in, x, a->n_in)
                    : sum_float_dot((const float *)a->weights + o * a->n_in, x, a->n_in);
            if (a->bias != NULL)
                v += a->bias[o];
            *y = (float)(a->accumulate ? *y + v : v);
        }
}

static void gated_add(const float *gate, const float *x, const float *y, float *hidden, size_t n)
{
    double sigmoid = 1.0 / (1.0 + exp(-sum_float_dot(gate, x, n)));
    for (size_t i = 0; i < n; i++)
        hidden[i] = (float)(hidden[i] + sigmoid * y[i]);
}

const struct row_ops rows_float = {
    .rmsnorm = rmsnorm_row,
    .rotate = rotate_head,
    .halves_store = halves_store,
    .tiles = &tile_ops_reference,
    .attend = attend_float,
    .exponentials = exponentials,
    .softmax = softmax_row,
    .gated_add = gated_add,
    .logits = product_rows_unquantised_float,
};
