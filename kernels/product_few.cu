/* product_few.cu - products of quantised weights with a few rows, on the integer tensor cores (NUMERICS rules 2 to 4, tier 1).
 *
 *   weights [n_out][n_in] of a quantised type, a [n_rows][activation_row_bytes(n_in)] -> y [n_rows][n_out]
 *
 * A warp computes 16 outputs of 8 or 32 rows (few.cuh); a block's warps stand side by side and share the rows of activations.
 * Matrices of few outputs have blocks of few warps, so that all multiprocessors take part. Weights are asked for before the wait
 * for earlier work (overlap.cuh). Refuses rows of activations that do not fit into shared memory.
 */
#include "kernels/exec_cuda.h"
#include "kernels/few_launch.cuh"
#include "kernels/ops_cuda.h"

#define PRODUCT_WARPS_MAX 8
#define PRODUCT_STAGES    4
#define PRODUCT_TALL      16384 /* outputs from which on weights are shared by more rows */

struct product_few_job {
    const uint8_t *weights, *a;
    const float *bias;
    float *y;
    size_t n_out, n_rows, x_row_bytes;
    bool accumulate;
    struct few_shape shape;
};

/* The bias, then the old y, each with its own rounding. */
static __device__ __forceinline__ void element_store(const struct product_few_job *job, size_t row,
                                                     size_t out, float element)
{
    float *y = job->y + row * job->n_out + out;
    if (row >= job->n_rows || out >= job->n_out)
        return;
    if (job->bias != NULL)
        element = __fadd_rn(element, job->bias[out]);
    *y = job->accumulate ? __fadd_rn(*y, element) : element;
}

template <uint32_t TYPE, int GROUPS>
static __global__ void __launch_bounds__(32 * PRODUCT_WARPS_MAX, 2)
    product_few_kernel(const __grid_constant__ struct product_few_job job)
{
    extern __shared__ uint4 shared_words[];
    uint8_t *shared = (uint8_t *)shared_words;
    const struct few_shape *s = &job.shape;
    const unsigned warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    const size_t out = ((size_t)blockIdx.x * n_warps + warp) * FEW_OUTS;
    const size_t row = (size_t)blockIdx.y * 8 * GROUPS, left = job.n_rows - row;
    const unsigned n = left < 8 * GROUPS ? (unsigned)left : 8 * GROUPS;
    struct few_weights w = weights_open<TYPE>(s, job.weights, job.n_out, out);
    struct few_sums<few_form<TYPE>::KIND, GROUPS> sums;
    if (out < job.n_out)
        weights_begin<TYPE, PRODUCT_STAGES>(ring_of<TYPE, PRODUCT_STAGES>(shared, s), s, &w);
    overlap_wait();
    overlap_announce();
    for (unsigned r = warp; r < n; r += n_warps)
        row_load<TYPE, GROUPS>(shared, s, r, job.a + (row + r) * job.x_row_bytes);
    copies_commit();
    copies_wait<2>(true);
    __syncthreads();
    if (out >= job.n_out)
        return;
    tile_few<TYPE, PRODUCT_STAGES, GROUPS>(shared, s, &w, (n + 7) / 8, &sums);
#pragma unroll
    for (unsigned i = 0; i < GROUPS; i++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++)
            element_store(&job, row + few_row(i, e), out + few_out(e), few_element(&sums, i, e));
}

/* Warps a block, so that every multiprocessor has one. */
static unsigned warps_of(size_t n_tiles, size_t n_processors)
{
    unsigned n_warps = PRODUCT_WARPS_MAX;
    while (n_warps > 1 && n_tiles < n_warps * n_processors)
        n_warps /= 2;
    return n_warps;
}

template <uint32_t TYPE, int GROUPS>
static int product_launch(const struct product_args *args, struct exec_stream *s)
{
    struct product_few_job job = {};
    uint32_t nothing;
    const void *kernel = (const void *)product_few_kernel<TYPE, GROUPS>;
    const size_t n_tiles = (args->n_out + FEW_OUTS - 1) / FEW_OUTS;
    const size_t n_groups = (args->n_rows + 8 * GROUPS - 1) / (8 * GROUPS);
    const unsigned n_warps = warps_of(n_tiles * n_groups, (size_t)exec_cuda_n_multiprocessors(s));
    const size_t bytes = few_prepare<TYPE, PRODUCT_STAGES, GROUPS>(kernel, &job.shape, args->n_in,
                                                                   n_warps, 0, &nothing);
    const dim3 grid((unsigned)((n_tiles + n_warps - 1) / n_warps), (unsigned)n_groups);
    job.weights = (const uint8_t *)args->weights, job.a = (const uint8_t *)args->a;
    job.bias = args->bias, job.y = args->y;
    job.n_out = args->n_out, job.n_rows = args->n_rows;
    job.x_row_bytes = activation_row_bytes(args->n_in);
    job.accumulate = args->accumulate;
    if (bytes == 0 || n_tiles > INT32_MAX || n_groups > 65535)
        return EBB_EUNSUPPORTED;
    overlap_launch(product_few_kernel<TYPE, GROUPS>, grid, 32 * n_warps, bytes, exec_cuda_stream(s),
                   &job);
    return exec_cuda_launched(s);
}

/* Where there are enough outputs for all multiprocessors, a reading of weights serves 32 rows; else 8, so that more warps work. */
template <uint32_t TYPE>
static int product_type(const struct product_args *args, struct exec_stream *s)
{
    int rc = EBB_EUNSUPPORTED;
    if (args->n_rows > 8 && args->n_out >= PRODUCT_TALL)
        rc = product_launch<TYPE, 4>(args, s);
    return rc == EBB_EUNSUPPORTED ? product_launch<TYPE, 1>(args, s) : rc;
}

int product_few_cuda(const struct product_args *args, struct exec_stream *s)
{
    if (tensor_row_bytes(args->type, args->n_in) == 0 || (uintptr_t)args->weights % 2 != 0)
        return EBB_EUNSUPPORTED;
    if (args->n_out == 0 || args->n_rows == 0)
        return tensor_type_find(args->type)->block_values > 1 ? 0 : EBB_EUNSUPPORTED;
    switch (args->type) {
    case TENSOR_Q4_0: return product_type<TENSOR_Q4_0>(args, s);
    case TENSOR_Q4_1: return product_type<TENSOR_Q4_1>(args, s);
    case TENSOR_Q5_0: return product_type<TENSOR_Q5_0>(args, s);
    case TENSOR_Q5_1: return product_type<TENSOR_Q5_1>(args, s);
    case TENSOR_Q8_0: return product_type<TENSOR_Q8_0>(args, s);
    case TENSOR_Q2_K: return product_type<TENSOR_Q2_K>(args, s);
    case TENSOR_Q3_K: return product_type<TENSOR_Q3_K>(args, s);
    case TENSOR_Q4_K: return product_type<TENSOR_Q4_K>(args, s);
    case TENSOR_Q5_K: return product_type<TENSOR_Q5_K>(args, s);
    case TENSOR_Q6_K: return product_type<TENSOR_Q6_K>(args, s);
    default: return EBB_EUNSUPPORTED;
    }
}
