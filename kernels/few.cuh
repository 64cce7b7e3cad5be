/* kernels/few.cuh - quantised weights times a few rows of activations on the integer tensor cores (NUMERICS rules 3 and 4): what
 * a warp does by itself. Internal to *.cu.
 *
 * A warp has 16 rows of weights at a time and 8 * GROUPS rows of activations. It walks k in pieces of 256 values:
 *
 *   1. the raw blocks of its 16 rows come by asynchronous copies into a ring of the warp's own, STAGES - 1 pieces ahead, so
 *      warps wait for nobody;
 *   2. four lanes share a row: lane 4 * g + t unpacks words t and t + 4 of each block of 32 of rows g and g + 8, which is how
 *      mma.sync wants them, straight into registers; each weight is unpacked once for all columns;
 *   3. the chains of fp32 are the accumulators, in registers, k ascending. A block's scales come from the lane of the four that
 *      has read them.
 *
 * The rows of activations lie whole in shared memory, for all warps of the block. Weights may lie at any even address; Q4_K and
 * Q5_K are slow where they do not lie at a multiple of 16, Q4_1, Q5_1 and Q2_K where at none of 4. Nothing past a matrix is
 * read, and before it at most what shares its first 16 bytes.
 */
#pragma once
#include "kernels/tiles.cuh"

#define FEW_OUTS  16 /* of a warp's tile */
#define FEW_PIECE 256
#define FEW_SLACK 32 /* bytes behind all else that may be read */

template <uint32_t TYPE> struct few_form {
    static constexpr int KIND = tiles_kind_of(TYPE);
    static constexpr bool WIDE = tiles_is_wide(TYPE);
    static constexpr bool SIXTEENS = TYPE == TENSOR_Q4_K || TYPE == TENSOR_Q5_K;
    static constexpr bool WHOLE = block_bytes(TYPE) % 4 == 0;
    enum : unsigned {
        BLOCK = block_bytes(TYPE),
        PIECE = WIDE ? BLOCK : 8 * BLOCK,
        CHUNKS = (PIECE +
                  (SIXTEENS ? 0
                   : WHOLE  ? 12
                            : 14) +
                  15) /
                 16,               /* of 16 bytes, in a row */
        PITCH = 16 * (CHUNKS | 1), /* odd: eight rows lie in different banks */
        SLOT = FEW_OUTS * PITCH,
        XS_WORDS = tiles_has_minima(KIND) ? 2 : 1,
        SUM_WORDS = TYPE == TENSOR_Q2_K ? 1 : 0,
    };
};

/* Where things lie in shared memory, and what is the same for all tiles of a launch. */
struct few_shape {
    uint32_t row_bytes; /* of weights */
    uint32_t n_blocks;  /* chain blocks of a row: n_in / 32 */
    uint32_t n_pieces;
    uint32_t x_pitch;              /* int8 [8 * GROUPS][x_pitch], from 0 on */
    uint32_t xs_at;                /* [n_blocks][8 * GROUPS] {d, sx}, or d alone */
    uint32_t sums_at;              /* [n_blocks][8 * GROUPS] two int16, for Q2_K */
    uint32_t ring_at;              /* [warps][STAGES][SLOT] */
    uint32_t d_at, sx_at, half_at; /* the parts of a row of activations in memory */
};

/* Some of a matrix's tiles, one after another, as a warp loads them. */
struct few_weights {
    const uint8_t *row[2]; /* rows g and g + 8 of the tile being loaded */
    uint32_t left[2];      /* bytes from there to the matrix's end; 0: no such row */
    uint32_t piece;        /* to be loaded next */
    uint32_t slot;         /* for it */
    bool slow;             /* copied two bytes at a time, to the slot's own beginning */
};

template <int KIND, int GROUPS> struct few_sums {
    float acc[GROUPS][4]; /* [8 rows][as mma.sync has them] */
    float accm[tiles_has_minima(KIND) ? GROUPS : 1][4];
};

/* n of 16 bytes; the others become 0. */
static __device__ __forceinline__ void copy_16_of(void *to, const void *from, unsigned n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(n));
}

