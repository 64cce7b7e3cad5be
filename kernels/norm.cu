/* norm.cu - y = x / sqrt(mean(x^2) + eps) * weight on a CUDA card. Tier 2: one block a row.
 *
 * Thread t of T holds the groups of four values t, t + T, ...; it squares and adds its own in ascending order with fmaf, a warp
 * joins its lanes by halving distances, and every thread then adds the warps' sums in ascending order. T depends on n alone, so a
 * row's bits do not depend on the launch. Values stay in registers between the passes; where a row does not begin at 16 bytes, or
 * n is no multiple of four, single loads take the same values in the same order. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): more than NORM_N_MAX values a row.
 */
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"

#define NORM_GROUPS  8 /* most groups of four a thread holds */
#define NORM_THREADS 1024
#define NORM_N_MAX   (NORM_GROUPS * NORM_THREADS * 4)

static __device__ float4 load4(const float *x, size_t at, size_t n, bool aligned)
{
    if (aligned)
        return *(const float4 *)(x + at);
    float4 v = {0, 0, 0, 0};
    v.x = x[at];
    v.y = at + 1 < n ? x[at + 1] : 0;
    v.z = at + 2 < n ? x[at + 2] : 0;
    v.w = at + 3 < n ? x[at + 3] : 0;
    return v;
}

static __device__ void store4(float *y, size_t at, size_t n, bool aligned, float4 v)
{
    if (aligned) {
        *(float4 *)(y + at) = v;
        return;
    }
    y[at] = v.x;
    if (at + 1 < n)
        y[at + 1] = v.y;
    if (at + 2 < n)
        y[at + 2] = v.z;
    if (at + 3 < n)
        y[at + 3] = v.w;
}

/* The sum over the block of one value a thread; the same in all of them. */
static __device__ float block_sum(float sum)
{
    __shared__ float warps[NORM_THREADS / 32];
    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, apart);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warps[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++)
        sum += warps[w];
    return sum;
}

static __device__ float4 scaled(float4 v, float r, float4 w)
{
    float4 y = {v.x * r * w.x, v.y * r * w.y, v.z * r * w.z, v.w * r * w.w};
    return y;
}

template <int GROUPS>
static __global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_kernel(const float *x, const float *__restrict__ weight, float *y, size_t n, float eps,
                   bool aligned)
{
    float4 v[GROUPS], w[GROUPS];
    float sum = 0;
    x += blockIdx.x * n;
    y += blockIdx.x * n;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        if (at >= n)
            continue;
        v[i] = load4(x, at, n, aligned);
        w[i] = load4(weight, at, n, aligned);
    }
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        if (((size_t)i * blockDim.x + threadIdx.x) * 4 >= n)
            continue;
        sum = __fmaf_rn(v[i].x, v[i].x, sum);
        sum = __fmaf_rn(v[i].y, v[i].y, sum);
        sum = __fmaf_rn(v[i].z, v[i].z, sum);
        sum = __fmaf_rn(v[i].w, v[i].w, sum);
    }
    float r = 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        if (at < n)
            store4(y, at, n, aligned, scaled(v[i], r, w[i]));
    }
}

int rmsnorm_cuda(const struct rmsnorm_args *args, struct exec_stream *s)
{
    size_t n = args->n, groups = (n + 3) / 4, threads = (groups + 31) / 32 * 32;
    bool aligned = n % 4 == 0 &&
                   (((uintptr_t)args->x | (uintptr_t)args->weight | (uintptr_t)args->y) & 15) == 0;
    if (n == 0 || n > NORM_N_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    threads = threads < NORM_THREADS ? threads : NORM_THREADS;
    dim3 grid((unsigned)args->n_rows), block((unsigned)threads);
    cudaStream_t stream = exec_cuda_stream(s);
    size_t each = (groups + threads - 1) / threads;
    if (each <= 1)
        rmsnorm_kernel<1>
            <<<grid, block, 0, stream>>>(args->x, args->weight, args->y, n, args->eps, aligned);
    else if (each <= 2)
        rmsnorm_kernel<2>
            <<<grid, block, 0, stream>>>(args->x, args->weight, args->y, n, args->eps, aligned);
    else
        rmsnorm_kernel<NORM_GROUPS>
            <<<grid, block, 0, stream>>>(args->x, args->weight, args->y, n, args->eps, aligned);
    return exec_cuda_launched(s);
}
