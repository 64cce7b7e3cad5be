/* kernels/row_scan.cuh - looking through one row of logits with a cluster of blocks: largest, sums, cuts. Internal to *.cu.
 *
 * A row is cut into one run of ids a block, that into one a warp; lanes take four neighbouring ids in turn. A token's weight is
 * 1, or its mass as in sample.c, or 0 where an earlier cut left it out. Weights are integers, so sums are exact in any order.
 *
 * row_cut() finds where the shortest falling prefix of a wanted weight ends, without sorting: tokens are first counted into
 * ROW_BUCKETS buckets by their distance from the largest logit, then the bucket in which the prefix ends is cut again and again,
 * by keys, until it is one key. Tokens that are further away than all that the buckets span share the last one; nobody counts
 * them, for there are many and the prefix hardly ever ends there.
 *
 * Where few tokens come into question, as nearly always, it is quicker to bring them to the first block (row_collect()) and to sort
 * them there.
 *
 * All threads of a cluster call these functions together. Each call of row_largest() and row_total() takes a slot of its own.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/cluster.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/expf.h"
#include "kernels/sample_rule.h"

#define ROW_THREADS 1024
#define ROW_WARPS   (ROW_THREADS / 32)
#define ROW_BLOCKS  8           /* of a cluster, at most */
#define ROW_LIST    ROW_THREADS /* tokens that can be sorted */
#define ROW_BUCKETS ROW_THREADS /* one a thread */
#define ROW_SLOTS   8
#define ROW_NOBODY  UINT32_MAX
#define ROW_NO_KEY  0u          /* of what is past the row's end */
#define ROW_LOWEST  0x007fffffu /* the key of -infinity */

/* A bucket, what it holds, and how much of that is wanted. */
struct row_choice {
    uint64_t wanted, sum;
    uint32_t bucket;
};

/* Tokens picked out of a row: the key in the upper half, ~id in the lower, so that larger means earlier in falling order. */
struct row_list {
    uint64_t tokens[ROW_LIST];
    uint32_t n;
};

struct row_shared {
    uint64_t warps[ROW_SLOTS][ROW_WARPS], block[ROW_SLOTS];
    uint32_t low[2][ROW_BUCKETS], high[2][ROW_BUCKETS]; /* 64-bit sums in two words */
    uint64_t scan[ROW_WARPS];
    struct row_choice choice;
    uint32_t found;    /* an id */
    uint32_t range[2]; /* keys */
};

/* A row, and what of it is this warp's. */
struct row {
    const float *logits;
    const uint32_t *keys; /* keys of adjusted logits, or NULL: the logits as they are */
    uint32_t n, part;     /* ids of the row, of a warp */
    uint32_t first, last; /* ids */
    uint32_t turn;        /* histograms so far */
    struct row_shared *shared;
};

/* Which tokens are left, and what they weigh. A cut keeps keys above `key` and, of those that equal it, ids up to `id`. */
struct row_filter {
    uint32_t key[2], id[2];
    float max, temperature;
    float far;           /* logits below it have no mass */
    uint64_t mass_floor; /* of those kept; 1 = all that have mass */
    bool masses;         /* weights are masses, not 1 */
};

static __device__ inline struct row row_open(const float *logits, uint32_t n,
                                             struct row_shared *shared)
{
    struct row row = {logits, NULL, n, 0, 0, 0, 0, shared};
    uint32_t part = (n + cluster_size() * ROW_THREADS - 1) / (cluster_size() * ROW_THREADS) * 32;
    uint32_t warp = cluster_rank() * ROW_WARPS + threadIdx.x / 32;
    row.part = part;
    row.first = min(warp * part, n);
    row.last = min(row.first + part, n);
    return row;
}

static __device__ inline uint32_t row_key(const struct row *row, uint32_t id)
{
    return row->keys != NULL ? row->keys[id] : sample_key(row->logits[id]);
}

