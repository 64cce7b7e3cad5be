/* rows_avx2.c - the inner loops of tier 2 with AVX2, FMA and F16C; the bits are those of rows_reference.c.
 *
 * Only the placement differs: sums keep their 16 lanes in two registers (reduce_avx2.h), elementwise work is
 * done eight values at a time. Owns nothing, any thread, refuses nothing.
 */
#include <string.h>
#include "kernels/blocks.h"
#include "kernels/expf_avx2.h"
#include "kernels/half.h"
#include "kernels/ops_cpu.h"
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

/* Eight weights from value i of a row of either type. */
static inline __attribute__((always_inline)) __m256 weights8(const void *w, size_t i, bool half)
{
    if (half)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)w + i)));
    return _mm256_loadu_ps((const float *)w + i);
}

static inline float weight1(const void *w, size_t i, bool half)
{
    return half ? half_to_float(((const uint16_t *)w)[i]) : ((const float *)w)[i];
}

/* The dots of one weight row with n_x (a constant, at most 4) rows of x, n apart. */
static inline __attribute__((always_inline)) void dots(const void *w, const float *x, size_t n,
                                                       size_t n_x, bool half, float *sums)
{
    __m256 lo[4], hi[4];
    size_t i = 0;
    for (size_t r = 0; r < n_x; r++)
        lo[r] = hi[r] = _mm256_setzero_ps();
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES) {
        __m256 w_lo = weights8(w, i, half), w_hi = weights8(w, i + 8, half);
        for (size_t r = 0; r < n_x; r++) {
            lo[r] = _mm256_fmadd_ps(w_lo, _mm256_loadu_ps(x + r * n + i), lo[r]);
            hi[r] = _mm256_fmadd_ps(w_hi, _mm256_loadu_ps(x + r * n + i + 8), hi[r]);
        }
    }
    for (size_t r = 0; r < n_x; r++) {
        float s[REDUCE_LANES];
        if (i == n) {
            sums[r] = reduce_join8(lo[r], hi[r]);
            continue;
        }
        _mm256_storeu_ps(s, lo[r]);
        _mm256_storeu_ps(s + 8, hi[r]);
        for (size_t lane = 0; i + lane < n; lane++)
            s[lane] = fmaf(weight1(w, i + lane, half), x[r * n + i + lane], s[lane]);
        sums[r] = reduce_join(s);
    }
}

/* Rows go by fours so that a weight is loaded, and widened, once for four. */
static inline __attribute__((always_inline)) void
products(const struct product_args *a, size_t out_first, size_t out_last, bool half)
{
    size_t row_bytes = a->n_in * (half ? sizeof(uint16_t) : sizeof(float));
    for (size_t o = out_first; o < out_last; o++) {
        const char *w = (const char *)a->weights + o * row_bytes;
        for (size_t r = 0, n; r < a->n_rows; r += n) {
            float sums[4];
            n = a->n_rows - r >= 4 ? 4 : 1;
            if (n == 4)
                dots(w, a->x + r * a->n_in, a->n_in, 4, half, sums);
            else
                dots(w, a->x + r * a->n_in, a->n_in, 1, half, sums);
            for (size_t i = 0; i < n; i++) {
                float *y = a->y + (r + i) * a->n_out + o;
                float v = a->bias != NULL ? sums[i] + a->bias[o] : sums[i];
                *y = a->accumulate ? *y + v : v;
            }
        }
    }
}

void product_rows_unquantised_avx2(const struct product_args *a, size_t out_first, size_t out_last)
{
    if (a->type == TENSOR_F16)
        products(a, out_first, out_last, true);
    else
        products(a, out_first, out_last, false);
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
    .attend = attend_avx2,
    .exponentials = exponentials,
    .softmax = softmax_row,
    .gated_add = gated_add,
    .product = product_rows_unquantised_avx2,
};
