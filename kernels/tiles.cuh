/* kernels/tiles.cuh - one block's tile of a quantised product on the integer tensor cores (NUMERICS rules 3 and 4). Internal to
 * *.cu.
 *
 * A tile is OUTS = 32 * OUT_WARPS outputs times up to 64 rows of activations. The block walks k in steps of 128:
 *
 *   1. raw blocks of weights arrive in shared memory by asynchronous copies, one or two ahead, as do the activations;
 *   2. all threads unpack a step of weights once, to int8 and floats (tiles_weights.cuh);
 *   3. warp (o, r) multiplies its 32 outputs with every second group of 8 rows. A chain block is one m16n8k32 step, or two
 *      m16n8k16 steps where scales are 16 wide; the chains of fp32 are the accumulators, in registers, k ascending.
 *
 * What bounds it is step 3's fp32 work on each sum of 32: subtract (to make it a float), multiply, fused multiply-add, one more
 * for minima; everything else is shared by as many sums as possible. Weights may lie at any even address.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/activation.cuh"
#include "kernels/tiles_weights.cuh"

#define TILES_ROWS      64
#define TILES_GROUPS    4   /* of 8 rows, a warp has */
#define TILES_PITCH     144 /* bytes from a row of a step's int8 to the next: no bank conflicts */
#define TILES_RAW_LANES 16  /* lanes that copy a row of raw weights, 16 bytes each */
#define TILES_SLOTS_MAX 2
#define TILES_RAW_SLACK                                                                            \
    18 /* bytes about a raw row: its misalignment, and words read past its end */

/* The form of a tile, and where things lie in a block's shared memory; raw weights from RAW on. DEPTH 0: a step's
 * weights are unpacked, then multiplied. 1: they are unpacked a step before, into the other of two buffers. 2: so, and
 * copies run further ahead. */
template <int KIND_, int OUT_WARPS_, int ROW_WARPS_, int DEPTH_> struct tiles_shared {
    static constexpr int KIND = KIND_;
    static constexpr bool AHEAD = DEPTH_ > 0;
    enum : unsigned {
        OUT_WARPS = OUT_WARPS_,
        ROW_WARPS = ROW_WARPS_,
        OUTS = 32 * OUT_WARPS_,
        ROWS = 8 * TILES_GROUPS * ROW_WARPS_,
        THREADS = 32 * OUT_WARPS_ * ROW_WARPS_,
        UNPACKS = 4 * OUTS / THREADS, /* rows of weights that a thread unpacks */
        N_W = DEPTH_ > 0 ? 2 : 1,     /* buffers of unpacked weights */
        N_X = DEPTH_ > 1 ? 3 : 2,     /* of activations */
        SLOTS = DEPTH_ > 1 ? 4 : 2,   /* of raw weights, a power of two; 1 does for DEPTH 0 */
        SCALE_WORDS = KIND_ == TILES_PLAIN    ? 1
                      : KIND_ == TILES_MINIMA ? 2
                      : KIND_ == TILES_FOLDED ? 4
                                              : 8,
        SCALE_PITCH = (OUTS * SCALE_WORDS + 8) * 4, /* of a chain block */
        XS_WORDS = tiles_has_minima(KIND_) ? 2 : 1,
        XS_PITCH = (ROWS * XS_WORDS + 8) * 4,
        W_BYTES = OUTS * TILES_PITCH,
        SCALES_BYTES = TILES_STEP_BLOCKS * SCALE_PITCH,
        XQ_BYTES = ROWS * TILES_PITCH,
        XS_BYTES = TILES_STEP_BLOCKS * XS_PITCH,
        SUM_BYTES =
            tiles_has_minima(KIND_) && tiles_is_folded(KIND_) ? TILES_STEP_BLOCKS * ROWS * 4 : 0,
        W = 0,                            /* int8 [N_W][OUTS][TILES_PITCH] */
        SCALES = W + N_W * W_BYTES,       /* [N_W][4 blocks][OUTS][SCALE_WORDS] */
        XQ = SCALES + N_W * SCALES_BYTES, /* int8 [N_X][ROWS][TILES_PITCH] */
        XS = XQ + N_X * XQ_BYTES,         /* [N_X][4 blocks][ROWS] {d, sx}, or d alone */
        SUMS = XS + N_X * XS_BYTES,       /* [N_X][4 blocks][ROWS] two int16 */
        X_ROWS = SUMS + N_X * SUM_BYTES,  /* where rows of activations begin */
        RAW = X_ROWS + ROWS * 8,
    };
};

