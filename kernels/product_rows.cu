/* product_rows.cu - quantised weights times few rows of activations (NUMERICS tier 1), for products and for experts.
 *
 *   y[r][o] = sum over blocks k of 32, in ascending order: acc = fmaf(a[o][k] * d[r][k], isum, acc); accm = fmaf(b, sx, accm)
 *
 * A block of threads walks over tiles of weights: tile_rows rows times units * 256 values, a step each. Bytes come by cp.async,
 * stages - 1 steps ahead, into rows of shared memory whose stride is free of bank conflicts. In a step
 *   - compute warps make the integers: a lane owns a row of the tile and takes whole units of it, so that all lanes of a warp
 *     read the same activations; (a, b, isum) of each block go to shared memory, [block][row];
 *   - meanwhile the chain warps, one lane a row, run the ordered chains of the step before.
 * One barrier a step. Tiles of less than 32 rows have lanes side by side in k. Weights are asked for before the wait for earlier
 * work (overlap.cuh), except where the routing itself is awaited.
 *
 * Weights lie at any even address: what is not at a multiple of 16 (Q4_K, Q5_K) or 4 (others) takes a slower copy, and
 * nothing outside the matrix is read. Refuses what does not fit: see rows_launch().
 */
#include "kernels/product_rows.cuh"
#include "kernels/activation.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/quantize.cuh"
#include "kernels/rows_units.cuh"

#define ROWS_THREADS_MAX 512
#define UNIT_QUANTS      (256 + 16) /* bytes from a unit's quants to the next: other banks */
#define UNIT_PARTS       9 /* rows of partial results a unit takes: 8 blocks, 1 for other banks */

/* Where things lie in shared memory, in bytes. */
struct rows_layout {
    unsigned quants, d, sx, halves; /* the activations */
    unsigned ring, slot, stride;    /* weights: slots, rows in a slot */
    unsigned scale, sum, low;       /* partial results, two of each: */
    unsigned scale_next, sum_next;  /* from the first to the second */
    unsigned total;
};

struct rows_args {
    struct rows_job job;
    struct rows_plan plan;
    struct rows_layout at;
    size_t row_bytes, matrix_bytes; /* of weights */
    unsigned n_rows;                /* of all tiles: rows of gate and up alternate */
    unsigned n_tiles, n_chunks, n_blocks;
    unsigned tile_shift, paired;
};

/* Gate and up, or one matrix. */
struct rows_matrices {
    const unsigned char *first, *second;
};

/* A step's place in the work. */
struct rows_walk {
    unsigned tile, chunk, slot;
};

static __device__ __forceinline__ void walk_next(const struct rows_args *args, struct rows_walk *w)
{
    if (++w->slot == args->plan.stages)
        w->slot = 0;
    if (++w->chunk == args->n_chunks) {
        w->chunk = 0;
        w->tile += gridDim.x;
    }
}

/* blockIdx.z is the row of activations, blockIdx.y its rank. */
static __device__ __forceinline__ size_t problem_of_block(void)
{
    return (size_t)blockIdx.z * gridDim.y + blockIdx.y;
}

static __device__ __forceinline__ const unsigned char *
row_matrix(const struct rows_args *args, const struct rows_matrices *m, unsigned row)
{
    return (row & args->paired) != 0 ? m->second : m->first;
}

/* Asks for the bytes of a step; all threads. */
template <uint32_t type>
static __device__ __forceinline__ void
step_load(const struct rows_args *args, const struct rows_matrices *m, const struct rows_walk *w)
{
    const unsigned chunk_bytes = args->plan.units * unit_bytes(type), from = w->chunk * chunk_bytes;
    const unsigned bytes = min((unsigned)args->row_bytes - from, chunk_bytes);
    const unsigned slot = args->at.ring + w->slot * args->at.slot;
    const unsigned first = w->tile << args->tile_shift;
    const unsigned last = min(first + args->plan.tile_rows, args->n_rows);
#pragma unroll 1
    for (unsigned row = first + threadIdx.x / 32; row < last; row += blockDim.x / 32) {
        const unsigned char *matrix = row_matrix(args, m, row);
        const unsigned char *at = matrix + (row >> args->paired) * args->row_bytes + from;
        const unsigned to = slot + (row - first) * args->at.stride;
        if constexpr (unit_wide(type))
            copy_wide(to, at, bytes);
        else
            copy_narrow(to, at, bytes, matrix, matrix + args->matrix_bytes);
    }
}

