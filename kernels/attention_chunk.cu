/* attention_chunk.cu - attention on a CUDA card for many rows: a block keeps its query vectors and walks all their keys. Tier 2; the
 * arithmetic is in attention.cuh, and the bits are those of the split form (attention_split.cu).
 *
 * A slice is as many rows as fit 16 vectors a warp with all query heads of one KV head. Rows of a slice that follow each other in
 * one sequence make a run; blockIdx.z takes every CHUNK_RUNS-th run of the slice, so a chunk of one sequence is one run, and rows of
 * many sequences still spread. Keys and values come in stages through a ring in shared memory; each warp computes its 16 vectors
 * alone. At the end of a partition its result joins the total, which is in registers, or, for heads of 256, in shared memory. Table
 * entries for 32 blocks are in the lanes' registers, and the next 32 on their way. Cards with much shared memory have longer stages.
 *
 * Loads stop at the run's largest position; keys past a row's own are multiplied by zero. Owns nothing. Shapes are checked by
 * attention_cuda().
 */
#include "kernels/attention.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/overlap.cuh"

#define CHUNK_RUNS 4
#define VECTORS    16 /* of a warp */

template <int D, bool LONG> struct chunk_shape {
    static const int WARPS = D <= 128 || LONG ? 8 : 2;
    static const int THREADS = WARPS * 32;
    static const int STAGE_KEYS = D > 128 ? 32 : LONG ? 128 : 64;
    static const int STAGES = D > 128 || LONG ? 2 : 3;
    static const bool TOTAL_SHARED = D > 128;
    static const int ROW = D * 2; /* bytes of a key in shared memory */
    static const int COPY_KEYS = D < 96 ? 32 : D <= 128 ? 16 : WARPS; /* copied side by side */
    static const int STAGE_BYTES = 2 * STAGE_KEYS * ROW;
    static const int TOTAL_AT = STAGES * STAGE_BYTES;
    static const int BYTES = TOTAL_AT + (TOTAL_SHARED ? WARPS * VECTORS * D * 4 : 0);
};

/* Where the out of a lane's two vectors gathers, four values at a time: in registers or in shared memory. */
template <int D, bool LONG, bool SHARED> struct chunk_out {
    float4 in_registers[D / 8];
    __device__ __forceinline__ float4 &at(int i) { return in_registers[i]; }
};

template <int D, bool LONG> struct chunk_out<D, LONG, true> {
    float4 *base;
    __device__ __forceinline__ float4 &at(int i) { return base[i * chunk_shape<D, LONG>::THREADS]; }
};

/* One warp's vectors: the lane has g and g + 8. */
template <int D, bool LONG> struct chunk_state {
    struct chunk_out<D, LONG, chunk_shape<D, LONG>::TOTAL_SHARED> out;
    uint4 query[D / 32][2];
    float part[D / 8][4];
    float max[2], sum[2];
    struct attention_total total[2];
    int limit[2];    /* positions; -1 = none */
    int least, most; /* of all 16 that are, most = -1: none is */
};

struct chunk_run {
    int first, n, last; /* rows, and the largest position */
    int32_t sequence;
};

/* Run number `wanted` of rows [first, end); n = 0: there are not so many. */
static __device__ struct chunk_run run_find(const int32_t *position, const int32_t *sequence,
                                            int first, int end, int wanted)
{
    struct chunk_run run = {0, 0, -1, 0};
    for (int r = first; r < end && wanted >= 0; r++) {
        if (position[r] < 0)
            continue;
        run.first = r;
        run.n = 0;
        run.last = -1;
        run.sequence = sequence[r];
        for (; r < end && position[r] >= 0 && sequence[r] == run.sequence; r++) {
            run.n++;
            run.last = run.last > position[r] ? run.last : position[r];
        }
        r--;
        wanted--;
    }
    if (wanted >= 0)
        run.n = 0;
    return run;
}

