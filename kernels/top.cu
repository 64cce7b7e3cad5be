/* top.cu - the k largest logits of each row, falling, ties: lower id; the same as top.c.
 *
 * logits [n_rows][n_vocab], ids and values [n_rows][k]. A cluster of blocks a row finds where the k largest end (row_scan.cuh) and
 * brings them to its first block, which sorts them in shared memory. Refuses k over TOP_MAX or over n_vocab (EBB_EUNSUPPORTED).
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/row_scan.cuh"

#define TOP_MAX ROW_THREADS

struct top_shared {
    struct row_shared row;
    uint64_t list[TOP_MAX]; /* key in the upper half, ~id in the lower */
    uint32_t n;
};

/* Brings the kept tokens to the first block's list, in no order. */
static __device__ void top_collect(const struct row *row, const struct row_filter *f,
                                   struct top_shared *s)
{
    struct top_shared *first = cluster_at(s, 0);
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32) {
        uint32_t key = row_key(row, id);
        if (row_keeps(f, key, id))
            first->list[atomicAdd(&first->n, 1u)] = (uint64_t)key << 32 | (uint32_t)~id;
    }
}

/* Bitonic, one entry a thread, falling. */
static __device__ void top_sort(uint64_t *list)
{
    for (unsigned run = 2; run <= TOP_MAX; run <<= 1)
        for (unsigned d = run / 2; d > 0; d >>= 1) {
            unsigned at = threadIdx.x, other = at ^ d;
            __syncthreads();
            if (other > at) {
                uint64_t a = list[at], b = list[other];
                bool falls = (at & run) == 0;
                if (falls ? a < b : a > b) {
                    list[at] = b;
                    list[other] = a;
                }
            }
        }
    __syncthreads();
}

static __global__ void __launch_bounds__(ROW_THREADS) top_kernel(const struct top_args a)
{
    __shared__ struct top_shared s;
    const float *logits = a.logits + blockIdx.y * a.n_vocab;
    struct row row = row_open(logits, (uint32_t)a.n_vocab, &s.row);
    s.list[threadIdx.x] = 0;
    s.n = 0;
    uint32_t highest = (uint32_t)(row_largest(&row, 0) >> 32);
    struct row_filter f = {{0, 0}, {UINT32_MAX, UINT32_MAX}, sample_logit(highest), 1.0f, 1, false};
    row_cut(&row, &f, 0, highest, a.k, 1.0f);
    top_collect(&row, &f, &s);
    cluster_barrier();
    if (cluster_rank() != 0)
        return;
    top_sort(s.list);
    if (threadIdx.x >= a.k)
        return;
    uint32_t id = ~(uint32_t)s.list[threadIdx.x];
    float logit = logits[id];
    a.ids[blockIdx.y * a.k + threadIdx.x] = (int32_t)id;
    a.values[blockIdx.y * a.k + threadIdx.x] = logit == logit ? logit : -INFINITY;
}

int top_cuda(const struct top_args *args, struct exec_stream *s)
{
    if (args->k > args->n_vocab || args->k > TOP_MAX || args->n_vocab > INT32_MAX ||
        args->n_rows > 65535)
        return EBB_EUNSUPPORTED;
    if (args->k == 0 || args->n_rows == 0)
        return 0;
    cluster_launch(top_kernel, args, args->n_rows, cluster_blocks(ROW_BLOCKS), ROW_THREADS,
                   exec_cuda_stream(s));
    return exec_cuda_launched(s);
}
