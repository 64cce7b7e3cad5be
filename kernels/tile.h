/* kernels/tile.h - what the reference, the AVX2 and the AVX-512 set do differently for weights. Internal to the
 * room.
 *
 * Products and experts are the same walk over tiles in all three sets (product.c, experts.c): a
 * tile is up to eight or sixteen outputs times up to TILE_ROWS rows of activations. A set fills this table
 * with its own inner loops, and they give the same bits: NUMERICS tier 1 fixes every operation.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/activation.h"
#include "kernels/kernels.h"

#define TILE_OUTPUTS 16 /* the most */
#define TILE_ROWS    32

/* One matrix of weights, borrowed. */
struct tile_matrix {
    uint32_t type;
    const uint8_t *weights; /* [..][n_in] of type */
    size_t n_in;
    size_t row_bytes; /* tensor_row_bytes(type, n_in) */
};

struct tile_ops {
    size_t outputs; /* of a tile; divides ACTIVATION_BLOCK */
    /* y[r][i] = the element of output `out + i`, i < n_out <= outputs, for r < n_rows <=
     * TILE_ROWS; y[r][i] with i >= n_out is some number. x[r] are rows of m->n_in values. */
    void (*product)(const struct tile_matrix *m, size_t out, size_t n_out,
                    const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS]);
    /* Quantises the n_blocks * 32 values of x to the start of the parts of `a`. */
    void (*quantize)(const float *x, size_t n_blocks, struct activation a);
    /* y[i] = silu(gate[i]) * up[i], i < n. y may be gate. */
    void (*swiglu)(const float *gate, const float *up, float *y, size_t n);
    /* As product, for F32, F16 and BF16 weights and rows of plain values; see plain.h. */
    void (*plain)(const struct tile_matrix *m, size_t out, size_t n_out, const float *const *x,
                  size_t n_rows, float (*y)[TILE_OUTPUTS]);
};

extern const struct tile_ops tile_ops_reference, tile_ops_avx2, tile_ops_avx512;

/* Launchers over a set's table. */
int quantize_push(const struct quantize_args *args, const struct tile_ops *ops,
                  struct exec_stream *s);
int product_push(const struct product_args *args, const struct tile_ops *ops,
                 struct exec_stream *s);
int experts_push(const struct experts_args *args, const struct tile_ops *ops,
                 struct exec_stream *s);
int swiglu_push(const struct swiglu_args *args, const struct tile_ops *ops, struct exec_stream *s);

/* hidden[row] += the weighted sum of the row's expert outputs. */
typedef void combine_row_function(const struct combine_args *args, size_t row);
int combine_push(const struct combine_args *args, combine_row_function *row, struct exec_stream *s);

/* True for the quantised types, whose products read quantised activations. */
static inline bool tile_type(uint32_t type)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    return info != NULL && info->block_values > 1;
}

/* The matrix [..][n_in] of a known type; n_in is a whole number of its blocks. */
static inline struct tile_matrix tile_matrix(uint32_t type, const void *weights, size_t n_in)
{
    struct tile_matrix m = {type, weights, n_in, tensor_row_bytes(type, n_in)};
    return m;
}

/* Up to TILE_ROWS rows of activations in the form that a matrix reads: only that form is set. */
struct tile_rows {
    struct activation quantised[TILE_ROWS];
    const float *plain[TILE_ROWS];
};

/* ops->product or ops->plain, whichever the matrix wants. */
static inline void tile_product(const struct tile_ops *ops, const struct tile_matrix *m, size_t out,
                                size_t n_out, const struct tile_rows *x, size_t n_rows,
                                float (*y)[TILE_OUTPUTS])
{
    if (tile_type(m->type))
        ops->product(m, out, n_out, x->quantised, n_rows, y);
    else
        ops->plain(m, out, n_out, x->plain, n_rows, y);
}

/* How many tiles of `outputs` outputs make a piece worth handing to a thread that is awake: one to three
 * microseconds of work, where unpacking a weight costs as much as using it three times. */
static inline size_t tile_grain(size_t outputs, size_t n_in, size_t n_rows)
{
    const size_t piece = 128 * 1024;
    size_t cost = outputs * n_in * (n_rows + 3);
    return cost >= piece ? 1 : piece / (cost + 1) + 1;
}