/* Until at most N groups of this thread's copies are on their way. */
template <unsigned N> static __device__ __forceinline__ void few_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Points at the tile of 16 rows from row `out` of a matrix of n_out rows. */
static __device__ __forceinline__ void tile_point(struct few_weights *w, const struct few_shape *s,
                                                  const uint8_t *matrix, size_t n_out, size_t out)
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const size_t row = out + threadIdx.x % 32 / 4 + 8 * i;
        const size_t left = row < n_out ? (n_out - row) * s->row_bytes : 0;
        w->row[i] = matrix + row * s->row_bytes;
        w->left[i] = left < 0x7fffffff ? (uint32_t)left : 0x7fffffff;
    }
    w->piece = 0;
}

template <uint32_t TYPE>
static __device__ __forceinline__ struct few_weights
weights_open(const struct few_shape *s, const uint8_t *matrix, size_t n_out, size_t out)
{
    typedef struct few_form<TYPE> form;
    struct few_weights w;
    tile_point(&w, s, matrix, n_out, out);
    w.slot = 0;
    w.slow = form::WHOLE && ((uintptr_t)matrix & (form::SIXTEENS ? 15 : 3)) != 0;
    return w;
}

/* How far behind a multiple of 16 piece `piece` of the row at `low` (its address's low bits) lies in its slot. */
template <uint32_t TYPE>
static __device__ __forceinline__ unsigned piece_shift(uint32_t low, unsigned piece, bool slow)
{
    typedef struct few_form<TYPE> form;
    if (form::SIXTEENS || (form::WHOLE && slow))
        return 0;
    return low + (form::PIECE % 16 == 0 ? 0 : piece * form::PIECE) & 15;
}

static __device__ __noinline__ void pairs_copy(uint8_t *to, const uint8_t *from, unsigned bytes)
{
    for (unsigned i = 2 * (threadIdx.x % 4); i < bytes; i += 8)
        *(uint16_t *)(to + i) = *(const uint16_t *)(from + i);
}

/* Begins the copies of w->piece into its slot, and goes on to the next; all lanes. `ring`: the warp's. */
template <uint32_t TYPE, unsigned STAGES>
static __device__ __forceinline__ void piece_load(uint8_t *ring, const struct few_shape *s,
                                                  struct few_weights *w)
{
    typedef struct few_form<TYPE> form;
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned offset = w->piece * form::PIECE, row_left = s->row_bytes - offset;
    const unsigned bytes = form::WIDE || row_left > form::PIECE ? (unsigned)form::PIECE : row_left;
    uint8_t *to = ring + w->slot * form::SLOT + g * form::PITCH;
#pragma unroll
    for (unsigned i = 0; i < 2; i++, to += 8 * form::PITCH) {
        if (w->left[i] == 0)
            continue;
        const uint8_t *from = w->row[i] + offset;
        if (form::WHOLE && w->slow) {
            pairs_copy(to, from, bytes);
            continue;
        }
        const unsigned shift = piece_shift<TYPE>((uint32_t)(uintptr_t)w->row[i], w->piece, false);
        const int n = (int)(bytes + shift - 16 * t),
                  last = (int)(w->left[i] - offset + shift - 16 * t);
        from = from - shift + 16 * t;
#pragma unroll
        for (int c = 0; c < (int)form::CHUNKS; c += 4) {
            if (form::SIXTEENS ? c + t < form::CHUNKS : 16 * c < n) {
                if (form::SIXTEENS)
                    copy_16(to + 16 * (c + t), from + 16 * c);
                else
                    copy_16_of(to + 16 * (c + t), from + 16 * c, min(last - 16 * c, 16));
            }
        }
    }
    w->piece++;
    w->slot = w->slot + 1 == STAGES ? 0 : w->slot + 1;
}

/* The scales of the step's chain block k, from the lane of four that has them. What a whole block of 256 shares, every lane has. */
template <int KIND>
static __device__ __forceinline__ struct tiles_w_scales
scales_share(const struct tiles_scales *mine, int k)
{
    struct tiles_w_scales w = {};
    w.a = tiles_is_folded(KIND) ? mine->a : __shfl_sync(0xffffffffu, mine->a, k, 4);
    if (KIND == TILES_MINIMA)
        w.b = __shfl_sync(0xffffffffu, mine->b, k, 4);
    if (tiles_is_folded(KIND)) {
        w.sc0 = __shfl_sync(0xffffffffu, mine->sc0, k, 4);
        w.sc1 = __shfl_sync(0xffffffffu, mine->sc1, k, 4);
        w.k1 = __fmul_rn(-w.sc1, TILES_MAGIC);
    }
    if (KIND == TILES_FOLDED_MINIMA) {
        w.b = mine->b;
        w.m0 = __shfl_sync(0xffffffffu, mine->m0, k, 4);
        w.m1 = __shfl_sync(0xffffffffu, mine->m1, k, 4);
    }
    return w;
}

