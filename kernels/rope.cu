/* rope.cu - what is done to heads before attention, on a CUDA card: the angles of a step, then norm and rotation. Tier 2.
 *
 * Angles: one thread a pair, cosine and sine in fp64, rounded once. Heads: one warp a head (rope.cuh), in place: a warp reads its
 * head before it writes it. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): more rotated pairs than a head has, heads over HEAD_DIM_MAX.
 */
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/rope.cuh"

#define ANGLE_THREADS 64

/* Inert rows get the angle 0, so that what they compute stays finite. */
static __global__ void rope_angles_kernel(const __grid_constant__ struct rope_angles_args a)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    double sine, cosine;
    overlap_wait();
    overlap_announce();
    if (at >= a.n_rows * a.n_half)
        return;
    int32_t position = a.positions[at / a.n_half];
    sincos((position < 0 ? 0.0 : (double)position) * a.inv_freq[at % a.n_half], &sine, &cosine);
    ((float2 *)a.angles)[at] = make_float2((float)cosine * a.scale, (float)sine * a.scale);
}

int rope_angles_cuda(const struct rope_angles_args *args, struct exec_stream *s)
{
    const size_t n = args->n_rows * args->n_half;
    if (n == 0)
        return 0;
    overlap_launch(rope_angles_kernel, dim3((unsigned)((n + ANGLE_THREADS - 1) / ANGLE_THREADS)),
                   ANGLE_THREADS, 0, exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}

static __global__ void __launch_bounds__(ROPE_WARPS * 32)
    head_rope_kernel(const __grid_constant__ struct head_rope_args a)
{
    __shared__ float heads[ROPE_WARPS][HEAD_DIM_MAX];
    unsigned row = blockIdx.x, number = blockIdx.y * ROPE_WARPS + threadIdx.x / 32;
    float *head = heads[threadIdx.x / 32];
    overlap_wait();
    overlap_announce();
    if (number >= a.n_heads)
        return;
    head_turn(&a, row, number, head);
    float *to = a.x + ((size_t)row * a.n_heads + number) * a.head_dim;
    for (unsigned d = threadIdx.x % 32; d < a.head_dim; d += 32)
        to[d] = head[d];
}

int head_rope_cuda(const struct head_rope_args *args, struct exec_stream *s)
{
    if (args->n_half > args->head_dim / 2 || args->head_dim > HEAD_DIM_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_heads == 0 || args->head_dim == 0)
        return 0;
    dim3 grid((unsigned)args->n_rows, (unsigned)((args->n_heads + ROPE_WARPS - 1) / ROPE_WARPS));
    overlap_launch(head_rope_kernel, grid, ROPE_WARPS * 32, 0, exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}
