/* experts_few.cu - the routed experts of a few rows, on the integer tensor cores (NUMERICS tier 1).
 *
 *   a [n_rows][activation_row_bytes(d_model)], ids [n_rows][n_used] -> outputs [n_rows][n_used][d_model]
 *
 * Every expert's weights are read once for up to eight of the (row, rank) pairs that use it. Two launches:
 *   1. expert x 64 hidden values: half of a block's warps compute gate, half up (few.cuh), then SwiGLU, and at once the
 *      quantisation of those values (rule 1), kept in scratch by pair;
 *   2. expert x 128 outputs: the down product, stored at outputs[row][rank].
 *
 * There is no plan: a block looks through the ids for the pairs of its expert. Where there are fewer pairs than experts, a block is
 * some pair's and stands for its expert if no earlier pair does; else it is an expert's. An expert of more than eight pairs is read
 * again for the next eight. Heat and hits are counted in the first launch. Ids outside 0..n_experts - 1 are left out.
 *
 * Refuses gate and up of two types, and rows of activations that do not fit into shared memory.
 */
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/few_launch.cuh"
#include "kernels/ops_cuda.h"
#include "kernels/quantize.cuh"

#define FEW_WARPS      8
#define FEW_THREADS    (32 * FEW_WARPS)
#define FEW_BLOCKS_FIT 3 /* on a multiprocessor */
#define FEW_STAGES     3
#define FEW_HIDDEN     (FEW_OUTS * FEW_WARPS / 2)
#define FEW_PAIRS_MAX  2048

struct experts_few_job {
    struct experts_args args;
    uint8_t *hidden; /* [n_pairs][activation_row_bytes(d_expert)] */
    size_t x_row_bytes, hidden_row_bytes;
    uint32_t n_pairs;
    uint32_t pairs_at; /* in shared memory: uint16_t [n_pairs] */
    bool by_pair;      /* blockIdx.y is a pair, not an expert */
    struct few_shape shape;
};

/* The expert that a block computes, and how many pairs it has. */
struct few_expert {
    const uint8_t *gate, *up, *down;
    unsigned n; /* 0: nothing to do */
};

/* Finds the block's expert and its pairs, which come to `pairs`; all threads. `count`: counts uses and hits. */
static __device__ __forceinline__ struct few_expert expert_find(const struct experts_few_job *job,
                                                                uint16_t *pairs, bool count)
{
    __shared__ unsigned n, earlier;
    const struct experts_args *p = &job->args;
    const int32_t id = job->by_pair ? p->ids[blockIdx.y] : (int32_t)blockIdx.y;
    struct few_expert e = {NULL, NULL, NULL, 0};
    if (id < 0 || (size_t)id >= p->n_experts)
        return e;
    const struct expert_address address = p->addresses[id];
    if (threadIdx.x == 0)
        n = earlier = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < job->n_pairs; i += FEW_THREADS)
        if (p->ids[i] == id) {
            pairs[atomicAdd(&n, 1)] = (uint16_t)i;
            if (job->by_pair && i < blockIdx.y)
                earlier = 1;
        }
    __syncthreads();
    if (earlier != 0)
        return e;
    e.gate = (const uint8_t *)address.gate, e.up = (const uint8_t *)address.up;
    e.down = (const uint8_t *)address.down, e.n = n;
    if (count && threadIdx.x == 0 && e.n != 0)
        atomicAdd(&p->heat[id], e.n);
    if (count && address.resident != 0)
        for (unsigned i = threadIdx.x; i < e.n; i += FEW_THREADS)
            atomicAdd(&p->hits[pairs[i] / p->n_used], 1);
    return e;
}

/* Gate and up values of up to eight pairs lie in their warps' rings, [pair][16]: SwiGLU, quantised to scratch. A warp takes a
 * block of 32 values of a pair. */