/* Where a lane finds its activations of chain block 0 of a piece: for ldmatrix, and scales of its two rows. */
struct few_x {
    const uint8_t *q, *scales, *sums;
};

/* One chain block: 16 outputs times the first n_groups groups of rows. w0, w1: its words of rows g and g + 8. */
template <uint32_t TYPE, int GROUPS>
static __device__ __forceinline__ void
block_multiply(const struct few_x *x, unsigned block, unsigned n_groups, const uint32_t *w0,
               const uint32_t *w1, const struct tiles_w_scales ws[2], const uint32_t xq[GROUPS][4],
               struct few_sums<few_form<TYPE>::KIND, GROUPS> *sums)
{
    typedef struct few_form<TYPE> form;
    constexpr int KIND = form::KIND;
    const uint32_t w[4] = {w0[0], w1[0], w0[1], w1[1]};
#pragma unroll
    for (unsigned i = 0; i < GROUPS; i++) {
        struct tiles_x_scales xs;
        int c0[4], c1[4];
        if (GROUPS > 1 && i >= n_groups)
            break;
        x_scales_load<KIND>(&xs, x->scales + (block * GROUPS + i) * 32 * form::XS_WORDS,
                            x->sums + (block * GROUPS + i) * 32);
        if (tiles_is_folded(KIND)) {
            multiply_16(c0, w[0], w[1], xq[i][block % 2 * 2]);
            multiply_16(c1, w[2], w[3], xq[i][block % 2 * 2 + 1]);
        } else {
            multiply_32(c0, w, xq[i] + block % 2 * 2);
        }
#pragma unroll
        for (unsigned e = 0; e < 4; e++)
            chain_add<KIND>(&ws[e / 2], &xs, e % 2, c0[e], c1[e], TYPE, &sums->acc[i][e],
                            &sums->accm[tiles_has_minima(KIND) ? i : 0][e]);
    }
}

/* A piece of n_k chain blocks. slot: this lane's row g; shift: of rows g and g + 8. */
template <uint32_t TYPE, int GROUPS>
static __device__ __forceinline__ void
piece_multiply(const uint8_t *slot, const unsigned shift[2], const struct few_shape *s,
               const struct few_x *x, unsigned n_k, unsigned n_groups,
               struct few_sums<few_form<TYPE>::KIND, GROUPS> *sums)
{
    typedef struct few_form<TYPE> form;
    const unsigned t = threadIdx.x % 4;
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
        uint32_t w[2][8], xq[GROUPS][4];
        struct tiles_scales mine[2];
        if (!form::WIDE && 4 * h >= n_k)
            break;
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const unsigned at = shift[i] + (form::WIDE ? 0 : 4 * h * form::BLOCK);
            mine[i] =
                unpack_step<TYPE>(raw_row<form::WHOLE>(slot + 8 * i * form::PITCH, at), h, t, w[i]);
        }
#pragma unroll
        for (unsigned k = 0; k < TILES_STEP_BLOCKS; k++) {
            if (!form::WIDE && 4 * h + k >= n_k)
                break;
            const struct tiles_w_scales ws[2] = {scales_share<form::KIND>(&mine[0], (int)k),
                                                 scales_share<form::KIND>(&mine[1], (int)k)};
            if (k % 2 == 0) {
#pragma unroll
                for (unsigned i = 0; i < GROUPS; i++)
                    if (GROUPS == 1 || i < n_groups)
                        matrices_load(xq[i], x->q + 8 * i * s->x_pitch + 32 * (4 * h + k));
            }
            block_multiply<TYPE, GROUPS>(x, 4 * h + k, n_groups, &w[0][2 * k], &w[1][2 * k], ws, xq,
                                         sums);
        }
    }
}

/* The ring of this warp. */
template <uint32_t TYPE, unsigned STAGES>
static __device__ __forceinline__ uint8_t *ring_of(uint8_t *shared, const struct few_shape *s)
{
    return shared + s->ring_at + threadIdx.x / 32 * STAGES * few_form<TYPE>::SLOT;
}