/* The lane's two vectors: their queries and positions. */
template <int D, bool LONG, bool PADDED>
static __device__ __forceinline__ void vectors_load(const struct attention_args *a,
                                                    const struct chunk_run *run, int group,
                                                    int kv_head, struct chunk_state<D, LONG> *s)
{
    int lane = threadIdx.x % 32;
    int head_dim = head_dim_of<D, PADDED>(&a->kv);
    float scale = a->scale * LOG2_E;
    s->least = INT32_MAX;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int v = threadIdx.x / 32 * VECTORS + lane / 4 + 8 * r, row = v / group;
        bool real = row < run->n;
        s->limit[r] = real ? a->kv.positions[run->first + row] : -1;
        s->least = real && s->limit[r] < s->least ? s->limit[r] : s->least;
        const float *q = a->q + ((size_t)(run->first + (real ? row : 0)) * a->n_heads +
                                 kv_head * group + v % group) *
                                    head_dim;
#pragma unroll
        for (int x = 0; x < D / 32; x++) {
            int d = x * 32 + lane % 4 * 8;
            const float4 *from = (const float4 *)(q + d);
            s->query[x][r] =
                real && d < head_dim ? query_of(from[0], from[1], scale) : make_uint4(0, 0, 0, 0);
        }
        s->total[r].max = NO_SCORE;
        s->total[r].sum = 0;
    }
    s->most = s->limit[0] > s->limit[1] ? s->limit[0] : s->limit[1];
    s->most = __reduce_max_sync(0xffffffff, s->most);
    s->least = __reduce_min_sync(0xffffffff, s->least);
}

/* Table entries of 32 blocks from a multiple of 32 on, one a lane. */
static __device__ __forceinline__ int32_t entries_load(const struct kv_head_view *kv, int block,
                                                       int last)
{
    block += threadIdx.x % 32;
    return block <= last / TILE_KEYS ? kv->table[block] : 0;
}

/* What a thread copies: one unit of every COPY_KEYS-th key. */
struct chunk_copy {
    const char *from; /* in block 0 */
    uint32_t to;      /* in stage 0 */
    int key;
    bool is_real;  /* COPY_KEYS keys may take fewer threads than there are */
    bool is_value; /* false: a unit past head_dim, which gets zeros */
};

template <int D, bool LONG>
static __device__ __forceinline__ struct chunk_copy copy_of(const struct kv_head_view *kv,
                                                            uint32_t ring, int head_dim)
{
    typedef struct chunk_shape<D, LONG> shape;
    int key = threadIdx.x / (D / 8), unit = threadIdx.x % (D / 8);
    struct chunk_copy c = {kv->base + key * kv->token_bytes + unit * 16,
                           ring + key * shape::ROW + (unit ^ swizzle<D>(key)) * 16, key,
                           key < shape::COPY_KEYS, unit * 8 < head_dim};
    return c;
}

/* One block's keys and values, to shared memory at `to`. ALL: none of its keys is past `last`. */
template <int D, bool LONG, bool PADDED, bool ALL>
static __device__ __forceinline__ void block_fetch(const struct chunk_copy *c,
                                                   const struct kv_head_view *kv, int32_t entry,
                                                   uint32_t to, int left)
{
    typedef struct chunk_shape<D, LONG> shape;
    const int KEYS = shape::COPY_KEYS;
    const char *k = c->from + (size_t)entry * kv->block_stride;
    const char *v = k + TILE_KEYS * kv->token_bytes;
#pragma unroll
    for (int i = 0; i < TILE_KEYS; i += KEYS) {
        /* a step of fewer than eight keys changes the swizzle */
        uint32_t turn = KEYS % 8 == 0 ? 0 : (swizzle<D>(c->key + i) ^ swizzle<D>(c->key)) * 16;
        uint32_t at = (to ^ turn) + i * shape::ROW;
        bool real = (!PADDED || c->is_value) && (ALL || c->key + i <= left);
        copy_async(at, k + i * kv->token_bytes, real);
        copy_async(at + shape::STAGE_KEYS * shape::ROW, v + i * kv->token_bytes, real);
    }
}

