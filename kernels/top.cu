/* top.cu - the k largest logits of each row, falling, ties: lower id; the same as top.c.
 *
 * logits [n_rows][n_vocab], ids and values [n_rows][k]. A cluster of blocks a row finds where the k largest end (row_scan.cuh) and
 * brings them to its first block, which sorts them in shared memory. Refuses k over TOP_MAX or over n_vocab (EBB_EUNSUPPORTED).
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/row_scan.cuh"

#define TOP_MAX ROW_LIST

static __global__ void __launch_bounds__(ROW_THREADS, 1) top_kernel(const struct top_args a)
{
    __shared__ struct row_shared shared;
    __shared__ struct row_list list;
    overlap_wait();
    overlap_announce();
    const float *logits = a.logits + blockIdx.y * a.n_vocab;
    struct row row = row_open(logits, (uint32_t)a.n_vocab, &shared);
    uint32_t highest = (uint32_t)(row_largest(&row, 0) >> 32), n = ROW_LIST + 1;
    uint64_t total;
    struct row_filter f = row_filter_open(sample_logit(highest), 1.0f);
    struct row_choice choice = row_choose(&row, &f, a.k, 1.0f, &total);
    if (choice.bucket > 0) {
        row_range(&row, &f, highest, choice.bucket);
        n = row_collect(&row, &f, shared.range[0], &list);
    }
    if (n > ROW_LIST) { /* too many near the last of them */
        row_cut(&row, &f, 0, highest, choice);
        n = row_collect(&row, &f, ROW_LOWEST, &list);
    }
    if (cluster_rank() == 0) {
        row_sort(&list, n);
        if (threadIdx.x < a.k) {
            uint32_t id = ~(uint32_t)list.tokens[threadIdx.x];
            float logit = logits[id];
            a.ids[blockIdx.y * a.k + threadIdx.x] = (int32_t)id;
            a.values[blockIdx.y * a.k + threadIdx.x] = logit == logit ? logit : -INFINITY;
        }
    }
    cluster_barrier();
}

int top_cuda(const struct top_args *args, struct exec_stream *s)
{
    if (args->k > args->n_vocab || args->k > TOP_MAX || args->n_vocab > INT32_MAX ||
        args->n_rows > 65535)
        return EBB_EUNSUPPORTED;
    if (args->k == 0 || args->n_rows == 0)
        return 0;
    row_launch(top_kernel, args, args->n_rows, s);
    return exec_cuda_launched(s);
}
