/* kv_store.cu - rows' keys and values into the KV blocks of their positions, on a CUDA card.
 *
 * A row is n_kv_heads * head_dim values of K, then as many of V; a thread takes eight of either, or one where the parts do not
 * begin at 16 bytes. Half floats are rounded to nearest, ties to even, as on the CPU (a NaN stays a NaN, its payload may differ).
 * Inert rows return at once. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): heads over HEAD_DIM_MAX, other types than KV_F16 and KV_F32 (so KV_Q8_0).
 */
#include <cuda_fp16.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"

#define STORE_THREADS 128

static __device__ void store(__half *to, float v)
{
    *to = __float2half_rn(v);
}

static __device__ void store(float *to, float v)
{
    *to = v;
}

static __device__ void store8(__half *to, const float *from)
{
    float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    __half2 h[4] = {__floats2half2_rn(a.x, a.y), __floats2half2_rn(a.z, a.w),
                    __floats2half2_rn(b.x, b.y), __floats2half2_rn(b.z, b.w)};
    *(uint4 *)to = *(const uint4 *)h;
}

static __device__ void store8(float *to, const float *from)
{
    *(float4 *)to = *(const float4 *)from;
    *(float4 *)(to + 4) = *(const float4 *)(from + 4);
}

struct store_job {
    struct kv_store_args a;
    unsigned n, each; /* values of K in a row; values that a thread takes */
};

/* blockIdx.x: the row; .y and the thread: which values of K and V together. */
template <typename T>
static __global__ void __launch_bounds__(STORE_THREADS)
    kv_store_kernel(const __grid_constant__ struct store_job job)
{
    const struct kv_store_args &a = job.a;
    unsigned r = blockIdx.x, n = job.n, i = (blockIdx.y * STORE_THREADS + threadIdx.x) * job.each;
    overlap_wait();
    overlap_announce();
    int32_t position = a.kv.positions[r];
    if (position < 0 || i >= 2 * n)
        return;
    const int32_t *table = a.kv.tables + (size_t)a.kv.row_sequence[r] * a.kv.table_stride;
    char *block = (char *)a.kv.base + (size_t)table[position / KV_BLOCK_TOKENS] * a.kv.block_stride;
    const float *from = i < n ? a.k + (size_t)r * n + i : a.v + (size_t)r * n + (i - n);
    T *to = (T *)block + (size_t)(position % KV_BLOCK_TOKENS) * n + i;
    to += i < n ? 0 : (size_t)KV_BLOCK_TOKENS * n - n;
    if (job.each == 8)
        store8(to, from);
    else
        store(to, *from);
}

int kv_store_cuda(const struct kv_store_args *args, struct exec_stream *s)
{
    const struct kv_view *kv = &args->kv;
    size_t n = kv->n_kv_heads * kv->head_dim;
    if (n == 0 || kv->head_dim > HEAD_DIM_MAX || (kv->type != KV_F16 && kv->type != KV_F32))
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    uintptr_t places =
        (uintptr_t)kv->base | kv->block_stride | (uintptr_t)args->k | (uintptr_t)args->v;
    const struct store_job job = {*args, (unsigned)n, n % 8 == 0 && places % 16 == 0 ? 8u : 1u};
    size_t a_block = (size_t)job.each * STORE_THREADS;
    dim3 grid((unsigned)args->n_rows, (unsigned)((2 * n + a_block - 1) / a_block));
    overlap_launch(kv->type == KV_F16 ? kv_store_kernel<__half> : kv_store_kernel<float>, grid,
                   STORE_THREADS, 0, exec_cuda_stream(s), &job);
    return exec_cuda_launched(s);
}
