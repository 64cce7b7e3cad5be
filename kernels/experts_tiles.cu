/* experts_tiles.cu - the routed experts of many rows, on the integer tensor cores (NUMERICS tier 1).
 *
 *   a [n_rows][activation_row_bytes(d_model)], ids [n_rows][n_used] -> outputs [n_rows][n_used][d_model]
 *
 * Three launches:
 *   1. one block sorts the (row, rank) pairs by expert and cuts each expert's into tiles of 64, counts heat and hits, and keeps
 *      the experts' addresses beside the tiles;
 *   2. tile x 64 hidden values: gate and up products side by side (sixteen outputs of the one, sixteen of the other), SwiGLU,
 *      and at once the quantisation of those values (rule 1), kept in scratch;
 *   3. tile x 128 outputs: the down product, stored at outputs[row][rank].
 *
 * How many tiles there are is known only on the card: blocks of 2 and 3 take pieces of work from a counter until none is left.
 * Where a pair lies among its expert's, and which block computes it, never shows in its bits. Scratch: the plan's lists, then one
 * quantised hidden row a pair. Ids outside 0..n_experts - 1 are left out.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/ops_cuda.h"
#include "kernels/tiles.cuh"
#include "kernels/tiles_launch.cuh"

#define PLAN_THREADS     1024
#define PLAN_EXPERTS_MAX 4096 /* two counters each in shared memory */
#define TILE_OUTS        128
#define TILE_PAIRS       64

/* Up to 64 pairs of one expert. */
struct experts_tile {
    const uint8_t *gate, *up, *down;
    uint32_t first, n; /* in pairs */
};

/* In scratch. */
struct experts_tiles_plan {
    uint32_t n_tiles;
    uint32_t next[2]; /* pieces of work given out beyond every block's first, of launches 2 and 3 */
};

struct experts_tiles_job {
    struct experts_args args;
    struct experts_tiles_plan *plan;
    struct experts_tile *tiles;
    uint32_t *pairs; /* row * n_used + rank, by expert */
    uint8_t *hidden; /* [n_pairs][activation_row_bytes(d_expert)], in the order of pairs */
    size_t gate_row_bytes, up_row_bytes, down_row_bytes, x_row_bytes, hidden_row_bytes;
    struct tiles_shape hidden_shape, down_shape;
};

static size_t part_bytes(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t tiles_most(size_t n_pairs, size_t n_experts)
{
    return n_pairs / TILE_PAIRS + (n_pairs < n_experts ? n_pairs : n_experts);
}

size_t experts_tiles_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                  size_t d_expert)
{
    const size_t n_pairs = n_rows * n_used;
    (void)d_model;
    return part_bytes(sizeof(struct experts_tiles_plan)) +
           part_bytes(tiles_most(n_pairs, n_experts) * sizeof(struct experts_tile)) +
           part_bytes(n_pairs * sizeof(uint32_t)) + n_pairs * activation_row_bytes(d_expert);
}

static void scratch_place(struct experts_tiles_job *job)
{
    const size_t n_pairs = job->args.n_rows * job->args.n_used;
    uint8_t *at = (uint8_t *)job->args.scratch;
    job->plan = (struct experts_tiles_plan *)at;
    at += part_bytes(sizeof(struct experts_tiles_plan));
    job->tiles = (struct experts_tile *)at;
    at += part_bytes(tiles_most(n_pairs, job->args.n_experts) * sizeof(struct experts_tile));
    job->pairs = (uint32_t *)at;
    job->hidden = at + part_bytes(n_pairs * sizeof(uint32_t));
}

