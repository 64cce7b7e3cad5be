/* rope.cu - what is done to heads before attention, on a CUDA card: the angles of a step, then norm and rotation. Tier 2.
 *
 * Angles: one thread a pair, cosine and sine in fp64, rounded once. Heads: one warp a head. Lane l adds the squares of values
 * l, l + 32, ... in ascending order and the lanes are joined by halving distances, so a head's bits depend on head_dim alone; the
 * normed head waits in shared memory for its rotation, since the two values of a pair belong to different lanes. In place: a warp
 * reads its head before it writes it. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): more rotated pairs than a head has, heads over ROPE_DIM_MAX.
 */
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"

#define ANGLE_THREADS 64
#define ROPE_WARPS    4
#define ROPE_DIM_MAX  1024

/* Inert rows get the angle 0, so that what they compute stays finite. */
static __global__ void rope_angles_kernel(const int32_t *__restrict__ positions,
                                          const double *__restrict__ inv_freq, size_t n,
                                          size_t n_half, float scale, float2 *__restrict__ angles)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n)
        return;
    int32_t position = positions[at / n_half];
    double angle = (position < 0 ? 0.0 : (double)position) * inv_freq[at % n_half], s, c;
    sincos(angle, &s, &c);
    angles[at] = make_float2((float)c * scale, (float)s * scale);
}

int rope_angles_cuda(const struct rope_angles_args *args, struct exec_stream *s)
{
    size_t n = args->n_rows * args->n_half;
    if (n == 0)
        return 0;
    unsigned blocks = (unsigned)((n + ANGLE_THREADS - 1) / ANGLE_THREADS);
    rope_angles_kernel<<<blocks, ANGLE_THREADS, 0, exec_cuda_stream(s)>>>(
        args->positions, args->inv_freq, n, args->n_half, args->scale, (float2 *)args->angles);
    return exec_cuda_launched(s);
}

/* 1 / sqrt(mean of squares + eps) of a head that the warp has in `head`. */
static __device__ float head_scale(const float *head, int head_dim, float eps)
{
    float sum = 0;
    for (int d = threadIdx.x % 32; d < head_dim; d += 32)
        sum = __fmaf_rn(head[d], head[d], sum);
    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, apart);
    return 1.0f / sqrtf(sum / (float)head_dim + eps);
}

static __global__ void __launch_bounds__(ROPE_WARPS * 32) head_rope_kernel(struct head_rope_args a)
{
    extern __shared__ float heads[];
    size_t at = (size_t)blockIdx.x * ROPE_WARPS + threadIdx.x / 32;
    if (at >= a.n_rows * a.n_heads)
        return;
    int lane = threadIdx.x % 32, head_dim = (int)a.head_dim, n_half = (int)a.n_half;
    float *head = heads + threadIdx.x / 32 * head_dim, *x = a.x + at * head_dim;
    const float2 *angles = (const float2 *)a.angles + at / a.n_heads * n_half;
    for (int d = lane; d < head_dim; d += 32)
        head[d] = x[d];
    if (a.norm_weight != NULL) {
        float r = head_scale(head, head_dim, a.eps);
        for (int d = lane; d < head_dim; d += 32)
            head[d] = head[d] * r * a.norm_weight[d];
    }
    __syncwarp();
    int step = a.halves ? 1 : 2, apart = a.halves ? n_half : 1;
    for (int i = lane; i < n_half; i += 32) {
        float first = head[i * step], second = head[i * step + apart];
        float2 cs = angles[i];
        x[i * step] = __fmaf_rn(-second, cs.y, first * cs.x);
        x[i * step + apart] = __fmaf_rn(first, cs.y, second * cs.x);
    }
    if (a.norm_weight != NULL)
        for (int d = 2 * n_half + lane; d < head_dim; d += 32)
            x[d] = head[d];
}

int head_rope_cuda(const struct head_rope_args *args, struct exec_stream *s)
{
    size_t n = args->n_rows * args->n_heads;
    if (args->n_half > args->head_dim / 2 || args->head_dim > ROPE_DIM_MAX)
        return EBB_EUNSUPPORTED;
    if (n == 0 || args->head_dim == 0)
        return 0;
    unsigned blocks = (unsigned)((n + ROPE_WARPS - 1) / ROPE_WARPS);
    size_t shared = ROPE_WARPS * args->head_dim * sizeof(float);
    head_rope_kernel<<<blocks, ROPE_WARPS * 32, shared, exec_cuda_stream(s)>>>(*args);
    return exec_cuda_launched(s);
}
