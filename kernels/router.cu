/* router.cu - which experts a row goes to (tier 2).
 *
 * weights [n_experts][n_in], x [n_rows][n_in], logits [n_rows][n_experts] (scratch), ids and mix [n_rows][n_used]. A logit is an
 * unquantised product (plain.cuh has the order of addition). Then one warp a row: expert e belongs to lane e mod 32, the
 * exponentials of a lane are added in ascending order, the lanes joined by a butterfly; the choice takes the largest n_used times,
 * ties to the lower id, a probability that is no number last. A row's bits depend on the row alone.
 *
 * Few rows: one launch, a cluster of blocks a row, whose first block chooses when all logits are there. Many rows, or a card without
 * clusters: the product, then the choice.
 */
#include <cuda_runtime.h>
#include "kernels/cluster.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"
#include "kernels/plain.cuh"

#define ROUTER_BLOCKS      8
#define ROUTER_THREADS     512
#define ROUTER_WARPS       (ROUTER_THREADS / 32)
#define CHOOSE_WARPS       4
#define ROUTER_EXPERTS_MAX 512

static __device__ float lanes_largest(float v)
{
    for (int d = 16; d > 0; d >>= 1) {
        float other = __shfl_xor_sync(~0u, v, d);
        v = other > v ? other : v;
    }
    return v;
}

static __device__ float lanes_sum(float v)
{
    for (int d = 16; d > 0; d >>= 1)
        v = v + __shfl_xor_sync(~0u, v, d);
    return v;
}

/* p[j] of expert 32 j + lane: logits to probabilities. PER is how many experts a lane has at most. */
template <int PER>
static __device__ void lanes_softmax(const struct router_args &a, const float *logits,
                                     float (&p)[PER])
{
    unsigned lane = threadIdx.x % 32;
    float max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        p[j] = 32 * j + lane < a.n_experts ? __ldcg(&logits[32 * j + lane]) : -INFINITY;
        max = p[j] > max ? p[j] : max;
    }
    max = lanes_largest(max);
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (32 * j + lane < a.n_experts) {
            p[j] = ebb_expf(p[j] - max);
            sum = sum + p[j];
        }
    sum = lanes_sum(sum);
#pragma unroll
    for (int j = 0; j < PER; j++)
        p[j] = p[j] / sum;
}

/* Probabilities as integers of the same order: 1 = no number, 0 = no expert. */
template <int PER>
static __device__ void lanes_order(const struct router_args &a, const float (&p)[PER],
                                   uint32_t (&order)[PER])
{
#pragma unroll
    for (int j = 0; j < PER; j++) {
        uint32_t number = p[j] == p[j] ? __float_as_uint(p[j]) + 2 : 1;
        order[j] = 32 * j + threadIdx.x % 32 < a.n_experts ? number : 0;
    }
}

/* The largest of all lanes and whose it is (ties: the lower id); it is taken out. */
template <int PER> static __device__ uint32_t lanes_take(uint32_t (&order)[PER], uint32_t *id)
{
    uint32_t best = 0, at = 0, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (order[j] > best) {
            best = order[j];
            at = 32 * j + lane;
        }
    uint32_t most = __reduce_max_sync(~0u, best);
    *id = __reduce_min_sync(~0u, best == most ? at : UINT32_MAX);
#pragma unroll
    for (int j = 0; j < PER; j++)
        order[j] = 32 * j + lane == *id ? 0 : order[j];
    return most;
}

/* One row's choice from its logits, by one warp: lane i keeps rank i. */
template <int PER> static __device__ void row_choose(const struct router_args &a, size_t row)
{
    unsigned lane = threadIdx.x % 32;
    int32_t chosen = -1;
    float p[PER], value = 0.0f, sum = 0.0f;
    if (a.positions[row] >= 0) {
        uint32_t order[PER], id;
        lanes_softmax<PER>(a, a.logits + row * a.n_experts, p);
        lanes_order<PER>(a, p, order);
        for (unsigned rank = 0; rank < a.n_used; rank++) {
            uint32_t most = lanes_take<PER>(order, &id);
            float won = most == 1 ? -1.0f : __uint_as_float(most - 2);
            sum = sum + won;
            value = lane == rank ? won : value;
            chosen = lane == rank ? (int32_t)id : chosen;
        }
        value = (a.renormalise ? value / sum : value) * a.scale;
    }
    if (lane < a.n_used) {
        a.ids[row * a.n_used + lane] = chosen;
        a.mix[row * a.n_used + lane] = value;
    }
}