/* The sum of v over the threads before this one; *total is that over all. */
static __device__ unsigned sum_before(unsigned v, unsigned *total)
{
    __shared__ unsigned sums[PLAN_THREADS / 32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned before = v, ahead = 0;
    for (unsigned i = 1; i < 32; i *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, before, i);
        before += lane >= i ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        sums[warp] = before;
    __syncthreads();
    *total = 0;
    for (unsigned i = 0; i < PLAN_THREADS / 32; i++) {
        ahead += i < warp ? sums[i] : 0;
        *total += sums[i];
    }
    return ahead + before - v;
}

/* From the experts' counts to where their pairs begin, their tiles, and heat. */
static __device__ void plan_tiles(const struct experts_tiles_job *job, const uint32_t *counts,
                                  uint32_t *places)
{
    unsigned n_pairs = 0, n_tiles = 0;
    for (size_t base = 0; base < job->args.n_experts; base += PLAN_THREADS) {
        const size_t e = base + threadIdx.x;
        const unsigned n = e < job->args.n_experts ? counts[e] : 0;
        unsigned all_pairs, all_tiles;
        const unsigned first = n_pairs + sum_before(n, &all_pairs);
        unsigned tile = n_tiles + sum_before((n + TILE_PAIRS - 1) / TILE_PAIRS, &all_tiles);
        n_pairs += all_pairs, n_tiles += all_tiles;
        if (n == 0)
            continue;
        const struct expert_address address = job->args.addresses[e];
        places[e] = first;
        job->args.heat[e] += n;
        for (unsigned i = 0; i < n; i += TILE_PAIRS)
            job->tiles[tile++] = {(const uint8_t *)address.gate, (const uint8_t *)address.up,
                                  (const uint8_t *)address.down, first + i,
                                  n - i < TILE_PAIRS ? n - i : TILE_PAIRS};
    }
    if (threadIdx.x == 0)
        *job->plan = {n_tiles, {0, 0}};
}

static __global__ void __launch_bounds__(PLAN_THREADS)
    experts_plan_kernel(const __grid_constant__ struct experts_tiles_job job)
{
    extern __shared__ uint32_t counts[]; /* [n_experts], then as many places */
    const struct experts_args *p = &job.args;
    uint32_t *places = counts + p->n_experts;
    const size_t n_pairs = p->n_rows * p->n_used;
    for (size_t e = threadIdx.x; e < p->n_experts; e += PLAN_THREADS)
        counts[e] = 0;
    __syncthreads();
    for (size_t pair = threadIdx.x; pair < n_pairs; pair += PLAN_THREADS)
        if (p->ids[pair] >= 0 && (size_t)p->ids[pair] < p->n_experts)
            atomicAdd(&counts[p->ids[pair]], 1);
    __syncthreads();
    plan_tiles(&job, counts, places);
    __syncthreads();
    for (size_t pair = threadIdx.x; pair < n_pairs; pair += PLAN_THREADS)
        if (p->ids[pair] >= 0 && (size_t)p->ids[pair] < p->n_experts)
            job.pairs[atomicAdd(&places[p->ids[pair]], 1)] = (uint32_t)pair;
    for (size_t row = threadIdx.x; row < p->n_rows; row += PLAN_THREADS) {
        uint32_t hits = 0;
        for (size_t rank = 0; rank < p->n_used; rank++) {
            const int32_t id = p->ids[row * p->n_used + rank];
            if (id >= 0 && (size_t)id < p->n_experts)
                hits += p->addresses[id].resident != 0;
        }
        if (hits != 0)
            p->hits[row] += hits;
    }
}

/* Where the tile's rows of activations begin: in launch 2 rows of a, in launch 3 hidden ones; what it lacks is the last
 * again. */
template <typename at, bool HIDDEN>
static __device__ __forceinline__ void
rows_find(uint8_t *shared, const struct experts_tiles_job *job, const struct experts_tile *tile)
{
    const unsigned i = threadIdx.x;
    if (i >= TILE_PAIRS)
        return;
    const uint32_t place = tile->first + (i < tile->n ? i : tile->n - 1);
    ((const uint8_t **)(shared + at::X_ROWS))[i] =
        HIDDEN ? (const uint8_t *)job->args.a +
                     job->pairs[place] / (uint32_t)job->args.n_used * job->x_row_bytes
               : job->hidden + place * job->hidden_row_bytes;
}

/* The tile's rows of weights: gate and up side by side from hidden value `out`, or down from output `out`. */
template <bool HIDDEN>
static __device__ __forceinline__ struct tiles_weights
weights_find(const struct experts_tiles_job *job, const struct experts_tile *tile, size_t out)
{
    const size_t outs = HIDDEN ? TILE_OUTS / 2 : TILE_OUTS;
    const size_t left = (HIDDEN ? job->args.d_expert : job->args.d_model) - out;
    const unsigned n = (unsigned)(left < outs ? left : outs), last = left <= outs ? n - 1 : n;
    if (HIDDEN)
        return {
            {tile->gate + out * job->gate_row_bytes, tile->up + out * job->up_row_bytes}, n, last};
    const uint8_t *down = tile->down + out * job->down_row_bytes;
    return {{down, down}, n, last};
}

/* Block `block` of a hidden row out of 32 values of which each of eight lanes has four: rule 1, as quantize.cuh has it.
 * x * id is at most 127 and a bit, so rounding needs no clamp. All lanes of a warp call; only those with `store` set
 * write. */
static __device__ __forceinline__ void hidden_quantize(float4 v, uint8_t *row, size_t n,
                                                       size_t block, bool store)
{
    const unsigned lane = threadIdx.x % 8;
    unsigned largest =
        max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
            max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu));
    for (unsigned i = 1; i < 8; i *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    const float amax = __uint_as_float(largest);
    const bool tiny = amax < 0x1p-100f, finite = largest < 0x7f800000u;
    const float id = __fdiv_rn(127.0f, amax);
    const uint32_t q0 = __float_as_uint(__fadd_rn(__fmul_rn(v.x, id), TILES_MAGIC)),
                   q1 = __float_as_uint(__fadd_rn(__fmul_rn(v.y, id), TILES_MAGIC)),
                   q2 = __float_as_uint(__fadd_rn(__fmul_rn(v.z, id), TILES_MAGIC)),
                   q3 = __float_as_uint(__fadd_rn(__fmul_rn(v.w, id), TILES_MAGIC));
    const uint32_t low = __byte_perm(q0, q1, 0x0040), high = __byte_perm(q2, q3, 0x0040);
    const int q = tiny || !finite ? 0 : (int)__byte_perm(low, high, 0x5410);
    int sum = __dp4a(q, 0x01010101, 0);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int all = sum + __shfl_xor_sync(0xffffffffu, sum, 4);
    const float d = tiny ? 0.0f : __fdiv_rn(amax, 127.0f);
    if (!store)
        return;
    ((int *)row)[block * 8 + lane] = q;
    if (lane == 0) {
        ((float *)(row + activation_d_at(n)))[block] = d;
        ((float *)(row + activation_sx_at(n)))[block] = __fmul_rn(d, (float)all);
    }
    if (lane % 4 == 0)
        ((int16_t *)(row + activation_half_at(n)))[2 * block + lane / 4] = (int16_t)sum;
}

