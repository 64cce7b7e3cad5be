/* kernels/exec_cuda.h - internal to the room: what the launchers in *.cu need of a CUDA stream.
 *
 * A launcher checks its shape, launches on exec_cuda_stream(s), and returns exec_cuda_launched(s): the launch's
 * error as a code. It never waits, never allocates, and takes capture-time constants only, so that the same call
 * records into a graph.
 */
#pragma once
#include <cuda_runtime_api.h>
#include "kernels/exec.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t exec_cuda_stream(const struct exec_stream *s);

/* 0, or EBB_EDRIVER with the error's words kept for event_query()'s caller (exec_cuda_error()). In a Debug build it also waits for
 * the stream, unless a capture runs, so that a fault is found at the launch that made it. */
int exec_cuda_launched(struct exec_stream *s);

int exec_cuda_n_multiprocessors(const struct exec_stream *s);

#ifdef __cplusplus
}
#endif
