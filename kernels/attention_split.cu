/* attention_split.cu - attention on a CUDA card for few rows: a row's partitions are computed side by side. Tier 2; the arithmetic is
 * in attention.cuh, and the bits are those of the chunk form (attention_chunk.cu).
 *
 * A block takes one KV head of one row (of several rows where query heads leave room in the mma tile and the rows follow each other
 * in one sequence) and every gridDim.x-th partition. Its eight warps score one tile of 32 keys each, with keys straight from memory
 * in registers; then each computes its columns of head_dim over all tiles in ascending order. Partial results go to scratch, and a
 * second launch joins a head's partitions in ascending order.
 *   scratch: float parts[n_rows][n_heads][n_partitions][head_dim], float2 {max, sum}[n_rows][n_heads][n_partitions]
 * The grid follows from n_positions; blocks past a row's position return at once, and so do inert rows. Where a launch's
 * scratch would pass SPLIT_SCRATCH_MAX, rows go in several launches.
 *
 * Nothing is read past a row's position. Owns nothing. Shapes are checked by attention_cuda().
 */
#include "kernels/attention.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"

#define SPLIT_SCRATCH_MAX ((size_t)64 << 20)
#define SPLIT_WARPS       PARTITION_TILES
#define SPLIT_THREADS     (SPLIT_WARPS * 32)
#define SPLIT_VECTORS     16
#define JOIN_BATCH        32 /* partitions whose parts a thread has under way */

struct split_args {
    struct attention_args a;
    float *parts;
    float2 *stats;
    int n_partitions;
    int group;         /* query heads of a KV head */
    int inverse_group; /* of small_divide() */
    int rows_together; /* rows whose heads fit one tile */
    int tiles;         /* tiles that one row's group takes */
};

/* n / d for n < 128, d <= 128, inverse = small_inverse(d). */
static __device__ __forceinline__ int small_divide(int n, int inverse)
{
    return n * inverse >> 16;
}

static int small_inverse(int d)
{
    return (65536 + d - 1) / d;
}

/* Shared memory of a block. Values are [KV_PARTITION_TOKENS] rows of VALUES halves, swizzled. */
template <int D> struct split_shared {
    static const int VALUES = D < 128 ? D : 128;
    static const int EACH = (VALUES / 8 + SPLIT_WARPS - 1) / SPLIT_WARPS; /* units of a warp */
    static const int QUERY_STRIDE = D * 2 + (D % 64 == 0 ? 64 : 0);       /* bytes */
    static const int P_STRIDE = KV_PARTITION_TOKENS * 2 + 16;
    char values[KV_PARTITION_TOKENS * VALUES * 2];
    char p[SPLIT_VECTORS * P_STRIDE];
    char query[SPLIT_VECTORS * QUERY_STRIDE];
    float max[PARTITION_TILES][SPLIT_VECTORS];
    float c[PARTITION_TILES][SPLIT_VECTORS];
    float4 sum[PARTITION_TILES][SPLIT_VECTORS];
    int limit[SPLIT_VECTORS]; /* position, or -1 */
};

/* How many rows from r on this block serves: 0 if r is inert or served with its predecessor. */
static __device__ int rows_served(const struct split_args *s, int r)
{
    const int32_t *position = s->a.kv.positions, *sequence = s->a.kv.row_sequence;
    int n = 1, k = s->rows_together, end = (int)s->a.n_rows;
    if (position[r] < 0)
        return 0;
    if (k == 1 || end == 1)
        return 1;
    if (r % k != 0 && position[r - 1] >= 0 && sequence[r - 1] == sequence[r])
        return 0;
    while ((r + n) % k != 0 && r + n < end && position[r + n] >= 0 &&
           sequence[r + n] == sequence[r])
        n++;
    return n;
}

/* Which row (from r on) and query head vector v of a block's tile is; false = none. */
static __device__ __forceinline__ bool vector_at(const struct split_args *s, int v, int n_rows,
                                                 int tile, int *row, int *head)
{
    *row = s->tiles == 1 ? small_divide(v, s->inverse_group) : 0;
    *head = tile * SPLIT_VECTORS + v - *row * s->group;
    return *row < n_rows && *head < s->group;
}