/* SwiGLU of the tile's gate and up values, quantised to scratch. */
template <typename at>
static __device__ __forceinline__ void
hidden_store(uint8_t *shared, const struct experts_tiles_job *job, const struct experts_tile *tile,
             size_t out, const struct tiles_sums<at::KIND> *sums)
{
    enum : unsigned { VALUES = TILE_OUTS / 2, PITCH = VALUES + 4, BLOCKS = VALUES / 32 };
    static_assert(TILE_PAIRS * PITCH * 4 <= TILE_OUTS * TILES_PITCH,
                  "values fit where weights were");
    float *values = (float *)shared;
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < TILES_GROUPS; i++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            const unsigned row = tile_row<at>(i, e);
            const unsigned value = tile_out<at>(0, e) / 32 * 16 + tile_out<at>(0, e) % 16;
            if (row < tile->n)
                values[row * PITCH + value] =
                    ebb_swiglu(tile_element(sums, 0, i, e), tile_element(sums, 1, i, e));
        }
    __syncthreads();
    const unsigned n = (tile->n * BLOCKS + 3) / 4 * 4; /* whole warps */
    for (unsigned i = threadIdx.x / 8; i < n; i += at::THREADS / 8) {
        const unsigned row = i / BLOCKS < tile->n ? i / BLOCKS : tile->n - 1;
        const size_t block = out / 32 + i % BLOCKS;
        const float4 v =
            *(const float4 *)(values + row * PITCH + i % BLOCKS * 32 + threadIdx.x % 8 * 4);
        uint8_t *to = job->hidden + (tile->first + row) * job->hidden_row_bytes;
        hidden_quantize(v, to, job->args.d_expert, block,
                        i < tile->n * BLOCKS && block < job->args.d_expert / 32);
    }
}