/* The keys of ids `id` .. `id` + 3, of which those from row->last on get ROW_NO_KEY. */
static __device__ inline uint4 row_keys(const struct row *row, uint32_t id)
{
    uint4 k = {ROW_NO_KEY, ROW_NO_KEY, ROW_NO_KEY, ROW_NO_KEY};
    const void *from =
        row->keys != NULL ? (const void *)(row->keys + id) : (const void *)(row->logits + id);
    if (id + 4 <= row->last && (uintptr_t)from % 16 == 0) {
        k = *(const uint4 *)from;
        if (row->keys == NULL) {
            k.x = sample_key(__uint_as_float(k.x));
            k.y = sample_key(__uint_as_float(k.y));
            k.z = sample_key(__uint_as_float(k.z));
            k.w = sample_key(__uint_as_float(k.w));
        }
        return k;
    }
    k.x = id < row->last ? row_key(row, id) : ROW_NO_KEY;
    k.y = id + 1 < row->last ? row_key(row, id + 1) : ROW_NO_KEY;
    k.z = id + 2 < row->last ? row_key(row, id + 2) : ROW_NO_KEY;
    k.w = id + 3 < row->last ? row_key(row, id + 3) : ROW_NO_KEY;
    return k;
}

/* The i-th of four; i is known when it is compiled. */
static __device__ inline uint32_t key_at(const uint4 &k, int i)
{
    return i == 0 ? k.x : i == 1 ? k.y : i == 2 ? k.z : k.w;
}

/* Floor of e^z * SAMPLE_MASS_ONE for z <= 0: the float's mantissa, shifted. */
static __device__ inline uint64_t mass_of(float z)
{
    uint32_t bits = __float_as_uint(ebb_expf(z)), mantissa = (bits & 0x7fffff) | 0x800000;
    int shift = (int)(bits >> 23) - 110;
    return shift >= 0 ? (uint64_t)mantissa << shift : mantissa >> min(-shift, 31);
}

/* Whether the cuts so far keep a token. */
static __device__ inline bool row_keeps(const struct row_filter *f, uint32_t key, uint32_t id)
{
    bool keeps = true;
#pragma unroll
    for (int i = 0; i < 2; i++)
        keeps = keeps && (key > f->key[i] || (key == f->key[i] && id <= f->id[i]));
    return keeps;
}

static __device__ inline uint64_t row_weight(const struct row_filter *f, uint32_t key, uint32_t id)
{
    if (!row_keeps(f, key, id))
        return 0;
    if (!f->masses)
        return 1;
    float logit = sample_logit(key);
    if (logit < f->far)
        return 0;
    uint64_t mass = mass_of(sample_exponent(logit, f->max, f->temperature));
    return mass >= f->mass_floor ? mass : 0;
}

/* A filter that keeps all tokens. Mass ends 27.73 temperatures below the largest logit. */
static __device__ inline struct row_filter row_filter_open(float max, float temperature)
{
    return {{ROW_LOWEST, ROW_LOWEST},
            {UINT32_MAX, UINT32_MAX},
            max,
            temperature,
            max - 28.5f * temperature,
            1,
            false};
}

static __device__ inline uint64_t warp_largest(uint64_t v)
{
    uint32_t high = __reduce_max_sync(~0u, (uint32_t)(v >> 32));
    uint32_t low = (uint32_t)(v >> 32) == high ? (uint32_t)v : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(~0u, low);
}

static __device__ inline uint64_t warp_total(uint64_t v)
{
    for (int d = 16; d > 0; d >>= 1)
        v += __shfl_xor_sync(~0u, v, d);
    return v;
}

/* Joins what the threads have into one number for all. */
template <bool LARGEST>
static __device__ inline uint64_t row_join(const struct row *row, uint64_t v, int slot)
{
    struct row_shared *s = row->shared;
    v = LARGEST ? warp_largest(v) : warp_total(v);
    if (threadIdx.x % 32 == 0)
        s->warps[slot][threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = s->warps[slot][threadIdx.x];
        v = LARGEST ? warp_largest(v) : warp_total(v);
        if (threadIdx.x == 0)
            s->block[slot] = v;
    }
    cluster_barrier();
    v = threadIdx.x % 32 < cluster_size()
            ? *cluster_at(&s->block[slot], threadIdx.x % 32) /* a neutral 0 for the other lanes */
            : 0;
    return LARGEST ? warp_largest(v) : warp_total(v);
}