template <uint32_t TYPE>
static __device__ __forceinline__ void hidden_store(const uint8_t *shared,
                                                    const struct experts_few_job *job,
                                                    const uint16_t *pairs, unsigned n)
{
    const struct few_shape *s = &job->shape;
    const unsigned lane = threadIdx.x % 32, ring = FEW_STAGES * few_form<TYPE>::SLOT;
    const size_t d = job->args.d_expert;
    for (unsigned i = threadIdx.x / 32; i < n * (FEW_HIDDEN / 32); i += FEW_WARPS) {
        const unsigned r = i / (FEW_HIDDEN / 32), b = i % (FEW_HIDDEN / 32);
        const size_t block = (size_t)blockIdx.x * (FEW_HIDDEN / 32) + b;
        if (block >= d / 32)
            continue;
        const uint8_t *from =
            shared + s->ring_at + (2 * b + lane / 16) * ring + (16 * r + lane % 16) * 4;
        const float gate = *(const float *)from;
        const float up = *(const float *)(from + FEW_WARPS / 2 * ring);
        const struct quantized z = quantize_lane(ebb_swiglu(gate, up));
        uint8_t *to = job->hidden + pairs[r] * job->hidden_row_bytes;
        to[32 * block + lane] = (uint8_t)z.q;
        if (lane == 0) {
            ((float *)(to + activation_d_at(d)))[block] = z.d;
            ((float *)(to + activation_sx_at(d)))[block] = z.sx;
        }
        if (lane < 2)
            ((int16_t *)(to + activation_half_at(d)))[2 * block + lane] =
                (int16_t)(lane == 0 ? z.sum16[0] : z.sum16[1]);
    }
}

template <uint32_t TYPE>
static __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS_FIT)
    hidden_few_kernel(const __grid_constant__ struct experts_few_job job)
{
    extern __shared__ uint4 shared_words[];
    uint8_t *shared = (uint8_t *)shared_words;
    const struct few_shape *s = &job.shape;
    const unsigned warp = threadIdx.x / 32;
    uint16_t *pairs = (uint16_t *)(shared + job.pairs_at);
    uint8_t *ring = ring_of<TYPE, FEW_STAGES>(shared, s);
    const size_t out = (size_t)blockIdx.x * FEW_HIDDEN + warp % (FEW_WARPS / 2) * FEW_OUTS;
    overlap_wait();
    overlap_announce();
    const struct few_expert e = expert_find(&job, pairs, blockIdx.x == 0);
    for (unsigned first = 0; first < e.n; first += 8) {
        const unsigned n = min(e.n - first, 8);
        struct few_weights w =
            weights_open<TYPE>(s, warp < FEW_WARPS / 2 ? e.gate : e.up, job.args.d_expert, out);
        struct few_sums<few_form<TYPE>::KIND, 1> sums;
        if (out < job.args.d_expert)
            weights_begin<TYPE, FEW_STAGES>(ring, s, &w);
        if (warp < n)
            row_load<TYPE, 1>(shared, s, warp,
                              (const uint8_t *)job.args.a +
                                  pairs[first + warp] / job.args.n_used * job.x_row_bytes);
        copies_commit();
        copies_wait<2>(true);
        __syncthreads();
        if (out < job.args.d_expert) {
            tile_few<TYPE, FEW_STAGES, 1>(shared, s, &w, 1, &sums);
            __syncwarp();
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                *(float *)(ring + (16 * few_row(0, i) + few_out(i)) * 4) = few_element(&sums, 0, i);
        }
        __syncthreads();
        hidden_store<TYPE>(shared, &job, pairs + first, n);
        __syncthreads();
    }
}

template <uint32_t TYPE>
static __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS_FIT)
    down_few_kernel(const __grid_constant__ struct experts_few_job job)
{
    extern __shared__ uint4 shared_words[];
    uint8_t *shared = (uint8_t *)shared_words;
    const struct few_shape *s = &job.shape;
    const unsigned warp = threadIdx.x / 32;
    uint16_t *pairs = (uint16_t *)(shared + job.pairs_at);
    const size_t out = ((size_t)blockIdx.x * FEW_WARPS + warp) * FEW_OUTS;
    const struct few_expert e = expert_find(&job, pairs, false);
    if (e.n == 0)
        return;
    for (unsigned first = 0; first < e.n; first += 8) {
        const unsigned n = min(e.n - first, 8);
        struct few_weights w = weights_open<TYPE>(s, e.down, job.args.d_model, out);
        struct few_sums<few_form<TYPE>::KIND, 1> sums;
        if (out < job.args.d_model)
            weights_begin<TYPE, FEW_STAGES>(ring_of<TYPE, FEW_STAGES>(shared, s), s, &w);
        if (first == 0)
            overlap_wait(), overlap_announce();
        if (warp < n)
            row_load<TYPE, 1>(shared, s, warp,
                              job.hidden + pairs[first + warp] * job.hidden_row_bytes);
        copies_commit();
        copies_wait<2>(true);
        __syncthreads();
        if (out < job.args.d_model) {
            tile_few<TYPE, FEW_STAGES, 1>(shared, s, &w, 1, &sums);
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                if (few_row(0, i) < n)
                    job.args.outputs[pairs[first + few_row(0, i)] * job.args.d_model + out +
                                     few_out(i)] = few_element(&sums, 0, i);
        }
        __syncthreads();
    }
}

