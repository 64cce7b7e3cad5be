/* kernels/plain.h - products with weights that are not quantised: F32, F16 and BF16 (tier 2). Internal to the room.
 *
 * An element is the dot product of reduce.h, whatever tile it is computed in. BF16 and F16 are widened exactly.
 */
#pragma once
#include "kernels/tile.h"

/* y[r][i] = the element of output `out + i`, i < n_out <= TILE_OUTPUTS, for r < n_rows <= TILE_ROWS; y[r][i] with
 * i >= n_out is left alone. x[r] are rows of m->n_in values. */
typedef void plain_tile_function(const struct tile_matrix *m, size_t out, size_t n_out,
                                 const float *const *x, size_t n_rows, float (*y)[TILE_OUTPUTS]);
plain_tile_function plain_tile_reference, plain_tile_avx2, plain_tile_avx512;
