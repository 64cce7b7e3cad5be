/* kernels/attention_split.cuh - the split form of attention: scratch, and how blocks share the work. Internal to *.cu.
 *
 * An item is one partition of one query tile: up to 16 query vectors that share a KV head and a sequence. Where the query heads of
 * a KV head leave room in the tile, rows that follow each other in one sequence go together (split_args.rows_together); where they
 * do not fit, a row has several tiles. The tiles of one row, its heights, are as many as blocks side by side: those of a partition
 * are computed at one time, so that memory is read in long pieces. Partitions are counted row by row, ascending, and taken in turns
 * by groups of blocks; how many there are is found from the positions when the work runs. Who takes what never shows in the bits.
 *   scratch: float parts[n_rows][n_heads][n_partitions][head_dim], float2 {max, sum}[n_rows][n_heads][n_partitions]
 */
#pragma once
#include "kernels/attention.cuh"

#define SPLIT_VECTORS 16

struct split_args {
    struct attention_args a; /* at most ATTENTION_SPLIT_ROWS rows */
    float *parts;
    float2 *stats;
    int n_partitions;
    int group;                           /* query heads of a KV head */
    int rows_together;                   /* rows whose heads fit one tile */
    int tiles;                           /* tiles that one row's group takes */
    int heights;                         /* tiles of all KV heads */
    int inverse_group, inverse_together; /* of small_divide() */
    int buffers;                         /* of values in shared memory */
    char *quants; /* the rows of out as activations too (head_dim % 32 == 0), or NULL */
};

/* attention_join.cu: joins every head's partitions. */
int attention_join_cuda(const struct split_args *args, struct exec_stream *s);

/* n / d for n < 128, d <= 128, inverse = small_inverse(d). */
static __device__ __forceinline__ int small_divide(int n, int inverse)
{
    return n * inverse >> 16;
}

static inline int small_inverse(int d)
{
    return (65536 + d - 1) / d;
}

/* Where partition p of a head of a row has its partial result. */
static __device__ __forceinline__ size_t partial_at(const struct split_args *s, int row, int head,
                                                    int p)
{
    return ((size_t)row * s->a.n_heads + head) * s->n_partitions + p;
}

/* The rows of a launch in shared memory. */
struct split_rows {
    int32_t position[ATTENTION_SPLIT_ROWS], sequence[ATTENTION_SPLIT_ROWS];
};

/* What blocks share; lane l of every warp has rows l and l + 32. Rows [r, r + n) go together; n = 0: inert, or with a row before. */
struct split_plan {
    int n[2], last[2]; /* last: the largest position of the rows together */
    int32_t sequence[2];
    int before[2];    /* partitions of all rows before */
    int n_partitions; /* of all rows */
};

/* The block's threads fill `rows`; a barrier must follow before plan_make(). */
static __device__ __forceinline__ void rows_load(const struct split_args *s,
                                                 struct split_rows *rows)
{
    unsigned r = threadIdx.x;
    if (r < ATTENTION_SPLIT_ROWS) {
        rows->position[r] = r < s->a.n_rows ? s->a.kv.positions[r] : -1;
        rows->sequence[r] = r < s->a.n_rows ? s->a.kv.row_sequence[r] : -1;
    }
}

static __device__ __forceinline__ bool rows_are_alike(const struct split_rows *rows, int a, int b)
{
    return rows->position[a] >= 0 && rows->position[b] >= 0 &&
           rows->sequence[a] == rows->sequence[b];
}

/* How many rows row r leads, and their largest position. */
static __device__ __forceinline__ int rows_led(const struct split_args *s,
                                               const struct split_rows *rows, int r, int *last)
{
    int k = s->rows_together, place = r - small_divide(r, s->inverse_together) * k, n = 1;
    *last = rows->position[r];
    if (*last < 0 || (place > 0 && rows_are_alike(rows, r - 1, r)))
        return 0;
    for (; place + n < k && r + n < ATTENTION_SPLIT_ROWS && rows_are_alike(rows, r, r + n); n++)
        *last = rows->position[r + n] > *last ? rows->position[r + n] : *last;
    return n;
}