size_t experts_few_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                size_t d_expert)
{
    (void)n_experts, (void)d_model;
    return n_rows * n_used * activation_row_bytes(d_expert);
}

/* Launch 1 or 2; unless `really`, only looks whether it can be. */
template <uint32_t TYPE, bool HIDDEN>
static int few_launch(struct experts_few_job *job, bool really, struct exec_stream *s)
{
    const struct experts_args *p = &job->args;
    const size_t n_in = HIDDEN ? p->d_model : p->d_expert,
                 n_out = HIDDEN ? p->d_expert : p->d_model;
    const size_t outs = HIDDEN ? FEW_HIDDEN : FEW_WARPS * FEW_OUTS;
    const dim3 grid((unsigned)((n_out + outs - 1) / outs),
                    job->by_pair ? job->n_pairs : (unsigned)p->n_experts);
    void (*kernel)(struct experts_few_job) =
        HIDDEN ? hidden_few_kernel<TYPE> : down_few_kernel<TYPE>;
    const size_t bytes = few_prepare<TYPE, FEW_STAGES, 1>(
        (const void *)kernel, &job->shape, n_in, FEW_WARPS, 2 * job->n_pairs, &job->pairs_at);
    if (bytes == 0)
        return EBB_EUNSUPPORTED;
    if (!really)
        return 0;
    overlap_launch(kernel, grid, FEW_THREADS, bytes, exec_cuda_stream(s), job);
    return exec_cuda_launched(s);
}

template <bool HIDDEN>
static int type_launch(struct experts_few_job *job, bool really, struct exec_stream *s)
{
    switch (HIDDEN ? job->args.gate_type : job->args.down_type) {
    case TENSOR_Q4_0: return few_launch<TENSOR_Q4_0, HIDDEN>(job, really, s);
    case TENSOR_Q4_1: return few_launch<TENSOR_Q4_1, HIDDEN>(job, really, s);
    case TENSOR_Q5_0: return few_launch<TENSOR_Q5_0, HIDDEN>(job, really, s);
    case TENSOR_Q5_1: return few_launch<TENSOR_Q5_1, HIDDEN>(job, really, s);
    case TENSOR_Q8_0: return few_launch<TENSOR_Q8_0, HIDDEN>(job, really, s);
    case TENSOR_Q2_K: return few_launch<TENSOR_Q2_K, HIDDEN>(job, really, s);
    case TENSOR_Q3_K: return few_launch<TENSOR_Q3_K, HIDDEN>(job, really, s);
    case TENSOR_Q4_K: return few_launch<TENSOR_Q4_K, HIDDEN>(job, really, s);
    case TENSOR_Q5_K: return few_launch<TENSOR_Q5_K, HIDDEN>(job, really, s);
    case TENSOR_Q6_K: return few_launch<TENSOR_Q6_K, HIDDEN>(job, really, s);
    default: return EBB_EUNSUPPORTED;
    }
}

int experts_few_cuda(const struct experts_args *args, struct exec_stream *s)
{
    struct experts_few_job job = {};
    const size_t n_pairs = args->n_rows * args->n_used;
    job.args = *args;
    if (args->gate_type != args->up_type || args->n_used > EXPERTS_USED_MAX ||
        n_pairs > FEW_PAIRS_MAX || args->n_experts > 65535)
        return EBB_EUNSUPPORTED;
    if (n_pairs == 0)
        return 0;
    job.hidden = (uint8_t *)args->scratch;
    job.n_pairs = (uint32_t)n_pairs;
    job.by_pair = n_pairs < args->n_experts;
    job.x_row_bytes = activation_row_bytes(args->d_model);
    job.hidden_row_bytes = activation_row_bytes(args->d_expert);
    int rc = type_launch<false>(&job, false, s);
    if (rc == 0)
        rc = type_launch<true>(&job, true, s);
    return rc != 0 ? rc : type_launch<false>(&job, true, s);
}