template <typename at>
static __device__ __forceinline__ void outputs_store(const struct experts_tiles_job *job,
                                                     const struct experts_tile *tile, size_t out,
                                                     const struct tiles_sums<at::KIND> *sums)
{
#pragma unroll
    for (unsigned i = 0; i < TILES_GROUPS; i++)
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            const unsigned row = tile_row<at>(i, r);
            if (row >= tile->n)
                continue;
            float *to = job->args.outputs + job->pairs[tile->first + row] * job->args.d_model + out;
#pragma unroll
            for (unsigned m = 0; m < 2; m++)
#pragma unroll
                for (unsigned e = r; e < 4; e += 2) {
                    const unsigned o = tile_out<at>(m, e);
                    if (out + o < job->args.d_model)
                        to[o] = tile_element(sums, m, i, e);
                }
        }
}

template <typename at, bool HIDDEN>
static __global__ void __launch_bounds__(at::THREADS, 512 / at::THREADS)
    experts_tiles_kernel(const __grid_constant__ struct experts_tiles_job job)
{
    __shared__ unsigned next;
    extern __shared__ uint4 shared_words[];
    uint8_t *shared = (uint8_t *)shared_words;
    const unsigned outs = HIDDEN ? TILE_OUTS / 2 : TILE_OUTS;
    const unsigned n_parts =
        ((unsigned)(HIDDEN ? job.args.d_expert : job.args.d_model) + outs - 1) / outs;
    const unsigned n_items = job.plan->n_tiles * n_parts;
    struct tiles_sums<at::KIND> sums;
    for (unsigned item = blockIdx.x; item < n_items; item = next) {
        const struct experts_tile tile = job.tiles[item / n_parts];
        const size_t out = (size_t)(item % n_parts) * outs;
        const struct tiles_weights w = weights_find<HIDDEN>(&job, &tile, out);
        rows_find<at, HIDDEN>(shared, &job, &tile);
        __syncthreads();
        if (threadIdx.x == 0)
            next = gridDim.x + atomicAdd(&job.plan->next[HIDDEN ? 0 : 1], 1);
        tile_multiply<at, HIDDEN>(shared, HIDDEN ? &job.hidden_shape : &job.down_shape, &w,
                                  (tile.n + 7) / 8, &sums);
        if (HIDDEN)
            hidden_store<at>(shared, &job, &tile, out, &sums);
        else
            outputs_store<at>(&job, &tile, out, &sums);
        __syncthreads();
    }
}

template <typename at, bool HIDDEN>
static int tiles_launch(struct experts_tiles_job *job, bool really, struct exec_stream *s)
{
    static_assert(at::ROWS == TILE_PAIRS && at::OUTS == TILE_OUTS, "as tiles are cut");
    const struct experts_args *p = &job->args;
    const size_t outs = HIDDEN ? at::OUTS / 2 : at::OUTS, n_fit = 512 / at::THREADS;
    const size_t n_parts = ((HIDDEN ? p->d_expert : p->d_model) + outs - 1) / outs;
    const size_t n_items = tiles_most(p->n_rows * p->n_used, p->n_experts) * n_parts;
    const size_t n_blocks = (size_t)exec_cuda_n_multiprocessors(s) * n_fit;
    const size_t bytes = tiles_prepare<at>(
        (const void *)experts_tiles_kernel<at, HIDDEN>,
        HIDDEN ? &job->hidden_shape : &job->down_shape, HIDDEN ? p->gate_type : p->down_type,
        HIDDEN ? p->up_type : p->down_type, HIDDEN ? p->d_model : p->d_expert, n_fit);
    if (bytes == 0 || n_items > INT32_MAX)
        return EBB_EUNSUPPORTED;
    if (!really)
        return 0;
    experts_tiles_kernel<at, HIDDEN><<<(unsigned)(n_items < n_blocks ? n_items : n_blocks),
                                       at::THREADS, bytes, exec_cuda_stream(s)>>>(*job);
    return exec_cuda_launched(s);
}

