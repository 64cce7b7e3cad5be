/* product_plain.cu - products with F32, F16 and BF16 weights (tier 2; plain.cuh has the order of addition).
 *
 * weights [n_out][n_in], x [n_rows][n_in], y [n_rows][n_out]. A warp computes R rows times O outputs, its lanes sharing the values
 * of a row; a block has WARPS warps side by side over outputs. R and O follow from n_rows and never show in the bits. A warp at an
 * edge computes its last row or output again and does not store it.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"
#include "kernels/plain.cuh"

#define WARPS 4

/* Adds the bias, then the old y, each with its own rounding. */
static __device__ void element_store(const struct product_args &p, size_t row, size_t out,
                                     float element)
{
    float *y = p.y + row * p.n_out + out;
    if (p.bias != NULL)
        element = element + p.bias[out];
    *y = p.accumulate ? *y + element : element;
}

template <typename W, int R, int O, int STEPS>
static __global__ void __launch_bounds__(WARPS * 32, R *O > 16 ? 3 : 1)
    product_kernel(const struct product_args p)
{
    overlap_wait();
    overlap_announce();
    size_t out = ((size_t)blockIdx.x * WARPS + threadIdx.x / 32) * O, row = (size_t)blockIdx.y * R;
    if (out >= p.n_out)
        return;
    const W *w[O];
    const float *x[R];
    float acc[R * O];
#pragma unroll
    for (int o = 0; o < O; o++)
        w[o] = (const W *)p.weights + min(out + o, p.n_out - 1) * p.n_in;
#pragma unroll
    for (int r = 0; r < R; r++)
        x[r] = p.x + min(row + r, p.n_rows - 1) * p.n_in;
    plain_sums<W, R, O, STEPS>(w, x, p.n_in, plain_aligned((const W *)p.weights, p.x, p.n_in), acc);
    plain_join<R * O>(acc);
    int first = plain_first<R * O>();
#pragma unroll
    for (int j = 0; j < plain_count<R * O>(); j++) {
        size_t r = row + (first + j) / O, o = out + (first + j) % O;
        if (plain_owner<R * O>() && r < p.n_rows && o < p.n_out)
            element_store(p, r, o, acc[j]);
    }
}

template <typename W, int R, int O, int STEPS>
static int product_launch(const struct product_args *args, struct exec_stream *s)
{
    size_t n_warps = (args->n_out + O - 1) / O;
    dim3 grid((unsigned)((n_warps + WARPS - 1) / WARPS), (unsigned)((args->n_rows + R - 1) / R));
    launch(product_kernel<W, R, O, STEPS>, grid, WARPS * 32, args, s);
    return exec_cuda_launched(s);
}

template <typename W> static int product_of(const struct product_args *args, struct exec_stream *s)
{
    const size_t enough = 4 * (size_t)exec_cuda_n_multiprocessors(s); /* warps */
    if (args->n_rows == 1)
        return product_launch<W, 1, 2, 4>(args, s);
    if (args->n_rows == 2)
        return product_launch<W, 2, 2, 4>(args, s);
    if (args->n_rows <= 4)
        return product_launch<W, 4, 2, 2>(args, s);
    if (args->n_out / 8 * ((args->n_rows + 7) / 8) < enough)
        return product_launch<W, 8, 2, 1>(args, s);
    return product_launch<W, 8, 8, 1>(args, s);
}

int product_plain_cuda(const struct product_args *args, struct exec_stream *s)
{
    if (args->n_rows > 8 * 65535)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_out == 0)
        return 0;
    switch (args->type) {
    case TENSOR_F32: return product_of<struct plain_f32>(args, s);
    case TENSOR_F16: return product_of<struct plain_f16>(args, s);
    case TENSOR_BF16: return product_of<struct plain_bf16>(args, s);
    }
    return EBB_EUNSUPPORTED;
}
