/* attention.cuh - the arithmetic of attention on CUDA cards, shared by its two forms so that they give the same bits. Internal.
 *
 * A query vector is one head of one row. Its bits depend on its own q, position, keys and values alone:
 *   q16      = half(q * (scale * log2 e))
 *   score[t] = chain of mma.m16n8k16 over head_dim from 0, ascending; fp32 sums
 *   tile     = 32 keys: m' = max(m, tile's scores), c = 2^(m - m'), e[t] = 2^(score[t] - m'), 0 where t is past the position
 *              sum = fmaf(sum, c, the tile's own sum) in four lanes by t mod 8 / 2, joined as (0 + 1) + (2 + 3) at the end
 *              part = part * c, then one mma a 16 keys over half(e) and v
 * for the tiles of a partition from m = -inf, part = 0; then out = fmaf(out, 2^(M - M'), part * 2^(m - M')) and the same for the
 * sums, partitions ascending; out / sum last. Rows of an mma do not see each other. A tile wholly past a position leaves
 * everything as it is (c = 1, e = 0), so it makes no difference whether it is computed or skipped.
 *
 * Fragments: in 32 values of head_dim, lane c of a quad takes the 8 values from 8c on, for q and k alike: one 16-byte load feeds two
 * k16 steps. K and V in shared memory are rows of 16-byte units; unit u of key t lies at u ^ swizzle(t), which keeps both the
 * 16-byte loads of K and ldmatrix of V free of bank conflicts.
 *
 * Kernels are made for D values of head_dim. PADDED ones take any multiple of 16 up to D: what lies past head_dim is never read nor
 * written, and counts as zeros, which leave every chain as it is.
 */
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>
#include "kernels/kernels.h"

#define TILE_KEYS       KV_BLOCK_TOKENS /* a tile is one KV block: one look into the table */
#define TILE_COLS       (TILE_KEYS / 8) /* n8 columns of a tile's scores */
#define PARTITION_TILES (KV_PARTITION_TOKENS / TILE_KEYS)
#define LOG2_E          1.44269504f
#define NO_SCORE        (-INFINITY)

/* Where the keys and values of one row's sequence are, for one KV head. */
struct kv_head_view {
    const char *base; /* of the head's first key in block 0 */
    const int32_t *table;
    size_t block_stride, token_bytes;
};

static __device__ __forceinline__ struct kv_head_view kv_head_of(const struct kv_view *kv,
                                                                 int32_t sequence, unsigned kv_head)
{
    struct kv_head_view v;
    v.token_bytes = kv->n_kv_heads * kv->head_dim * sizeof(__half);
    v.base = (const char *)kv->base + kv_head * kv->head_dim * sizeof(__half);
    v.table = kv->tables + (size_t)sequence * kv->table_stride;
    v.block_stride = kv->block_stride;
    return v;
}

/* head_dim, a constant where kernels are made for it. */
template <int D, bool PADDED>
static __device__ __forceinline__ int head_dim_of(const struct kv_view *kv)
{
    return PADDED ? (int)kv->head_dim : D;
}

static __device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t half2_of(float a, float b)
{
    __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

/* sum += a b: 16 x 8 += 16 x 16 * 16 x 8 */
static __device__ __forceinline__ void mma_16816(float sum[4], uint32_t a0, uint32_t a1,
                                                 uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Both k16 steps of 32 values for all columns of a tile: q of the lane's two vectors, k of its keys. */
static __device__ __forceinline__ void scores_32(float score[TILE_COLS][4], uint4 q_low,
                                                 uint4 q_high, const uint4 k[TILE_COLS])
{
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++)
        mma_16816(score[i], q_low.x, q_high.x, q_low.y, q_high.y, k[i].x, k[i].y);
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++)
        mma_16816(score[i], q_low.z, q_high.z, q_low.w, q_high.w, k[i].z, k[i].w);
}

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes, or 16 zeros where `real` is false: then nothing is read. */
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(real ? 16 : 0));
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

/* Until at most N of this thread's groups are under way. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

template <int D> static __device__ __forceinline__ uint32_t swizzle(uint32_t key)
{
    return (key >> 1 & 3) | (D % 64 == 0 ? (key & 1) << 2 : 0);
}

/* The lane's eight of 32 values of q, as halves. */
static __device__ __forceinline__ uint4 query_of(float4 a, float4 b, float scale)
{
    return make_uint4(half2_of(a.x * scale, a.y * scale), half2_of(a.z * scale, a.w * scale),
                      half2_of(b.x * scale, b.y * scale), half2_of(b.z * scale, b.w * scale));
}

/* Scores of keys past the limits become NO_SCORE. The lane has vectors g, g + 8 (limit[0], limit[1]) and keys 8 i + 2 c + 0, 1. */
static __device__ __forceinline__ void tile_mask(float score[TILE_COLS][4], int first,
                                                 const int limit[2])
{
    int key = first + (int)(threadIdx.x % 4) * 2;
#pragma unroll
    for (int i = 0; i < TILE_COLS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (key + 8 * i + (j & 1) > limit[j >> 1])
                score[i][j] = NO_SCORE;
}

static __device__ __forceinline__ void tile_max(const float score[TILE_COLS][4], float max[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = NO_SCORE;
#pragma unroll
        for (int i = 0; i < TILE_COLS; i++)
            m = fmaxf(m, fmaxf(score[i][2 * r], score[i][2 * r + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
        max[r] = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
    }
}

/* max: before the tile, then with it. Scores become exponentials; c is the rescale, sum the lane's share of the tile's sum. */
static __device__ __forceinline__ void tile_exponentials(float score[TILE_COLS][4], float max[2],
                                                         const float tile[2], float c[2],
                                                         float sum[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float both = fmaxf(max[r], tile[r]), base = both == NO_SCORE ? 0.0f : both;
        c[r] = exp2_of(max[r] - base);
        max[r] = both;
        sum[r] = 0;
#pragma unroll
        for (int i = 0; i < TILE_COLS; i++) {
            float a = exp2_of(score[i][2 * r] - base), b = exp2_of(score[i][2 * r + 1] - base);
            sum[r] += a + b;
            score[i][2 * r] = a;
            score[i][2 * r + 1] = b;
        }
    }
}

/* The running state of a vector over partitions, and how a partition joins it: out = fmaf(out, old, part * now). */
struct attention_total {
    float max, sum;
};

static __device__ __forceinline__ void total_join(struct attention_total *t, float max, float sum,
                                                  float *old, float *now)
{
    float both = fmaxf(t->max, max);
    *old = exp2_of(t->max - both);
    *now = exp2_of(max - both);
    t->sum = __fmaf_rn(t->sum, *old, sum * *now);
    t->max = both;
}

#define ATTENTION_SPLIT_ROWS 64

/* attention_split.cu: any number of rows, at most ATTENTION_SPLIT_ROWS a launch; quants: the rows as activations too, or NULL. */
int attention_split_cuda(const struct attention_args *args, void *quants, struct exec_stream *s);

/* attention_chunk.cu: many rows; uses no scratch. */
int attention_chunk_cuda(const struct attention_args *args, struct exec_stream *s);
