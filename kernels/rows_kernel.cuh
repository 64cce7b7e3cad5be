/* kernels/rows_kernel.cuh - the kernel of product_rows.cu: quantised weights times few rows of activations. Internal to *.cu.
 *
 *   y[r][o] = sum over blocks k of 32, in ascending order: acc = fmaf(a[o][k] * d[r][k], isum, acc); accm = fmaf(b, sx, accm)
 *
 * A block of threads walks over tiles: some whole rows of weights, which are one piece of memory (of gate and up: two). Their
 * bytes come by cp.async, stages - 1 tiles ahead. In a step
 *   - compute warps make the integers: a lane keeps the activations of two blocks in registers and meets these blocks of every
 *     row; it leaves (a * d, isum) and (b, sx) of each block in shared memory, [row][block];
 *   - meanwhile the chain warps, one lane a chain, run the ordered chains of the step before. Where a type has minima, lanes
 *     0..15 have acc and lanes 16..31 accm of 16 rows.
 * One barrier a step. Weights are asked for before the wait for earlier work (overlap.cuh), except where the routing itself is
 * awaited.
 *
 * Weights lie at any even address, and nothing outside the matrix is read; Q4_K and Q5_K are slow where they do not lie at a
 * multiple of 16.
 */
#pragma once
#include "kernels/activation.cuh"
#include "kernels/expf.h"
#include "kernels/overlap.cuh"
#include "kernels/product_rows.cuh"
#include "kernels/quantize.cuh"
#include "kernels/rows_pairs.cuh"

#define ROWS_THREADS_MAX 512
#define ROWS_STAGES_MAX  5

/* Where things lie in shared memory, in bytes. */
struct rows_layout {
    unsigned ring, slot, second; /* weights: slots, and where in a slot the rows of up begin */
    unsigned parts, next, row,
        kind;       /* partial results: from one buffer, row, or kind to the next */
    unsigned total; /* at 0: the hidden row, quantised */
};

struct rows_args {
    struct rows_job job;
    struct rows_plan plan;
    struct rows_layout at;
    size_t row_bytes, matrix_bytes; /* of weights */
    unsigned n_rows;                /* of all tiles: gate and up counted */
    unsigned n_tiles, n_blocks, n_pairs;
    unsigned paired; /* 1: a tile is tile_rows / 2 rows of gate, then as many of up */
};

/* Gate and up, or one matrix. */
struct rows_matrices {
    const unsigned char *first, *second;
};

/* blockIdx.z is the row of activations, blockIdx.y its rank. */
static __device__ __forceinline__ size_t problem_of_block(void)
{
    return (size_t)blockIdx.z * gridDim.y + blockIdx.y;
}

/* Rows of a matrix in a tile. */
static __device__ __forceinline__ unsigned tile_height(const struct rows_args *args)
{
    return args->plan.tile_rows >> args->paired;
}

/* Asks for the bytes of a tile; all threads. */
template <uint32_t type>
static __device__ __forceinline__ void
tile_load(const struct rows_args *args, const struct rows_matrices *m, unsigned tile, unsigned slot)
{
    const unsigned height = tile_height(args), first = tile * height;
    const unsigned n = min(height, (unsigned)args->job.n_out - first);
    const size_t from = first * args->row_bytes;
    const unsigned bytes = n * (unsigned)args->row_bytes;
    unsigned to = args->at.ring + slot * args->at.slot;
    const unsigned char *matrix = m->first;
    for (unsigned i = 0; i <= args->paired; i++) {
        if constexpr (pair_wide(type))
            copy_aligned(to, matrix + from, bytes);
        else
            copy_in_place(to, matrix + from, bytes, matrix, matrix + args->matrix_bytes);
        to += args->at.second;
        matrix = m->second;
    }
}

/* What a lane of a compute warp does in every tile. */
struct rows_lane {
    unsigned pair, row, per_pass; /* its pair of blocks, and rows row, row + per_pass, ... */
    struct pair_place place;
    bool idle;
};

