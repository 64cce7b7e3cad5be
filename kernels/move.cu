/* move.cu - many blocks of memory to other places in one launch: experts that change slots.
 *
 * pairs [n], each `bytes` long. A copy of the driver's per pair costs 12 us for the 2.6 MiB of an expert, eight times what its bytes do.
 * Here a block of threads takes PIECE bytes of one pair, all its loads before its stores.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"

#define MOVE_THREADS 256
#define MOVE_AHEAD   8 /* loads of 16 bytes that a thread has under way */
#define PIECE        (MOVE_THREADS * MOVE_AHEAD * sizeof(uint4))

static __global__ void move_kernel(const struct move_args p)
{
    overlap_wait();
    overlap_announce();
    struct move_pair pair = p.pairs[blockIdx.y];
    size_t first = (size_t)blockIdx.x * (PIECE / sizeof(uint4)) + threadIdx.x;
    size_t end = p.bytes / sizeof(uint4);
    const uint4 *from = (const uint4 *)pair.from;
    uint4 *to = (uint4 *)pair.to, part[MOVE_AHEAD];
#pragma unroll
    for (int i = 0; i < MOVE_AHEAD; i++)
        if (first + i * MOVE_THREADS < end)
            part[i] = __ldcs(from + first + i * MOVE_THREADS);
#pragma unroll
    for (int i = 0; i < MOVE_AHEAD; i++)
        if (first + i * MOVE_THREADS < end)
            __stcs(to + first + i * MOVE_THREADS, part[i]);
}

int move_cuda(const struct move_args *args, struct exec_stream *s)
{
    static const size_t most = 32768; /* of a launch: a grid's second side is bounded */
    for (size_t first = 0; first < args->n && args->bytes > 0; first += most) {
        struct move_args part = *args;
        part.pairs += first;
        part.n = args->n - first < most ? args->n - first : most;
        dim3 grid((unsigned)((args->bytes + PIECE - 1) / PIECE), (unsigned)part.n);
        launch(move_kernel, grid, MOVE_THREADS, &part, s);
    }
    return exec_cuda_launched(s);
}
