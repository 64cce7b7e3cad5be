/* shared_add.cu - hidden += sigmoid(gate . x) * y, row by row: the shared expert (tier 2).
 *
 * gate [n] or NULL, x, y, hidden [n_rows][n]. One block of SHARED_THREADS a row whatever the batch: thread t takes values t,
 * t + SHARED_THREADS, .. in ascending order, lanes are joined by a butterfly, warps in ascending order. So a row's bits depend on
 * the row alone.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"

#define SHARED_THREADS 512

/* gate . x, for every thread of the block. */
static __device__ float gate_dot(const float *gate, const float *x, size_t n)
{
    __shared__ float warps[SHARED_THREADS / 32];
    float sum = 0.0f;
#pragma unroll 4
    for (size_t i = threadIdx.x; i < n; i += SHARED_THREADS)
        sum = __fmaf_rn(gate[i], x[i], sum);
    for (int d = 16; d > 0; d >>= 1)
        sum = sum + __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warps[0];
    for (int w = 1; w < SHARED_THREADS / 32; w++)
        sum = sum + warps[w];
    return sum;
}

static __global__ void __launch_bounds__(SHARED_THREADS)
    shared_add_kernel(const struct shared_add_args p)
{
    overlap_wait();
    overlap_announce();
    const float *y = p.y + blockIdx.x * p.n;
    float *hidden = p.hidden + blockIdx.x * p.n;
    if (p.gate == NULL) {
        for (size_t i = threadIdx.x; i < p.n; i += SHARED_THREADS)
            hidden[i] = hidden[i] + y[i];
        return;
    }
    float z = gate_dot(p.gate, p.x + blockIdx.x * p.n, p.n);
    float sigmoid = 1.0f / (1.0f + ebb_expf(-z));
    for (size_t i = threadIdx.x; i < p.n; i += SHARED_THREADS)
        hidden[i] = __fmaf_rn(sigmoid, y[i], hidden[i]);
}

int shared_add_cuda(const struct shared_add_args *args, struct exec_stream *s)
{
    if (args->n_rows == 0 || args->n == 0)
        return 0;
    launch(shared_add_kernel, dim3((unsigned)args->n_rows), SHARED_THREADS, args, s);
    return exec_cuda_launched(s);
}
