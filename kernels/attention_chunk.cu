/* attention_chunk.cu - attention on a CUDA card for many rows: a block keeps its query vectors and walks all their keys. Tier 2; the
 * arithmetic is in attention.cuh, and the bits are those of the split form (attention.cu).
 *
 * A slice is as many rows as fit 16 vectors a warp with all query heads of one KV head. Rows of a slice that follow each other in
 * one sequence make a run; blockIdx.z takes every CHUNK_RUNS-th run of the slice, so a chunk of one sequence is one run, and rows of
 * many sequences still spread. Keys and values come in stages of STAGE_KEYS through a ring in shared memory; each warp computes its
 * 16 vectors alone. At the end of a partition its result joins the total, which is in registers, or, for heads of 256,
 * in shared memory. Table entries for 32 blocks are in the lanes' registers, and the next 32 on their way.
 *
 * Loads stop at the run's largest position; keys past a row's own are multiplied by zero. Owns nothing. Shapes are checked by
 * attention_cuda(); at most ATTENTION_CHUNK_GROUP query heads share a KV head.
 */
#include "kernels/attention.cuh"
#include "kernels/exec_cuda.h"

#define CHUNK_RUNS 4
#define VECTORS    16 /* of a warp */

template <int D> struct chunk_shape {
    static const int WARPS = D <= 128 ? 8 : 2;
    static const int THREADS = WARPS * 32;
    static const int STAGE_KEYS = D <= 128 ? 64 : 32;
    static const int STAGES = D <= 128 ? 3 : 2;
    static const bool TOTAL_SHARED = D > 128;
    static const int ROW = D * 2; /* bytes of a key in shared memory */
    static const int COPY_KEYS = D < 96 ? 32 : D <= 128 ? 16 : 2; /* copied side by side */
    static const int STAGE_BYTES = 2 * STAGE_KEYS * ROW;
    static const int BYTES = STAGES * STAGE_BYTES + (TOTAL_SHARED ? WARPS * VECTORS * D * 4 : 0);
};

/* Where the out of a lane's two vectors gathers: [D / 8][4], in registers or in shared memory. */
template <int D, bool SHARED> struct chunk_out {
    float in_registers[D / 8][4];
    __device__ __forceinline__ float &at(int i, int j) { return in_registers[i][j]; }
};

template <int D> struct chunk_out<D, true> {
    float *base;
    __device__ __forceinline__ float &at(int i, int j)
    {
        return base[(i * 4 + j) * chunk_shape<D>::THREADS];
    }
};

