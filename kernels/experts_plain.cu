/* experts_plain.cu - the routed experts where some of gate, up and down are unquantised.
 *
 * Three launches (four where down is quantised): a plan sorts the (row, rank) pairs by expert and counts heat and hits; then
 * gate, up and SwiGLU to hidden rows in scratch; these quantised, if down wants that; then down. A warp computes a few outputs of up
 * to TILE_PAIRS pairs of one expert, so that an expert's weights are read once for many rows.
 *
 * Unquantised matrices: the order of addition of plain.cuh (tier 2). Quantised ones: the bits of tier 1, by a plain rendering of
 * NUMERICS rules 2 to 4: a lane takes every 32nd block, then the lanes' terms are chained in ascending order. Such mixtures are
 * rare, so that form is simple, not fast. A pair's bits depend on its own row and expert alone. Ids outside 0..n_experts - 1 are
 * skipped like -1.
 */
#include <cuda_runtime.h>
#include "kernels/activation.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"
#include "kernels/plain.cuh"
#include "kernels/weights.h"

#define WARPS            4
#define TILE_PAIRS       8
#define ONE_OUTPUTS      2 /* of a warp, for a tile of one pair */
#define TILE_OUTPUTS     4 /* for others */
#define PLAN_THREADS     1024
#define PLAN_EXPERTS_MAX PLAN_THREADS

/* Pairs [first, first + n) of the plan, all of one expert. */
struct tile {
    uint32_t expert, first, n;
};

struct plan {
    uint32_t *pairs;    /* [n_rows * n_used], by expert */
    uint32_t *n_tiles;  /* [1] */
    struct tile *tiles; /* [n_rows * n_used] at most */
    float *hidden;      /* [n_rows * n_used][d_expert], by pair */
    void *quantised;    /* the same as activation rows */
};

struct job {
    struct experts_args args;
    struct plan plan;
    size_t gate_bytes, up_bytes, down_bytes; /* of a row of weights */
    uint32_t tile_pairs;                     /* most pairs of a tile */
};

/* With few rows hardly two pairs have the same expert. The choice does not show in the bits. */
static size_t tile_pairs(size_t n_rows)
{
    return n_rows <= CUDA_ROWS_MAX ? 1 : TILE_PAIRS;
}

static size_t tiles_max(const struct experts_args *p)
{
    size_t n_pairs = p->n_rows * p->n_used, n = n_pairs / tile_pairs(p->n_rows) + p->n_experts;
    return n < n_pairs ? n : n_pairs;
}

/* Lays the plan out from `base` (NULL: only measures) and returns its bytes. */
static size_t plan_place(struct plan *plan, char *base, size_t n_pairs, size_t d_expert)
{
    size_t sizes[] = {n_pairs * sizeof(uint32_t), sizeof(uint32_t), n_pairs * sizeof(struct tile),
                      n_pairs * d_expert * sizeof(float),
                      n_pairs * activation_row_bytes(activation_round(d_expert, 32))};
    size_t at[5], total = 0;
    for (int i = 0; i < 5; i++) {
        at[i] = total;
        total += activation_round(sizes[i], 256);
    }
    if (base != NULL) {
        plan->pairs = (uint32_t *)(base + at[0]);
        plan->n_tiles = (uint32_t *)(base + at[1]);
        plan->tiles = (struct tile *)(base + at[2]);
        plan->hidden = (float *)(base + at[3]);
        plan->quantised = base + at[4];
    }
    return total;
}

static __device__ bool id_valid(const struct experts_args &p, int32_t id)
{
    return id >= 0 && (size_t)id < p.n_experts;
}