/* Weights of one type: a row comes in pieces, which serve one step of 128 values or two (a whole block of a K type). */
struct tiles_rows {
    uint32_t type;
    uint32_t row_bytes, piece_bytes;
    uint32_t places; /* the bits that places of blocks have beyond the matrix's own, pieces aside */
    uint32_t repeats; /* 1: a piece serves two steps, but each loads it anew; else 0 */
};

/* What is the same for all tiles of a launch. */
struct tiles_shape {
    struct tiles_rows rows
        [2]; /* of the one matrix, or of two (see tiles_weights); types differ for TILES_ANY only */
    uint32_t n_blocks;             /* chain blocks of a row: n_in / 32 */
    uint32_t raw_pitch;            /* bytes of a raw row in shared memory */
    uint32_t n_slots;              /* raw pieces in flight, 1 or 2 */
    uint32_t piece_shift;          /* a piece serves 1 << piece_shift steps */
    uint32_t d_at, sx_at, half_at; /* the parts of a row of activations */
};

/* A tile's rows of weights: OUTS rows of one matrix from first[0], or (SPLIT) sixteen from first[0], sixteen from
 * first[1], the next sixteen of the one, and so on. The tile's rows beyond n of each matrix are not read, and compute
 * to unused numbers. */
struct tiles_weights {
    const uint8_t *first[2];
    unsigned n;
    unsigned last; /* the matrix's last row, if it is in the tile: behind it nothing may be read */
};

template <int KIND> struct tiles_sums {
    float acc[2][TILES_GROUPS][4]; /* [sixteen outputs][8 rows][as mma.sync has them] */
    float accm[tiles_has_minima(KIND) ? 2 : 1][TILES_GROUPS][4];
};

static __device__ __forceinline__ unsigned shared_at(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* Copies go on beside what follows, and are done after copies_wait() and a barrier. */
static __device__ __forceinline__ void copy_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from));
}

static __device__ __forceinline__ void copy_4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_at(to)), "l"(from));
}

/* n < 16, even. */
static __device__ __forceinline__ void copy_some(uint8_t *to, const uint8_t *from, unsigned n)
{
#pragma unroll 1
    for (; n >= 4; n -= 4, to += 4, from += 4)
        copy_4(to, from);
    if (n != 0)
        *(uint16_t *)to = *(const uint16_t *)from;
}

static __device__ __forceinline__ void copies_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

/* Waits for all groups but those of the last N_X - 2 steps and the very last one (see tile_multiply()), or for all. */
template <unsigned N_X> static __device__ __forceinline__ void copies_wait(bool all)
{
    if (all)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    else
        asm volatile("cp.async.wait_group %0;" ::"n"(2 * N_X - 3) : "memory");
}

/* Four 8 x 16 byte matrices; this lane names a row of one of them. */
static __device__ __forceinline__ void matrices_load(uint32_t to[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_at(row)));
}

/* c = TILES_MAGIC + w [16 outputs][32] x [8 rows][32]. */
static __device__ __forceinline__ void multiply_32(int c[4], const uint32_t w[4],
                                                   const uint32_t x[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x[0]), "r"(x[1]), "r"(TILES_MAGIC_BITS));
}

static __device__ __forceinline__ void multiply_16(int c[4], uint32_t w0, uint32_t w1, uint32_t x)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(w0), "r"(w1), "r"(x), "r"(TILES_MAGIC_BITS));
}

static __device__ __forceinline__ uint32_t piece_offset(const struct tiles_rows *rows,
                                                        unsigned piece)
{
    return (piece >> rows->repeats) * rows->piece_bytes;
}

/* Begins the copies of a piece of all weight rows. Nothing past a matrix is read; before it, what shares its first 16
 * bytes. A thread's rows lie multiples of 8 rows apart, so all are as far from 16 bytes as the first. */
