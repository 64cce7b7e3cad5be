/* rows_reference.c - the plain C inner loops of tier 2: what the bits are.
 *
 * Sums go through reduce.h; everything else is one written operation per value, rounded once. Owns nothing, any
 * thread, refuses nothing: callers have checked types and shapes.
 */
#include "kernels/blocks.h"
#include "kernels/expf.h"
#include "kernels/half.h"
#include "kernels/ops_cpu.h"
#include "kernels/reduce.h"
#include "kernels/rotate.h"
#include "kernels/rows.h"

static void rmsnorm_row(const float *x, const float *weight, float *y, size_t n, float eps)
{
    float r = 1.0f / sqrtf(reduce_dot(x, x, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * r * weight[i];
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
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = p[i] > max ? p[i] : max;
    for (size_t i = 0; i < n; i++)
        p[i] = ebb_expf(p[i] - max);
    float sum = reduce_sum(p, n);
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] / sum;
}

static float dot_halves(const uint16_t *w, const float *x, size_t n)
{
    float s[REDUCE_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % REDUCE_LANES] = fmaf(half_to_float(w[i]), x[i], s[i % REDUCE_LANES]);
    return reduce_join(s);
}

void product_rows_unquantised_reference(const struct product_args *a, size_t out_first,
                                        size_t out_last)
{
    for (size_t o = out_first; o < out_last; o++)
        for (size_t r = 0; r < a->n_rows; r++) {
            const float *x = a->x + r * a->n_in;
            float *y = a->y + r * a->n_out + o;
            float v = a->type == TENSOR_F16
                          ? dot_halves((const uint16_t *)a->weights + o * a->n_in, x, a->n_in)
                          : reduce_dot((const float *)a->weights + o * a->n_in, x, a->n_in);
            if (a->bias != NULL)
                v = v + a->bias[o];
            *y = a->accumulate ? *y + v : v;
        }
}

static void gated_add(const float *gate, const float *x, const float *y, float *hidden, size_t n)
{
    float sigmoid = 1.0f / (1.0f + ebb_expf(-reduce_dot(gate, x, n)));
    for (size_t i = 0; i < n; i++)
        hidden[i] = fmaf(sigmoid, y[i], hidden[i]);
}

const struct row_ops rows_reference = {
    .rmsnorm = rmsnorm_row,
    .rotate = rotate_pairs,
    .halves_store = halves_store,
    .attend = attend_reference,
    .exponentials = exponentials,
    .softmax = softmax_row,
    .gated_add = gated_add,
    .product = product_rows_unquantised_reference,
};
