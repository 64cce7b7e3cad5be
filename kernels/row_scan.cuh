/* kernels/row_scan.cuh - looking through one row of logits with a cluster of blocks: largest, sums, cuts. Internal to *.cu.
 *
 * A row is cut into one run of ids a block, that into one a warp; lanes take neighbouring ids in turn. A token's weight is 1, or
 * its mass as in sample.c, or 0 where an earlier cut left it out. Weights are integers, so sums are exact in any order.
 *
 * row_cut() finds where the shortest falling prefix of a wanted weight ends, without sorting: tokens are first counted into
 * ROW_BUCKETS buckets by their distance from the largest logit, then the bucket in which the prefix ends is cut again and again,
 * by keys, until it is one key. Tokens that are further away than all that the buckets span share the last one; nobody counts
 * them, for there are many and the prefix hardly ever ends there.
 *
 * All threads of a cluster call these functions together. Each call of row_largest() and row_total() takes a slot of its own.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/cluster.cuh"
#include "kernels/expf.h"
#include "kernels/sample_rule.h"

#define ROW_THREADS 1024
#define ROW_WARPS   (ROW_THREADS / 32)
#define ROW_BLOCKS  8
#define ROW_BUCKETS ROW_THREADS /* one a thread */
#define ROW_SLOTS   8
#define ROW_NOBODY  UINT32_MAX

/* A bucket, what it holds, and how much of that is wanted. */
struct row_choice {
    uint64_t wanted, sum;
    uint32_t bucket;
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
    uint32_t first, last; /* ids */
    uint32_t turn;        /* histograms so far */
    struct row_shared *shared;
};

/* Which tokens are left, and what they weigh. A cut keeps keys above `key` and, of those that equal it, ids up to `id`. */
struct row_filter {
    uint32_t key[2], id[2];
    float max, temperature;
    uint64_t mass_floor; /* of those kept; 1 = all that have mass */
    bool masses;         /* weights are masses, not 1 */
};

static __device__ inline struct row row_open(const float *logits, uint32_t n,
                                             struct row_shared *shared)
{
    struct row row = {logits, NULL, 0, 0, 0, shared};
    uint32_t part = (n + cluster_size() * ROW_THREADS - 1) / (cluster_size() * ROW_THREADS) * 32;
    uint32_t warp = cluster_rank() * ROW_WARPS + threadIdx.x / 32;
    row.first = min(warp * part, n);
    row.last = min(row.first + part, n);
    return row;
}

static __device__ inline uint32_t row_key(const struct row *row, uint32_t id)
{
    return row->keys != NULL ? row->keys[id] : sample_key(row->logits[id]);
}

static __device__ inline uint64_t mass_of(float z)
{
    return __float2ull_rz(ebb_expf(z) * (float)SAMPLE_MASS_ONE);
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
    uint64_t mass = mass_of(sample_exponent(sample_logit(key), f->max, f->temperature));
    return mass >= f->mass_floor ? mass : 0;
}

static __device__ inline uint64_t warp_largest(uint64_t v)
{
    for (int d = 16; d > 0; d >>= 1) {
        uint64_t other = __shfl_xor_sync(~0u, v, d);
        v = other > v ? other : v;
    }
    return v;
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
    uint64_t best = 0;
#pragma unroll 8
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32) {
        uint64_t v = (uint64_t)row_key(row, id) << 32 | (uint32_t)~id;
        best = v > best ? v : best;
    }
    return row_join<true>(row, best, slot);
}

/* The sum of all weights; the slot then holds each warp's and each block's for row_find(). */
static __device__ inline uint64_t row_total(const struct row *row, const struct row_filter *f,
                                            int slot)
{
    uint64_t sum = 0;
#pragma unroll 4
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32)
        sum += row_weight(f, row_key(row, id), id);
    return row_join<false>(row, sum, slot);
}

/* How many kept tokens have this very key; slot as above. */
static __device__ inline uint64_t row_equals(const struct row *row, const struct row_filter *f,
                                             uint32_t key, int slot)
{
    uint64_t n = 0;
#pragma unroll 4
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32)
        n += row_key(row, id) == key && row_keeps(f, key, id);
    return row_join<false>(row, n, slot);
}

/* The first id at which the weights of `slot`, added up in the order of ids, exceed `target`: `key` 0 means row_total()'s weights,
 * else row_equals()'s. ROW_NOBODY in blocks that do not have it. */