template <typename at, bool SPLIT>
static __device__ __forceinline__ void raw_load(uint8_t *shared, const struct tiles_shape *s,
                                                const struct tiles_weights *w, unsigned piece)
{
    const unsigned lane = threadIdx.x % TILES_RAW_LANES, first = threadIdx.x / TILES_RAW_LANES;
    const unsigned apart = at::THREADS / TILES_RAW_LANES;
    static_assert(!SPLIT || at::THREADS / TILES_RAW_LANES == 16,
                  "a pass has sixteen rows of one matrix");
    uint8_t *slot =
        shared + at::RAW + ((piece & s->n_slots - 1) * at::OUTS + first) * s->raw_pitch + 16 * lane;
#pragma unroll
    for (unsigned which = 0; which < (SPLIT ? 2 : 1); which++) {
        const struct tiles_rows *rows = &s->rows[which];
        const uint32_t offset = piece_offset(rows, piece), left = rows->row_bytes - offset;
        const uint8_t *from = w->first[which] + offset;
        const unsigned shift = (unsigned)(uintptr_t)from + first * rows->row_bytes & 15;
        const int n =
            (int)(shift + (left < rows->piece_bytes ? left : rows->piece_bytes)) - 16 * (int)lane;
        if (n <= 0)
            continue;
        from = from - shift + 16 * lane;
        const size_t stride = (size_t)(SPLIT ? 16 : apart) * rows->row_bytes;
        const uint8_t *row_from = from + (size_t)first * rows->row_bytes;
        const unsigned end = n < 16 && w->last < w->n ? w->last : w->n;
#pragma unroll
        for (unsigned i = 0; i < at::OUTS; i += apart) {
            if (SPLIT && i / 16 % 2 != which)
                continue;
            if (first + (SPLIT ? i / 32 * 16 + i % 16 : i) < end)
                copy_16(slot + i * s->raw_pitch, row_from);
            row_from += stride;
        }
        const unsigned last = SPLIT ? w->last / 16 * 32 + which * 16 + w->last % 16 : w->last;
        if (n < 16 && w->last < w->n && last % apart == first)
            copy_some(slot + (last - first) * s->raw_pitch,
                      from + (size_t)w->last * rows->row_bytes, n);
    }
}

/* Begins the copies of a step of the activations of the first n_groups * 8 rows. */
template <typename at>
static __device__ __forceinline__ void x_load(uint8_t *shared, const struct tiles_shape *s,
                                              unsigned step, unsigned n_groups)
{
    const unsigned left = s->n_blocks - step * TILES_STEP_BLOCKS;
    const uint8_t *const *rows = (const uint8_t *const *)(shared + at::X_ROWS);
    const unsigned lane = threadIdx.x % 8, k = threadIdx.x % 4;
    const unsigned place = (step * TILES_STEP_BLOCKS + k) * 4;
    uint8_t *xq = shared + at::XQ + step % at::N_X * at::XQ_BYTES + 16 * lane;
    uint8_t *xs = shared + at::XS + step % at::N_X * at::XS_BYTES + k * at::XS_PITCH;
    uint8_t *sums = shared + at::SUMS + step % at::N_X * at::SUM_BYTES + k * at::ROWS * 4;
#pragma unroll
    for (unsigned i = 0; i < at::ROWS; i += at::THREADS / 8) {
        const unsigned row = threadIdx.x / 8 + i;
        if (row < 8 * n_groups && lane / 2 < left)
            copy_16(xq + row * TILES_PITCH, rows[row] + (step * TILES_STEP + 16 * lane));
    }
#pragma unroll
    for (unsigned i = 0; i < at::ROWS; i += at::THREADS / 4) {
        const unsigned row = threadIdx.x / 4 + i;
        const uint8_t *from = rows[row];
        if (row >= 8 * n_groups || k >= left)
            continue;
        copy_4(xs + row * at::XS_WORDS * 4, from + (s->d_at + place));
        if (tiles_has_minima(at::KIND))
            copy_4(xs + row * at::XS_WORDS * 4 + 4, from + (s->sx_at + place));
        if (at::SUM_BYTES != 0)
            copy_4(sums + row * 4, from + (s->half_at + place));
    }
}