/* Starts the copy of one stage; `entries` holds its blocks. */
template <int D, bool LONG, bool PADDED>
static __device__ __forceinline__ void stage_fetch(const struct chunk_copy *c,
                                                   const struct kv_head_view *kv, int32_t entries,
                                                   int slot, int first, int last)
{
    typedef struct chunk_shape<D, LONG> shape;
    uint32_t to = c->to + slot * shape::STAGE_BYTES;
#pragma unroll
    for (int b = 0; b < shape::STAGE_KEYS; b += TILE_KEYS) {
        int32_t entry = __shfl_sync(0xffffffff, entries, (first + b) / TILE_KEYS % 32);
        if (!c->is_real)
            continue;
        if (first + b + TILE_KEYS - 1 <= last)
            block_fetch<D, LONG, PADDED, true>(c, kv, entry, to + b * shape::ROW, 0);
        else
            block_fetch<D, LONG, PADDED, false>(c, kv, entry, to + b * shape::ROW,
                                                last - first - b);
    }
}

template <int D, bool LONG>
static __device__ __forceinline__ void chunk_scores(const struct chunk_state<D, LONG> *s,
                                                    const char *k, float score[TILE_COLS][4])
{
    int lane = threadIdx.x % 32, g = lane / 4, turn = (lane % 4 ^ swizzle<D>(g)) * 16;
    k += g * D * 2;
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++)
        score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0;
#pragma unroll
    for (int x = 0; x < D / 32; x++) {
        uint4 key[TILE_COLS];
#pragma unroll
        for (int i = 0; i < TILE_COLS; i++)
            key[i] = *(const uint4 *)(k + i * 8 * D * 2 + (x * 64 ^ turn));
        scores_32(score, s->query[x][0], s->query[x][1], key);
    }
}

template <int D, bool LONG>
static __device__ __forceinline__ void chunk_values(struct chunk_state<D, LONG> *s, uint32_t v,
                                                    const float e[TILE_COLS][4])
{
    int lane = threadIdx.x % 32;
    uint32_t turn = (lane / 16 ^ swizzle<D>(lane % 8)) * 16;
    v += lane % 16 * D * 2;
#pragma unroll
    for (int k = 0; k < TILE_KEYS / 16; k++) {
        uint32_t p[4] = {half2_of(e[2 * k][0], e[2 * k][1]), half2_of(e[2 * k][2], e[2 * k][3]),
                         half2_of(e[2 * k + 1][0], e[2 * k + 1][1]),
                         half2_of(e[2 * k + 1][2], e[2 * k + 1][3])};
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            uint32_t b[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(v + k * 16 * D * 2 + (i * 16 ^ turn)));
            mma_16816(s->part[i], p[0], p[1], p[2], p[3], b[0], b[1]);
            mma_16816(s->part[i + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
        }
    }
}

/* One tile of keys for the warp's vectors. */
template <int D, bool LONG>
static __device__ __forceinline__ void tile_attend(struct chunk_state<D, LONG> *s, const char *k,
                                                   uint32_t v, int first)
{
    float score[TILE_COLS][4], own[2], c[2], sum[2];
    chunk_scores<D, LONG>(s, k, score);
    if (first + TILE_KEYS - 1 > s->least)
        tile_mask(score, first, s->limit);
    tile_max(score, own);
    tile_exponentials(score, s->max, own, c, sum);
    s->sum[0] = __fmaf_rn(s->sum[0], c[0], sum[0]);
    s->sum[1] = __fmaf_rn(s->sum[1], c[1], sum[1]);
    if (__any_sync(0xffffffff, c[0] != 1.0f || c[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            s->part[i][0] *= c[0];
            s->part[i][1] *= c[0];
            s->part[i][2] *= c[1];
            s->part[i][3] *= c[1];
        }
    }
    chunk_values<D, LONG>(s, v, score);
}

template <int D, bool LONG>
static __device__ __forceinline__ void partition_begin(struct chunk_state<D, LONG> *s)
{
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        s->part[i][0] = s->part[i][1] = s->part[i][2] = s->part[i][3] = 0;
    s->max[0] = s->max[1] = NO_SCORE;
    s->sum[0] = s->sum[1] = 0;
}

/* The partition that begins at position `begin` joins the totals of the vectors that reach it. */
template <int D, bool LONG>
static __device__ __forceinline__ void partition_end(struct chunk_state<D, LONG> *s, int begin)
{
    float old[2], now[2];
    bool reached[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = s->sum[r];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        reached[r] = begin <= s->limit[r];
        if (reached[r])
            total_join(&s->total[r], s->max[r], sum, &old[r], &now[r]);
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        float4 out = s->out.at(i);
        const float *part = s->part[i];
        if (reached[0]) {
            out.x = __fmaf_rn(out.x, old[0], part[0] * now[0]);
            out.y = __fmaf_rn(out.y, old[0], part[1] * now[0]);
        }
        if (reached[1]) {
            out.z = __fmaf_rn(out.z, old[1], part[2] * now[1]);
            out.w = __fmaf_rn(out.w, old[1], part[3] * now[1]);
        }
        s->out.at(i) = out;
    }
}

template <int D, bool LONG, bool PADDED>
static __device__ __forceinline__ void vectors_store(const struct attention_args *a,
                                                     const struct chunk_run *run, int group,
                                                     int kv_head, struct chunk_state<D, LONG> *s)
{
    int lane = threadIdx.x % 32, head_dim = head_dim_of<D, PADDED>(&a->kv);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int v = threadIdx.x / 32 * VECTORS + lane / 4 + 8 * r;
        if (s->limit[r] < 0)
            continue;
        float inverse = 1.0f / s->total[r].sum;
        float *to = a->out +
                    ((size_t)(run->first + v / group) * a->n_heads + kv_head * group + v % group) *
                        head_dim +
                    lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            if (PADDED && i * 8 >= head_dim)
                break;
            float4 out = s->out.at(i);
            *(float2 *)(to + 8 * i) = r == 0 ? make_float2(out.x * inverse, out.y * inverse)
                                             : make_float2(out.z * inverse, out.w * inverse);
        }
    }
}