static __device__ inline uint32_t row_find(const struct row *row, const struct row_filter *f,
                                           uint32_t key, uint64_t target, int slot)
{
    struct row_shared *s = row->shared;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t before = 0;
    for (unsigned r = 0; r < cluster_rank(); r++)
        before += *cluster_at(&s->block[slot], r);
    for (unsigned w = 0; w < warp; w++)
        before += s->warps[slot][w];
    if (threadIdx.x == 0)
        s->found = ROW_NOBODY;
    __syncthreads();
    if (before <= target && before + s->warps[slot][warp] > target) {
        for (uint32_t base = row->first; base < row->last; base += 32) {
            uint32_t id = base + lane, at = id < row->last ? row_key(row, id) : 0;
            uint64_t weight = 0;
            if (id < row->last)
                weight = key == 0 ? row_weight(f, at, id) : at == key && row_keeps(f, at, id);
            uint64_t upto = weight;
            for (int d = 1; d < 32; d <<= 1) {
                uint64_t other = __shfl_up_sync(~0u, upto, d);
                upto += lane >= d ? other : 0;
            }
            unsigned over = __ballot_sync(~0u, before + upto > target);
            if (over != 0) {
                if (lane == 0)
                    s->found = base + __ffs((int)over) - 1;
                break;
            }
            before += __shfl_sync(~0u, upto, 31);
        }
    }
    __syncthreads();
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
    unsigned turn = row->turn++ & 1;
    uint64_t sum = 0;
    cluster_barrier();
    for (unsigned r = 0; r < cluster_size(); r++) {
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
    *total = 0;
    for (unsigned w = 0; w < ROW_WARPS; w++) {
        uint64_t part = row->shared->scan[w];
        *total += part;
        above += w > warp ? part : 0;
    }
    return above;
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

/* The bucket of a key by its distance from the largest: the larger the key, the higher. */
static __device__ inline uint32_t bucket_of(const struct row_filter *f, uint32_t key)
{
    float logit = sample_logit(key), distance;
    if (f->masses) /* what is further than 27.73 has no mass: 36 buckets a unit hold all that has */
        distance = -36.0f * sample_exponent(logit, f->max, f->temperature);
    else
        distance = logit == f->max ? 0.0f : 64.0f * (f->max - logit);
    return ROW_BUCKETS - 1 - min(__float2uint_rz(distance), ROW_BUCKETS - 1u);
}

#define ROW_KEY_LOWEST 0x007fffffu /* of -infinity */

/* The lowest key up to `highest` (which has the highest bucket) whose bucket is `bucket` or higher: each lane of a warp tries one
 * of 32 keys between what is too low and what is not. */
static __device__ inline uint32_t bucket_first_key(const struct row_filter *f, uint32_t highest,
                                                   uint32_t bucket)
{
    uint32_t low = ROW_KEY_LOWEST, high = highest;
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
#pragma unroll 4
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32) {
        uint32_t key = row_key(row, id), bucket = bucket_of(f, key);
        uint64_t weight = bucket > 0 ? row_weight(f, key, id) : 0;
        if (weight != 0)
            bucket_add(row, bucket, weight);
    }
}

/* The weights of kept tokens with keys low..high, in buckets of 2^shift keys. */
static __device__ inline void buckets_count_keys(const struct row *row, const struct row_filter *f,
                                                 uint32_t low, uint32_t high, int shift)
{
    buckets_clear(row);
#pragma unroll 4
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32) {
        uint32_t key = row_key(row, id);
        if (key < low || key > high)
            continue;
        uint64_t weight = row_weight(f, key, id);
        if (weight != 0)
            bucket_add(row, (key - low) >> shift, weight);
    }
}

/* Cut number `which` (0 or 1) of the filter: keeps the shortest falling prefix whose count is top_k or, where weights are masses,
 * whose mass reaches top_p of the whole. */
static __device__ inline void row_cut(struct row *row, struct row_filter *f, int which,
                                      uint32_t highest, uint64_t top_k, float top_p)
{
    uint64_t total, wanted = top_k;
    buckets_count(row, f);
    uint64_t sum = buckets_join(row), above = buckets_above(row, sum, &total);
    if (f->masses) {
        double share = ceil((double)top_p * (double)total);
        wanted = share > 1.0 ? (uint64_t)share : 1;
    }
    struct row_choice choice = bucket_choose(row, sum, above, wanted);
    if (threadIdx.x < 64) {
        uint32_t end = threadIdx.x / 32, bucket = choice.bucket + end;
        uint32_t key = bucket < ROW_BUCKETS ? bucket_first_key(f, highest, bucket) : highest + 1;
        if (threadIdx.x % 32 == 0)
            row->shared->range[end] = key - end;
    }
    __syncthreads();
    uint32_t low = row->shared->range[0], high = row->shared->range[1];
    do {
        int bits = 32 - __clz((int)(high - low)), shift = bits > 10 ? bits - 10 : 0;
        buckets_count_keys(row, f, low, high, shift);
        sum = buckets_join(row);
        above = buckets_above(row, sum, &total);
        choice = bucket_choose(row, sum, above, choice.wanted);
        low += choice.bucket << shift;
        high = min(high, low + ((1u << shift) - 1));
    } while (low < high);

    uint64_t weight = f->masses ? row_weight(f, low, 0) : 1;
    uint64_t n_kept = (choice.wanted + weight - 1) / weight;
    uint32_t id = UINT32_MAX; /* of those that equal the last key the lower ids stay */
    if (n_kept < choice.sum / weight) {
        (void)row_equals(row, f, low, 1 + which);
        id = row_find_all(row, f, low, n_kept - 1, 1 + which);
    }
    f->key[which] = low;
    f->id[which] = id;
}