/* Weights unpacked ahead where there is shared memory for it. */
template <int KIND, bool HIDDEN>
static int form_launch(struct experts_tiles_job *job, bool really, struct exec_stream *s)
{
    int rc = EBB_EUNSUPPORTED;
    if constexpr (KIND == TILES_PLAIN || KIND == TILES_MINIMA)
        rc = tiles_launch<tiles_shared<KIND, 4, 2, 1>, HIDDEN>(job, really, s);
    if (rc == EBB_EUNSUPPORTED)
        rc = tiles_launch<tiles_shared<KIND, 4, 2, 0>, HIDDEN>(job, really, s);
    return rc;
}

/* Launch 2 or 3; unless `really`, only looks whether it can be. */
template <bool HIDDEN>
static int kind_launch(struct experts_tiles_job *job, bool really, struct exec_stream *s)
{
    const struct experts_args *p = &job->args;
    if (HIDDEN && p->gate_type != p->up_type)
        return form_launch<TILES_ANY, true>(job, really, s);
    switch (tiles_kind_of(HIDDEN ? p->gate_type : p->down_type)) {
    case TILES_PLAIN: return form_launch<TILES_PLAIN, HIDDEN>(job, really, s);
    case TILES_MINIMA: return form_launch<TILES_MINIMA, HIDDEN>(job, really, s);
    case TILES_FOLDED: return form_launch<TILES_FOLDED, HIDDEN>(job, really, s);
    default: return form_launch<TILES_FOLDED_MINIMA, HIDDEN>(job, really, s);
    }
}

static bool is_computed(uint32_t type, size_t n)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    return info != NULL && info->block_values > 1 && n % info->block_values == 0;
}

int experts_tiles_cuda(const struct experts_args *args, struct exec_stream *s)
{
    struct experts_tiles_job job = {};
    job.args = *args;
    if (!is_computed(args->gate_type, args->d_model) ||
        !is_computed(args->up_type, args->d_model) ||
        !is_computed(args->down_type, args->d_expert) || args->n_used > EXPERTS_USED_MAX ||
        args->n_experts > PLAN_EXPERTS_MAX || args->n_rows * args->n_used > INT32_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_used == 0 || args->d_model == 0 || args->d_expert == 0)
        return 0;
    job.gate_row_bytes = tensor_row_bytes(args->gate_type, args->d_model);
    job.up_row_bytes = tensor_row_bytes(args->up_type, args->d_model);
    job.down_row_bytes = tensor_row_bytes(args->down_type, args->d_expert);
    job.x_row_bytes = activation_row_bytes(args->d_model);
    job.hidden_row_bytes = activation_row_bytes(args->d_expert);
    scratch_place(&job);
    int rc = kind_launch<true>(&job, false, s);
    if (rc == 0)
        rc = kind_launch<false>(&job, false, s);
    if (rc != 0)
        return rc;
    experts_plan_kernel<<<1, PLAN_THREADS, 2 * args->n_experts * sizeof(uint32_t),
                          exec_cuda_stream(s)>>>(job);
    rc = exec_cuda_launched(s);
    if (rc == 0)
        rc = kind_launch<true>(&job, true, s);
    return rc != 0 ? rc : kind_launch<false>(&job, true, s);
}