/* Sums of the threads' values up to and with each thread; n gets the sum of all. */
static __device__ uint32_t block_scan(uint32_t v, uint32_t *n)
{
    __shared__ uint32_t warps[PLAN_THREADS / 32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d <<= 1) {
        uint32_t other = __shfl_up_sync(~0u, v, d);
        v += lane >= d ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        warps[warp] = v;
    __syncthreads();
    *n = 0;
    for (unsigned w = 0; w < PLAN_THREADS / 32; w++) {
        *n += warps[w];
        v += w < warp ? warps[w] : 0;
    }
    return v;
}

/* One block: thread e sees to expert e. Where a pair lands within its expert's run does not show in any bit. */
static __global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(const struct job job)
{
    __shared__ uint32_t count[PLAN_EXPERTS_MAX], next[PLAN_EXPERTS_MAX];
    overlap_wait();
    overlap_announce();
    const struct experts_args &p = job.args;
    uint32_t e = threadIdx.x, n_pairs = (uint32_t)(p.n_rows * p.n_used), total;
    count[e] = 0;
    __syncthreads();
    for (uint32_t pair = threadIdx.x; pair < n_pairs; pair += PLAN_THREADS)
        if (id_valid(p, p.ids[pair]))
            atomicAdd(&count[p.ids[pair]], 1u);
    __syncthreads();
    uint32_t n = count[e], first = block_scan(n, &total) - n;
    uint32_t most = job.tile_pairs, n_tiles = (n + most - 1) / most;
    uint32_t tile = block_scan(n_tiles, &total) - n_tiles;
    for (uint32_t i = 0; i < n_tiles; i++)
        job.plan.tiles[tile + i] = {e, first + i * most, min(n - i * most, most)};
    if (e == 0)
        *job.plan.n_tiles = total;
    if (n > 0)
        p.heat[e] += n;
    next[e] = first;
    __syncthreads();
    for (uint32_t pair = threadIdx.x; pair < n_pairs; pair += PLAN_THREADS)
        if (id_valid(p, p.ids[pair]))
            job.plan.pairs[atomicAdd(&next[p.ids[pair]], 1u)] = pair;
    for (size_t row = threadIdx.x; row < p.n_rows; row += PLAN_THREADS) {
        uint32_t hits = 0;
#pragma unroll 1
        for (size_t pair = row * p.n_used; pair < (row + 1) * p.n_used; pair++)
            hits += id_valid(p, p.ids[pair]) && p.addresses[p.ids[pair]].resident != 0;
        if (hits > 0)
            p.hits[row] += hits;
    }
}

/* A matrix [..][n_in] and the inputs of R pairs, in both forms; the matrix reads one of them. */
template <int R> struct inputs {
    uint32_t type;
    const char *weights;
    size_t row_bytes, n_in, n_out;
    const float *plain[R];
    const void *quantised[R];
};

template <typename W, int R, int O>
static __device__ void plain_outputs(const struct inputs<R> &m, size_t out, float (&acc)[R * O])
{
    const W *w[O];
#pragma unroll
    for (int o = 0; o < O; o++)
        w[o] = (const W *)(m.weights + min(out + o, m.n_out - 1) * m.row_bytes);
    bool aligned = plain_aligned((const W *)m.weights, m.plain[0], m.n_in);
    plain_sums<W, R, O, (R == 1 ? 4 : 1)>(w, m.plain, m.n_in, aligned, acc);
    plain_join<R * O>(acc);
}

/* The terms that block k adds to the two chains of an element (NUMERICS rule 3). */
struct terms {
    float scale, isum, b, sx;
};

static __device__ struct terms block_terms(const struct weights &w, const void *a, size_t n,
                                           size_t k)
{
    const int8_t *q = activation_q(a) + 32 * k;
    int sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 32; i++)
        sum[i / 16] += w.q[i] * q[i];
    const int16_t *half = activation_half(a, n) + 2 * k;
    float d = activation_d(a, n)[k];
    struct terms t = {w.a * d, (float)(w.scale[0] * sum[0] + w.scale[1] * sum[1]), w.b, 0.0f};
    if (w.minima)
        t.sx = w.folded ? d * (float)(w.minimum[0] * half[0] + w.minimum[1] * half[1])
                        : activation_sx(a, n)[k];
    return t;
}

