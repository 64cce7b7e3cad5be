/* rows_reference.c - the plain C inner loops of tier 2: what the bits are.
 *
 * Sums go through reduce.h; everything else is one written operation per value, rounded once. Owns nothing, any
 * thread, refuses nothing: callers have checked types and shapes.
 */
#include "kernels/expf.h"
#include "kernels/half.h"
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
    .tiles = &tile_ops_reference,
    .attend = attend_reference,
    .exponentials = exponentials,
    .softmax = softmax_row,
    .gated_add = gated_add,
    .logits = logits_reference,
};