/* The vectors of one run over all their keys. */
template <int D, bool LONG, bool PADDED>
static __device__ __forceinline__ void run_attend(const struct attention_args *a,
                                                  const struct chunk_run *run, int group,
                                                  int kv_head, char *memory)
{
    typedef struct chunk_shape<D, LONG> shape;
    const int BLOCKS = shape::STAGE_KEYS / TILE_KEYS, AHEAD = shape::STAGES - 1;
    struct chunk_state<D, LONG> s;
    if constexpr (shape::TOTAL_SHARED)
        s.out.base = (float4 *)(memory + shape::TOTAL_AT) + threadIdx.x;
    struct kv_head_view kv = kv_head_of(&a->kv, run->sequence, kv_head);
    uint32_t ring = shared_address(memory);
    struct chunk_copy copy = copy_of<D, LONG>(&kv, ring, head_dim_of<D, PADDED>(&a->kv));
    int n_stages = run->last / shape::STAGE_KEYS + 1, last = run->last;
    int32_t entries = entries_load(&kv, 0, last), entries_next = entries_load(&kv, 32, last);

#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (i < n_stages)
            stage_fetch<D, LONG, PADDED>(&copy, &kv, entries, i, i * shape::STAGE_KEYS, last);
        copy_commit();
    }
    vectors_load<D, LONG, PADDED>(a, run, group, kv_head, &s);
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        s.out.at(i) = make_float4(0, 0, 0, 0);
    partition_begin<D, LONG>(&s);
    int slot = 0;
    for (int stage = 0; stage < n_stages; stage++) {
        copy_wait<AHEAD - 1>();
        __syncthreads();
        int ahead = stage + AHEAD, free_slot = slot == 0 ? shape::STAGES - 1 : slot - 1;
        if (ahead * BLOCKS % 32 == 0) {
            entries = entries_next;
            entries_next = entries_load(&kv, ahead * BLOCKS + 32, last);
        }
        if (ahead < n_stages)
            stage_fetch<D, LONG, PADDED>(&copy, &kv, entries, free_slot, ahead * shape::STAGE_KEYS,
                                         last);
        copy_commit();
        int first = stage * shape::STAGE_KEYS, at = slot * shape::STAGE_BYTES;
#pragma unroll 1
        for (int t = 0; t < shape::STAGE_KEYS && first + t <= s.most; t += TILE_KEYS)
            tile_attend<D, LONG>(&s, memory + at + t * shape::ROW,
                                 ring + at + (shape::STAGE_KEYS + t) * shape::ROW, first + t);
        int end = first + shape::STAGE_KEYS,
            begin = first / KV_PARTITION_TOKENS * KV_PARTITION_TOKENS;
        if ((end % KV_PARTITION_TOKENS == 0 || stage == n_stages - 1) && begin <= s.most) {
            partition_end<D, LONG>(&s, begin);
            partition_begin<D, LONG>(&s);
        }
        slot = slot == shape::STAGES - 1 ? 0 : slot + 1;
    }
    vectors_store<D, LONG, PADDED>(a, run, group, kv_head, &s);
}

