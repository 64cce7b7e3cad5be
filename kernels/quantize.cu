/* quantize.cu - rows of activations to the form that products read (NUMERICS rule 1, layout in activation.cuh).
 *
 *   x [n_rows][n] -> a [n_rows][activation_row_bytes(n)]
 *
 * A warp quantises one block of 32 values; lane i has value i. Blocks know nothing of each other, so a row has the same bits in
 * any launch. Refuses widths that are no multiple of 32.
 */
#include "kernels/activation.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/quantize.cuh"

#define QUANTIZE_WARPS 4

static __global__ void __launch_bounds__(32 * QUANTIZE_WARPS)
    quantize_kernel(const __grid_constant__ struct quantize_args args)
{
    const size_t n_blocks = args.n / 32, lane = threadIdx.x % 32;
    const size_t at = (size_t)blockIdx.x * QUANTIZE_WARPS + threadIdx.x / 32;
    overlap_wait();
    overlap_announce();
    if (at >= args.n_rows * n_blocks)
        return;
    const size_t row = at / n_blocks, k = at % n_blocks;
    const struct quantized z = quantize_lane(args.x[row * args.n + 32 * k + lane]);
    char *a = (char *)args.a + row * activation_row_bytes(args.n);
    ((int8_t *)a)[32 * k + lane] = (int8_t)z.q;
    if (lane == 0) {
        ((float *)(a + activation_d_at(args.n)))[k] = z.d;
        ((float *)(a + activation_sx_at(args.n)))[k] = z.sx;
    }
    if (lane < 2)
        ((int16_t *)(a + activation_half_at(args.n)))[2 * k + lane] =
            (int16_t)(lane == 0 ? z.sum16[0] : z.sum16[1]);
}

int quantize_cuda(const struct quantize_args *args, struct exec_stream *s)
{
    if (args->n % 32 != 0)
        return EBB_EUNSUPPORTED;
    const size_t n_blocks = args->n_rows * (args->n / 32);
    if (n_blocks == 0)
        return 0;
    const dim3 grid((unsigned)((n_blocks + QUANTIZE_WARPS - 1) / QUANTIZE_WARPS));
    overlap_launch(quantize_kernel, grid, 32 * QUANTIZE_WARPS, 0, exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}
