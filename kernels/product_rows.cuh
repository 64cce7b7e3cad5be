/* kernels/product_rows.cuh - the one kernel behind products of few rows and the experts of few rows. Internal to *.cu.
 *
 * A problem is one row of activations times one matrix: a product's row, or a (row, rank) pair with its expert. A launch computes
 * one form of them:
 *   ROWS_PRODUCT  y[problem] = weights a[problem], with bias and old value
 *   ROWS_GATE_UP  hidden[pair] = swiglu(gate a[row], up a[row]); gate and up of one type
 *   ROWS_GATE, ROWS_UP  the same in two launches, for two types
 *   ROWS_DOWN     y[pair] = down hidden[pair], which every block of threads quantises for itself
 */
#pragma once
#include "kernels/kernels.h"

enum rows_form { ROWS_PRODUCT, ROWS_GATE_UP, ROWS_GATE, ROWS_UP, ROWS_DOWN };

/* How the work is cut; no choice changes the bits. */
struct rows_plan {
    unsigned tile_rows;  /* rows of weights at a time, even */
    unsigned stages;     /* tiles being loaded or computed: 2 to 5 */
    unsigned n_compute;  /* warps for the integers; the chains have their own */
    unsigned together;   /* rows of activations that share a reading of the weights: 1, 2 or 4;
                           1 for experts */
    unsigned tiles_each; /* of a block of threads, where all blocks run at once; else as many as it
                            takes */
};

struct rows_job {
    enum rows_form form;
    const unsigned char *weights;           /* ROWS_PRODUCT: [n_out][n_in] */
    const struct expert_address *addresses; /* others: [n_experts] */
    const int32_t *ids;                     /* others: [n_rows][n_used] */
    size_t n_in, n_out, n_experts;
    size_t n_rows, n_used; /* a problem for each pair of them; ROWS_PRODUCT: n_used = 1 */
    const void *a;         /* [n_rows][activation_row_bytes(n_in)]; not ROWS_DOWN */
    float *hidden;         /* [n_rows][n_used][d_expert] */
    const float *bias;     /* ROWS_PRODUCT: [n_out] or NULL */
    float *y;              /* [n_rows][n_used][n_out] */
    bool accumulate;
    uint32_t *heat, *hits; /* where they are counted; else NULL */
};

/* The plan for a job: from its sizes alone. */
struct rows_plan rows_plan_choose(uint32_t type, const struct rows_job *job);

/* Launches; EBB_EUNSUPPORTED where the type has no blocks, the width is none of its, or a row does not fit into shared memory. */
int rows_launch(uint32_t type, const struct rows_job *job, struct rows_plan plan,
                struct exec_stream *s);