static __device__ __forceinline__ struct rows_lane lane_of(const struct rows_args *args)
{
    const unsigned n_threads = 32 * args->plan.n_compute;
    struct rows_lane lane = {threadIdx.x, 0, 1, {}, false};
    if (args->n_pairs < n_threads) {
        lane.per_pass = n_threads / args->n_pairs;
        lane.row = threadIdx.x / args->n_pairs;
        lane.pair = threadIdx.x - lane.row * args->n_pairs;
    }
    lane.idle = lane.row >= lane.per_pass || lane.pair >= args->n_pairs;
    return lane;
}

/* Leaves what the chains read of pair p: kind 0 (a * d, isum), kind 1 (b, what b is multiplied with). */
template <uint32_t type, int n_together>
static __device__ __forceinline__ void parts_put(const struct rows_args *args, unsigned at,
                                                 unsigned p, const struct pair_weights *w,
                                                 const struct pair_inputs *in)
{
#pragma unroll
    for (int r = 0; r < n_together; r++) {
        float2 sum[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            sum[i] = make_float2(w->a[i] * in[r].d[i], (float)pair_sum<type>(w, &in[r], i));
            low[i] = make_float2(w->b[i], pair_low<type>(w, &in[r], i));
        }
        if constexpr (type == TENSOR_Q6_K) {
            *(float2 *)(rows_shared + at + 8 * pair_block<type>(p, 0)) = sum[0];
            *(float2 *)(rows_shared + at + 8 * pair_block<type>(p, 1)) = sum[1];
        } else {
            *(float4 *)(rows_shared + at + 16 * p) =
                make_float4(sum[0].x, sum[0].y, sum[1].x, sum[1].y);
        }
        at += args->at.kind;
        if constexpr (pair_minima(type)) {
            *(float4 *)(rows_shared + at + 16 * p) =
                make_float4(low[0].x, low[0].y, low[1].x, low[1].y);
            at += args->at.kind;
        }
    }
}

/* The integers of n rows of a matrix, the first of them at `at`, its partial results at `parts`; a lane takes its own. */
template <uint32_t type, int n_together>
static __device__ __forceinline__ void
rows_compute(const struct rows_args *args, unsigned at, unsigned parts, unsigned n,
             const struct rows_lane *lane, const struct pair_inputs *in)
{
    unsigned row_step = lane->per_pass * (unsigned)args->row_bytes;
    unsigned parts_step = lane->per_pass * args->at.row;
    at += lane->row * (unsigned)args->row_bytes;
    parts += lane->row * args->at.row;
    keep(row_step), keep(parts_step);
#pragma unroll 1
    for (unsigned row = lane->row; row < n; row += lane->per_pass) {
        struct pair_weights w;
        weights_read<type>(at, &lane->place, &w);
        parts_put<type, n_together>(args, parts, lane->pair, &w, in);
        at += row_step, parts += parts_step;
    }
}

/* The integers of a tile; compute warps. */
template <uint32_t type, int n_together>
static __device__ __forceinline__ void
tile_compute(const struct rows_args *args, const struct rows_matrices *m, unsigned tile,
             unsigned slot, unsigned next, const struct rows_lane *lane,
             const struct pair_inputs *in)
{
    const unsigned height = tile_height(args);
    const unsigned char *matrix = m->first;
    unsigned at = args->at.ring + slot * args->at.slot;
    unsigned parts = args->at.parts + next * args->at.next;
#pragma unroll 1
    for (unsigned i = 0; i <= args->paired; i++) {
        unsigned off = 0;
        if constexpr (!pair_wide(type))
            off = ((unsigned)(uintptr_t)matrix + tile * height * (unsigned)args->row_bytes) & 15;
        rows_compute<type, n_together>(args, at + off, parts, height, lane, in);
        at += args->at.second;
        parts += height * args->at.row;
        matrix = m->second;
    }
}