/* The best token: its key in the upper half, ~id in the lower, so that of equals the lower id wins. */
static __device__ inline uint64_t row_largest(const struct row *row, int slot)
{
    uint32_t best = ROW_NO_KEY, at = UINT32_MAX;
#pragma unroll 4
    for (uint32_t id = row->first + threadIdx.x % 32 * 4; id < row->last; id += 128) {
        uint4 keys = row_keys(row, id);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (key_at(keys, i) > best) { /* ids rise, so an equal one is worse */
                best = key_at(keys, i);
                at = id + i;
            }
    }
    return row_join<true>(row, (uint64_t)best << 32 | (uint32_t)~at, slot);
}

/* The sum of all weights; the slot then holds each warp's and each block's for row_find(). */
static __device__ inline uint64_t row_total(const struct row *row, const struct row_filter *f,
                                            int slot)
{
    uint64_t sum = 0;
#pragma unroll 2
    for (uint32_t id = row->first + threadIdx.x % 32 * 4; id < row->last; id += 128) {
        uint4 keys = row_keys(row, id);
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum += row_weight(f, key_at(keys, i), id + i);
    }
    return row_join<false>(row, sum, slot);
}

/* How many kept tokens have this very key; slot as above. */
static __device__ inline uint64_t row_equals(const struct row *row, const struct row_filter *f,
                                             uint32_t key, int slot)
{
    uint64_t n = 0;
    for (uint32_t id = row->first + threadIdx.x % 32 * 4; id < row->last; id += 128) {
        uint4 keys = row_keys(row, id);
#pragma unroll
        for (int i = 0; i < 4; i++)
            n += key_at(keys, i) == key && row_keeps(f, key, id + i);
    }
    return row_join<false>(row, n, slot);
}

/* Sums of the threads' weights up to and with each thread; *total gets that of all. */
static __device__ inline uint64_t block_upto(const struct row *row, uint64_t weight,
                                             uint64_t *total)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d <<= 1) {
        uint64_t other = __shfl_up_sync(~0u, weight, d);
        weight += lane >= d ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        row->shared->scan[warp] = weight;
    __syncthreads();
    uint64_t part = row->shared->scan[lane];
    *total = warp_total(part);
    return weight + warp_total(lane < warp ? part : 0);
}

/* The run of ids of the warp in which a block's sum exceeds `target`; *before gets what lies before it. */
static __device__ inline uint32_t row_find_warp(const struct row *row, uint64_t target, int slot,
                                                uint64_t *before)
{
    const uint64_t *warps = row->shared->warps[slot];
    unsigned w = 0;
    for (; w + 1 < ROW_WARPS && *before + warps[w] <= target; w++)
        *before += warps[w];
    return w;
}

/* The first id at which the weights of `slot`, added up in the order of ids, exceed `target`: `key` ROW_NO_KEY means row_total()'s
 * weights, else row_equals()'s. ROW_NOBODY in blocks that do not have it. */
static __device__ inline uint32_t row_find(const struct row *row, const struct row_filter *f,
                                           uint32_t key, uint64_t target, int slot)
{
    struct row_shared *s = row->shared;
    uint64_t before = 0;
    for (unsigned r = 0; r < cluster_rank(); r++)
        before += *cluster_at(&s->block[slot], r);
    if (threadIdx.x == 0)
        s->found = ROW_NOBODY;
    __syncthreads();
    if (before > target || before + s->block[slot] <= target)
        return ROW_NOBODY;
    uint32_t warp = row_find_warp(row, target, slot, &before);
    uint32_t first = (cluster_rank() * ROW_WARPS + warp) * row->part;
    uint32_t last = min(first + row->part, row->n);
    for (uint32_t base = first; base < last; base += ROW_THREADS) {
        uint32_t id = base + threadIdx.x;
        uint64_t weight = 0, total;
        if (id < last) {
            uint32_t at = row_key(row, id);
            weight = key == ROW_NO_KEY ? row_weight(f, at, id) : at == key && row_keeps(f, at, id);
        }
        uint64_t upto = before + block_upto(row, weight, &total);
        if (upto > target && upto - weight <= target)
            s->found = id;
        if (__syncthreads_or(upto > target))
            break;
        before += total;
    }
    return s->found;
}