template <int KIND>
static __device__ __forceinline__ void scales_store(float *to, const struct tiles_scales *s)
{
    if (KIND == TILES_PLAIN)
        *to = s->a;
    else if (KIND == TILES_MINIMA)
        *(float2 *)to = make_float2(s->a, s->b);
    else
        *(float4 *)to = make_float4(s->a, s->sc0, s->sc1, -s->sc1 * TILES_MAGIC);
    if (KIND == TILES_FOLDED_MINIMA || KIND == TILES_ANY)
        *(float4 *)(to + 4) = make_float4(s->b, s->m0, s->m1, 0.0f);
}

/* Unpacks a step of the weight rows of s->rows[which]. A thread's rows lie a multiple of 8 apart: misplaced, by the low
 * four bits of the first's address, is good for all. WHOLE: every row of the piece begins on 4 bytes. */
template <typename at, uint32_t TYPE, bool WHOLE>
static __device__ __forceinline__ void rows_unpack(uint8_t *shared, const struct tiles_shape *s,
                                                   unsigned misplaced, unsigned step,
                                                   unsigned which)
{
    const unsigned piece = step >> s->piece_shift, sub = threadIdx.x % 4;
    const unsigned first = threadIdx.x / 4;
    if (at::KIND == TILES_ANY && first / 16 % 2 != which)
        return;
    misplaced = misplaced + piece_offset(&s->rows[which], piece) & 15;
    const uint8_t *slot =
        shared + at::RAW + ((piece & s->n_slots - 1) * at::OUTS + first) * s->raw_pitch;
    const unsigned apart = at::THREADS / 4, buffer = step % at::N_W;
    uint32_t words[at::UNPACKS][8];
    struct tiles_scales scales[at::UNPACKS];
#pragma unroll
    for (unsigned i = 0; i < at::UNPACKS; i++)
        scales[i] = unpack_step<TYPE>(raw_row<WHOLE>(slot + i * apart * s->raw_pitch, misplaced),
                                      step & 1, sub, words[i]);
    uint8_t *to = shared + at::W + buffer * at::W_BYTES + first * TILES_PITCH + 4 * sub;
    float *scales_to =
        (float *)(shared + at::SCALES + buffer * at::SCALES_BYTES + sub * at::SCALE_PITCH) +
        first * at::SCALE_WORDS;
#pragma unroll
    for (unsigned i = 0; i < at::UNPACKS; i++) {
#pragma unroll
        for (unsigned j = 0; j < 8; j++)
            *(uint32_t *)(to + i * apart * TILES_PITCH + 16 * j) = words[i][j];
        scales_store<at::KIND>(scales_to + i * apart * at::SCALE_WORDS, &scales[i]);
    }
}

template <typename at, bool WHOLE>
static __device__ __forceinline__ void step_unpack(uint8_t *shared, const struct tiles_shape *s,
                                                   unsigned misplaced, unsigned step,
                                                   unsigned which)
{
#define TILES_CASE(name)                                                                           \
    case name:                                                                                     \
        if (at::KIND == TILES_ANY || at::KIND == tiles_kind_of(name))                              \
            rows_unpack<at, name, WHOLE>(shared, s, misplaced, step, which);                       \
        break;
    switch (s->rows[which].type) {
        TILES_CASE(TENSOR_Q4_0)
        TILES_CASE(TENSOR_Q4_1)
        TILES_CASE(TENSOR_Q5_0)
        TILES_CASE(TENSOR_Q5_1)
        TILES_CASE(TENSOR_Q8_0)
        TILES_CASE(TENSOR_Q2_K)
        TILES_CASE(TENSOR_Q3_K)
        TILES_CASE(TENSOR_Q4_K)
        TILES_CASE(TENSOR_Q5_K)
        TILES_CASE(TENSOR_Q6_K)
    }
#undef TILES_CASE
}

/* One chain block's scales of an output, and of the two rows of activations that a lane has of a group. */
struct tiles_w_scales {
    float a, b, sc0, sc1, k1, m0, m1;
};

struct tiles_x_scales {
    float d[2], sx[2], s0[2], s1[2];
};

template <int KIND>
static __device__ __forceinline__ void w_scales_load(struct tiles_w_scales *w, const float *from)
{
    if (KIND == TILES_PLAIN) {
        w->a = *from;
    } else if (KIND == TILES_MINIMA) {
        const float2 v = *(const float2 *)from;
        w->a = v.x, w->b = v.y;
    } else {
        const float4 v = *(const float4 *)from;
        w->a = v.x, w->sc0 = v.y, w->sc1 = v.z, w->k1 = v.w;
    }
    if (KIND == TILES_FOLDED_MINIMA || KIND == TILES_ANY) {
        const float4 v = *(const float4 *)(from + 4);
        w->b = v.x, w->m0 = v.y, w->m1 = v.z;
    }
}

