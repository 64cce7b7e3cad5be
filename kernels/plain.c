/* plain.c - unquantised products of the reference, AVX2 and AVX-512 sets: the plain tile, and the walk that the router uses.
 *
 * plain_tile_reference() says what the bits are (NUMERICS tier 2, through reduce.h); plain_avx2.c and plain_avx512.c match it. Owns
 * nothing; any thread; refuses nothing, since launchers have checked types and shapes.
 */
#include "kernels/plain.h"
#include "kernels/blocks.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"

static float dot_halves(const uint16_t *w, const float *x, size_t n)
{
    float s[REDUCE_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % REDUCE_LANES] = fmaf(half_to_float(w[i]), x[i], s[i % REDUCE_LANES]);
    return reduce_join(s);
}

static float dot_bfloats(const uint16_t *w, const float *x, size_t n)
{
    float s[REDUCE_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        s[i % REDUCE_LANES] = fmaf(bfloat_to_float(w[i]), x[i], s[i % REDUCE_LANES]);
    return reduce_join(s);
}

void plain_tile_reference(const struct tile_matrix *m, size_t out, size_t n_out,
                          const float *const *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    for (size_t i = 0; i < n_out; i++) {
        const void *w = m->weights + (out + i) * m->row_bytes;
        for (size_t r = 0; r < n_rows; r++)
            y[r][i] = m->type == TENSOR_F16    ? dot_halves(w, x[r], m->n_in)
                      : m->type == TENSOR_BF16 ? dot_bfloats(w, x[r], m->n_in)
                                               : reduce_dot(w, x[r], m->n_in);
    }
}

static void rows_walk(const struct product_args *a, size_t first, size_t last,
                      plain_tile_function *tile)
{
    struct tile_matrix m = tile_matrix(a->type, a->weights, a->n_in);
    const float *x[TILE_ROWS];
    float y[TILE_ROWS][TILE_OUTPUTS];
    for (size_t row = 0; row < a->n_rows; row += TILE_ROWS) {
        size_t n_rows = a->n_rows - row < TILE_ROWS ? a->n_rows - row : TILE_ROWS;
        for (size_t r = 0; r < n_rows; r++)
            x[r] = a->x + (row + r) * a->n_in;
        for (size_t out = first; out < last; out += TILE_OUTPUTS) {
            size_t n_out = last - out < TILE_OUTPUTS ? last - out : TILE_OUTPUTS;
            tile(&m, out, n_out, x, n_rows, y);
            for (size_t r = 0; r < n_rows; r++)
                for (size_t i = 0; i < n_out; i++)
                    a->y[(row + r) * a->n_out + out + i] = y[r][i];
        }
    }
}

void logits_reference(const struct product_args *a, size_t out_first, size_t out_last)
{
    rows_walk(a, out_first, out_last, plain_tile_reference);
}

void logits_avx2(const struct product_args *a, size_t out_first, size_t out_last)
{
    rows_walk(a, out_first, out_last, plain_tile_avx2);
}

void logits_avx512(const struct product_args *a, size_t out_first, size_t out_last)
{
    rows_walk(a, out_first, out_last, plain_tile_avx512);
}