/* Brings a line to the second-level cache. */
static __device__ void prefetch(const char *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

template <typename W, int PER>
static __global__ void __launch_bounds__(ROUTER_THREADS, 1)
    router_kernel(const struct router_args a)
{
    size_t row = blockIdx.y;
    unsigned warp = cluster_rank() * ROUTER_WARPS + threadIdx.x / 32;
    size_t row_bytes = a.n_in * sizeof(W);
    for (size_t e = warp; e < a.n_experts; e += cluster_size() * ROUTER_WARPS)
        for (size_t at = threadIdx.x % 32 * 128; at < row_bytes; at += 32 * 128)
            prefetch((const char *)a.weights + e * row_bytes + at);
    overlap_wait();
    overlap_announce();
    const float *x = a.x + row * a.n_in;
    if (a.positions[row] >= 0)
        for (size_t e = warp; e < a.n_experts; e += cluster_size() * ROUTER_WARPS) {
            const W *w = (const W *)a.weights + e * a.n_in;
            float acc[1];
            plain_sums<W, 1, 1, 8>(&w, &x, a.n_in, plain_aligned(w, x, a.n_in), acc);
            plain_join<1>(acc);
            if (threadIdx.x % 32 == 0)
                a.logits[row * a.n_experts + e] = acc[0];
        }
    cluster_barrier();
    if (warp == 0)
        row_choose<PER>(a, row);
}

template <int PER>
static __global__ void __launch_bounds__(CHOOSE_WARPS * 32, 1)
    choose_kernel(const struct router_args a)
{
    overlap_wait();
    overlap_announce();
    size_t row = (size_t)blockIdx.x * CHOOSE_WARPS + threadIdx.x / 32;
    if (row < a.n_rows)
        row_choose<PER>(a, row);
}

template <typename W, int PER>
static int router_launch(const struct router_args *args, struct exec_stream *s)
{
    unsigned n_blocks = cluster_blocks(ROUTER_BLOCKS);
    if (args->n_rows <= CUDA_ROWS_MAX && n_blocks > 1) {
        cluster_launch(router_kernel<W, PER>, args, args->n_rows, n_blocks, ROUTER_THREADS,
                       exec_cuda_stream(s));
        return exec_cuda_launched(s);
    }
    struct product_args product = {};
    product.type = args->type;
    product.weights = args->weights;
    product.n_in = args->n_in;
    product.n_out = args->n_experts;
    product.n_rows = args->n_rows;
    product.x = args->x;
    product.y = args->logits;
    int rc = product_plain_cuda(&product, s);
    if (rc != 0)
        return rc;
    n_blocks = (unsigned)((args->n_rows + CHOOSE_WARPS - 1) / CHOOSE_WARPS);
    launch(choose_kernel<PER>, dim3(n_blocks), CHOOSE_WARPS * 32, args, s);
    return exec_cuda_launched(s);
}

template <typename W> static int router_of(const struct router_args *args, struct exec_stream *s)
{
    if (args->n_experts <= 64)
        return router_launch<W, 2>(args, s);
    if (args->n_experts <= 128)
        return router_launch<W, 4>(args, s);
    if (args->n_experts <= 256)
        return router_launch<W, 8>(args, s);
    return router_launch<W, ROUTER_EXPERTS_MAX / 32>(args, s);
}

int router_cuda(const struct router_args *args, struct exec_stream *s)
{
    if (args->n_used == 0 || args->n_used > EXPERTS_USED_MAX || args->n_used > args->n_experts ||
        args->n_experts > ROUTER_EXPERTS_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    switch (args->type) {
    case TENSOR_F32: return router_of<struct plain_f32>(args, s);
    case TENSOR_F16: return router_of<struct plain_f16>(args, s);
    case TENSOR_BF16: return router_of<struct plain_bf16>(args, s);
    }
    return EBB_EUNSUPPORTED;
}
