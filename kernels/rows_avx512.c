/* rows_avx512.c - the inner loops of tier 2 with AVX-512; the bits are those of rows_reference.c.
 *
 * Only the placement differs: sums keep their 16 lanes in one register (reduce_avx512.h), elementwise work is
 * done sixteen values at a time. Owns nothing, any thread, refuses nothing.
 */
#include "kernels/expf_avx512.h"
#include "kernels/reduce_avx512.h"
#include "kernels/rotate.h"
#include "kernels/rows.h"

/* The lanes of values i .. i + 15 of a row of n. */
static inline __mmask16 lanes_left(size_t i, size_t n)
{
    return n - i < REDUCE_LANES ? reduce_mask(n - i) : REDUCE_ALL;
}

static void rmsnorm_row(const float *x, const float *weight, float *y, size_t n, float eps)
{
    const __m512 r = _mm512_set1_ps(1.0f / sqrtf(reduce_dot16(x, x, n) / (float)n + eps));
    for (size_t i = 0; i < n; i += REDUCE_LANES) {
        const __mmask16 left = lanes_left(i, n);
        __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(left, x + i), r);
        _mm512_mask_storeu_ps(y + i, left,
                              _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(left, weight + i)));
    }
}

static void halves_store(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i += REDUCE_LANES) {
        const __mmask16 left = lanes_left(i, n);
        _mm256_mask_storeu_epi16(
            to + i, left,
            _mm512_cvtps_ph(_mm512_maskz_loadu_ps(left, from + i), _MM_FROUND_TO_NEAREST_INT));
    }
}

static void exponentials(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += REDUCE_LANES) {
        const __mmask16 left = lanes_left(i, n);
        _mm512_mask_storeu_ps(x + i, left, ebb_expf16(_mm512_maskz_loadu_ps(left, x + i)));
    }
}

static void softmax_row(float *p, size_t n)
{
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = p[i] > max ? p[i] : max;
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] - max;
    exponentials(p, n);
    float sum = reduce_sum16(p, n);
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] / sum;
}

static void gated_add(const float *gate, const float *x, const float *y, float *hidden, size_t n)
{
    const __m512 sigmoid = _mm512_set1_ps(1.0f / (1.0f + ebb_expf(-reduce_dot16(gate, x, n))));
    for (size_t i = 0; i < n; i += REDUCE_LANES) {
        const __mmask16 left = lanes_left(i, n);
        __m512 sum = _mm512_fmadd_ps(sigmoid, _mm512_maskz_loadu_ps(left, y + i),
                                     _mm512_maskz_loadu_ps(left, hidden + i));
        _mm512_mask_storeu_ps(hidden + i, left, sum);
    }
}

const struct row_ops rows_avx512 = {
    .rmsnorm = rmsnorm_row,
    .rotate = rotate_pairs,
    .halves_store = halves_store,
    .tiles = &tile_ops_avx512,
    .attend = attend_avx512,
    .exponentials = exponentials,
    .softmax = softmax_row,
    .gated_add = gated_add,
    .logits = logits_avx512,
};
