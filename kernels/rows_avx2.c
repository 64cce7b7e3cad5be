/* rows_avx2.c - the inner loops of tier 2 with AVX2, FMA and F16C; the bits are those of rows_reference.c.
 *
 * Only the placement differs: sums keep their 16 lanes in two registers (reduce_avx2.h), elementwise work is
 * done eight values at a time. Owns nothing, any thread, refuses nothing.
 */
#include "kernels/expf_avx2.h"
#include "kernels/half.h"
#include "kernels/reduce_avx2.h"
#include "kernels/rotate.h"
#include "kernels/rows.h"

static void rmsnorm_row(const float *x, const float *weight, float *y, size_t n, float eps)
{
    float r = 1.0f / sqrtf(reduce_dot8(x, x, n) / (float)n + eps);
    const __m256 r8 = _mm256_set1_ps(r);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), r8);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)));
    }
    for (; i < n; i++)
        y[i] = x[i] * r * weight[i];
}

static void halves_store(uint16_t *to, const float *from, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        to[i] = float_to_half(from[i]);
}

static void exponentials(float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, ebb_expf8(_mm256_loadu_ps(x + i)));
    for (; i < n; i++)
        x[i] = ebb_expf(x[i]);
}

static void softmax_row(float *p, size_t n)
{
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = p[i] > max ? p[i] : max;
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] - max;
    exponentials(p, n);
    float sum = reduce_sum8(p, n);
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] / sum;
}

static void gated_add(const float *gate, const float *x, const float *y, float *hidden, size_t n)
{
    float sigmoid = 1.0f / (1.0f + ebb_expf(-reduce_dot8(gate, x, n)));
    const __m256 sigmoid8 = _mm256_set1_ps(sigmoid);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(hidden + i, _mm256_fmadd_ps(sigmoid8, _mm256_loadu_ps(y + i),
                                                     _mm256_loadu_ps(hidden + i)));
    for (; i < n; i++)
        hidden[i] = fmaf(sigmoid, y[i], hidden[i]);
}

const struct row_ops rows_avx2 = {
    .rmsnorm = rmsnorm_row,
    .rotate = rotate_pairs,
    .halves_store = halves_store,
    .tiles = &tile_ops_avx2,
    .attend = attend_avx2,
    .exponentials = exponentials,
    .softmax = softmax_row,
    .gated_add = gated_add,
    .logits = logits_avx2,
};