template <int KIND>
static __device__ __forceinline__ void x_scales_load(struct tiles_x_scales *x, const void *scales,
                                                     const void *sums)
{
    if (tiles_has_minima(KIND)) {
        const float4 v = *(const float4 *)scales;
        x->d[0] = v.x, x->sx[0] = v.y, x->d[1] = v.z, x->sx[1] = v.w;
    } else {
        const float2 v = *(const float2 *)scales;
        x->d[0] = v.x, x->d[1] = v.y;
    }
    if (tiles_has_minima(KIND) && tiles_is_folded(KIND)) {
        const int2 both = *(const int2 *)sums;
        x->s0[0] = (float)(int16_t)both.x, x->s1[0] = (float)(both.x >> 16);
        x->s0[1] = (float)(int16_t)both.y, x->s1[1] = (float)(both.y >> 16);
    }
}

/* isum as a float, exact. Folded: sc0 * s0 + sc1 * s1 is an integer below 2^24 at every step; k1 = -sc1 * TILES_MAGIC. */
template <int KIND>
static __device__ __forceinline__ float isum_float(const struct tiles_w_scales *w, int c0, int c1)
{
    const float s0 = __fsub_rn(__int_as_float(c0), TILES_MAGIC);
    if (!tiles_is_folded(KIND))
        return s0;
    return __fmaf_rn(w->sc0, s0, __fmaf_rn(w->sc1, __int_as_float(c1), w->k1));
}

/* What b is multiplied with; m0 * s0 + m1 * s1 is exact. */
template <int KIND>
static __device__ __forceinline__ float minima_float(const struct tiles_w_scales *w,
                                                     const struct tiles_x_scales *x, unsigned r,
                                                     bool folded)
{
    if (KIND == TILES_FOLDED_MINIMA || (KIND == TILES_ANY && folded))
        return __fmul_rn(x->d[r], __fmaf_rn(w->m0, x->s0[r], __fmul_rn(w->m1, x->s1[r])));
    return x->sx[r];
}

/* One sum of 32 into its chains: output o of a lane's four, row r of its two. */
template <int KIND>
static __device__ __forceinline__ void chain_add(const struct tiles_w_scales *w,
                                                 const struct tiles_x_scales *x, unsigned r, int c0,
                                                 int c1, uint32_t type, float *acc, float *accm)
{
    const bool folded = KIND == TILES_ANY && type == TENSOR_Q2_K;
    *acc = __fmaf_rn(__fmul_rn(w->a, x->d[r]), isum_float<KIND>(w, c0, c1), *acc);
    if (tiles_has_minima(KIND) && (KIND != TILES_ANY || tiles_has_minima(tiles_kind_of(type))))
        *accm = __fmaf_rn(w->b, minima_float<KIND>(w, x, r, folded), *accm);
}