/* row_find() for all blocks of the cluster. */
static __device__ inline uint32_t row_find_all(const struct row *row, const struct row_filter *f,
                                               uint32_t key, uint64_t target, int slot)
{
    (void)row_find(row, f, key, target, slot);
    cluster_barrier();
    uint32_t found = ROW_NOBODY;
    for (unsigned r = 0; r < cluster_size(); r++)
        found = min(found, *cluster_at(&row->shared->found, r));
    cluster_barrier(); /* before anybody writes the next */
    return found;
}

/* Adds a weight to a bucket of this block; a carry goes on into the upper word. */
static __device__ inline void bucket_add(const struct row *row, uint32_t bucket, uint64_t weight)
{
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);
    uint32_t old = atomicAdd(&row->shared->low[row->turn & 1][bucket], low);
    high += old + low < old;
    if (high != 0)
        atomicAdd(&row->shared->high[row->turn & 1][bucket], high);
}

/* This thread's bucket over all blocks; the buckets are then free for the turn after the next. */
static __device__ inline uint64_t buckets_join(struct row *row)
{
    unsigned turn = row->turn++ & 1, size = cluster_size();
    uint64_t sum = 0;
    cluster_barrier();
#pragma unroll
    for (unsigned r = 0; r < ROW_BLOCKS; r++)
        if (r < size) {
            uint64_t high = *cluster_at(&row->shared->high[turn][threadIdx.x], r);
            sum += (high << 32) + *cluster_at(&row->shared->low[turn][threadIdx.x], r);
        }
    return sum;
}

/* Empties the buckets of the turn before the last: every block has read them, since it came to buckets_join()'s barrier. */
static __device__ inline void buckets_clear(const struct row *row)
{
    row->shared->low[row->turn & 1][threadIdx.x] = 0;
    row->shared->high[row->turn & 1][threadIdx.x] = 0;
    __syncthreads();
}

/* What this thread's bucket and the higher ones hold, and what all hold. */
static __device__ inline uint64_t buckets_above(const struct row *row, uint64_t sum,
                                                uint64_t *total)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t above = sum;
    for (int d = 1; d < 32; d <<= 1) {
        uint64_t other = __shfl_down_sync(~0u, above, d);
        above += lane + d < 32 ? other : 0;
    }
    if (lane == 0)
        row->shared->scan[warp] = above;
    __syncthreads();
    uint64_t part = row->shared->scan[lane];
    *total = warp_total(part);
    return above + warp_total(lane > warp ? part : 0);
}

/* The highest bucket from which upwards the sums reach `wanted` (the lowest if none). */
static __device__ inline struct row_choice bucket_choose(const struct row *row, uint64_t sum,
                                                         uint64_t above, uint64_t wanted)
{
    struct row_shared *s = row->shared;
    if (above - sum < wanted && (above >= wanted || threadIdx.x == 0)) {
        s->choice.bucket = threadIdx.x;
        s->choice.wanted = wanted - (above - sum);
        s->choice.sum = sum;
    }
    __syncthreads();
    return s->choice;
}

/* How far a key is from the largest: in logits, or in units of the temperature where weights are masses. */
static __device__ inline float distance_of(const struct row_filter *f, uint32_t key)
{
    float logit = sample_logit(key);
    if (f->masses)
        return -sample_exponent(logit, f->max, f->temperature);
    return logit == f->max ? 0.0f : f->max - logit;
}

/* The nearer, the higher. What is further than 27.73 has no mass: 36 buckets a unit hold all that has. */
static __device__ inline uint32_t bucket_at(const struct row_filter *f, float distance)
{
    uint32_t below = __float2uint_rz((f->masses ? 36.0f : 64.0f) * distance);
    return ROW_BUCKETS - 1 - min(below, ROW_BUCKETS - 1u);
}

static __device__ inline uint32_t bucket_of(const struct row_filter *f, uint32_t key)
{
    return bucket_at(f, distance_of(f, key));
}

/* The lowest key up to `highest` (which has the highest bucket) whose bucket is `bucket` or higher: each lane of a warp tries one
 * of 32 keys between what is too low and what is not. */
