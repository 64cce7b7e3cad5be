/* kernels/overlap.cuh - programmatic dependent launch: a kernel may begin while the one before it on the stream ends.
 * Internal to *.cu.
 *
 * A kernel launched by overlap_launch() may read what no earlier kernel on the stream that announces itself writes (weights,
 * and what was complete before that kernel began), must call overlap_wait() in every thread that reads results of earlier
 * work, and before it writes anything. overlap_announce() lets the next kernel begin; it belongs after overlap_wait(), so
 * that what was complete before a kernel is complete for all that follow. Cards before sm_90 launch in plain order.
 */
#pragma once
#include <cuda_runtime.h>

/* Returns when all earlier work of the stream is done and its writes are seen. */
static __device__ __forceinline__ void overlap_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void overlap_announce(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* A launch that may overlap the work before it; errors are kept for cudaGetLastError(). */
template <typename job>
static inline void overlap_launch(void (*kernel)(job), dim3 grid, unsigned n_threads,
                                  size_t shared_bytes, cudaStream_t stream, const job *args)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    int device = 0, major = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(n_threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = major >= 9 ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, *args);
}