/* How far the row's bytes lie behind the word that holds the first of them. */
template <uint32_t type>
static __device__ __forceinline__ unsigned row_offset(const struct rows_args *args,
                                                      const struct rows_matrices *m,
                                                      const struct rows_walk *w, unsigned row)
{
    if constexpr (unit_wide(type))
        return 0;
    const unsigned of_tile = (w->tile << args->tile_shift) + row;
    return ((unsigned)(uintptr_t)row_matrix(args, m, of_tile) +
            (of_tile >> args->paired) * (unsigned)args->row_bytes +
            w->chunk * args->plan.units * unit_bytes(type)) &
           3;
}

/* The integers of a step, into the partial results number `next`; compute warps. */
template <uint32_t type>
static __device__ __forceinline__ void step_compute(const struct rows_args *args,
                                                    const struct rows_matrices *m,
                                                    const struct rows_walk *w, unsigned next)
{
    const unsigned lane = threadIdx.x % 32, rows = args->plan.tile_rows;
    const unsigned block = w->chunk * args->plan.units * 8;
    const unsigned n_blocks = min(args->n_blocks - block, args->plan.units * 8);
    const unsigned n_units = (n_blocks + 7) / 8;
    /* Below 32 rows a warp has 2^beside units side by side, above 2^above warps have one together. */
    const unsigned beside = rows < 32 ? 5 - args->tile_shift : 0;
    const unsigned above = rows < 32 ? 0 : args->tile_shift - 5;
    const unsigned n_items = ((n_units + (1u << beside) - 1) >> beside) << above;
#pragma unroll 1
    for (unsigned item = threadIdx.x / 32; item < n_items; item += args->plan.n_compute) {
        const unsigned row = (item & ((1u << above) - 1)) * 32 + (lane & (rows - 1));
        const unsigned unit = ((item >> above) << beside) + (lane >> (5 - beside));
        const unsigned part = unit * UNIT_PARTS * rows + (row & (rows - 1));
        struct unit u;
        if (unit >= n_units)
            continue;
        u.weights = args->at.ring + w->slot * args->at.slot + row * args->at.stride +
                    row_offset<type>(args, m, w, row) + unit * unit_bytes(type);
        u.quants = args->at.quants + (block / 8 + unit) * UNIT_QUANTS;
        u.halves = args->at.halves + 4 * (block + 8 * unit);
        u.scale = (float *)(rows_shared + args->at.scale + next * args->at.scale_next) +
                  part * (unit_minima(type) ? 2 : 1);
        u.sum = (float *)(rows_shared + args->at.sum + next * args->at.sum_next) + part;
        u.low = (float *)(rows_shared + args->at.low + next * args->at.sum_next) + part;
        u.stride = rows;
        u.n_blocks = min(n_blocks - 8 * unit, 8u);
        unit_run<type>(u);
    }
}

/* The ordered chains of one lane. */
struct chain {
    float acc, accm;
};

/* Goes on through a unit of n blocks; `part` is the index of the unit's first partial result. */
template <uint32_t type>
static __device__ __forceinline__ void chain_unit(struct chain *c, const struct rows_args *args,
                                                  unsigned next, unsigned part, unsigned block,
                                                  unsigned n)
{
    const float *scale = (const float *)(rows_shared + args->at.scale + next * args->at.scale_next);
    const float *sum = (const float *)(rows_shared + args->at.sum + next * args->at.sum_next);
    const float *low = (const float *)(rows_shared + args->at.low + next * args->at.sum_next);
    const float4 *d4 = (const float4 *)(rows_shared + args->at.d + 4 * block);
    const float4 *sx4 = (const float4 *)(rows_shared + args->at.sx + 4 * block);
    const float4 d0 = d4[0], d1 = d4[1], s0 = sx4[0], s1 = sx4[1];
    const float d[8] = {d0.x, d0.y, d0.z, d0.w, d1.x, d1.y, d1.z, d1.w};
    const float sx[8] = {s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w};
#pragma unroll
    for (unsigned j = 0; j < 8; j++) {
        if (j >= n)
            break;
        const unsigned i = part + j * args->plan.tile_rows;
        float a, b = 0.0f, x = sx[j];
        if constexpr (unit_minima(type)) {
            const float2 both = ((const float2 *)scale)[i];
            a = both.x, b = both.y;
        } else {
            a = scale[i];
        }
        if constexpr (unit_folded(type))
            x = d[j] * low[i];
        c->acc = __fmaf_rn(a * d[j], sum[i], c->acc);
        if constexpr (unit_minima(type))
            c->accm = __fmaf_rn(b, x, c->accm);
    }
}