/* One element, for all lanes. */
static __device__ float quantised_output(uint32_t type, const void *weights, const void *a,
                                         size_t n)
{
    float acc = 0.0f, accm = 0.0f;
    bool minima = false;
    for (size_t base = 0; base < n / 32; base += 32) {
        size_t k = base + threadIdx.x % 32, left = n / 32 - base;
        struct terms t = {};
        if (k < n / 32) {
            struct weights w = weights_load(type, weights, k);
            t = block_terms(w, a, n, k);
            minima = w.minima;
        }
        minima = __any_sync(~0u, minima);
        for (int j = 0; j < 32 && j < left; j++) {
            acc = __fmaf_rn(__shfl_sync(~0u, t.scale, j), __shfl_sync(~0u, t.isum, j), acc);
            if (minima)
                accm = __fmaf_rn(__shfl_sync(~0u, t.b, j), __shfl_sync(~0u, t.sx, j), accm);
        }
    }
    return acc - accm;
}

/* Elements of O outputs from `out` and R pairs, as plain_join() leaves them. */
template <int R, int O>
static __device__ void outputs_compute(const struct inputs<R> &m, size_t out, float (&acc)[R * O])
{
    constexpr int n = R * O;
    switch (m.type) {
    case TENSOR_F32: plain_outputs<struct plain_f32, R, O>(m, out, acc); return;
    case TENSOR_F16: plain_outputs<struct plain_f16, R, O>(m, out, acc); return;
    case TENSOR_BF16: plain_outputs<struct plain_bf16, R, O>(m, out, acc); return;
    }
    for (int r = 0; r < R; r++)
        for (int o = 0; o < O; o++) {
            const char *row = m.weights + min(out + o, m.n_out - 1) * m.row_bytes;
            float element = quantised_output(m.type, row, m.quantised[r], m.n_in);
#pragma unroll
            for (int j = 0; j < plain_count<n>(); j++)
                if (plain_first<n>() + j == r * O + o)
                    acc[j] = element;
        }
}

/* Hidden values from `out` of the tile's first R pairs (of which t.n count). */
template <int R, int O>
static __device__ void tile_hidden(const struct job &job, const struct tile &t, size_t out)
{
    const struct experts_args &p = job.args;
    constexpr int n = R * O;
    float gate[n], up[n];
    uint32_t pairs[R];
    struct inputs<R> m = {
    };
    m.n_in = p.d_model;
    m.n_out = p.d_expert;
#pragma unroll
    for (int r = 0; r < R; r++) {
        pairs[r] = job.plan.pairs[t.first + min(r, t.n - 1)];
        size_t row = pairs[r] / p.n_used;
        m.plain[r] = p.x + row * p.d_model;
        m.quantised[r] = (const char *)p.a + row * activation_row_bytes(p.d_model);
    }
    m.type = p.gate_type;
    m.weights = (const char *)p.addresses[t.expert].gate;
    m.row_bytes = job.gate_bytes;
    outputs_compute<R, O>(m, out, gate);
    m.type = p.up_type;
    m.weights = (const char *)p.addresses[t.expert].up;
    m.row_bytes = job.up_bytes;
    outputs_compute<R, O>(m, out, up);
#pragma unroll
    for (int j = 0; j < plain_count<n>(); j++) {
        int e = plain_first<n>() + j, r = e / O;
        size_t o = out + e % O;
        if (plain_owner<n>() && r < t.n && o < p.d_expert)
            job.plan.hidden[job.plan.pairs[t.first + r] * p.d_expert + o] =
                ebb_swiglu(gate[j], up[j]);
    }
}