/* Where a partition's keys and values are: lane b of each warp has the table's entry for its block b. */
struct split_partition {
    int begin, last, n_tiles; /* last: the largest position of the block's vectors */
    int32_t entry;
};

static __device__ __forceinline__ struct split_partition partition_of(const struct kv_head_view *kv,
                                                                      int partition, int last)
{
    struct split_partition p = {partition * KV_PARTITION_TOKENS, last, PARTITION_TILES, 0};
    int lane = threadIdx.x % 32, n_tiles = (last - p.begin) / TILE_KEYS + 1;
    p.n_tiles = n_tiles < PARTITION_TILES ? n_tiles : PARTITION_TILES;
    if (lane < p.n_tiles)
        p.entry = __ldg(kv->table + p.begin / TILE_KEYS + lane);
    return p;
}

/* Keys of the warp's tile in the order of scores_32(): from value 32 * x on, SPAN times 32 of each. Those past `last` are zeros. */
template <int SPAN>
static __device__ __forceinline__ void keys_load(const struct kv_head_view *kv,
                                                 const struct split_partition *p, int x,
                                                 uint4 key[SPAN][TILE_COLS])
{
    int lane = threadIdx.x % 32, tile = threadIdx.x / 32, g = lane / 4;
    const char *k = kv->base + (size_t)__shfl_sync(0xffffffff, p->entry, tile) * kv->block_stride +
                    g * kv->token_bytes + x * 64 + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++) {
        bool real = p->begin + tile * TILE_KEYS + i * 8 + g <= p->last;
#pragma unroll
        for (int j = 0; j < SPAN; j++)
            key[j][i] = real ? __ldg((const uint4 *)(k + j * 64)) : make_uint4(0, 0, 0, 0);
        k += 8 * kv->token_bytes;
    }
}

template <int D, int SPAN>
static __device__ __forceinline__ void keys_score(const struct split_shared<D> *m, int x,
                                                  const uint4 key[SPAN][TILE_COLS],
                                                  float score[TILE_COLS][4])
{
    const int STRIDE = split_shared<D>::QUERY_STRIDE;
    int lane = threadIdx.x % 32;
    const char *query = m->query + lane / 4 * STRIDE + lane % 4 * 16 + x * 64;
#pragma unroll
    for (int j = 0; j < SPAN; j++)
        scores_32(score, *(const uint4 *)(query + j * 64),
                  *(const uint4 *)(query + 8 * STRIDE + j * 64), key[j]);
}

/* Starts copying VALUES of each value of the partition, from value_first on; whole tiles, zeros past the last key. */
template <int D>
static __device__ __forceinline__ void
values_fetch(struct split_shared<D> *m, const struct kv_head_view *kv,
             const struct split_partition *p, int value_first)
{
    const int UNITS = split_shared<D>::VALUES / 8, KEYS = UNITS <= 8 ? 32 : 16;
    unsigned t0 = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
    uint32_t to = shared_address(m->values);
    const char *from = kv->base + (TILE_KEYS + t0) * kv->token_bytes + value_first * 2 + unit * 16;
#pragma unroll
    for (int i = 0; i < KV_PARTITION_TOKENS; i += KEYS) {
        if (i / TILE_KEYS >= p->n_tiles)
            break;
        int32_t entry = __shfl_sync(0xffffffff, p->entry, i / TILE_KEYS);
        if (t0 < KEYS)
            copy_async(to + ((i + t0) * UNITS + (unit ^ swizzle<split_shared<D>::VALUES>(t0))) * 16,
                       from + (size_t)entry * kv->block_stride + i % TILE_KEYS * kv->token_bytes,
                       p->begin + i + (int)t0 <= p->last);
    }
    copy_commit();
}

