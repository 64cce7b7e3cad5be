/* combine.cu - the weighted sum of a row's expert outputs, added to the hidden row (NUMERICS rule 6, tier 1).
 *
 * outputs [n_rows][n_used][d_model], mix and ids [n_rows][n_used], hidden [n_rows][d_model]. One thread a value: its sum runs over
 * ranks in order; ranks with id -1 were not computed and are left out; a row of none adds 0.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"

#define COMBINE_THREADS 128
#define COMBINE_AHEAD   8 /* ranks that are loaded together */

static __global__ void combine_kernel(const struct combine_args p)
{
    overlap_wait();
    overlap_announce();
    size_t row = blockIdx.x, i = (size_t)blockIdx.y * COMBINE_THREADS + threadIdx.x;
    if (i >= p.d_model)
        return;
    size_t pair = row * p.n_used, end = pair + p.n_used;
    float *hidden = p.hidden + row * p.d_model + i, old = *hidden, acc = 0.0f;
    for (; pair < end; pair += COMBINE_AHEAD) {
        float output[COMBINE_AHEAD], mix[COMBINE_AHEAD];
        int32_t id[COMBINE_AHEAD];
#pragma unroll
        for (int j = 0; j < COMBINE_AHEAD; j++) {
            size_t at = min(pair + j, end - 1);
            output[j] = p.outputs[at * p.d_model + i];
            mix[j] = p.mix[at];
            id[j] = pair + j < end ? p.ids[at] : -1;
        }
#pragma unroll
        for (int j = 0; j < COMBINE_AHEAD; j++)
            acc = id[j] >= 0 ? __fmaf_rn(mix[j], output[j], acc) : acc;
    }
    *hidden = old + acc;
}

int combine_cuda(const struct combine_args *args, struct exec_stream *s)
{
    if (args->n_rows == 0 || args->d_model == 0)
        return 0;
    dim3 grid((unsigned)args->n_rows,
              (unsigned)((args->d_model + COMBINE_THREADS - 1) / COMBINE_THREADS));
    launch(combine_kernel, grid, COMBINE_THREADS, args, s);
    return exec_cuda_launched(s);
}
