/* logprob.cu - the normaliser of a row's logits, and the sampled token's logit; as logprob.c.
 *
 * logits [n_rows][n_vocab]. The mass is the same sum of integers as on the CPU; only the fp64 log() of it is the card's own, so
 * norms may differ from the CPU's in their last bit or two. A cluster of blocks a row (row_scan.cuh).
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/row_scan.cuh"

static __global__ void __launch_bounds__(ROW_THREADS) logprob_kernel(const struct logprob_args a)
{
    __shared__ struct row_shared shared;
    overlap_wait();
    overlap_announce();
    const float *logits = a.logits + blockIdx.y * a.n_vocab;
    struct row row = row_open(logits, (uint32_t)a.n_vocab, &shared);
    float max = sample_logit((uint32_t)(row_largest(&row, 0) >> 32));
    struct row_filter f = row_filter_open(max, 1.0f);
    f.masses = true;
    uint64_t total = row_total(&row, &f, 1);
    if (cluster_rank() == 0 && threadIdx.x == 0) {
        int32_t id = a.ids[blockIdx.y];
        bool known = id >= 0 && (size_t)id < a.n_vocab;
        double mass = (double)total / SAMPLE_MASS_ONE;
        a.norms[blockIdx.y] = total > 0 ? (double)max + log(mass) : (double)max;
        a.chosen[blockIdx.y] = known ? logits[id] : -INFINITY;
    }
    cluster_barrier();
}

int logprob_cuda(const struct logprob_args *args, struct exec_stream *s)
{
    if (args->n_vocab == 0 || args->n_vocab > INT32_MAX || args->n_rows > 65535)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    row_launch(logprob_kernel, args, args->n_rows, s);
    return exec_cuda_launched(s);
}