/* Outputs from `out` of the tile's first R pairs. */
template <int R, int O>
static __device__ void tile_down(const struct job &job, const struct tile &t, size_t out)
{
    const struct experts_args &p = job.args;
    constexpr int n = R * O;
    float acc[n];
    struct inputs<R> m = {
    };
    m.type = p.down_type;
    m.weights = (const char *)p.addresses[t.expert].down;
    m.row_bytes = job.down_bytes;
    m.n_in = p.d_expert;
    m.n_out = p.d_model;
#pragma unroll
    for (int r = 0; r < R; r++) {
        size_t pair = job.plan.pairs[t.first + min(r, t.n - 1)];
        m.plain[r] = job.plan.hidden + pair * p.d_expert;
        m.quantised[r] = (const char *)job.plan.quantised + pair * activation_row_bytes(p.d_expert);
    }
    outputs_compute<R, O>(m, out, acc);
#pragma unroll
    for (int j = 0; j < plain_count<n>(); j++) {
        int e = plain_first<n>() + j, r = e / O;
        size_t o = out + e % O;
        if (plain_owner<n>() && r < t.n && o < p.d_model)
            p.outputs[(size_t)job.plan.pairs[t.first + r] * p.d_model + o] = acc[j];
    }
}

template <bool DOWN, int R, int O>
static __global__ void __launch_bounds__(WARPS * 32, R == 1 ? 6 : 4)
    tiles_kernel(const struct job job)
{
    overlap_wait();
    overlap_announce();
    size_t out = ((size_t)blockIdx.x * WARPS + threadIdx.x / 32) * O;
    if (blockIdx.y >= *job.plan.n_tiles || out >= (DOWN ? job.args.d_model : job.args.d_expert))
        return;
    struct tile t = job.plan.tiles[blockIdx.y];
    if (DOWN)
        tile_down<R, O>(job, t, out);
    else
        tile_hidden<R, O>(job, t, out);
}

template <bool DOWN, int R, int O>
static void tiles_launch(const struct job *job, struct exec_stream *s)
{
    const struct experts_args *p = &job->args;
    size_t n_out = DOWN ? p->d_model : p->d_expert;
    dim3 grid((unsigned)((n_out + WARPS * O - 1) / (WARPS * O)), (unsigned)tiles_max(p));
    launch(tiles_kernel<DOWN, R, O>, grid, WARPS * 32, job, s);
}

template <bool DOWN> static int outputs_launch(const struct job *job, struct exec_stream *s)
{
    if (job->tile_pairs == 1)
        tiles_launch<DOWN, 1, ONE_OUTPUTS>(job, s);
    else
        tiles_launch<DOWN, TILE_PAIRS, TILE_OUTPUTS>(job, s);
    return exec_cuda_launched(s);
}

size_t experts_plain_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                  size_t d_expert)
{
    (void)n_experts, (void)d_model;
    return plan_place(NULL, NULL, n_rows * n_used, d_expert);
}

static int experts_launch(const struct job *job, bool down_quantised, struct exec_stream *s)
{
    const struct experts_args *p = &job->args;
    launch(plan_kernel, dim3(1), PLAN_THREADS, job, s);
    int rc = exec_cuda_launched(s);
    if (rc == 0)
        rc = outputs_launch<false>(job, s);
    if (rc == 0 && down_quantised) {
        struct quantize_args quantize = {job->plan.hidden, job->plan.quantised,
                                         p->n_rows * p->n_used, p->d_expert};
        rc = quantize_cuda(&quantize, s);
    }
    return rc == 0 ? outputs_launch<true>(job, s) : rc;
}

int experts_plain_cuda(const struct experts_args *args, struct exec_stream *s)
{
    struct job job = {};
    size_t n_pairs = args->n_rows * args->n_used;
    job.args = *args;
    job.tile_pairs = (uint32_t)tile_pairs(args->n_rows);
    job.gate_bytes = tensor_row_bytes(args->gate_type, args->d_model);
    job.up_bytes = tensor_row_bytes(args->up_type, args->d_model);
    job.down_bytes = tensor_row_bytes(args->down_type, args->d_expert);
    if (job.gate_bytes == 0 || job.up_bytes == 0 || job.down_bytes == 0 ||
        args->n_used > EXPERTS_USED_MAX || args->n_experts > PLAN_EXPERTS_MAX ||
        tiles_max(args) > 65535)
        return EBB_EUNSUPPORTED;
    if (n_pairs == 0)
        return 0;
    (void)plan_place(&job.plan, (char *)args->scratch, n_pairs, args->d_expert);
    return experts_launch(&job, tensor_type_find(args->down_type)->block_values > 1, s);
}
