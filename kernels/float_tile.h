/* kernels/float_tile.h - products of dequantised weights in fp64, for the float set. Internal to
 * the room. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define FLOAT_OUTPUTS 4
#define FLOAT_ROWS    128

/* y[r][i] = sum over k of weights[out + i][k] * x[r][k], in fp64, for i < n_out <= FLOAT_OUTPUTS
 * and r < n_rows <= FLOAT_ROWS; y[r][i] with i >= n_out is some number. A row's sums depend on that
 * row alone. n_in is a whole number of blocks of `type`, any known type, and even. */
void float_tile(uint32_t type, const void *weights, size_t n_in, size_t out, size_t n_out,
                const float *const *x, size_t n_rows, double (*y)[FLOAT_OUTPUTS]);