/* n_k chain blocks of a warp: its 32 outputs times its first COUNT groups of rows. */
template <typename at, int COUNT>
static __device__ __forceinline__ void
step_multiply(const uint8_t *shared, const struct tiles_shape *s, unsigned step, unsigned n_k,
              struct tiles_sums<at::KIND> *sums)
{
    const unsigned lane = threadIdx.x % 32, out = threadIdx.x / 32 % at::OUT_WARPS * 32;
    const unsigned row = threadIdx.x / 32 / at::OUT_WARPS * 8, pair = row + lane % 4 * 2;
    const unsigned apart = 8 * at::ROW_WARPS; /* from a group of rows to the warp's next */
    const uint8_t *wq = shared + at::W + step % at::N_W * at::W_BYTES +
                        (out + lane % 16) * TILES_PITCH + lane / 16 * 16;
    const uint8_t *ws = shared + at::SCALES + step % at::N_W * at::SCALES_BYTES +
                        (out + lane / 4) * at::SCALE_WORDS * 4;
    const uint8_t *xq = shared + at::XQ + step % at::N_X * at::XQ_BYTES +
                        (row + apart * (lane / 16) + lane % 8) * TILES_PITCH + lane / 8 % 2 * 16;
    const uint8_t *xs = shared + at::XS + step % at::N_X * at::XS_BYTES + pair * at::XS_WORDS * 4;
    const uint8_t *xsum = shared + at::SUMS + step % at::N_X * at::SUM_BYTES + 4 * pair;
#pragma unroll 1
    for (unsigned k = 0; k < n_k; k++) {
        uint32_t w[2][4], x[4];
        struct tiles_w_scales wsc[4];
        matrices_load(w[0], wq);
        matrices_load(w[1], wq + 16 * TILES_PITCH);
#pragma unroll
        for (unsigned o = 0; o < 4; o++)
            w_scales_load<at::KIND>(&wsc[o], (const float *)ws + 8 * o * at::SCALE_WORDS);
#pragma unroll
        for (unsigned i = 0; i < COUNT; i++) {
            struct tiles_x_scales xsc;
            if (i % 2 == 0)
                matrices_load(x, xq + apart * i * TILES_PITCH);
            x_scales_load<at::KIND>(&xsc, xs + apart * i * at::XS_WORDS * 4, xsum + apart * i * 4);
#pragma unroll
            for (unsigned m = 0; m < 2; m++) {
                int c0[4], c1[4];
                if (tiles_is_folded(at::KIND)) {
                    multiply_16(c0, w[m][0], w[m][1], x[i % 2 * 2]);
                    multiply_16(c1, w[m][2], w[m][3], x[i % 2 * 2 + 1]);
                } else {
                    multiply_32(c0, w[m], x + i % 2 * 2);
                }
#pragma unroll
                for (unsigned e = 0; e < 4; e++)
                    chain_add<at::KIND>(&wsc[2 * m + e / 2], &xsc, e % 2, c0[e], c1[e],
                                        s->rows[m].type, &sums->acc[m][i][e],
                                        &sums->accm[tiles_has_minima(at::KIND) ? m : 0][i][e]);
            }
        }
        wq += 32, ws += at::SCALE_PITCH, xq += 32, xs += at::XS_PITCH, xsum += at::ROWS * 4;
    }
}

/* step_multiply() for as many groups as the warp has among the tile's n_groups. */
template <typename at>
static __device__ __forceinline__ void
groups_multiply(const uint8_t *shared, const struct tiles_shape *s, unsigned step,
                unsigned n_groups, struct tiles_sums<at::KIND> *sums)
{
    const unsigned left = s->n_blocks - step * TILES_STEP_BLOCKS;
    const unsigned n_k = left < TILES_STEP_BLOCKS ? left : TILES_STEP_BLOCKS;
    switch ((n_groups + at::ROW_WARPS - 1 - threadIdx.x / 32 / at::OUT_WARPS) / at::ROW_WARPS) {
    case 1: return step_multiply<at, 1>(shared, s, step, n_k, sums);
    case 2: return step_multiply<at, 2>(shared, s, step, n_k, sums);
    case 3: return step_multiply<at, 3>(shared, s, step, n_k, sums);
    case 4: return step_multiply<at, 4>(shared, s, step, n_k, sums);
    }
}

/* The low bits of where this thread's first row of weights begins. */
template <bool SPLIT>
static __device__ __forceinline__ unsigned row_misplaced(const struct tiles_shape *s,
                                                         const struct tiles_weights *w)
{
    const unsigned i = threadIdx.x / 4, which = SPLIT ? i / 16 % 2 : 0;
    const unsigned row = SPLIT ? i / 32 * 16 + i % 16 : i;
    return (unsigned)(uintptr_t)(which == 0 ? w->first[0] : w->first[1]) +
           row * (which == 0 ? s->rows[0].row_bytes : s->rows[1].row_bytes);
}

template <typename at>
static __device__ __forceinline__ void types_unpack(uint8_t *shared, const struct tiles_shape *s,
                                                    unsigned places, unsigned misplaced,
                                                    unsigned step)
{
    const uint32_t offset = piece_offset(&s->rows[0], step >> s->piece_shift);
    if (at::KIND != TILES_ANY && ((places | offset) & 3) == 0)
        step_unpack<at, true>(shared, s, misplaced, step, 0);
    else
        step_unpack<at, false>(shared, s, misplaced, step, 0);
    if (at::KIND == TILES_ANY)
        step_unpack<at, false>(shared, s, misplaced, step, 1);
}

