/* swiglu.cu - y = silu(gate) * up, value by value (NUMERICS rule 5, tier 1). All [n_rows][n]; y may be gate. */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"

#define SWIGLU_THREADS 256
#define SWIGLU_VALUES  512 /* a block */

static __global__ void swiglu_kernel(const struct swiglu_args p)
{
    overlap_wait();
    overlap_announce();
    size_t n = p.n_rows * p.n, i = (size_t)blockIdx.x * SWIGLU_VALUES + threadIdx.x;
#pragma unroll
    for (int j = 0; j < SWIGLU_VALUES / SWIGLU_THREADS; j++, i += SWIGLU_THREADS)
        if (i < n)
            p.y[i] = ebb_swiglu(p.gate[i], p.up[i]);
}

int swiglu_cuda(const struct swiglu_args *args, struct exec_stream *s)
{
    size_t n_blocks = (args->n_rows * args->n + SWIGLU_VALUES - 1) / SWIGLU_VALUES;
    if (n_blocks > INT32_MAX)
        return EBB_EUNSUPPORTED;
    if (n_blocks == 0)
        return 0;
    launch(swiglu_kernel, dim3((unsigned)n_blocks), SWIGLU_THREADS, args, s);
    return exec_cuda_launched(s);
}
