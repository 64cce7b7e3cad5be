/* misses.cu - sharing a layer's absent experts out between the card and the host (misses.h), and fetching the host's rows.
 *
 * ask: one block, a thread a pair. The split is known from shared memory alone, so that a step without work for the host costs a
 * short launch. What the host reads is written through to its memory, and the number after all of it, by one thread behind the
 * barrier: the host sees the number last. Nothing here waits for the host.
 * wait: a memory operation of the stream, carried out by the card's front end: no kernel spins and no multiprocessor is held. While
 * the stream records it becomes a node between what was recorded last and what comes next. The driver's calls are looked up by name,
 * as libcuda is not linked; where it has none, EBB_EUNSUPPORTED.
 * take: a block a pair; pairs that the card computed itself leave at once. The rows are read past the caches.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/misses.h"

#define ASK_THREADS  256
#define TAKE_THREADS 256

/* Which of the distinct absent experts a pair has, from 0, or -1; *n = how many there are. All threads; order is of shared memory. */
static __device__ __forceinline__ int absent_order(const struct miss_ask_args &p, int32_t id,
                                                   unsigned n_pairs, unsigned *n)
{
    __shared__ int32_t absent[MISS_PAIRS_MAX];
    __shared__ unsigned char leads[MISS_PAIRS_MAX];
    const unsigned pair = threadIdx.x;
    unsigned first = 0, order = 0;
    const bool is_absent = id >= 0 && (size_t)id < p.n_experts && p.addresses[id].resident == 0;
    if (pair < n_pairs)
        absent[pair] = is_absent ? id : -1;
    __syncthreads();
    if (pair < n_pairs) {
        while (is_absent && absent[first] != id)
            first++;
        leads[pair] = is_absent && first == pair;
    }
    __syncthreads();
    *n = 0;
    for (unsigned i = 0; i < n_pairs; i++) {
        order += i < first ? leads[i] : 0;
        *n += leads[i];
    }
    return is_absent ? (int)order : -1;
}

static __global__ void __launch_bounds__(ASK_THREADS) ask_kernel(const struct miss_ask_args p)
{
    overlap_wait();
    overlap_announce();
    const unsigned pair = threadIdx.x, n_pairs = (unsigned)(p.n_rows * p.n_used);
    const int32_t id = pair < n_pairs ? p.ids[pair] : -1;
    unsigned n_absent;
    const int order = absent_order(p, id, n_pairs, &n_absent);
    const unsigned n_away = p.control->split[n_absent];
    const bool is_away = order >= 0 && order < (int)n_away;
    if (pair < n_pairs) {
        p.here[pair] = is_away ? -1 : id;
        if (n_away > 0)
            p.away[pair] = is_away ? id : -1;
        if (is_away)
            atomicAdd(&p.heat[id], 1u);
    }
    if (n_away > 0) {
        for (size_t i = threadIdx.x; i < p.n_rows * p.d_model; i += ASK_THREADS)
            p.away_x[i] = p.x[i];
        __threadfence_system();
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    volatile struct miss_request *request = p.request;
    if (n_away > 0) {
        request->tag = p.tag;
        request->n_experts = n_away;
        request->answered = 0;
        __threadfence_system();
    }
    request->number = MISS_NUMBER(p.control->number + p.index, n_absent, n_away > 0);
}

static int ask_cuda(const struct miss_ask_args *args, struct exec_stream *s)
{
    if (args->n_rows > MISS_ROWS_MAX || args->n_used > EXPERTS_USED_MAX)
        return EBB_EUNSUPPORTED;
    launch(ask_kernel, dim3(1), ASK_THREADS, args, s);
    return exec_cuda_launched(s);
}

static __global__ void __launch_bounds__(TAKE_THREADS) take_kernel(const struct miss_take_args p)
{
    overlap_wait();
    overlap_announce();
    const size_t pair = blockIdx.x;
    if (p.here[pair] >= 0 || p.ids[pair] < 0)
        return;
    const float *row = p.rows + pair * p.d_model;
    float *output = p.outputs + pair * p.d_model;
    for (size_t i = threadIdx.x; i < p.d_model; i += TAKE_THREADS)
        output[i] = __ldcv(row + i);
}

static int take_cuda(const struct miss_take_args *args, struct exec_stream *s)
{
    const size_t n_pairs = args->n_rows * args->n_used;
    if (n_pairs == 0)
        return 0;
    launch(take_kernel, dim3((unsigned)n_pairs), TAKE_THREADS, args, s);
    return exec_cuda_launched(s);
}

/* The version from which a call has the form used here. */
static int entry_find(const char *name, unsigned version, void **entry)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t rc =
        cudaGetDriverEntryPointByVersion(name, entry, version, cudaEnableDefault, &found);
    return rc == cudaSuccess && found == cudaDriverEntryPointSuccess ? 0 : EBB_EUNSUPPORTED;
}

static int wait_now(cudaStream_t stream, const uint32_t *flag, uint32_t value)
{
    void *entry = NULL;
    int rc = entry_find("cuStreamWaitValue32", 11070, &entry);
    if (rc != 0)
        return rc;
    const CUresult done = ((PFN_cuStreamWaitValue32_v11070)entry)(stream, (CUdeviceptr)flag, value,
                                                                  CU_STREAM_WAIT_VALUE_EQ);
    return done == CUDA_SUCCESS ? 0 : EBB_EDRIVER;
}

/* A node of `graph` behind the n_before others. */
static int node_add(cudaGraph_t graph, const cudaGraphNode_t *before, size_t n_before,
                    const uint32_t *flag, uint32_t value, cudaGraphNode_t *node)
{
    void *add = NULL, *current = NULL;
    CUcontext context = NULL;
    int rc = entry_find("cuGraphAddBatchMemOpNode", 11070, &add);
    if (rc == 0)
        rc = entry_find("cuCtxGetCurrent", 4000, &current);
    if (rc != 0)
        return rc;
    if (((PFN_cuCtxGetCurrent_v4000)current)(&context) != CUDA_SUCCESS)
        return EBB_EDRIVER;
    CUstreamBatchMemOpParams wait = {};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address = (CUdeviceptr)flag;
    wait.waitValue.value = value;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {};
    params.ctx = context;
    params.count = 1;
    params.paramArray = &wait;
    const CUresult done =
        ((PFN_cuGraphAddBatchMemOpNode_v11070)add)(node, graph, before, n_before, &params);
    return done == CUDA_SUCCESS ? 0 : EBB_EDRIVER;
}

static int wait_cuda(const uint32_t *flag, uint32_t value, struct exec_stream *s)
{
    const cudaStream_t stream = exec_cuda_stream(s);
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph = NULL;
    cudaGraphNode_t node = NULL;
    const cudaGraphNode_t *before = NULL;
    const cudaGraphEdgeData *edges = NULL;
    size_t n_before = 0;
    if (cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, &before, &edges, &n_before) !=
        cudaSuccess)
        return EBB_EDRIVER;
    if (status != cudaStreamCaptureStatusActive)
        return wait_now(stream, flag, value);
    int rc = node_add(graph, before, n_before, flag, value, &node);
    if (rc == 0 && cudaStreamUpdateCaptureDependencies(
                       stream, &node, NULL, 1, cudaStreamSetCaptureDependencies) != cudaSuccess)
        rc = EBB_EDRIVER;
    return rc;
}

extern "C" const struct miss_ops miss_ops_cuda = {ask_cuda, wait_cuda, take_cuda};
