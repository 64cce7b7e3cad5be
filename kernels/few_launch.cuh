/* kernels/few_launch.cuh - the host's side of few.cuh: shared memory of a launch. Internal to *.cu. */
#pragma once
#include <cuda_runtime.h>
#include "kernels/few.cuh"
#include "kernels/overlap.cuh"
#include "kernels/tiles_launch.cuh"

/* Fills s for blocks of n_warps warps and 8 * GROUPS rows of activations, with `extra` bytes at *extra_at, and lets the kernel have
 * the shared memory that it takes; the bytes of it. 0 where this card has too little. */
template <uint32_t TYPE, unsigned STAGES, int GROUPS>
static inline size_t few_prepare(const void *kernel, struct few_shape *s, size_t n_in,
                                 unsigned n_warps, size_t extra, uint32_t *extra_at)
{
    typedef struct few_form<TYPE> form;
    const size_t row_bytes = tensor_row_bytes(TYPE, n_in), rows = 8 * GROUPS;
    if (row_bytes == 0 || n_in > 1 << 20)
        return 0;
    s->row_bytes = (uint32_t)row_bytes;
    s->n_blocks = (uint32_t)(n_in / 32);
    s->n_pieces = (uint32_t)((n_in + FEW_PIECE - 1) / FEW_PIECE);
    s->x_pitch = (uint32_t)n_in + 16; /* an odd number of sixteens */
    s->xs_at = (uint32_t)(rows * s->x_pitch);
    s->sums_at = s->xs_at + (uint32_t)(rows * s->n_blocks * 4 * form::XS_WORDS);
    *extra_at = s->sums_at + (uint32_t)(rows * s->n_blocks * 4 * form::SUM_WORDS);
    s->ring_at = (uint32_t)(*extra_at + (extra + 15) / 16 * 16);
    s->d_at = (uint32_t)activation_d_at(n_in);
    s->sx_at = (uint32_t)activation_sx_at(n_in);
    s->half_at = (uint32_t)activation_half_at(n_in);
    const size_t bytes = s->ring_at + (size_t)n_warps * STAGES * form::SLOT + FEW_SLACK;
    if (bytes > tiles_device_limit(cudaDevAttrMaxSharedMemoryPerBlockOptin) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
            cudaSuccess)
        return 0;
    return bytes;
}
