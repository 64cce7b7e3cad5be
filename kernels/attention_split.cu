/* attention_split.cu - attention on a CUDA card for few rows: a row's partitions are computed side by side. Tier 2; the arithmetic is
 * in attention.cuh, and the bits are those of the chunk form (attention_chunk.cu).
 *
 * At most one block a multiprocessor, each with its share of the items (attention_split.cuh). Its eight warps score one tile of 32 keys
 * each, with keys straight from memory in registers; then each computes its columns of head_dim over all tiles in ascending order.
 * While one item is computed, the keys of the next are on their way, and its values where shared memory holds two items'.
 * Partial results go to scratch, and attention_join.cu joins them. Where a launch's scratch would pass SPLIT_SCRATCH_MAX, rows go in
 * several launches.
 *
 * Keys before the smallest position that a sequence has in the launch are old: a block's first are read while the launch before
 * this one, which stores the rows' own keys, may still run (overlap.cuh).
 * Nothing is read past a row's position. Owns nothing. Shapes are checked by attention_cuda().
 */
#include "kernels/activation.cuh"
#include "kernels/attention_split.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"

#define SPLIT_SCRATCH_MAX ((size_t)64 << 20)
#define SPLIT_WARPS       PARTITION_TILES
#define SPLIT_THREADS     (SPLIT_WARPS * 32)

/* Shared memory of a block; after it come split_args.buffers times [KV_PARTITION_TOKENS] rows of VALUES halves, swizzled. */
template <int D> struct split_shared {
    static const int VALUES = D < 128 ? D : 128;
    static const int PARTS = D / VALUES; /* of head_dim, one buffer of values each */
    static const int EACH = (VALUES / 8 + SPLIT_WARPS - 1) / SPLIT_WARPS; /* units of a warp */
    static const int BUFFER = KV_PARTITION_TOKENS * VALUES * 2;           /* bytes */
    static const int QUERY_STRIDE = D * 2 + (D % 64 == 0 ? 64 : 0);
    static const int QUERY_EACH = (SPLIT_VECTORS * D / 8 + SPLIT_THREADS - 1) / SPLIT_THREADS;
    static const int P_STRIDE = KV_PARTITION_TOKENS * 2 + 16;
    char p[SPLIT_VECTORS * P_STRIDE];
    char query[SPLIT_VECTORS * QUERY_STRIDE];
    float max[PARTITION_TILES][SPLIT_VECTORS];
    float c[PARTITION_TILES][SPLIT_VECTORS];
    float4 sum[PARTITION_TILES][SPLIT_VECTORS];
    int limit[SPLIT_VECTORS]; /* position, or -1 */
    struct split_rows rows;
    __align__(128) char values[];
};

/* The units of q that a thread brings into shared memory. */
template <int D> struct split_query {
    float4 a[split_shared<D>::QUERY_EACH], b[split_shared<D>::QUERY_EACH];
};

template <int D, bool PADDED>
static __device__ __forceinline__ void
query_load(const struct split_args *s, const struct split_height *h, const struct split_item *item,
           struct split_query<D> *q)
{
    int head_dim = head_dim_of<D, PADDED>(&s->a.kv);
#pragma unroll
    for (int j = 0; j < split_shared<D>::QUERY_EACH; j++) {
        int i = j * SPLIT_THREADS + (int)threadIdx.x, row, head;
        q->a[j] = q->b[j] = make_float4(0, 0, 0, 0);
        int d = i % (D / 8) * 8;
        if (i / (D / 8) < SPLIT_VECTORS && d < head_dim &&
            vector_at(s, h, item, i / (D / 8), &row, &head)) {
            const float *from = s->a.q + ((size_t)row * s->a.n_heads + head) * head_dim + d;
            q->a[j] = *(const float4 *)from;
            q->b[j] = *(const float4 *)(from + 4);
        }
    }
}

template <int D>
static __device__ __forceinline__ void
query_store(const struct split_args *s, const struct split_height *h, const struct split_item *item,
            const struct split_query<D> *q, struct split_shared<D> *m)
{
    int row, head;
#pragma unroll
    for (int j = 0; j < split_shared<D>::QUERY_EACH; j++) {
        int i = j * SPLIT_THREADS + (int)threadIdx.x, v = i / (D / 8);
        if (v < SPLIT_VECTORS)
            *(uint4 *)(m->query + v * split_shared<D>::QUERY_STRIDE + i % (D / 8) * 16) =
                query_of(q->a[j], q->b[j], s->a.scale * LOG2_E);
    }
    if (threadIdx.x < SPLIT_VECTORS)
        m->limit[threadIdx.x] =
            vector_at(s, h, item, threadIdx.x, &row, &head) ? m->rows.position[row] : -1;
}