/* One warp's vectors. */
template <int D> struct chunk_state {
    uint4 query[D / 32][2];
    float part[D / 8][4];
    float max[2], sum[2];
    struct attention_total total[2];
    int limit[2];    /* positions of vectors g and g + 8; -1 = none */
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
template <int D>
static __device__ __forceinline__ void vectors_load(const struct attention_args *a,
                                                    const struct chunk_run *run, int group,
                                                    int kv_head, struct chunk_state<D> *s)
{
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float scale = a->scale * LOG2_E;
    s->least = INT32_MAX;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int v = threadIdx.x / 32 * VECTORS + g + 8 * r, row = v / group;
        bool real = row < run->n;
        s->limit[r] = real ? a->kv.positions[run->first + row] : -1;
        s->least = real && s->limit[r] < s->least ? s->limit[r] : s->least;
        const float *q = a->q + ((size_t)(run->first + (real ? row : 0)) * a->n_heads +
                                 kv_head * group + v % group) *
                                    D;
#pragma unroll
        for (int x = 0; x < D / 32; x++)
            s->query[x][r] = real ? query_of(q + x * 32 + c * 8, scale) : make_uint4(0, 0, 0, 0);
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

/* Starts the copy of one stage; `entries` holds its blocks. A thread takes one unit of every KEYS-th key. */
template <int D>
static __device__ __forceinline__ void stage_fetch(uint32_t to, const struct kv_head_view *kv,
                                                   int32_t entries, int first, int last)
{
    typedef struct chunk_shape<D> shape;
    const int UNITS = D / 8, KEYS = shape::COPY_KEYS;
    unsigned t0 = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
    size_t values = TILE_KEYS * kv->token_bytes;
#pragma unroll
    for (int b = 0; b < shape::STAGE_KEYS / TILE_KEYS; b++) {
        int begin = first + b * TILE_KEYS;
        int32_t entry = __shfl_sync(0xffffffff, entries, begin / TILE_KEYS % 32);
        const char *from =
            kv->base + (size_t)entry * kv->block_stride + t0 * kv->token_bytes + unit * 16;
        if (t0 >= KEYS)
            continue;
#pragma unroll
        for (int i = 0; i < TILE_KEYS; i += KEYS) {
            bool real = begin + i + (int)t0 <= last;
            uint32_t at =
                to + (b * TILE_KEYS + i + t0) * shape::ROW + (unit ^ swizzle<D>(i + t0)) * 16;
            copy_async(at, from, real);
            copy_async(at + shape::STAGE_KEYS * shape::ROW, from + values, real);
            from += KEYS * kv->token_bytes;
        }
    }
}

template <int D>
static __device__ __forceinline__ void chunk_scores(const struct chunk_state<D> *s, const char *k,
                                                    float score[TILE_COLS][4])
{
    int lane = threadIdx.x % 32, g = lane / 4, turn = (lane % 4 ^ swizzle<D>(g)) * 16;
    k += g * chunk_shape<D>::ROW;
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            score[i][j] = 0;
#pragma unroll
    for (int x = 0; x < D / 32; x++) {
        uint4 key[TILE_COLS];
#pragma unroll
        for (int i = 0; i < TILE_COLS; i++)
            key[i] = *(const uint4 *)(k + i * 8 * chunk_shape<D>::ROW + (x * 64 ^ turn));
        scores_32(score, s->query[x][0], s->query[x][1], key);
    }
}

template <int D>
static __device__ __forceinline__ void chunk_values(struct chunk_state<D> *s, uint32_t v,
                                                    const float e[TILE_COLS][4])
{
    int lane = threadIdx.x % 32;
    uint32_t turn = (lane / 16 ^ swizzle<D>(lane % 8)) * 16;
    v += lane % 16 * chunk_shape<D>::ROW;
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
                         : "r"(v + k * 16 * chunk_shape<D>::ROW + (i * 16 ^ turn)));
            mma_16816(s->part[i], p[0], p[1], p[2], p[3], b[0], b[1]);
            mma_16816(s->part[i + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
        }
    }
}

/* One tile of keys for the warp's vectors. */
template <int D>
static __device__ __forceinline__ void tile_attend(struct chunk_state<D> *s, const char *k,
                                                   uint32_t v, int first)
{
    float score[TILE_COLS][4], own[2], c[2], sum[2];
    chunk_scores<D>(s, k, score);
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
    chunk_values<D>(s, v, score);
}

template <int D> static __device__ __forceinline__ void partition_begin(struct chunk_state<D> *s)
{
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        s->part[i][0] = s->part[i][1] = s->part[i][2] = s->part[i][3] = 0;
    s->max[0] = s->max[1] = NO_SCORE;
    s->sum[0] = s->sum[1] = 0;
}

/* The partition that begins at position `begin` joins the totals of the vectors that reach it. */
template <int D, bool SHARED>
static __device__ __forceinline__ void partition_end(struct chunk_state<D> *s,
                                                     struct chunk_out<D, SHARED> *out, int begin)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float old, now, sum = s->sum[r];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (begin > s->limit[r])
            continue;
        total_join(&s->total[r], s->max[r], sum, &old, &now);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
#pragma unroll
            for (int j = 2 * r; j < 2 * r + 2; j++)
                out->at(i, j) = __fmaf_rn(out->at(i, j), old, s->part[i][j] * now);
    }
}

template <int D, bool SHARED>
static __device__ __forceinline__ void
vectors_store(const struct attention_args *a, const struct chunk_run *run, int group, int kv_head,
              const struct chunk_state<D> *s, struct chunk_out<D, SHARED> *out)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int v = threadIdx.x / 32 * VECTORS + lane / 4 + 8 * r;
        if (s->limit[r] < 0)
            continue;
        float inverse = 1.0f / s->total[r].sum;
        float *to =
            a->out +
            ((size_t)(run->first + v / group) * a->n_heads + kv_head * group + v % group) * D +
            lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *(float2 *)(to + 8 * i) =
                make_float2(out->at(i, 2 * r) * inverse, out->at(i, 2 * r + 1) * inverse);
    }
}

