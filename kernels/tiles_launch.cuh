/* kernels/tiles_launch.cuh - the host's side of tiles.cuh: shared memory of a launch. Internal to *.cu. */
#pragma once
#include <cuda_runtime.h>
#include "kernels/tiles.cuh"

static inline struct tiles_rows tiles_rows_make(uint32_t type, size_t n_in, uint32_t piece_shift)
{
    struct tiles_rows rows;
    const bool wide = tiles_is_wide(type);
    rows.type = type;
    rows.row_bytes = (uint32_t)tensor_row_bytes(type, n_in);
    rows.piece_bytes = block_bytes(type) * (wide ? 1 : TILES_STEP_BLOCKS);
    rows.places = rows.row_bytes | (wide ? 0 : block_bytes(type));
    rows.repeats = wide && piece_shift == 0;
    return rows;
}

/* An odd number of sixteens, so that neighbouring rows begin in different banks. */
static inline uint32_t tiles_raw_pitch(const struct tiles_shape *s)
{
    const uint32_t a = s->rows[0].piece_bytes, b = s->rows[1].piece_bytes;
    return ((a > b ? a : b) + TILES_RAW_SLACK + 15) / 16 * 16 | 16;
}

static inline size_t tiles_device_limit(enum cudaDeviceAttr which)
{
    int device = 0, limit = 0;
    if (cudaGetDevice(&device) == cudaSuccess)
        (void)cudaDeviceGetAttribute(&limit, which, device);
    return limit > 0 ? (size_t)limit : 0;
}

/* How many blocks with this much shared memory fit a multiprocessor. */
static inline size_t tiles_blocks_fit(size_t bytes)
{
    return tiles_device_limit(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / (bytes + 1024);
}

/* Fills s for a launch of `kernel` whose tiles have the form `at`, and lets the kernel have the shared memory that it
 * takes; the bytes of it. 0 where this card has too little, or, ahead, where fewer than n_fit blocks would fit a
 * multiprocessor. Not ahead, a second slot for raw weights is given up if more blocks fit without it. */
template <typename at>
static inline size_t tiles_prepare(const void *kernel, struct tiles_shape *s, uint32_t type,
                                   uint32_t odd_type, size_t n_in, size_t n_fit)
{
    const size_t most = tiles_device_limit(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    s->n_blocks = (uint32_t)(n_in / 32);
    s->piece_shift = at::KIND != TILES_ANY && tiles_is_wide(type);
    s->rows[0] = tiles_rows_make(type, n_in, s->piece_shift);
    s->rows[1] = tiles_rows_make(odd_type, n_in, s->piece_shift);
    s->raw_pitch = tiles_raw_pitch(s);
    s->d_at = (uint32_t)activation_d_at(n_in);
    s->sx_at = (uint32_t)activation_sx_at(n_in);
    s->half_at = (uint32_t)activation_half_at(n_in);
    const size_t slot_bytes = (size_t)at::OUTS * s->raw_pitch, one = at::RAW + slot_bytes;
    size_t bytes = at::RAW + at::SLOTS * slot_bytes;
    s->n_slots = at::SLOTS;
    if (!at::AHEAD && (bytes > most || (tiles_blocks_fit(bytes) < n_fit &&
                                        tiles_blocks_fit(one) > tiles_blocks_fit(bytes)))) {
        s->n_slots = 1;
        bytes = one;
    }
    if (bytes > most || (at::AHEAD && tiles_blocks_fit(bytes) < n_fit))
        return 0;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
        cudaSuccess)
        return 0;
    return bytes;
}