/* Exponentials of the warp's tile against the maximum of all tiles up to it, into shared memory. */
template <int D>
static __device__ __forceinline__ void tile_publish(struct split_shared<D> *m, int tile,
                                                    float score[TILE_COLS][4], const float own[2])
{
    int lane = threadIdx.x % 32, g = lane / 4, col = lane % 4;
    float max[2] = {NO_SCORE, NO_SCORE}, c[2], sum[2];
    for (int t = 0; t < tile; t++) {
        max[0] = fmaxf(max[0], m->max[t][g]);
        max[1] = fmaxf(max[1], m->max[t][g + 8]);
    }
    tile_exponentials(score, max, own, c, sum);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        char *to = m->p + (g + 8 * r) * split_shared<D>::P_STRIDE + tile * TILE_KEYS * 2 + col * 4;
        ((float *)&m->sum[tile][g + 8 * r])[col] = sum[r];
        if (col == 0)
            m->c[tile][g + 8 * r] = c[r];
#pragma unroll
        for (int i = 0; i < TILE_COLS; i++)
            *(uint32_t *)(to + i * 16) = half2_of(score[i][2 * r], score[i][2 * r + 1]);
    }
}

/* part of the warp's columns, units warp + SPLIT_WARPS i of the values in shared memory, over the partition's tiles. */
template <int D>
static __device__ __forceinline__ void tiles_attend(const struct split_shared<D> *m, int n_tiles,
                                                    float part[split_shared<D>::EACH][4])
{
    const int UNITS = split_shared<D>::VALUES / 8, EACH = split_shared<D>::EACH;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    uint32_t p = shared_address(m->p) + lane % 16 * split_shared<D>::P_STRIDE + lane / 16 * 16;
    uint32_t v = shared_address(m->values) + lane % 16 * UNITS * 16;
    uint32_t turn = swizzle<split_shared<D>::VALUES>(lane % 8);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        part[i][0] = part[i][1] = part[i][2] = part[i][3] = 0;
#pragma unroll 4
    for (int t = 0; t < n_tiles; t++) {
        float low = m->c[t][g], high = m->c[t][g + 8];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            part[i][0] *= low;
            part[i][1] *= low;
            part[i][2] *= high;
            part[i][3] *= high;
        }
#pragma unroll
        for (int k = 0; k < TILE_KEYS; k += 16) {
            uint32_t a[4], b[2];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                         : "r"(p + (t * TILE_KEYS + k) * 2));
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                unsigned unit = warp + SPLIT_WARPS * i;
                if (UNITS % SPLIT_WARPS != 0 && unit >= UNITS)
                    break;
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                             : "=r"(b[0]), "=r"(b[1])
                             : "r"(v + (t * TILE_KEYS + k) * UNITS * 16 + (unit ^ turn) * 16));
                mma_16816(part[i], a[0], a[1], a[2], a[3], b[0], b[1]);
            }
        }
    }
}

/* Where partition p of a vector's head has its partial result. */
static __device__ __forceinline__ size_t partial_at(const struct split_args *s, int row, int head,
                                                    int p)
{
    return ((size_t)row * s->a.n_heads + head) * s->n_partitions + p;
}

template <int D>
static __device__ void stats_store(const struct split_args *s, const struct split_shared<D> *m,
                                   int n_tiles, size_t at)
{
    int v = threadIdx.x;
    float max = NO_SCORE;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int t = 0; t < n_tiles; t++) {
        float c = m->c[t][v];
        float4 own = m->sum[t][v];
        max = fmaxf(max, m->max[t][v]);
        sum.x = __fmaf_rn(sum.x, c, own.x);
        sum.y = __fmaf_rn(sum.y, c, own.y);
        sum.z = __fmaf_rn(sum.z, c, own.z);
        sum.w = __fmaf_rn(sum.w, c, own.w);
    }
    s->stats[at] = make_float2(max, (sum.x + sum.y) + (sum.z + sum.w));
}

/* The query vectors of a block: rows [r, r + n_rows), tile `tile` of a KV head's group. */
struct split_vectors {
    int r, n_rows, kv_head, tile;
    size_t at[2];  /* of the lane's vectors g and g + 8: where their partials begin */
    size_t at_own; /* of vector threadIdx.x mod 16 */
};