/* Stores a finished element: row `row` of all tiles, of activations r of those together; all lanes of the warp. */
static __device__ __forceinline__ void element_store(const struct rows_args *args, unsigned row,
                                                     unsigned r, bool valid, float element)
{
    const struct rows_job *job = &args->job;
    const float up = __shfl_xor_sync(0xffffffffu, element, 1); /* of an even lane, if paired */
    const size_t problem = problem_of_block() * args->plan.together + r;
    const size_t i = problem * job->n_out + (row >> args->paired);
    if (!valid || row >= args->n_rows || problem >= job->n_rows * job->n_used)
        return;
    if (job->form == ROWS_PRODUCT) {
        if (job->bias != NULL)
            element = element + job->bias[row];
        job->y[i] = job->accumulate ? job->y[i] + element : element;
    } else if (job->form == ROWS_DOWN) {
        job->y[i] = element;
    } else if (job->form == ROWS_GATE) {
        job->hidden[i] = element;
    } else if (job->form == ROWS_UP || row % 2 == 0) {
        const float gate = job->form == ROWS_UP ? job->hidden[i] : element;
        job->hidden[i] = ebb_swiglu(gate, job->form == ROWS_UP ? element : up);
    }
}

/* The chains of a tile and its elements; chain warps. Rows of gate and up take turns, so that neighbouring lanes have both. */
template <uint32_t type, int n_together>
static __device__ __forceinline__ void tile_chain(const struct rows_args *args, unsigned tile,
                                                  unsigned next)
{
    constexpr unsigned kinds = pair_minima(type) ? 2 : 1, span = 32 / kinds;
    const unsigned warp = threadIdx.x / 32 - args->plan.n_compute, lane = threadIdx.x % 32;
    const unsigned r = warp % n_together, i = warp / n_together * span + lane % span;
    const bool valid = i < args->plan.tile_rows && lane < span;
    const unsigned turn = i < args->plan.tile_rows ? i : 0;
    const unsigned row = args->paired != 0 ? turn / 2 + turn % 2 * tile_height(args) : turn;
    unsigned at = args->at.parts + next * args->at.next + row * args->at.row +
                  (r * kinds + lane / span) * args->at.kind;
    float acc = 0.0f;
#pragma unroll 8
    for (unsigned p = 0; p < args->n_blocks / 2; p++, at += 16) {
        const float4 two = *(const float4 *)(rows_shared + at);
        acc = __fmaf_rn(two.x, two.y, acc);
        acc = __fmaf_rn(two.z, two.w, acc);
    }
    if (args->n_blocks % 2 != 0) {
        const float2 one = *(const float2 *)(rows_shared + at);
        acc = __fmaf_rn(one.x, one.y, acc);
    }
    if constexpr (kinds == 2)
        acc = acc - __shfl_xor_sync(0xffffffffu, acc, 16);
    element_store(args, tile * args->plan.tile_rows + i, r, valid, acc);
}

/* The hidden row of this pair, quantised to the start of shared memory; all threads. */
static __device__ __forceinline__ void hidden_load(const struct rows_args *args)
{
    const size_t n = args->job.n_in;
    const unsigned lane = threadIdx.x % 32;
    const float *hidden = args->job.hidden + problem_of_block() * n;
#pragma unroll 2
    for (unsigned k = threadIdx.x / 32; k < args->n_blocks; k += blockDim.x / 32) {
        const struct quantized z = quantize_lane(hidden[32 * k + lane]);
        *(int8_t *)(rows_shared + 32 * k + lane) = (int8_t)z.q;
        if (lane == 0) {
            ((float *)(rows_shared + activation_d_at(n)))[k] = z.d;
            ((float *)(rows_shared + activation_sx_at(n)))[k] = z.sx;
        }
        if (lane < 2)
            ((int16_t *)(rows_shared + activation_half_at(n)))[2 * k + lane] =
                (int16_t)(lane == 0 ? z.sum16[0] : z.sum16[1]);
    }
    __syncthreads();
}

/* The lane's place in rows, and its activations: of every row of those together; rows past the last repeat it. */
template <uint32_t type, int n_together>
static __device__ __forceinline__ void
lane_load(const struct rows_args *args, struct rows_lane *lane, struct pair_inputs in[n_together])
{
    const size_t n = args->job.n_in;
    lane->place = place_of<type>(lane->pair, 2 * lane->pair + 1 < args->n_blocks);
#pragma unroll
    for (unsigned r = 0; r < n_together; r++) {
        const size_t row = min((size_t)blockIdx.z * n_together + r, args->job.n_rows - 1);
        const void *a = args->job.form == ROWS_DOWN
                            ? (const void *)rows_shared
                            : (const char *)args->job.a + row * activation_row_bytes(n);
        inputs_load<type>(&in[r], a, n, lane->pair);
    }
}

