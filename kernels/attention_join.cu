/* attention_join.cu - the second launch of the split form of attention: a head's partitions are joined in ascending order.
 *
 * One block a head, a thread a value, in whole warps: threads past head_dim have none. Scales of up to JOIN_BATCH partitions are
 * computed side by side by one warp, since running maxima are exact; then every thread runs the chain of attention.cuh, and a warp
 * quantises its 32 values if asked. Inert rows are left alone. Owns nothing.
 */
#include "kernels/activation.cuh"
#include "kernels/attention_split.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/quantize.cuh"

#define JOIN_BATCH 32 /* partitions whose parts a thread has under way */

/* How partition first + lane, lane < n, joins the total: {old, now, its share of the sum}, by total_join()'s formulas. */
static __device__ __forceinline__ float4 join_scales(float *max, float2 own, int n)
{
    int lane = threadIdx.x % 32;
    float upto = lane < n ? fmaxf(*max, own.x) : NO_SCORE, before;
    for (int apart = 1; apart < 32; apart *= 2) {
        float left = __shfl_up_sync(0xffffffff, upto, apart);
        upto = lane >= apart ? fmaxf(upto, left) : upto;
    }
    before = __shfl_up_sync(0xffffffff, upto, 1);
    before = lane > 0 ? before : *max;
    *max = __shfl_sync(0xffffffff, upto, n - 1);
    float now = exp2_of(own.x - upto);
    return make_float4(exp2_of(before - upto), now, own.y * now, 0);
}

/* Value i of a row of n; a warp has a block. */
static __device__ __forceinline__ void quants_store(char *row, size_t n, size_t i, float x)
{
    struct quantized z = quantize_lane(x);
    row[i] = (char)z.q;
    if (i % 16 == 0)
        ((int16_t *)(row + activation_half_at(n)))[i / 16] = (int16_t)z.sum16[i / 16 % 2];
    if (i % 32 == 0) {
        ((float *)(row + activation_d_at(n)))[i / 32] = z.d;
        ((float *)(row + activation_sx_at(n)))[i / 32] = z.sx;
    }
}

/* One head of one row, a thread a value: its partitions in ascending order. */
static __global__ void __launch_bounds__(HEAD_DIM_MAX)
    attention_join_kernel(const __grid_constant__ struct split_args s)
{
    __shared__ float4 scales[JOIN_BATCH];
    int head = blockIdx.x, row = blockIdx.y, D = (int)s.a.kv.head_dim;
    bool is_value = (int)threadIdx.x < D;
    int left = s.a.kv.positions[row] / KV_PARTITION_TOKENS + 1;
    overlap_wait();
    overlap_announce();
    if (s.a.kv.positions[row] < 0)
        return;
    size_t at = partial_at(&s, row, head, 0);
    const float *parts = s.parts + at * D + threadIdx.x;
    float out = 0, max = NO_SCORE, sum = 0;
    for (; left > 0; left -= JOIN_BATCH, at += JOIN_BATCH, parts += (size_t)JOIN_BATCH * D) {
        float part[JOIN_BATCH];
        float2 own = make_float2(NO_SCORE, 0);
        if (threadIdx.x < 32 && (int)threadIdx.x < left)
            own = __ldcg(&s.stats[at + threadIdx.x]);
#pragma unroll
        for (int i = 0; i < JOIN_BATCH; i++)
            part[i] = i < left && is_value ? __ldcg(parts + (size_t)i * D) : 0;
        if (threadIdx.x < 32)
            scales[threadIdx.x] = join_scales(&max, own, left < JOIN_BATCH ? left : JOIN_BATCH);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < JOIN_BATCH; i++) {
            if (i >= left)
                break;
            float4 scale = scales[i];
            out = __fmaf_rn(out, scale.x, part[i] * scale.y);
            sum = __fmaf_rn(sum, scale.x, scale.z);
        }
        __syncthreads();
    }
    size_t n = (size_t)s.a.n_heads * D, i = (size_t)head * D + threadIdx.x;
    out = out * (1.0f / sum);
    if (is_value)
        s.a.out[row * n + i] = out;
    if (s.quants != NULL)
        quants_store(s.quants + row * activation_row_bytes(n), n, i, out);
}

int attention_join_cuda(const struct split_args *args, struct exec_stream *s)
{
    dim3 heads((unsigned)args->a.n_heads, (unsigned)args->a.n_rows);
    unsigned threads = ((unsigned)args->a.kv.head_dim + 31) / 32 * 32;
    overlap_launch(attention_join_kernel, heads, threads, 0, exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}
