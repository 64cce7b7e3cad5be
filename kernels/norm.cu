/* norm.cu - y = x / sqrt(mean(x^2) + eps) * weight on a CUDA card. Tier 2: one block a row.
 *
 * Thread t of T holds the groups of four values t, t + T, ...; it squares and adds its own in ascending order with fmaf, a warp
 * joins its lanes by halving distances, and every thread then adds the warps' sums in ascending order. T depends on n alone, so a
 * row's bits do not depend on the launch. Values stay in registers between the passes; where a row does not begin at 16 bytes, or
 * n is no multiple of four, single loads take the same values in the same order. The fused form also quantises what it writes.
 * Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): more than NORM_N_MAX values a row.
 */
#include "kernels/activation.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"

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

struct norm_job {
    struct rmsnorm_args a;
    bool aligned;
    char *quants; /* rows of activations, or NULL */
};

/* The thread's four values of a row, y[at..], as quants (NUMERICS rule 1, as in quantize.cuh); eight threads have a block. All lanes
 * call; is_real is the same in a block's. */
static __device__ __forceinline__ void quantize4(char *row, size_t n, size_t at, float4 y,
                                                 bool is_real)
{
    const float v[4] = {y.x, y.y, y.z, y.w};
    unsigned largest = 0;
    int q[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    for (int apart = 1; apart < 8; apart *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, apart));
    float amax = __uint_as_float(largest);
    bool tiny = amax < 0x1p-100f, finite = largest < 0x7f800000u;
    float id = 127.0f / amax;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float rounded = tiny || !finite ? 0.0f : rintf(v[i] * id);
        q[i] = (int)fminf(fmaxf(rounded, -127.0f), 127.0f);
        sum += q[i];
    }
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    int both = sum + __shfl_xor_sync(0xffffffff, sum, 4);
    if (!is_real)
        return;
    *(char4 *)(row + at) =
        make_char4((signed char)q[0], (signed char)q[1], (signed char)q[2], (signed char)q[3]);
    if (threadIdx.x % 4 == 0)
        ((int16_t *)(row + activation_half_at(n)))[at / 16] = (int16_t)sum;
    if (threadIdx.x % 8 == 0) {
        float d = tiny ? 0.0f : amax / 127.0f;
        ((float *)(row + activation_d_at(n)))[at / 32] = d;
        ((float *)(row + activation_sx_at(n)))[at / 32] = d * (float)both;
    }
}

/* Weights are read before the work ahead of this launch has ended. */
template <int GROUPS>
static __global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_kernel(const __grid_constant__ struct norm_job job)
{
    const size_t n = job.a.n;
    const float *x = job.a.x + blockIdx.x * n;
    float *y = job.a.y + blockIdx.x * n;
    float4 v[GROUPS], w[GROUPS];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        if (at < n)
            w[i] = load4(job.a.weight, at, n, job.aligned);
    }
    overlap_wait();
    overlap_announce();
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        if (at < n)
            v[i] = load4(x, at, n, job.aligned);
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
    float r = 1.0f / sqrtf(block_sum(sum) / (float)n + job.a.eps);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        size_t at = ((size_t)i * blockDim.x + threadIdx.x) * 4;
        float4 out = {0, 0, 0, 0};
        if (at < n) {
            out = scaled(v[i], r, w[i]);
            store4(y, at, n, job.aligned, out);
        }
        if (job.quants != NULL)
            quantize4(job.quants + blockIdx.x * activation_row_bytes(n), n, at, out, at < n);
    }
}

static int norm_launch(const struct rmsnorm_args *args, void *quants, struct exec_stream *s)
{
    const size_t n = args->n, groups = (n + 3) / 4;
    size_t threads = (groups + 31) / 32 * 32;
    const uintptr_t places = (uintptr_t)args->x | (uintptr_t)args->weight | (uintptr_t)args->y;
    const struct norm_job job = {*args, n % 4 == 0 && places % 16 == 0, (char *)quants};
    if (n == 0 || n > NORM_N_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    threads = threads < NORM_THREADS ? threads : NORM_THREADS;
    const size_t each = (groups + threads - 1) / threads;
    void (*kernel)(struct norm_job) = each <= 1   ? rmsnorm_kernel<1>
                                      : each <= 2 ? rmsnorm_kernel<2>
                                                  : rmsnorm_kernel<NORM_GROUPS>;
    overlap_launch(kernel, dim3((unsigned)args->n_rows), (unsigned)threads, 0, exec_cuda_stream(s),
                   &job);
    return exec_cuda_launched(s);
}

int rmsnorm_cuda(const struct rmsnorm_args *args, struct exec_stream *s)
{
    return norm_launch(args, NULL, s);
}

int rmsnorm_quantize_cuda(const struct rmsnorm_quantize_args *args, struct exec_stream *s)
{
    const bool fits = args->norm.n % 32 == 0 && (uintptr_t)args->a % 16 == 0;
    return fits ? norm_launch(&args->norm, args->a, s) : EBB_EUNSUPPORTED;
}