/* Keys of the warp's tile in the order of scores_32(): from value 32 * x on, SPAN times 32 of each. Those past `last` are zeros. */
template <int D, bool PADDED, int SPAN>
static __device__ __forceinline__ void
keys_load(const struct split_args *s, const struct split_height *h, const struct split_item *item,
          int x, uint4 key[SPAN][TILE_COLS])
{
    int lane = threadIdx.x % 32, tile = threadIdx.x / 32, g = lane / 4;
    int left = head_dim_of<D, PADDED>(&s->a.kv) - x * 32 - lane % 4 * 8;
    size_t token_bytes = h->token_bytes;
    int32_t entry = __shfl_sync(0xffffffff, item->entry, tile);
    const char *k =
        h->keys + (size_t)entry * s->a.kv.block_stride + g * token_bytes + x * 64 + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++) {
        bool real =
            tile < item->n_tiles && item->begin + tile * TILE_KEYS + i * 8 + g <= item->last;
#pragma unroll
        for (int j = 0; j < SPAN; j++)
            key[j][i] = real && (!PADDED || j * 32 < left) ? __ldg((const uint4 *)(k + j * 64))
                                                           : make_uint4(0, 0, 0, 0);
        k += 8 * token_bytes;
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

/* Starts copying part `part` of the item's values into a buffer: whole tiles, zeros past the last key. One group. */
template <int D, bool PADDED>
static __device__ __forceinline__ void
values_fetch(const struct split_args *s, const struct split_height *h,
             const struct split_item *item, int part, uint32_t buffer)
{
    const int UNITS = split_shared<D>::VALUES / 8, KEYS = UNITS <= 8 ? 32 : 16;
    unsigned t0 = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
    bool is_value = !PADDED || part * split_shared<D>::VALUES + (int)unit * 8 <
                                   head_dim_of<D, PADDED>(&s->a.kv);
    size_t token_bytes = h->token_bytes;
    const char *from =
        h->keys + (TILE_KEYS + t0) * token_bytes + part * split_shared<D>::VALUES * 2 + unit * 16;
    uint32_t to = buffer + (t0 * UNITS + (unit ^ swizzle<split_shared<D>::VALUES>(t0))) * 16;
#pragma unroll 1
    for (int tile = 0; tile < item->n_tiles; tile++) {
        int32_t entry = __shfl_sync(0xffffffff, item->entry, tile);
        const char *at = from + (size_t)entry * s->a.kv.block_stride;
        int key = item->begin + tile * TILE_KEYS + (int)t0;
#pragma unroll
        for (int i = 0; i < TILE_KEYS; i += KEYS)
            if (t0 < KEYS)
                copy_async(to + (tile * TILE_KEYS + i) * UNITS * 16, at + i * token_bytes,
                           is_value && key + i <= item->last);
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
                                                    uint32_t buffer,
                                                    float part[split_shared<D>::EACH][4])
{
    const int UNITS = split_shared<D>::VALUES / 8, EACH = split_shared<D>::EACH;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    uint32_t p = shared_address(m->p) + lane % 16 * split_shared<D>::P_STRIDE + lane / 16 * 16;
    uint32_t v = buffer + lane % 16 * UNITS * 16;
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

/* The lane's vectors g and g + 8, and vector threadIdx.x mod 16: where their partials begin. */
struct split_places {
    size_t at[2], own;
};

static __device__ __forceinline__ struct split_places
places_of(const struct split_args *s, const struct split_height *h, const struct split_item *item)
{
    struct split_places places = {{0, 0}, 0};
    int row, head;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (vector_at(s, h, item, threadIdx.x % 32 / 4 + 8 * i, &row, &head))
            places.at[i] = partial_at(s, row, head, 0);
    if (vector_at(s, h, item, threadIdx.x % SPLIT_VECTORS, &row, &head))
        places.own = partial_at(s, row, head, 0);
    return places;
}

template <int D>
static __device__ __forceinline__ void
stats_store(const struct split_args *s, const struct split_shared<D> *m, int n_tiles, size_t at)
{
    int v = threadIdx.x;
    float max = NO_SCORE;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
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

/* The first half of an item: scores, their maxima and exponentials. Once keys are used, those of `next` are fetched. */
template <int D, bool PADDED, int SPAN>
static __device__ __forceinline__ void
item_score(const struct split_args *s, struct split_shared<D> *m, const struct split_height *h,
           const struct split_item *item, const struct split_item *next, uint4 key[SPAN][TILE_COLS])
{
    int lane = threadIdx.x % 32, tile = threadIdx.x / 32, g = lane / 4;
    float score[TILE_COLS][4] = {}, own[2];
    bool is_real = tile < item->n_tiles;
    if (is_real)
        keys_score<D, SPAN>(m, 0, key, score);
#pragma unroll
    for (int x = SPAN; x < D / 32; x += SPAN) {
        keys_load<D, PADDED, SPAN>(s, h, item, x, key);
        if (is_real)
            keys_score<D, SPAN>(m, x, key, score);
    }
    if (next->n_tiles > 0)
        keys_load<D, PADDED, SPAN>(s, h, next, 0, key);
    if (is_real) {
        int limit[2] = {m->limit[g], m->limit[g + 8]};
        tile_mask(score, item->begin + tile * TILE_KEYS, limit);
        tile_max(score, own);
        if (lane % 4 == 0) {
            m->max[tile][g] = own[0];
            m->max[tile][g + 8] = own[1];
        }
    }
    __syncthreads();
    if (is_real)
        tile_publish(m, tile, score, own);
}

/* The second half for part `part` of the values, which are in `buffer`. */
template <int D, bool PADDED>
static __device__ __forceinline__ void
item_finish(const struct split_args *s, struct split_shared<D> *m, const struct split_item *item,
            const struct split_places *places, int part, uint32_t buffer)
{
    const int VALUES = split_shared<D>::VALUES, EACH = split_shared<D>::EACH;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int partition = item->begin / KV_PARTITION_TOKENS;
    int head_dim = head_dim_of<D, PADDED>(&s->a.kv);
    float sums[EACH][4];
    if (part == 0 && threadIdx.x < SPLIT_VECTORS && item->begin <= m->limit[threadIdx.x])
        stats_store(s, m, item->n_tiles, places->own + partition);
    tiles_attend<D>(m, item->n_tiles, buffer, sums);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int column = (warp + SPLIT_WARPS * i) * 8 + lane % 4 * 2;
            if (column < VALUES && part * VALUES + column < head_dim &&
                item->begin <= m->limit[lane / 4 + 8 * r])
                *(float2 *)(s->parts + (places->at[r] + partition) * head_dim + part * VALUES +
                            column) = make_float2(sums[i][2 * r], sums[i][2 * r + 1]);
        }
}

/* Whether all keys of an item are older than this launch. */
static __device__ __forceinline__ bool item_is_old(const struct split_rows *rows,
                                                   const struct split_item *item)
{
    int fresh = INT32_MAX;
    for (int r = threadIdx.x % 32; r < ATTENTION_SPLIT_ROWS; r += 32)
        if (rows->sequence[r] == item->sequence && rows->position[r] >= 0)
            fresh = fresh < rows->position[r] ? fresh : rows->position[r];
    return item->begin + KV_PARTITION_TOKENS <= __reduce_min_sync(0xffffffff, fresh);
}

template <int D, bool PADDED>
static __global__ void __launch_bounds__(SPLIT_THREADS, 1)
    attention_split_kernel(const __grid_constant__ struct split_args s)
{
    typedef struct split_shared<D> shared;
    const int SPAN = D <= 128 ? D / 32 : 4, PARTS = shared::PARTS;
    extern __shared__ __align__(128) char memory[];
    shared *m = (shared *)memory;
    rows_load(&s, &m->rows);
    __syncthreads();
    struct split_plan plan = plan_make(&s, &m->rows);
    int x = blockIdx.y, turn = gridDim.y;
    struct split_height h = height_of(&s, blockIdx.x);
    struct split_item item[3]; /* this one, the next, and the one after */
    struct split_places places;
    struct split_query<D> query;
    uint4 key[SPAN][TILE_COLS];
    uint32_t values = shared_address(m->values);
    int slot = 0;
    item[0] = item_at(&s, &plan, x);
    if (item[0].n_tiles == 0) {
        overlap_wait();
        return;
    }
    bool is_old = item_is_old(&m->rows, &item[0]), is_new = true;
    if (!is_old)
        overlap_wait();
    keys_load<D, PADDED, SPAN>(&s, &h, &item[0], 0, key);
    values_fetch<D, PADDED>(&s, &h, &item[0], 0, values);
    item[1] = item_at(&s, &plan, x += turn);
    if (is_old)
        overlap_wait();
    overlap_announce();
    query_load<D, PADDED>(&s, &h, &item[0], &query);
    if (s.buffers > 1)
        values_fetch<D, PADDED>(&s, &h, PARTS == 1 ? &item[1] : &item[0], PARTS - 1,
                                values + shared::BUFFER);
    query_store<D>(&s, &h, &item[0], &query, m);
    while (item[0].n_tiles > 0) {
        item[2] = item_at(&s, &plan, x += turn);
        if (is_new)
            places = places_of(&s, &h, &item[0]);
        is_new = item[1].n_tiles > 0 && item[1].row != item[0].row;
        __syncthreads();
        item_score<D, PADDED, SPAN>(&s, m, &h, &item[0], &item[1], key);
        if (is_new)
            query_load<D, PADDED>(&s, &h, &item[1], &query);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            uint32_t buffer = values + slot * shared::BUFFER;
            if (s.buffers > 1)
                copy_wait<1>();
            else
                copy_wait<0>();
            __syncthreads();
            item_finish<D, PADDED>(&s, m, &item[0], &places, part, buffer);
            __syncthreads();
            int ahead = part + s.buffers;
            struct split_item then = ahead < PARTS       ? item[0]
                                     : ahead < 2 * PARTS ? item[1]
                                                         : item[2];
            values_fetch<D, PADDED>(&s, &h, &then, ahead % PARTS, buffer);
            slot = slot + 1 == s.buffers ? 0 : slot + 1;
        }
        if (is_new)
            query_store<D>(&s, &h, &item[1], &query, m);
        item[0] = item[1];
        item[1] = item[2];
    }
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

/* At most one block a multiprocessor, with two buffers of values where the card's shared memory holds them. */
template <int D, bool PADDED>
static int split_launch(struct split_args *s, struct exec_stream *stream)
{
    typedef struct split_shared<D> shared;
    int device = 0, most = 0, turns = exec_cuda_n_multiprocessors(stream) / s->heights;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    s->buffers = most >= (int)sizeof(shared) + 2 * shared::BUFFER ? 2 : 1;
    int bytes = (int)sizeof(shared) + s->buffers * shared::BUFFER;
    dim3 grid((unsigned)s->heights, turns > 0 ? (unsigned)turns : 1);
    if (cudaFuncSetAttribute(attention_split_kernel<D, PADDED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess)
        overlap_launch(attention_split_kernel<D, PADDED>, grid, SPLIT_THREADS, (size_t)bytes,
                       exec_cuda_stream(stream), s);
    int rc = exec_cuda_launched(stream);
    return rc != 0 ? rc : attention_join_cuda(s, stream);
}

static int split_launch_any(struct split_args *s, struct exec_stream *stream)
{
    size_t head_dim = s->a.kv.head_dim;
    switch (head_dim) {
    case 32: return split_launch<32, false>(s, stream);
    case 64: return split_launch<64, false>(s, stream);
    case 96: return split_launch<96, false>(s, stream);
    case 128: return split_launch<128, false>(s, stream);
    case 256: return split_launch<256, false>(s, stream);
    default:
        return head_dim < 64    ? split_launch<64, true>(s, stream)
               : head_dim < 128 ? split_launch<128, true>(s, stream)
                                : split_launch<256, true>(s, stream);
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
    s.rows_together = s.group < SPLIT_VECTORS ? SPLIT_VECTORS / s.group : 1;
    s.inverse_group = small_inverse(s.group);
    s.inverse_together = small_inverse(s.rows_together);
    s.tiles = (s.group + SPLIT_VECTORS - 1) / SPLIT_VECTORS;
    s.heights = s.tiles * (int)args->kv.n_kv_heads;
    s.parts = (float *)args->scratch;
    s.stats = (float2 *)(s.parts + n * values * s.n_partitions);
    return s;
}

int attention_split_cuda(const struct attention_args *args, void *quants,
                         struct exec_stream *stream)
{
    size_t most = rows_at_once(args->n_rows, args->n_heads, args->kv.head_dim, args->n_positions);
    size_t passes = (args->n_rows + most - 1) / most, each = (args->n_rows + passes - 1) / passes;
    for (size_t first = 0; first < args->n_rows; first += each) {
        size_t left = args->n_rows - first;
        struct split_args s = split_of(args, first, left < each ? left : each);
        if (quants != NULL)
            s.quants =
                (char *)quants + first * activation_row_bytes(args->n_heads * args->kv.head_dim);
        int rc = split_launch_any(&s, stream);
        if (rc != 0)
            return rc;
    }
    return 0;
}
