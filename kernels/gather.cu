/* gather.cu - rows by number: y[j] = x[index[j]], zeros where the index is negative. x [..][n], y [n_rows][n]. */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"

#define GATHER_THREADS 256

static __global__ void gather_kernel(const struct gather_args p)
{
    overlap_wait();
    overlap_announce();
    int32_t from = p.index[blockIdx.x];
#pragma unroll 4
    for (size_t i = threadIdx.x; i < p.n; i += GATHER_THREADS)
        p.y[blockIdx.x * p.n + i] = from < 0 ? 0.0f : p.x[(size_t)from * p.n + i];
}

int gather_cuda(const struct gather_args *args, struct exec_stream *s)
{
    if (args->n_rows == 0 || args->n == 0)
        return 0;
    launch(gather_kernel, dim3((unsigned)args->n_rows), GATHER_THREADS, args, s);
    return exec_cuda_launched(s);
}
