/* kernels/few_launch.cuh - the host's side of few.cuh: shared memory of a launch. Internal to *.cu. */
#pragma once
#include <cuda_runtime.h>
#include "kernels/few.cuh"
#include "kernels/overlap.cuh"
#include "kernels/tiles_launch.cuh"

/* Fills s for blocks of n_warps warps with 8 * GROUPS rows of activations, and gives `extra` bytes at *extra_at. The bytes of
 * shared memory with rings of two slots, or 0 where sizes are too large for the form. */
template <uint32_t TYPE, int GROUPS>
static inline size_t few_layout(struct few_shape *s, size_t n_in, unsigned n_warps, size_t extra,
                                uint32_t *extra_at)
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
    s->stages = 2;
    s->d_at = (uint32_t)activation_d_at(n_in);
    s->sx_at = (uint32_t)activation_sx_at(n_in);
    s->half_at = (uint32_t)activation_half_at(n_in);
    return s->ring_at + (size_t)n_warps * 2 * form::SLOT + FEW_SLACK;
}

/* As many slots as there is room for with n_fit blocks on a multiprocessor (or as many blocks as fit with two slots); lets the
 * kernel have what it takes. The bytes, or 0 where this card has too little. */
template <uint32_t TYPE>
static inline size_t few_stages(const void *kernel, struct few_shape *s, unsigned n_warps,
                                size_t bytes, size_t n_fit)
{
    const size_t most = tiles_device_limit(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const size_t slot = (size_t)n_warps * few_form<TYPE>::SLOT;
    if (bytes == 0 || bytes > most)
        return 0;
    if (n_fit > tiles_blocks_fit(bytes))
        n_fit = tiles_blocks_fit(bytes);
    while (s->stages < FEW_STAGES_MAX && s->stages <= s->n_pieces && bytes + slot <= most &&
           tiles_blocks_fit(bytes + slot) >= n_fit)
        bytes += slot, s->stages++;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
        cudaSuccess)
        return 0;
    return bytes;
}