static __device__ inline uint32_t bucket_first_key(const struct row_filter *f, uint32_t highest,
                                                   uint32_t bucket)
{
    uint32_t low = ROW_LOWEST, high = highest;
    while (low < high) {
        uint32_t step = (high - low) / 32 + 1;
        uint32_t tried = low + min(step * (threadIdx.x % 32), high - low);
        unsigned enough = __ballot_sync(~0u, bucket_of(f, tried) >= bucket);
        int at = enough != 0 ? __ffs((int)enough) - 1 : 32;
        high = at < 32 ? __shfl_sync(~0u, tried, at) : high;
        low = at > 0 ? __shfl_sync(~0u, tried, at - 1) + 1 : low;
    }
    return high;
}

/* The weights of kept tokens by bucket_of(); the last bucket's only where they are masses, which it never has. */
static __device__ inline void buckets_count(const struct row *row, const struct row_filter *f)
{
    buckets_clear(row);
#pragma unroll 2
    for (uint32_t id = row->first + threadIdx.x % 32 * 4; id < row->last; id += 128) {
        uint4 keys = row_keys(row, id);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t key = key_at(keys, i);
            if (!row_keeps(f, key, id + i) || (f->masses && sample_logit(key) < f->far))
                continue;
            float distance = distance_of(f, key);
            uint32_t bucket = bucket_at(f, distance);
            uint64_t weight = f->masses ? mass_of(-distance) : 1;
            if (bucket > 0 && weight != 0)
                bucket_add(row, bucket, weight);
        }
    }
}

/* The weights of kept tokens with keys low..high, in buckets of 2^shift keys. */
static __device__ inline void buckets_count_keys(const struct row *row, const struct row_filter *f,
                                                 uint32_t low, uint32_t high, int shift)
{
    buckets_clear(row);
#pragma unroll 2
    for (uint32_t id = row->first + threadIdx.x % 32 * 4; id < row->last; id += 128) {
        uint4 keys = row_keys(row, id);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t key = key_at(keys, i);
            if (key < low || key > high)
                continue;
            uint64_t weight = row_weight(f, key, id + i);
            if (weight != 0)
                bucket_add(row, (key - low) >> shift, weight);
        }
    }
}

/* How much mass a prefix needs to reach top_p of `total`. */
static __device__ inline uint64_t mass_wanted(float top_p, uint64_t total)
{
    double share = ceil((double)top_p * (double)total);
    return share > 1.0 ? (uint64_t)share : 1;
}

/* Goes on cutting the keys low..high, in which the prefix ends, until one is left: the last that the prefix has some of. */
static __device__ inline uint32_t row_last_key(struct row *row, const struct row_filter *f,
                                               uint32_t low, uint32_t high,
                                               struct row_choice *choice)
{
    do {
        int bits = 32 - __clz((int)(high - low)), shift = bits > 10 ? bits - 10 : 0;
        uint64_t total;
        buckets_count_keys(row, f, low, high, shift);
        uint64_t sum = buckets_join(row), above = buckets_above(row, sum, &total);
        *choice = bucket_choose(row, sum, above, choice->wanted);
        low += choice->bucket << shift;
        high = min(high, low + ((1u << shift) - 1));
    } while (low < high);
    return low;
}

/* The bucket in which the shortest falling prefix ends whose count is top_k or, where weights are masses, whose mass reaches top_p
 * of the whole; *total gets the whole. */
static __device__ inline struct row_choice row_choose(struct row *row, const struct row_filter *f,
                                                      uint64_t top_k, float top_p, uint64_t *total)
{
    buckets_count(row, f);
    uint64_t sum = buckets_join(row), above = buckets_above(row, sum, total), wanted = top_k;
    if (f->masses)
        wanted = mass_wanted(top_p, *total);
    return bucket_choose(row, sum, above, wanted);
}