static __device__ __forceinline__ struct split_plan plan_make(const struct split_args *s,
                                                              const struct split_rows *rows)
{
    struct split_plan p;
    int lane = threadIdx.x % 32, count[2], upto[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        p.n[j] = rows_led(s, rows, lane + 32 * j, &p.last[j]);
        p.sequence[j] = rows->sequence[lane + 32 * j];
        count[j] = p.n[j] > 0 ? p.last[j] / KV_PARTITION_TOKENS + 1 : 0;
        upto[j] = count[j];
    }
    for (int apart = 1; apart < 32; apart *= 2)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int left = __shfl_up_sync(0xffffffff, upto[j], apart);
            upto[j] += lane >= apart ? left : 0;
        }
    int low = __shfl_sync(0xffffffff, upto[0], 31);
    p.before[0] = upto[0] - count[0];
    p.before[1] = low + upto[1] - count[1];
    p.n_partitions = low + __shfl_sync(0xffffffff, upto[1], 31);
    return p;
}

/* Of row r, the same in all lanes. */
static __device__ __forceinline__ int plan_pick(const int v[2], int r)
{
    return __shfl_sync(0xffffffff, r < 32 ? v[0] : v[1], r % 32);
}

/* An item, and with which table entries its keys are found: lane b of each warp has that of the partition's block b. */
struct split_item {
    int row, n_rows;
    int32_t sequence;
    int begin, last; /* the partition's first position, the largest of the rows */
    int n_tiles;     /* 0: no more items */
    int32_t entry;
};

/* Partition number x of all rows. */
static __device__ __forceinline__ struct split_item item_at(const struct split_args *s,
                                                            const struct split_plan *p, int x)
{
    struct split_item item = {};
    if (x >= p->n_partitions)
        return item;
    unsigned lows = __ballot_sync(0xffffffff, p->n[0] > 0 && p->before[0] <= x);
    unsigned highs = __ballot_sync(0xffffffff, p->n[1] > 0 && p->before[1] <= x);
    int lane = threadIdx.x % 32, row = highs != 0 ? 63 - __clz(highs) : 31 - __clz(lows);
    item.row = row;
    item.n_rows = plan_pick(p->n, row);
    item.last = plan_pick(p->last, row);
    item.sequence = plan_pick(p->sequence, row);
    item.begin = (x - plan_pick(p->before, row)) * KV_PARTITION_TOKENS;
    int left = (item.last - item.begin) / TILE_KEYS + 1;
    item.n_tiles = left < PARTITION_TILES ? left : PARTITION_TILES;
    const int32_t *table = s->a.kv.tables + (size_t)item.sequence * s->a.kv.table_stride;
    if (lane < item.n_tiles)
        item.entry = __ldg(table + item.begin / TILE_KEYS + lane);
    return item;
}

/* What a block keeps through all its items. */
struct split_height {
    int kv_head, first; /* first: query head of the tile's vector 0 within the KV head's group */
    const char *keys;   /* of the KV head in block 0 */
    size_t token_bytes;
};

static __device__ __forceinline__ struct split_height height_of(const struct split_args *s, int y)
{
    int kv_head = s->tiles == 1 ? y : y / s->tiles;
    struct split_height h = {kv_head, (y - kv_head * s->tiles) * SPLIT_VECTORS, NULL, 0};
    h.keys = (const char *)s->a.kv.base + kv_head * s->a.kv.head_dim * sizeof(__half);
    h.token_bytes = s->a.kv.n_kv_heads * s->a.kv.head_dim * sizeof(__half);
    return h;
}

/* Which row and query head vector i of the tile is; false = none. */
static __device__ __forceinline__ bool vector_at(const struct split_args *s,
                                                 const struct split_height *h,
                                                 const struct split_item *item, int i, int *row,
                                                 int *head)
{
    int after = s->tiles == 1 ? small_divide(i, s->inverse_group) : 0;
    int of_group = h->first + i - after * s->group;
    *row = item->row + after;
    *head = h->kv_head * s->group + of_group;
    return after < item->n_rows && of_group < s->group;
}
