/* plain_avx2.c - unquantised products with AVX2, FMA and F16C: the bits of plain_tile_reference().
 *
 * Each sum keeps its 16 lanes in two registers (reduce_avx2.h); four sums run side by side, so that the latency of the
 * fused steps is hidden: four rows of activations with one row of weights, or, for fewer rows, four rows of weights
 * with one of activations. Owns nothing; any thread; called only where set_cpu.c has found the instructions.
 */
#include "kernels/blocks.h"
#include "kernels/plain.h"
#include "kernels/reduce_avx2.h"

#define INLINE static inline __attribute__((always_inline))

/* Eight weights from value i of a row. */
INLINE __m256 weights8(uint32_t type, const uint8_t *w, size_t i)
{
    if (type == TENSOR_F32)
        return _mm256_loadu_ps((const float *)(const void *)w + i);
    __m128i narrow = _mm_loadu_si128((const __m128i *)(const void *)(w + 2 * i));
    if (type == TENSOR_F16)
        return _mm256_cvtph_ps(narrow);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

INLINE float weight1(uint32_t type, const uint8_t *w, size_t i)
{
    float wide;
    uint16_t narrow;
    if (type == TENSOR_F32) {
        memcpy(&wide, w + 4 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, w + 2 * i, sizeof narrow);
    return type == TENSOR_F16 ? half_to_float(narrow) : bfloat_to_float(narrow);
}

/* The end of a sum: values i .. n - 1, then the tree. */
INLINE float dot_finish(uint32_t type, const uint8_t *w, const float *x, size_t i, size_t n,
                        __m256 lo, __m256 hi)
{
    float s[REDUCE_LANES];
    if (i == n)
        return reduce_join8(lo, hi);
    _mm256_storeu_ps(s, lo);
    _mm256_storeu_ps(s + 8, hi);
    for (size_t lane = 0; i + lane < n; lane++)
        s[lane] = fmaf(weight1(type, w, i + lane), x[i + lane], s[lane]);
    return reduce_join(s);
}

/* sums[j] for n_w rows of weights and n_x rows of activations, of which at least one is 1 (both are constants). */
INLINE void dots(uint32_t type, int n_w, const uint8_t *const w[], int n_x, const float *const x[],
                 size_t n, float sums[4])
{
    const int n_sums = n_w > n_x ? n_w : n_x;
    __m256 lo[4], hi[4], w_lo, w_hi, x_lo, x_hi;
    size_t i = 0;
    for (int j = 0; j < n_sums; j++)
        lo[j] = hi[j] = _mm256_setzero_ps();
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES)
#pragma GCC unroll 4
        for (int j = 0; j < n_sums; j++) {
            if (j < n_w)
                w_lo = weights8(type, w[j], i), w_hi = weights8(type, w[j], i + 8);
            if (j < n_x)
                x_lo = _mm256_loadu_ps(x[j] + i), x_hi = _mm256_loadu_ps(x[j] + i + 8);
            lo[j] = _mm256_fmadd_ps(w_lo, x_lo, lo[j]);
            hi[j] = _mm256_fmadd_ps(w_hi, x_hi, hi[j]);
        }
    for (int j = 0; j < n_sums; j++)
        sums[j] = dot_finish(type, w[n_w > 1 ? j : 0], x[n_x > 1 ? j : 0], i, n, lo[j], hi[j]);
}

/* One row of activations with n_out rows of weights. */
INLINE void row_single(uint32_t type, const uint8_t *const w[], size_t n_out, const float *x,
                       size_t n, float *y)
{
    size_t i = 0;
    float sums[4];
    for (; i + 4 <= n_out; i += 4)
        dots(type, 4, w + i, 1, &x, n, y + i);
    for (; i < n_out; i++) {
        dots(type, 1, w + i, 1, &x, n, sums);
        y[i] = sums[0];
    }
}

INLINE void tile_typed(uint32_t type, const struct tile_matrix *m, size_t out, size_t n_out,
                       const float *const *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    const uint8_t *w[TILE_OUTPUTS];
    size_t r = 0;
    float sums[4];
    for (size_t i = 0; i < n_out; i++)
        w[i] = m->weights + (out + i) * m->row_bytes;
    for (; r + 4 <= n_rows; r += 4)
        for (size_t i = 0; i < n_out; i++) {
            dots(type, 1, w + i, 4, x + r, m->n_in, sums);
            for (size_t j = 0; j < 4; j++)
                y[r + j][i] = sums[j];
        }
    for (; r < n_rows; r++)
        row_single(type, w, n_out, x[r], m->n_in, y[r]);
}

void plain_tile_avx2(const struct tile_matrix *m, size_t out, size_t n_out, const float *const *x,
                     size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    if (m->type == TENSOR_F16)
        tile_typed(TENSOR_F16, m, out, n_out, x, n_rows, y);
    else if (m->type == TENSOR_BF16)
        tile_typed(TENSOR_BF16, m, out, n_out, x, n_rows, y);
    else
        tile_typed(TENSOR_F32, m, out, n_out, x, n_rows, y);
}
