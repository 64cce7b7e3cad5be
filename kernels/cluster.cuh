/* kernels/cluster.cuh - a few blocks that work on one row, see each other's shared memory and wait for each other. Internal.
 *
 * From compute capability 9.0 the hardware does this (thread block clusters); before, a cluster is one block, and all of this
 * comes down to __syncthreads(). A barrier also makes what any block of the cluster wrote to memory visible to the others.
 * A block must not end while others may look into its shared memory: a last barrier sees to that.
 */
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

static __device__ inline unsigned cluster_rank(void)
{
#if __CUDA_ARCH__ >= 900
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return 0;
#endif
}

static __device__ inline unsigned cluster_size(void)
{
#if __CUDA_ARCH__ >= 900
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
#else
    return 1;
#endif
}

static __device__ inline void cluster_barrier(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#else
    __syncthreads();
#endif
}

/* Where block `rank` of the cluster has what this block has at p, a place in shared memory. */
template <typename T> static __device__ inline T *cluster_at(T *p, unsigned rank)
{
#if __CUDA_ARCH__ >= 900
    uint64_t at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"((uint64_t)p), "r"(rank));
    return (T *)at;
#else
    return rank == 0 ? p : NULL;
#endif
}

/* Blocks a cluster on this card: `wanted` (a power of two, at most 8, which every card with clusters has) or 1. */
static inline unsigned cluster_blocks(unsigned wanted)
{
    int device = 0, has = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) != cudaSuccess)
        return 1;
    return has ? wanted : 1;
}

/* n_clusters clusters, as blockIdx.y counts them, of n_blocks blocks each. With more than one block the launch may overlap the
 * work before it (overlap.cuh). The error is left for exec_cuda_launched(). */
template <typename ARGS>
static inline void cluster_launch(void (*kernel)(ARGS), const ARGS *args, size_t n_clusters,
                                  unsigned n_blocks, unsigned n_threads, cudaStream_t stream)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = n_blocks;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(n_blocks, (unsigned)n_clusters);
    config.blockDim = dim3(n_threads);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = n_blocks > 1 ? 2 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, *args);
}
