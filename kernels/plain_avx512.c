/* plain_avx512.c - unquantised products with AVX-512: the bits of plain_tile_reference().
 *
 * A sum's 16 lanes are one register (reduce_avx512.h). Several rows of weights meet several rows of activations at once,
 * so that what is loaded and widened is used more than once and the latency of the fused steps is hidden: four and four,
 * four and two, or eight and one. Owns nothing; any thread; called only where set_cpu.c has found the instructions.
 */
#include "kernels/format.h"
#include "kernels/plain.h"
#include "kernels/reduce_avx512.h"

#define SUMS 16 /* at once */

/* The weights from value i of a row that `mask` has, the others 0. */
INLINE __m512 weights16(uint32_t type, const uint8_t *w, size_t i, __mmask16 mask)
{
    if (type == TENSOR_F32)
        return reduce_load(w + 4 * i, mask);
    __m256i narrow = mask == REDUCE_ALL
                         ? _mm256_loadu_si256((const __m256i *)(const void *)(w + 2 * i))
                         : _mm256_maskz_loadu_epi16(mask, w + 2 * i);
    if (type == TENSOR_F16)
        return _mm512_cvtph_ps(narrow);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

/* A matter of constants: n_w rows of weights and n_x of activations, n_w * n_x <= SUMS. */
struct meeting {
    uint32_t type;
    int n_w, n_x;
};

/* The steps of value i and the 15 after it, of which there are those in `mask`. */
INLINE void sums_step(struct meeting m, const uint8_t *const w[], const float *const x[], size_t i,
                      __mmask16 mask, __m512 s[SUMS])
{
    __m512 wide[8];
    UNROLL
    for (int j = 0; j < m.n_w; j++)
        wide[j] = weights16(m.type, w[j], i, mask);
    UNROLL
    for (int r = 0; r < m.n_x; r++) {
        const __m512 v = reduce_load(x[r] + i, mask);
        UNROLL
        for (int j = 0; j < m.n_w; j++)
            s[m.n_w * r + j] = reduce_step(wide[j], v, s[m.n_w * r + j], mask);
    }
}

/* y[TILE_OUTPUTS * r + j] = the dot product of weights j and activations r, of n values each. */
INLINE void sums_meet(struct meeting m, const uint8_t *const w[], const float *const x[], size_t n,
                      float *y)
{
    __m512 s[SUMS];
    size_t i = 0;
    UNROLL
    for (int r = 0; r < m.n_x; r++)
        UNROLL
    for (int j = 0; j < m.n_w; j++)
        s[m.n_w * r + j] = _mm512_setzero_ps();
    for (; i + REDUCE_LANES <= n; i += REDUCE_LANES)
        sums_step(m, w, x, i, REDUCE_ALL, s);
    if (i < n)
        sums_step(m, w, x, i, reduce_mask(n - i), s);
    UNROLL
    for (int r = 0; r < m.n_x; r++) {
        UNROLL
        for (int j = 0; j + 4 <= m.n_w; j += 4)
            _mm_storeu_ps(y + TILE_OUTPUTS * r + j, reduce_join16x4(s + m.n_w * r + j));
        if (m.n_w == 1)
            y[TILE_OUTPUTS * r] = reduce_join16(s[r]);
    }
}

/* n_x rows of activations (a constant) with all rows of weights, n_w of them at once. */
INLINE void rows_meet(uint32_t type, int n_w, int n_x, const uint8_t *const w[], size_t n_out,
                      const float *const x[], size_t n, float *y)
{
    size_t i = 0;
    for (; i + (size_t)n_w <= n_out; i += (size_t)n_w)
        sums_meet((struct meeting){type, n_w, n_x}, w + i, x, n, y + i);
    for (; i < n_out; i++)
        sums_meet((struct meeting){type, 1, n_x}, w + i, x, n, y + i);
}

INLINE void tile_typed(uint32_t type, const struct tile_matrix *m, size_t out, size_t n_out,
                       const float *const *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    const uint8_t *w[TILE_OUTPUTS];
    size_t r = 0;
    for (size_t i = 0; i < n_out; i++)
        w[i] = m->weights + (out + i) * m->row_bytes;
    for (; r + 4 <= n_rows; r += 4)
        rows_meet(type, 4, 4, w, n_out, x + r, m->n_in, y[r]);
    for (; r + 2 <= n_rows; r += 2)
        rows_meet(type, 4, 2, w, n_out, x + r, m->n_in, y[r]);
    if (r < n_rows)
        rows_meet(type, 8, 1, w, n_out, x + r, m->n_in, y[r]);
}

void plain_tile_avx512(const struct tile_matrix *m, size_t out, size_t n_out, const float *const *x,
                       size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    if (m->type == TENSOR_F16)
        tile_typed(TENSOR_F16, m, out, n_out, x, n_rows, y);
    else if (m->type == TENSOR_BF16)
        tile_typed(TENSOR_BF16, m, out, n_out, x, n_rows, y);
    else
        tile_typed(TENSOR_F32, m, out, n_out, x, n_rows, y);
}