static __device__ struct split_vectors vectors_of(const struct split_args *s, int n_rows)
{
    int y = blockIdx.y, g = threadIdx.x % 32 / 4, row, head;
    int kv_head = s->tiles == 1 ? y : y / s->tiles;
    struct split_vectors v = {(int)blockIdx.z, n_rows, kv_head, y - kv_head * s->tiles, {0, 0}, 0};
    for (int i = 0; i < 2; i++)
        if (vector_at(s, g + 8 * i, n_rows, v.tile, &row, &head))
            v.at[i] = partial_at(s, v.r + row, v.kv_head * s->group + head, 0);
    if (vector_at(s, threadIdx.x % SPLIT_VECTORS, n_rows, v.tile, &row, &head))
        v.at_own = partial_at(s, v.r + row, v.kv_head * s->group + head, 0);
    return v;
}

template <int D>
static __device__ __forceinline__ void query_stage(const struct split_args *s,
                                                   struct split_shared<D> *m,
                                                   const struct split_vectors *vectors)
{
    float scale = s->a.scale * LOG2_E;
#pragma unroll
    for (int i0 = 0; i0 < SPLIT_VECTORS * (D / 8); i0 += SPLIT_THREADS) {
        int i = i0 + (int)threadIdx.x, v = i / (D / 8), unit = i % (D / 8), row, head;
        if (v >= SPLIT_VECTORS)
            break;
        uint4 q = make_uint4(0, 0, 0, 0);
        bool real = vector_at(s, v, vectors->n_rows, vectors->tile, &row, &head);
        size_t at = (size_t)(vectors->r + row) * s->a.n_heads + vectors->kv_head * s->group + head;
        if (real)
            q = query_of(s->a.q + at * D + unit * 8, scale);
        *(uint4 *)(m->query + v * split_shared<D>::QUERY_STRIDE + unit * 16) = q;
        if (unit == 0)
            m->limit[v] = real ? s->a.kv.positions[vectors->r + row] : -1;
    }
}

/* The second half of a partition: everything is in shared memory but the values. */
template <int D>
static __device__ __forceinline__ void
partition_finish(const struct split_args *s, struct split_shared<D> *m,
                 const struct kv_head_view *kv, const struct split_partition *p,
                 const struct split_vectors *v)
{
    const int VALUES = split_shared<D>::VALUES, EACH = split_shared<D>::EACH;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int partition = p->begin / KV_PARTITION_TOKENS;
    for (int from = 0; from < D; from += VALUES) {
        float part[EACH][4];
        if (from > 0)
            values_fetch(m, kv, p, from);
        copy_wait<0>();
        __syncthreads();
        tiles_attend(m, p->n_tiles, part);
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int column = (warp + SPLIT_WARPS * i) * 8 + lane % 4 * 2;
                if (column < VALUES && p->begin <= m->limit[lane / 4 + 8 * r])
                    *(float2 *)(s->parts + (v->at[r] + partition) * D + from + column) =
                        make_float2(part[i][2 * r], part[i][2 * r + 1]);
            }
        if (from == 0 && threadIdx.x < SPLIT_VECTORS && p->begin <= m->limit[threadIdx.x])
            stats_store(s, m, p->n_tiles, v->at_own + partition);
        __syncthreads();
    }
}

/* One partition of the block's vectors; the block's first puts the queries into shared memory while keys are on their way. */
template <int D>
static __device__ __forceinline__ void
partition_attend(const struct split_args *s, struct split_shared<D> *m,
                 const struct kv_head_view *kv, const struct split_partition *p,
                 const struct split_vectors *v, bool is_first)
{
    const int SPAN = D <= 128 ? D / 32 : 4;
    int lane = threadIdx.x % 32, tile = threadIdx.x / 32, g = lane / 4;
    uint4 key[SPAN][TILE_COLS];
    float score[TILE_COLS][4] = {}, own[2] = {NO_SCORE, NO_SCORE};
    keys_load<SPAN>(kv, p, 0, key);
    values_fetch(m, kv, p, 0);
    if (is_first)
        query_stage<D>(s, m, v);
    __syncthreads();
    if (tile < p->n_tiles) {
        keys_score<D, SPAN>(m, 0, key, score);
#pragma unroll
        for (int x = SPAN; x < D / 32; x += SPAN) {
            keys_load<SPAN>(kv, p, x, key);
            keys_score<D, SPAN>(m, x, key, score);
        }
        int limit[2] = {m->limit[g], m->limit[g + 8]};
        tile_mask(score, p->begin + tile * TILE_KEYS, limit);
        tile_max(score, own);
        if (lane % 4 == 0) {
            m->max[tile][g] = own[0];
            m->max[tile][g + 8] = own[1];
        }
    }
    __syncthreads();
    if (tile < p->n_tiles)
        tile_publish(m, tile, score, own);
    partition_finish(s, m, kv, p, v);
}