/* Asks for the experts' addresses to be near before the routing is known. */
static __device__ __forceinline__ void addresses_prefetch(const struct rows_job *job)
{
    const char *from = (const char *)job->addresses;
    for (size_t i = 128 * threadIdx.x; i < job->n_experts * sizeof(struct expert_address);
         i += 128 * blockDim.x)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

/* Finds the matrices of a pair; false where there is no expert. Counts its use once. */
static __device__ __forceinline__ bool expert_find(const struct rows_job *job,
                                                   struct rows_matrices *m)
{
    const int32_t id = job->ids[problem_of_block()];
    if (id < 0 || (size_t)id >= job->n_experts)
        return false;
    const struct expert_address *e = &job->addresses[id];
    const void *first = job->form == ROWS_UP ? e->up : job->form == ROWS_DOWN ? e->down : e->gate;
    m->first = (const unsigned char *)first;
    m->second = (const unsigned char *)e->up;
    if (job->heat != NULL && blockIdx.x == 0 && threadIdx.x == 0) {
        atomicAdd(&job->heat[id], 1u);
        if (e->resident != 0)
            atomicAdd(&job->hits[blockIdx.z], 1u);
    }
    return true;
}

/* A step's work on the tile whose bytes are there, and on the one before; after the barrier. */
template <uint32_t type, int n_together>
static __device__ __forceinline__ void
step_run(const struct rows_args *args, const struct rows_matrices *m, unsigned step, unsigned tile,
         unsigned slot, struct rows_lane *lane, struct pair_inputs in[n_together])
{
    if (threadIdx.x / 32 >= args->plan.n_compute) {
        if (step > 0)
            tile_chain<type, n_together>(args, tile - gridDim.x, (step & 1) ^ 1);
        return;
    }
    if (tile >= args->n_tiles || lane->idle)
        return;
    tile_compute<type, n_together>(args, m, tile, slot, step & 1, lane, in);
    if (args->n_pairs <= 32 * args->plan.n_compute)
        return;
    /* More pairs than lanes: a lane takes others in turn. */
    for (lane->pair += 32 * args->plan.n_compute; lane->pair < args->n_pairs;
         lane->pair += 32 * args->plan.n_compute) {
        lane_load<type, n_together>(args, lane, in);
        tile_compute<type, n_together>(args, m, tile, slot, step & 1, lane, in);
    }
    lane->pair = threadIdx.x;
    lane_load<type, n_together>(args, lane, in);
}

template <uint32_t type, int n_together>
static __global__ void __launch_bounds__(ROWS_THREADS_MAX, 1)
    rows_kernel(const __grid_constant__ struct rows_args args)
{
    const struct rows_job *job = &args.job;
    const bool routed_before = job->form != ROWS_GATE_UP && job->form != ROWS_GATE;
    const unsigned n_ahead = args.plan.stages - 1;
    struct rows_matrices m = {job->weights, NULL};
    struct rows_lane lane = lane_of(&args);
    struct pair_inputs in[n_together];
    unsigned load = blockIdx.x, tile = blockIdx.x, load_slot = 0, slot = 0;
    if (!routed_before) {
        addresses_prefetch(job);
        overlap_wait();
    }
    if (job->form != ROWS_PRODUCT && !expert_find(job, &m))
        return;
    for (int step = -(int)n_ahead;; step++) {
        if (step >= 0) {
            copy_wait(n_ahead - 1);
            __syncthreads();
        }
        if (load < args.n_tiles)
            tile_load<type>(&args, &m, load, load_slot);
        copy_commit();
        load += gridDim.x;
        load_slot = load_slot == n_ahead ? 0 : load_slot + 1;
        if (step == -1) {
            if (routed_before)
                overlap_wait();
            overlap_announce();
            if (job->form == ROWS_DOWN)
                hidden_load(&args);
            if (threadIdx.x / 32 < args.plan.n_compute && !lane.idle)
                lane_load<type, n_together>(&args, &lane, in);
        }
        if (step < 0)
            continue;
        step_run<type, n_together>(&args, &m, step, tile, slot, &lane, in);
        if (tile >= args.n_tiles)
            break;
        tile += gridDim.x;
        slot = slot == n_ahead ? 0 : slot + 1;
    }
}