/* The range of a bucket's keys, to row->shared->range. */
static __device__ inline void row_range(const struct row *row, const struct row_filter *f,
                                        uint32_t highest, uint32_t bucket)
{
    if (threadIdx.x < 64) {
        uint32_t end = threadIdx.x / 32, from = highest + 1;
        if (bucket + end < ROW_BUCKETS)
            from = bucket_first_key(f, highest, bucket + end);
        if (threadIdx.x % 32 == 0)
            row->shared->range[end] = from - end;
    }
    __syncthreads();
}

/* Cut number `which` (0 or 1) of the filter: keeps the prefix that ends in the bucket that row_choose() chose. */
static __device__ inline void row_cut(struct row *row, struct row_filter *f, int which,
                                      uint32_t highest, struct row_choice choice)
{
    row_range(row, f, highest, choice.bucket);
    uint32_t low = row->shared->range[0], high = row->shared->range[1];
    uint32_t key = row_last_key(row, f, low, high, &choice);
    uint64_t weight = f->masses ? row_weight(f, key, 0) : 1;
    uint64_t n_kept = (choice.wanted + weight - 1) / weight;
    uint32_t id = UINT32_MAX; /* of those that equal the last key the lower ids stay */
    if (n_kept < choice.sum / weight) {
        (void)row_equals(row, f, key, 1 + which);
        id = row_find_all(row, f, key, n_kept - 1, 1 + which);
    }
    f->key[which] = key;
    f->id[which] = id;
}

/* Brings the kept tokens with keys from `low` on to the first block's list and returns their number to all blocks; if there are more than
 * ROW_LIST, the list is of no use. Every block fills its own before the first fetches them. */
static __device__ inline uint32_t row_collect(const struct row *row, const struct row_filter *f,
                                              uint32_t low, struct row_list *list)
{
    if (threadIdx.x == 0)
        list->n = 0;
    __syncthreads();
    for (uint32_t id = row->first + threadIdx.x % 32 * 4; id < row->last; id += 128) {
        uint4 keys = row_keys(row, id);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (key_at(keys, i) >= low && row_keeps(f, key_at(keys, i), id + i)) {
                uint32_t at = atomicAdd(&list->n, 1u);
                if (at < ROW_LIST)
                    list->tokens[at] = (uint64_t)key_at(keys, i) << 32 | (uint32_t) ~(id + i);
            }
        if (*(volatile uint32_t *)&list->n > ROW_LIST)
            break;
    }
    cluster_barrier();
    uint32_t n = 0;
    for (unsigned r = 0; r < cluster_size(); r++)
        n += *cluster_at(&list->n, r);
    if (cluster_rank() != 0 || n > ROW_LIST)
        return n;
    uint32_t to = list->n;
    for (unsigned r = 1; r < cluster_size(); r++) {
        uint32_t n_there = *cluster_at(&list->n, r);
        if (threadIdx.x < n_there)
            list->tokens[to + threadIdx.x] = *cluster_at(&list->tokens[threadIdx.x], r);
        to += n_there;
    }
    __syncthreads();
    return n;
}

/* Sorts the first n tokens of a list, falling: bitonic, one a thread, over the power of two that holds them. */
static __device__ inline void row_sort(struct row_list *list, uint32_t n)
{
    uint32_t size = 32, at = threadIdx.x;
    while (size < n)
        size <<= 1;
    if (at >= n)
        list->tokens[at] = 0;
    for (uint32_t run = 2; run <= size; run <<= 1)
        for (uint32_t d = run / 2; d > 0; d >>= 1) {
            uint32_t other = at ^ d;
            __syncthreads();
            if (at < size && other > at) {
                uint64_t a = list->tokens[at], b = list->tokens[other];
                if ((at & run) == 0 ? a < b : a > b) {
                    list->tokens[at] = b;
                    list->tokens[other] = a;
                }
            }
        }
    __syncthreads();
}

/* A cluster for each of n_rows rows: the fewer rows, the more blocks. How many does not show in the result. */
template <typename ARGS>
static inline void row_launch(void (*kernel)(ARGS), const ARGS *args, size_t n_rows,
                              struct exec_stream *s)
{
    unsigned n_blocks = cluster_blocks(n_rows <= 16 ? ROW_BLOCKS : ROW_BLOCKS / 2);
    cluster_launch(kernel, args, n_rows, n_blocks, ROW_THREADS, exec_cuda_stream(s));
}
