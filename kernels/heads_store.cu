/* heads_store.cu - q and k normed and rotated, k and v stored, in one launch (kernels.h). Tier 2: the bits of head_rope and kv_store.
 *
 * One warp a head: first those of q, in place, then those of k, which go to the KV blocks as they leave the rotation, then those
 * of v. Inert rows store nothing. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): what head_rope or kv_store refuses, other types than KV_F16, shapes of q, k and the KV that do
 * not fit each other.
 */
#include <cuda_fp16.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/rope.cuh"

/* One head, from the warp's place `from`, to K or V (is_value) of its row's position. */
static __device__ __forceinline__ void head_store(const struct kv_view *kv, unsigned row,
                                                  unsigned kv_head, bool is_value,
                                                  const float *from)
{
    int32_t position = kv->positions[row];
    if (position < 0)
        return;
    const int32_t *table = kv->tables + (size_t)kv->row_sequence[row] * kv->table_stride;
    __half *to =
        (__half *)((char *)kv->base + (size_t)table[position / KV_BLOCK_TOKENS] * kv->block_stride);
    size_t token = (is_value ? KV_BLOCK_TOKENS : 0) + position % KV_BLOCK_TOKENS;
    to += (token * kv->n_kv_heads + kv_head) * kv->head_dim;
    for (unsigned d = threadIdx.x % 32; d < kv->head_dim; d += 32)
        to[d] = __float2half_rn(from[d]);
}

static __global__ void __launch_bounds__(ROPE_WARPS * 32)
    heads_store_kernel(const __grid_constant__ struct heads_store_args a)
{
    __shared__ float heads[ROPE_WARPS][HEAD_DIM_MAX];
    const struct kv_view &kv = a.store.kv;
    unsigned row = blockIdx.x, number = blockIdx.y * ROPE_WARPS + threadIdx.x / 32;
    unsigned n_q = (unsigned)a.q.n_heads, n_kv = (unsigned)kv.n_kv_heads, lane = threadIdx.x % 32;
    float *head = heads[threadIdx.x / 32];
    overlap_wait();
    overlap_announce();
    if (number < n_q) {
        head_turn(&a.q, row, number, head);
        float *to = a.q.x + ((size_t)row * n_q + number) * a.q.head_dim;
        for (unsigned d = lane; d < a.q.head_dim; d += 32)
            to[d] = head[d];
    } else if (number < n_q + n_kv) {
        head_turn(&a.k, row, number - n_q, head);
        head_store(&kv, row, number - n_q, false, head);
    } else if (number < n_q + 2 * n_kv) {
        unsigned kv_head = number - n_q - n_kv;
        head_store(&kv, row, kv_head, true,
                   a.store.v + ((size_t)row * n_kv + kv_head) * kv.head_dim);
    }
}

int heads_store_cuda(const struct heads_store_args *args, struct exec_stream *s)
{
    const struct head_rope_args *q = &args->q, *k = &args->k;
    const struct kv_view *kv = &args->store.kv;
    if (kv->type != KV_F16 || kv->head_dim == 0 || kv->head_dim > HEAD_DIM_MAX ||
        q->head_dim != kv->head_dim || k->head_dim != kv->head_dim ||
        k->n_heads != kv->n_kv_heads || kv->n_kv_heads == 0 || args->store.k != k->x ||
        q->n_rows != args->store.n_rows || k->n_rows != args->store.n_rows ||
        q->n_half > q->head_dim / 2 || k->n_half > k->head_dim / 2)
        return EBB_EUNSUPPORTED;
    if (q->n_rows == 0)
        return 0;
    size_t n_heads = q->n_heads + 2 * kv->n_kv_heads;
    dim3 grid((unsigned)q->n_rows, (unsigned)((n_heads + ROPE_WARPS - 1) / ROPE_WARPS));
    overlap_launch(heads_store_kernel, grid, ROPE_WARPS * 32, 0, exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}