/* The vectors of one run over all their keys. */
template <int D>
static __device__ __forceinline__ void run_attend(const struct attention_args *a,
                                                  const struct chunk_run *run, int group,
                                                  int kv_head, char *memory)
{
    typedef struct chunk_shape<D> shape;
    const int BLOCKS = shape::STAGE_KEYS / TILE_KEYS, AHEAD = shape::STAGES - 1;
    struct chunk_state<D> s;
    struct chunk_out<D, shape::TOTAL_SHARED> out;
    if constexpr (shape::TOTAL_SHARED)
        out.base = (float *)(memory + shape::STAGES * shape::STAGE_BYTES) + threadIdx.x;
    struct kv_head_view kv = kv_head_of(&a->kv, run->sequence, kv_head);
    uint32_t ring = shared_address(memory);
    int n_stages = run->last / shape::STAGE_KEYS + 1, last = run->last;
    int32_t entries = entries_load(&kv, 0, last), entries_next = entries_load(&kv, 32, last);

#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (i < n_stages)
            stage_fetch<D>(ring + i * shape::STAGE_BYTES, &kv, entries, i * shape::STAGE_KEYS,
                           last);
        copy_commit();
    }
    vectors_load<D>(a, run, group, kv_head, &s);
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            out.at(i, j) = 0;
    partition_begin<D>(&s);
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
            stage_fetch<D>(ring + free_slot * shape::STAGE_BYTES, &kv, entries,
                           ahead * shape::STAGE_KEYS, last);
        copy_commit();
        int first = stage * shape::STAGE_KEYS, at = slot * shape::STAGE_BYTES;
#pragma unroll 1
        for (int t = 0; t < shape::STAGE_KEYS && first + t <= s.most; t += TILE_KEYS)
            tile_attend<D>(&s, memory + at + t * shape::ROW,
                           ring + at + (shape::STAGE_KEYS + t) * shape::ROW, first + t);
        int end = first + shape::STAGE_KEYS,
            begin = first / KV_PARTITION_TOKENS * KV_PARTITION_TOKENS;
        if ((end % KV_PARTITION_TOKENS == 0 || stage == n_stages - 1) && begin <= s.most) {
            partition_end<D>(&s, &out, begin);
            partition_begin<D>(&s);
        }
        slot = slot == shape::STAGES - 1 ? 0 : slot + 1;
    }
    vectors_store<D>(a, run, group, kv_head, &s, &out);
}

/* Later slices, which have more keys in a prompt, go first. */
template <int D>
static __global__ void __launch_bounds__(chunk_shape<D>::THREADS, 1)
    attention_chunk_kernel(struct attention_args a, int group, int slice_rows)
{
    extern __shared__ __align__(128) char memory[];
    int first = (int)(gridDim.x - 1 - blockIdx.x) * slice_rows, end = first + slice_rows;
    end = end < (int)a.n_rows ? end : (int)a.n_rows;
    for (int wanted = blockIdx.z;; wanted += gridDim.z) {
        struct chunk_run run = run_find(a.kv.positions, a.kv.row_sequence, first, end, wanted);
        if (run.n == 0)
            return;
        run_attend<D>(&a, &run, group, blockIdx.y, memory);
        __syncthreads();
    }
}

template <int D>
static int chunk_launch(const struct attention_args *args, struct exec_stream *stream)
{
    typedef struct chunk_shape<D> shape;
    int group = (int)(args->n_heads / args->kv.n_kv_heads);
    int rows = shape::WARPS * VECTORS / group;
    dim3 grid((unsigned)((args->n_rows + rows - 1) / rows), (unsigned)args->kv.n_kv_heads,
              (unsigned)(rows < CHUNK_RUNS ? rows : CHUNK_RUNS));
    if (cudaFuncSetAttribute(attention_chunk_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::BYTES) != cudaSuccess)
        return exec_cuda_launched(stream);
    attention_chunk_kernel<D>
        <<<grid, shape::THREADS, shape::BYTES, exec_cuda_stream(stream)>>>(*args, group, rows);
    return exec_cuda_launched(stream);
}

int attention_chunk_cuda(const struct attention_args *args, struct exec_stream *s)
{
    switch (args->kv.head_dim) {
    case 32: return chunk_launch<32>(args, s);
    case 64: return chunk_launch<64>(args, s);
    case 96: return chunk_launch<96>(args, s);
    case 128: return chunk_launch<128>(args, s);
    case 256: return chunk_launch<256>(args, s);
    default: return EBB_EUNSUPPORTED;
    }
}