struct chunk_job {
    struct attention_args a;
    int group, slice_rows;
};

/* Later slices, which have more keys in a prompt, go first. */
template <int D, bool LONG, bool PADDED>
static __global__ void __launch_bounds__(chunk_shape<D, LONG>::THREADS, 1)
    attention_chunk_kernel(const __grid_constant__ struct chunk_job job)
{
    extern __shared__ __align__(128) char memory[];
    const struct attention_args &a = job.a;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * job.slice_rows, end = first + job.slice_rows;
    end = end < (int)a.n_rows ? end : (int)a.n_rows;
    overlap_wait();
    overlap_announce();
    for (int wanted = blockIdx.z;; wanted += gridDim.z) {
        struct chunk_run run = run_find(a.kv.positions, a.kv.row_sequence, first, end, wanted);
        if (run.n == 0)
            return;
        run_attend<D, LONG, PADDED>(&a, &run, job.group, blockIdx.y, memory);
        __syncthreads();
    }
}

template <int D, bool LONG, bool PADDED>
static int chunk_launch(const struct attention_args *args, struct exec_stream *stream)
{
    typedef struct chunk_shape<D, LONG> shape;
    struct chunk_job job = {*args, (int)(args->n_heads / args->kv.n_kv_heads), 0};
    int rows = job.slice_rows = shape::WARPS * VECTORS / job.group;
    dim3 grid((unsigned)((args->n_rows + rows - 1) / rows), (unsigned)args->kv.n_kv_heads,
              (unsigned)(rows < CHUNK_RUNS ? rows : CHUNK_RUNS));
    if (cudaFuncSetAttribute(attention_chunk_kernel<D, LONG, PADDED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::BYTES) == cudaSuccess)
        overlap_launch(attention_chunk_kernel<D, LONG, PADDED>, grid, shape::THREADS, shape::BYTES,
                       exec_cuda_stream(stream), &job);
    return exec_cuda_launched(stream);
}

template <int D>
static int chunk_launch_any(const struct attention_args *args, struct exec_stream *s)
{
    int device = 0, most = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return most >= chunk_shape<D, true>::BYTES ? chunk_launch<D, true, false>(args, s)
                                               : chunk_launch<D, false, false>(args, s);
}

int attention_chunk_cuda(const struct attention_args *args, struct exec_stream *s)
{
    size_t head_dim = args->kv.head_dim;
    switch (head_dim) {
    case 32: return chunk_launch_any<32>(args, s);
    case 64: return chunk_launch_any<64>(args, s);
    case 96: return chunk_launch_any<96>(args, s);
    case 128: return chunk_launch_any<128>(args, s);
    case 256: return chunk_launch_any<256>(args, s);
    default: /* PADDED: rare, so short stages serve every card */
        return head_dim < 64    ? chunk_launch<64, false, true>(args, s)
               : head_dim < 128 ? chunk_launch<128, false, true>(args, s)
                                : chunk_launch<256, false, true>(args, s);
    }
}