template <int D>
static __global__ void __launch_bounds__(SPLIT_THREADS, D <= 128 ? 2 : 1)
    attention_split_kernel(struct split_args s)
{
    extern __shared__ __align__(128) char memory[];
    struct split_shared<D> *m = (struct split_shared<D> *)memory;
    int r = blockIdx.z, last = -1, first = blockIdx.x, n_rows = rows_served(&s, r);
    for (int i = 0; i < n_rows; i++)
        last = last > s.a.kv.positions[r + i] ? last : s.a.kv.positions[r + i];
    if (first * KV_PARTITION_TOKENS > last)
        return;
    struct split_vectors v = vectors_of(&s, n_rows);
    struct kv_head_view kv = kv_head_of(&s.a.kv, s.a.kv.row_sequence[r], v.kv_head);
    for (int i = first; i < s.n_partitions && i * KV_PARTITION_TOKENS <= last; i += gridDim.x) {
        struct split_partition p = partition_of(&kv, i, last);
        partition_attend<D>(&s, m, &kv, &p, &v, i == first);
    }
}

/* One head of one row, a thread a value: its partitions in ascending order. */
static __global__ void __launch_bounds__(HEAD_DIM_MAX) attention_join_kernel(struct split_args s)
{
    __shared__ float2 scales[JOIN_BATCH];
    __shared__ float sum_all;
    int head = blockIdx.x, row = blockIdx.y, position = s.a.kv.positions[row], D = blockDim.x;
    if (position < 0)
        return;
    int n = position / KV_PARTITION_TOKENS + 1;
    size_t at = partial_at(&s, row, head, 0);
    const float *parts = s.parts + at * D + threadIdx.x;
    struct attention_total total = {NO_SCORE, 0};
    float out = 0;
    for (int first = 0; first < n; first += JOIN_BATCH) {
        float part[JOIN_BATCH];
#pragma unroll
        for (int i = 0; i < JOIN_BATCH; i++)
            part[i] = first + i < n ? __ldcg(parts + (size_t)(first + i) * D) : 0;
        if (threadIdx.x < 32) {
            int lane = threadIdx.x;
            float2 own = make_float2(NO_SCORE, 0);
            if (first + lane < n)
                own = __ldcg(&s.stats[at + first + lane]);
            for (int i = 0; i < JOIN_BATCH; i++) {
                float max = __shfl_sync(0xffffffff, own.x, i);
                float sum = __shfl_sync(0xffffffff, own.y, i), old, now;
                if (first + i >= n)
                    break;
                total_join(&total, max, sum, &old, &now);
                if (lane == i)
                    scales[i] = make_float2(old, now);
            }
            if (lane == 0)
                sum_all = total.sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < JOIN_BATCH; i++)
            if (first + i < n)
                out = __fmaf_rn(out, scales[i].x, part[i] * scales[i].y);
        __syncthreads();
    }
    float inverse = 1.0f / sum_all;
    s.a.out[((size_t)row * s.a.n_heads + head) * D + threadIdx.x] = out * inverse;
}

static size_t partitions_of(size_t n_positions)
{
    return n_positions > 0 ? (n_positions + KV_PARTITION_TOKENS - 1) / KV_PARTITION_TOKENS : 1;
}

static size_t row_scratch(size_t n_heads, size_t head_dim, size_t n_positions)
{
    return n_heads * partitions_of(n_positions) * (head_dim * sizeof(float) + sizeof(float2));
}