/* Begins the copies of as many pieces as the ring takes ahead. */
template <uint32_t TYPE, unsigned STAGES>
static __device__ __forceinline__ void weights_begin(uint8_t *ring, const struct few_shape *s,
                                                     struct few_weights *w)
{
    for (unsigned i = 0; i + 1 < STAGES; i++) {
        if (w->piece < s->n_pieces)
            piece_load<TYPE, STAGES>(ring, s, w);
        copies_commit();
    }
}

/* The whole of k for the tile that w has begun to load; the rows of activations are there. */
template <uint32_t TYPE, unsigned STAGES, int GROUPS>
static __device__ __forceinline__ void tile_few(uint8_t *shared, const struct few_shape *s,
                                                struct few_weights *w, unsigned n_groups,
                                                struct few_sums<few_form<TYPE>::KIND, GROUPS> *sums)
{
    typedef struct few_form<TYPE> form;
    const unsigned lane = threadIdx.x % 32;
    uint8_t *ring = ring_of<TYPE, STAGES>(shared, s);
    struct few_x x = {shared + lane % 8 * s->x_pitch + lane / 8 * 16,
                      shared + s->xs_at + lane % 4 * 2 * form::XS_WORDS * 4,
                      shared + s->sums_at + lane % 4 * 8};
    const uint8_t *slot = ring + lane / 4 * form::PITCH, *end = slot + STAGES * form::SLOT;
    *sums = {};
#pragma unroll 1
    for (unsigned piece = 0; piece < s->n_pieces; piece++) {
        few_wait<STAGES - 2>();
        __syncwarp();
        if (w->piece < s->n_pieces)
            piece_load<TYPE, STAGES>(ring, s, w);
        copies_commit();
        const unsigned shift[2] = {
            piece_shift<TYPE>((uint32_t)(uintptr_t)w->row[0], piece, w->slow),
            piece_shift<TYPE>((uint32_t)(uintptr_t)w->row[1], piece, w->slow)};
        piece_multiply<TYPE, GROUPS>(slot, shift, s, &x, s->n_blocks - 8 * piece, n_groups, sums);
        x.q += FEW_PIECE;
        x.scales += 8 * GROUPS * 32 * form::XS_WORDS;
        x.sums += 8 * GROUPS * 32;
        slot += form::SLOT;
        slot = slot == end ? end - STAGES * form::SLOT : slot;
    }
}

/* Begins the copies of row `from` of activations to place r of them; all lanes of a warp. */
template <uint32_t TYPE, int GROUPS>
static __device__ __forceinline__ void row_load(uint8_t *shared, const struct few_shape *s,
                                                unsigned r, const uint8_t *from)
{
    typedef struct few_form<TYPE> form;
    const unsigned lane = threadIdx.x % 32;
    uint8_t *q = shared + r * s->x_pitch;
    uint8_t *scales = shared + s->xs_at + 4 * r * form::XS_WORDS;
    uint8_t *sums = shared + s->sums_at + 4 * r;
#pragma unroll 4
    for (unsigned i = 16 * lane; i < 32 * s->n_blocks; i += 512)
        copy_16(q + i, from + i);
#pragma unroll 2
    for (unsigned k = lane; k < s->n_blocks; k += 32) {
        copy_4(scales + k * GROUPS * 32 * form::XS_WORDS, from + s->d_at + 4 * k);
        if (form::XS_WORDS == 2)
            copy_4(scales + k * GROUPS * 32 * form::XS_WORDS + 4, from + s->sx_at + 4 * k);
        if (form::SUM_WORDS != 0)
            copy_4(sums + k * GROUPS * 32, from + s->half_at + 4 * k);
    }
}

/* The finished element e of group i. */
template <int KIND, int GROUPS>
static __device__ __forceinline__ float few_element(const struct few_sums<KIND, GROUPS> *sums,
                                                    unsigned i, unsigned e)
{
    if (!tiles_has_minima(KIND))
        return sums->acc[i][e];
    return __fsub_rn(sums->acc[i][e], sums->accm[tiles_has_minima(KIND) ? i : 0][e]);
}

/* Its place among the tile's outputs and among the rows of activations. */
static __device__ __forceinline__ unsigned few_out(unsigned e)
{
    return threadIdx.x % 32 / 4 + e / 2 * 8;
}

static __device__ __forceinline__ unsigned few_row(unsigned i, unsigned e)
{
    return 8 * i + threadIdx.x % 4 * 2 + e % 2;
}
