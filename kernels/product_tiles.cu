/* product_tiles.cu - products of quantised weights with many rows, on the integer tensor cores (NUMERICS rules 2 to 4, tier 1).
 *
 *   weights [n_out][n_in] of a quantised type, a [n_rows][activation_row_bytes(n_in)] -> y [n_rows][n_out]
 *
 * One block a tile of 128 (or 64) outputs times 64 rows; tiles.cuh does the work. Any number of rows, outputs and blocks: what a
 * tile has beyond them is not stored. Row tiles of the same outputs are neighbours in the grid, so
 * that weights come from memory once.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/tiles.cuh"
#include "kernels/tiles_launch.cuh"

struct product_tiles_job {
    const uint8_t *weights, *a;
    const float *bias;
    float *y;
    size_t n_out, n_rows, w_row_bytes, x_row_bytes;
    unsigned n_row_tiles;
    bool accumulate;
    struct tiles_shape shape;
};

/* Where the tile's rows of activations begin; what it lacks is the last again. */
template <typename at>
static __device__ __forceinline__ void rows_find(uint8_t *shared,
                                                 const struct product_tiles_job *job, size_t row)
{
    if (threadIdx.x < at::ROWS) {
        const size_t r = row + threadIdx.x < job->n_rows ? row + threadIdx.x : job->n_rows - 1;
        ((const uint8_t **)(shared + at::X_ROWS))[threadIdx.x] = job->a + r * job->x_row_bytes;
    }
}

/* The bias, then the old y, each with its own rounding. */
static __device__ __forceinline__ void element_store(const struct product_tiles_job *job,
                                                     size_t row, size_t out, float element)
{
    float *y = job->y + row * job->n_out + out;
    if (row >= job->n_rows || out >= job->n_out)
        return;
    if (job->bias != NULL)
        element = __fadd_rn(element, job->bias[out]);
    *y = job->accumulate ? __fadd_rn(*y, element) : element;
}

template <typename at>
static __global__ void __launch_bounds__(at::THREADS, 512 / at::THREADS)
    product_tiles_kernel(const __grid_constant__ struct product_tiles_job job)
{
    extern __shared__ uint4 shared_words[];
    uint8_t *shared = (uint8_t *)shared_words;
    const size_t out = (size_t)(blockIdx.x / job.n_row_tiles) * at::OUTS;
    const size_t row = (size_t)(blockIdx.x % job.n_row_tiles) * at::ROWS;
    const size_t left = job.n_rows - row;
    const unsigned n_groups = left < at::ROWS ? (unsigned)(left + 7) / 8 : at::ROWS / 8;
    struct tiles_sums<at::KIND> sums;
    rows_find<at>(shared, &job, row);
    __syncthreads();
    const size_t n_out = job.n_out - out;
    const uint8_t *weights = job.weights + out * job.w_row_bytes;
    const struct tiles_weights w = {{weights, weights},
                                    n_out < at::OUTS ? (unsigned)n_out : at::OUTS,
                                    n_out <= at::OUTS ? (unsigned)n_out - 1 : at::OUTS};
    tile_multiply<at, false>(shared, &job.shape, &w, n_groups, &sums);
#pragma unroll
    for (unsigned i = 0; i < TILES_GROUPS; i++)
#pragma unroll
        for (unsigned m = 0; m < 2; m++)
#pragma unroll
            for (unsigned e = 0; e < 4; e++)
                element_store(&job, row + tile_row<at>(i, e), out + tile_out<at>(m, e),
                              tile_element(&sums, m, i, e));
}

/* EBB_EUNSUPPORTED where this card's shared memory is too small for the form. */
template <typename at>
static int product_launch(const struct product_args *args, struct exec_stream *s)
{
    struct product_tiles_job job = {};
    job.weights = (const uint8_t *)args->weights, job.a = (const uint8_t *)args->a;
    job.bias = args->bias, job.y = args->y;
    job.n_out = args->n_out, job.n_rows = args->n_rows;
    job.w_row_bytes = tensor_row_bytes(args->type, args->n_in);
    job.x_row_bytes = activation_row_bytes(args->n_in);
    job.n_row_tiles = (unsigned)((args->n_rows + at::ROWS - 1) / at::ROWS);
    job.accumulate = args->accumulate;
    const void *kernel = (const void *)product_tiles_kernel<at>;
    const size_t bytes = tiles_prepare<at>(kernel, &job.shape, args->type, args->type, args->n_in,
                                           at::OUT_WARPS == 2 ? 1 : 512 / at::THREADS);
    const size_t n_tiles = (args->n_out + at::OUTS - 1) / at::OUTS * job.n_row_tiles;
    if (bytes == 0 || n_tiles > INT32_MAX)
        return EBB_EUNSUPPORTED;
    product_tiles_kernel<at><<<(unsigned)n_tiles, at::THREADS, bytes, exec_cuda_stream(s)>>>(job);
    return exec_cuda_launched(s);
}

/* Large tiles share what is unpacked with more rows; small ones where large ones would leave multiprocessors without
 * work. What every card has room for comes last. */
template <int KIND> static int product_size(const struct product_args *args, struct exec_stream *s)
{
    const size_t n_tiles = (args->n_out + 127) / 128 * ((args->n_rows + 63) / 64);
    const size_t n_processors = (size_t)exec_cuda_n_multiprocessors(s);
    int rc = EBB_EUNSUPPORTED;
    if (n_tiles >= 4 * n_processors)
        rc = product_launch<tiles_shared<KIND, 4, 4, 1>>(args, s);
    if (rc == EBB_EUNSUPPORTED && n_tiles < n_processors)
        rc = product_launch<tiles_shared<KIND, 2, 2, 2>>(args, s);
    if constexpr (KIND == TILES_PLAIN || KIND == TILES_MINIMA)
        if (rc == EBB_EUNSUPPORTED)
            rc = product_launch<tiles_shared<KIND, 4, 2, 1>>(args, s);
    return rc == EBB_EUNSUPPORTED ? product_launch<tiles_shared<KIND, 4, 2, 0>>(args, s) : rc;
}

int product_tiles_cuda(const struct product_args *args, struct exec_stream *s)
{
    const struct tensor_type_info *info = tensor_type_find(args->type);
    if (info == NULL || info->block_values == 1 || args->n_in % info->block_values != 0 ||
        args->n_in / 32 > UINT32_MAX / 2)
        return EBB_EUNSUPPORTED;
    if (args->n_out == 0 || args->n_rows == 0)
        return 0;
    switch (tiles_kind_of(args->type)) {
    case TILES_PLAIN: return product_size<TILES_PLAIN>(args, s);
    case TILES_MINIMA: return product_size<TILES_MINIMA>(args, s);
    case TILES_FOLDED: return product_size<TILES_FOLDED>(args, s);
    default: return product_size<TILES_FOLDED_MINIMA>(args, s);
    }
}
