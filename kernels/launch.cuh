/* kernels/launch.cuh - launches that overlap the work before them where that pays. Internal to *.cu.
 *
 * A kernel of few blocks may begin early (overlap.cuh). One of many would only take the place of blocks that still work, so it
 * is launched in plain order. Kernels launched here call overlap_wait() in every thread before anything else.
 */
#pragma once
#include "kernels/exec_cuda.h"
#include "kernels/overlap.cuh"

/* The error is left for exec_cuda_launched(). */
template <typename ARGS>
static inline void launch(void (*kernel)(ARGS), dim3 grid, unsigned n_threads, const ARGS *args,
                          struct exec_stream *s)
{
    size_t n_blocks = (size_t)grid.x * grid.y;
    if (n_blocks <= 2 * (size_t)exec_cuda_n_multiprocessors(s))
        overlap_launch(kernel, grid, n_threads, 0, exec_cuda_stream(s), args);
    else
        kernel<<<grid, n_threads, 0, exec_cuda_stream(s)>>>(*args);
}