/* The whole of k for one tile; X_ROWS is filled (and seen) before, its first n_groups * 8 are read. Ends without a
 * barrier. Every step commits two groups of copies, the next activations and then perhaps raw weights, so that waiting
 * for all but one group leaves the latest weights on their way. */
template <typename at, bool SPLIT>
static __device__ __forceinline__ void
tile_multiply(uint8_t *shared, const struct tiles_shape *s, const struct tiles_weights *w,
              unsigned n_groups, struct tiles_sums<at::KIND> *sums)
{
    const unsigned n_steps = (s->n_blocks + TILES_STEP_BLOCKS - 1) / TILES_STEP_BLOCKS;
    const unsigned n_pieces = n_steps + (1 << s->piece_shift) - 1 >> s->piece_shift;
    const unsigned misplaced = row_misplaced<SPLIT>(s, w);
    const unsigned places = (unsigned)(uintptr_t)w->first[0] |
                            (unsigned)(uintptr_t)w->first[SPLIT ? 1 : 0] | s->rows[0].places;
    /* A copy begun in a step is waited for N_X - 1 steps later (raw weights: N_X). If there are too few slots for that, every copy
     * is waited for in the next step. */
    const bool wait_all = s->n_slots == 1 || (at::AHEAD && s->piece_shift == 0 && at::SLOTS == 2);
    *sums = {};
    raw_load<at, SPLIT>(shared, s, w, 0);
    if (at::SLOTS > 2 && n_pieces > 1)
        raw_load<at, SPLIT>(shared, s, w, 1);
    x_load<at>(shared, s, 0, n_groups);
    copies_commit();
    if (s->n_slots > 1 && n_pieces > at::SLOTS / 2)
        raw_load<at, SPLIT>(shared, s, w, at::SLOTS / 2);
    copies_commit();
    if (at::N_X > 2) {
        if (n_steps > 1)
            x_load<at>(shared, s, 1, n_groups);
        copies_commit();
        if (n_pieces > 3)
            raw_load<at, SPLIT>(shared, s, w, 3);
        copies_commit();
    }
    if (at::AHEAD) {
        copies_wait<at::N_X>(false);
        __syncthreads();
        types_unpack<at>(shared, s, places, misplaced, 0);
    }
    for (unsigned step = 0; step < n_steps; step++) {
        copies_wait<at::N_X>(wait_all);
        __syncthreads();
        if (!at::AHEAD) {
            types_unpack<at>(shared, s, places, misplaced, step);
            __syncthreads();
        }
        if (step + at::N_X - 1 < n_steps)
            x_load<at>(shared, s, step + at::N_X - 1, n_groups);
        copies_commit();
        const unsigned piece = step >> s->piece_shift; /* done with, if it serves no later step */
        if (step + 1 >> s->piece_shift != piece && piece + s->n_slots < n_pieces)
            raw_load<at, SPLIT>(shared, s, w, piece + s->n_slots);
        copies_commit();
        if (at::AHEAD && step + 1 < n_steps)
            types_unpack<at>(shared, s, places, misplaced, step + 1);
        groups_multiply<at>(shared, s, step, n_groups, sums);
    }
}

/* The finished element and its place in the tile. */
template <int KIND>
static __device__ __forceinline__ float tile_element(const struct tiles_sums<KIND> *sums,
                                                     unsigned m, unsigned i, unsigned e)
{
    if (!tiles_has_minima(KIND))
        return sums->acc[m][i][e];
    return __fsub_rn(sums->acc[m][i][e], sums->accm[tiles_has_minima(KIND) ? m : 0][i][e]);
}

template <typename at> static __device__ __forceinline__ unsigned tile_out(unsigned m, unsigned e)
{
    return threadIdx.x / 32 % at::OUT_WARPS * 32 + 16 * m + e / 2 * 8 + threadIdx.x % 32 / 4;
}

template <typename at> static __device__ __forceinline__ unsigned tile_row(unsigned i, unsigned e)
{
    return 8 * (threadIdx.x / 32 / at::OUT_WARPS + at::ROW_WARPS * i) + threadIdx.x % 4 * 2 + e % 2;
}