/* Rows of one launch of the split form. */
static size_t rows_at_once(size_t n_rows, size_t n_heads, size_t head_dim, size_t n_positions)
{
    size_t most = SPLIT_SCRATCH_MAX / row_scratch(n_heads, head_dim, n_positions);
    most = most < ATTENTION_SPLIT_ROWS ? most : ATTENTION_SPLIT_ROWS;
    most = most > 0 ? most : 1;
    return n_rows < most ? n_rows : most;
}

size_t attention_scratch_bytes_cuda(size_t n_rows, size_t n_heads, size_t head_dim,
                                    size_t n_positions)
{
    return rows_at_once(n_rows, n_heads, head_dim, n_positions) *
           row_scratch(n_heads, head_dim, n_positions);
}

/* Blocks along a row's partitions: enough to fill the card twice over, and for several rows some more to even out their lengths. */
static unsigned split_width(const struct split_args *s, const struct exec_stream *stream)
{
    size_t pairs = s->a.n_rows * s->a.kv.n_kv_heads * s->tiles;
    size_t width = (2 * (size_t)exec_cuda_n_multiprocessors(stream) + pairs - 1) / pairs;
    width = width < 16 ? 16 : width;
    return (unsigned)(width < (size_t)s->n_partitions ? width : (size_t)s->n_partitions);
}

template <int D> static int split_launch(const struct split_args *s, struct exec_stream *stream)
{
    dim3 grid(split_width(s, stream), (unsigned)(s->a.kv.n_kv_heads * s->tiles),
              (unsigned)s->a.n_rows);
    size_t bytes = sizeof(struct split_shared<D>);
    if (cudaFuncSetAttribute(attention_split_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return exec_cuda_launched(stream);
    attention_split_kernel<D><<<grid, SPLIT_THREADS, bytes, exec_cuda_stream(stream)>>>(*s);
    int rc = exec_cuda_launched(stream);
    if (rc != 0)
        return rc;
    dim3 heads((unsigned)s->a.n_heads, (unsigned)s->a.n_rows);
    attention_join_kernel<<<heads, D, 0, exec_cuda_stream(stream)>>>(*s);
    return exec_cuda_launched(stream);
}

static int split_launch_any(const struct split_args *s, struct exec_stream *stream)
{
    switch (s->a.kv.head_dim) {
    case 32: return split_launch<32>(s, stream);
    case 64: return split_launch<64>(s, stream);
    case 96: return split_launch<96>(s, stream);
    case 128: return split_launch<128>(s, stream);
    case 256: return split_launch<256>(s, stream);
    default: return EBB_EUNSUPPORTED;
    }
}

/* Rows [first, first + n) of args. */
static struct split_args split_of(const struct attention_args *args, size_t first, size_t n)
{
    struct split_args s = {};
    size_t values = args->n_heads * args->kv.head_dim;
    s.a = *args;
    s.a.kv.row_sequence += first;
    s.a.kv.positions += first;
    s.a.q += first * values;
    s.a.out += first * values;
    s.a.n_rows = n;
    s.n_partitions = (int)partitions_of(args->n_positions);
    s.group = (int)(args->n_heads / args->kv.n_kv_heads);
    s.inverse_group = small_inverse(s.group);
    s.rows_together = s.group < SPLIT_VECTORS ? SPLIT_VECTORS / s.group : 1;
    s.tiles = (s.group + SPLIT_VECTORS - 1) / SPLIT_VECTORS;
    s.parts = (float *)args->scratch;
    s.stats = (float2 *)(s.parts + n * values * s.n_partitions);
    return s;
}

int attention_split_cuda(const struct attention_args *args, struct exec_stream *stream)
{
    size_t most = rows_at_once(args->n_rows, args->n_heads, args->kv.head_dim, args->n_positions);
    size_t passes = (args->n_rows + most - 1) / most, each = (args->n_rows + passes - 1) / passes;
    for (size_t first = 0; first < args->n_rows; first += each) {
        size_t left = args->n_rows - first;
        struct split_args s = split_of(args, first, left < each ? left : each);
        int rc = split_launch_any(&s, stream);
        if (rc != 0)
            return rc;
    }
    return 0;
}