/* Stores a finished element of a tile's row; all lanes of the warp. */
static __device__ __forceinline__ void element_store(const struct rows_args *args, unsigned row,
                                                     bool valid, float element)
{
    const struct rows_job *job = &args->job;
    const float up = __shfl_xor_sync(0xffffffffu, element, 1); /* of an even lane, if paired */
    const size_t i = problem_of_block() * job->n_out + (row >> args->paired);
    if (!valid || row >= args->n_rows)
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

/* The chains of a step, and the elements where it ends a tile; chain warps. */
template <uint32_t type>
static __device__ __forceinline__ void
step_chain(const struct rows_args *args, const struct rows_walk *w, unsigned next, struct chain *c)
{
    const unsigned lane = threadIdx.x - 32 * args->plan.n_compute, rows = args->plan.tile_rows;
    const unsigned block = w->chunk * args->plan.units * 8;
    const unsigned n_blocks = min(args->n_blocks - block, args->plan.units * 8);
    unsigned part = lane & (rows - 1), k = 0;
    if (w->chunk == 0)
        c->acc = c->accm = 0.0f;
#pragma unroll 1
    for (; k + 8 <= n_blocks; k += 8, part += UNIT_PARTS * rows)
        chain_unit<type>(c, args, next, part, block + k, 8);
    if constexpr (!unit_super(type))
        if (k < n_blocks)
            chain_unit<type>(c, args, next, part, block + k, n_blocks - k);
    if (w->chunk == args->n_chunks - 1)
        element_store(args, (w->tile << args->tile_shift) + (lane & (rows - 1)), lane < rows,
                      c->acc - c->accm);
}

/* A quantised row of activations to shared memory; all threads. */
static __device__ __forceinline__ void activations_load(const struct rows_args *args)
{
    const size_t n = args->job.n_in;
    const char *a = (const char *)args->job.a + blockIdx.z * activation_row_bytes(n);
    const uint4 *q = (const uint4 *)a, *d = (const uint4 *)(a + activation_d_at(n));
    const uint4 *sx = (const uint4 *)(a + activation_sx_at(n));
    const uint32_t *half = (const uint32_t *)(a + activation_half_at(n));
    for (unsigned i = threadIdx.x; i < args->n_blocks * 2; i += blockDim.x)
        *(uint4 *)(rows_shared + args->at.quants + i / 16 * UNIT_QUANTS + i % 16 * 16) = q[i];
    for (unsigned i = threadIdx.x; i < (args->n_blocks + 3) / 4; i += blockDim.x) {
        *(uint4 *)(rows_shared + args->at.d + 16 * i) = d[i];
        *(uint4 *)(rows_shared + args->at.sx + 16 * i) = sx[i];
    }
    for (unsigned i = threadIdx.x; i < args->n_blocks; i += blockDim.x)
        *(uint32_t *)(rows_shared + args->at.halves + 4 * i) = half[i];
}

/* The hidden row of this pair, quantised on the way; all threads. */
static __device__ __forceinline__ void hidden_load(const struct rows_args *args)
{
    const unsigned lane = threadIdx.x % 32;
    const float *hidden = args->job.hidden + problem_of_block() * args->job.n_in;
#pragma unroll 2
    for (unsigned k = threadIdx.x / 32; k < args->n_blocks; k += blockDim.x / 32) {
        const struct quantized z = quantize_lane(hidden[32 * k + lane]);
        const unsigned at = args->at.quants + k / 8 * UNIT_QUANTS + k % 8 * 32;
        *(int8_t *)(rows_shared + at + lane) = (int8_t)z.q;
        if (lane == 0) {
            *(float *)(rows_shared + args->at.d + 4 * k) = z.d;
            *(float *)(rows_shared + args->at.sx + 4 * k) = z.sx;
            *(int16_t *)(rows_shared + args->at.halves + 4 * k) = (int16_t)z.sum16[0];
            *(int16_t *)(rows_shared + args->at.halves + 4 * k + 2) = (int16_t)z.sum16[1];
        }
    }
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

template <uint32_t type>
static __global__ void __launch_bounds__(ROWS_THREADS_MAX, 1)
    rows_kernel(const __grid_constant__ struct rows_args args)
{
    const struct rows_job *job = &args.job;
    const bool routed_before = job->form != ROWS_GATE_UP && job->form != ROWS_GATE;
    struct rows_matrices m = {job->weights, NULL};
    struct rows_walk load = {blockIdx.x, 0, 0}, now = load, before = load;
    struct chain c = {0.0f, 0.0f};
    if (!routed_before)
        overlap_wait();
    if (job->form != ROWS_PRODUCT && !expert_find(job, &m))
        return;
    for (int step = 1 - (int)args.plan.stages;; step++) {
        if (step >= 0) {
            copy_wait(args.plan.stages - 2);
            __syncthreads();
        }
        if (load.tile < args.n_tiles)
            step_load<type>(&args, &m, &load);
        walk_next(&args, &load);
        copy_commit();
        if (step == -1) {
            if (routed_before)
                overlap_wait();
            overlap_announce();
            if (job->form == ROWS_DOWN)
                hidden_load(&args);
            else
                activations_load(&args);
        }
        if (step < 0)
            continue;
        if (threadIdx.x / 32 < args.plan.n_compute) {
            if (now.tile < args.n_tiles)
                step_compute<type>(&args, &m, &now, step & 1);
        } else if (step > 0) {
            step_chain<type>(&args, &before, (step & 1) ^ 1, &c);
        }
        if (now.tile >= args.n_tiles)
            break;
        before = now;
        walk_next(&args, &now);
    }
}

/* The host's side. */

static unsigned round_up(unsigned n, unsigned to)
{
    return (n + to - 1) / to * to;
}

static size_t ceiling(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

static size_t tiles_rows(const struct rows_job *job)
{
    return job->form == ROWS_GATE_UP ? 2 * job->n_out : job->n_out;
}

/* For blocks of threads that do n_steps each. */
static struct rows_layout layout_of(uint32_t type, const struct rows_job *job,
                                    const struct rows_plan *plan, size_t n_steps)
{
    struct rows_layout at;
    const unsigned n_blocks = round_up((unsigned)(job->n_in / 32), 8);
    const unsigned bytes = plan->units * unit_bytes(type), parts = plan->units * UNIT_PARTS;
    const unsigned n_slots = n_steps < plan->stages ? (unsigned)n_steps : plan->stages;
    const unsigned n_buffers = n_steps < 2 ? 1 : 2;
    at.quants = 0;
    at.d = n_blocks / 8 * UNIT_QUANTS;
    at.sx = at.d + 4 * n_blocks;
    at.halves = at.sx + 4 * n_blocks;
    at.ring = at.halves + 4 * n_blocks;
    if (unit_wide(type))
        at.stride = bytes / 16 % 2 == 0 ? bytes + 16 : bytes;
    else
        at.stride = (round_up(bytes + 2, 4) / 4 | 1) * 4;
    at.slot = round_up(plan->tile_rows * at.stride, 16);
    at.sum_next = parts * plan->tile_rows * 4;
    at.scale_next = at.sum_next * (unit_minima(type) ? 2 : 1);
    at.scale = at.ring + n_slots * at.slot;
    at.sum = at.scale + n_buffers * at.scale_next;
    at.low = at.sum + n_buffers * at.sum_next;
    at.total = at.low + (unit_folded(type) ? n_buffers * at.sum_next : 16);
    return at;
}

/* How many blocks of threads a problem may have, so that all of them run at once. */
template <uint32_t type>
static size_t abreast_of(const struct rows_args *args, unsigned n_threads, struct exec_stream *s)
{
    int together = 0;
    (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&together, rows_kernel<type>,
                                                        (int)n_threads, args->at.total);
    const size_t n_sm = (size_t)exec_cuda_n_multiprocessors(s);
    return ceiling((size_t)(together > 0 ? together : 1) * n_sm,
                   args->job.n_rows * args->job.n_used);
}

template <uint32_t type> static int launch_type(struct rows_args *args, struct exec_stream *s)
{
    int device = 0, limit = 0;
    const struct rows_job *job = &args->job;
    const struct rows_plan *plan = &args->plan;
    const unsigned n_threads = 32 * (plan->n_compute + (unsigned)ceiling(plan->tile_rows, 32));
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    (void)cudaFuncSetAttribute(rows_kernel<type>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               limit);
    args->at = layout_of(type, job, plan, args->n_chunks);
    size_t abreast = abreast_of<type>(args, n_threads, s);
    if (abreast < args->n_tiles) {
        args->at = layout_of(type, job, plan, 2 * (size_t)args->n_chunks);
        abreast = abreast_of<type>(args, n_threads, s);
        args->at = layout_of(type, job, plan, ceiling(args->n_tiles, abreast) * args->n_chunks);
    }
    if (args->at.total > (unsigned)limit || n_threads > ROWS_THREADS_MAX)
        return EBB_EUNSUPPORTED;
    const dim3 grid((unsigned)(args->n_tiles < abreast ? args->n_tiles : abreast),
                    (unsigned)job->n_used, (unsigned)job->n_rows);
    overlap_launch(rows_kernel<type>, grid, n_threads, args->at.total, exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}

int rows_launch(uint32_t type, const struct rows_job *job, struct rows_plan plan,
                struct exec_stream *s)
{
    struct rows_args args = {};
    args.job = *job;
    args.plan = plan;
    args.row_bytes = tensor_row_bytes(type, job->n_in);
    args.matrix_bytes = job->n_out * args.row_bytes;
    args.paired = job->form == ROWS_GATE_UP;
    args.n_rows = (unsigned)tiles_rows(job);
    args.n_blocks = (unsigned)(job->n_in / 32);
    args.n_tiles = (unsigned)ceiling(args.n_rows, plan.tile_rows);
    args.n_chunks = (unsigned)ceiling(job->n_in, 256 * (size_t)plan.units);
    while (1u << args.tile_shift < plan.tile_rows)
        args.tile_shift++;
    if (args.row_bytes == 0 || job->n_out > INT32_MAX / 2 || job->n_in > INT32_MAX / 2)
        return EBB_EUNSUPPORTED;
    switch (type) {
    case TENSOR_Q4_0: return launch_type<TENSOR_Q4_0>(&args, s);
    case TENSOR_Q4_1: return launch_type<TENSOR_Q4_1>(&args, s);
    case TENSOR_Q5_0: return launch_type<TENSOR_Q5_0>(&args, s);
    case TENSOR_Q5_1: return launch_type<TENSOR_Q5_1>(&args, s);
    case TENSOR_Q8_0: return launch_type<TENSOR_Q8_0>(&args, s);
    case TENSOR_Q2_K: return launch_type<TENSOR_Q2_K>(&args, s);
    case TENSOR_Q3_K: return launch_type<TENSOR_Q3_K>(&args, s);
    case TENSOR_Q4_K: return launch_type<TENSOR_Q4_K>(&args, s);
    case TENSOR_Q5_K: return launch_type<TENSOR_Q5_K>(&args, s);
    case TENSOR_Q6_K: return launch_type<TENSOR_Q6_K>(&args, s);
    default: return EBB_EUNSUPPORTED;
    }
}

struct rows_plan rows_plan_choose(uint32_t type, const struct rows_job *job, unsigned n_sm)
{
    struct rows_plan plan = {16, 8, 2, 0};
    const size_t n_units = ceiling(job->n_in, 256);
    (void)type, (void)n_sm;
    if (job->form == ROWS_GATE_UP)
        plan.tile_rows = 32, plan.units = 4;
    if (n_units <= 4)
        plan.tile_rows = 64;
    if (plan.units > n_units)
        plan.units = (unsigned)n_units;
    plan.n_compute = (unsigned)ceiling(plan.units * plan.tile_rows, 32);
    return plan;
}

int product_rows_cuda(const struct product_args *args, struct exec_stream *s)
{
    const unsigned n_sm = (unsigned)exec_cuda_n_multiprocessors(s);
    struct rows_job job = {};
    job.form = ROWS_PRODUCT;
    job.weights = (const unsigned char *)args->weights;
    job.n_in = args->n_in;
    job.n_out = args->n_out;
    job.n_rows = args->n_rows;
    job.n_used = 1;
    job.a = args->a;
    job.bias = args->bias;
    job.y = args->y;
    job.accumulate = args->accumulate;
    if (tensor_row_bytes(args->type, args->n_in) == 0 || (uintptr_t)args->weights % 2 != 0)
        return EBB_EUNSUPPORTED;
    if (args->n_out == 0 || args->n_rows == 0)
        return 0;
    return rows_launch(args->type, &job, rows_plan_choose(args->type, &job, n_sm), s);
}
