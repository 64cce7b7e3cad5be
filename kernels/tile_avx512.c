/* kernels/tile_avx512.c - quantised products, quantisation and SwiGLU with AVX-512 and VNNI: the bits of
 * tile_reference.c.
 *
 * A product takes sixteen outputs side by side, each lane its own output (turned.h), as tile_avx2.c takes eight: a chunk
 * of their weights is unpacked once into the first-level cache and then used by up to TILE_ROWS rows of activations,
 * four rows at a time (one row: single_avx512.h). Fewer than sixteen outputs, the end of a matrix, go to tile_avx2.c.
 * Integer sums are exact (sums_avx512.h says why); the float chains are those of NUMERICS rule 3, one multiply and one
 * fused step a block. Owns nothing; any thread; called only where set_cpu.c has found the instructions.
 */
#include <assert.h>
#include "kernels/expf_avx512.h"
#include "kernels/plain.h"
#include "kernels/tile.h"
#include "kernels/single_avx512.h"

/* The two chains of each row, one output a lane. */
struct chains {
    __m512 acc[TILE_ROWS], accm[TILE_ROWS];
};

/* Up to eight blocks of 32 values, unpacked: lane r of w[block][i] = quants 4i .. 4i + 3 of row r. */
#define CHUNK_BLOCKS 8
struct chunk {
    __m512i w[CHUNK_BLOCKS][8];
    __m512 sub[CHUNK_BLOCKS][2];
    __m512i minima[CHUNK_BLOCKS]; /* folded ones */
    __m512 a[CHUNK_BLOCKS], b[CHUNK_BLOCKS];
};

INLINE void chunk_load_small(uint32_t type, const struct lane_rows *rows, size_t n_blocks,
                             uintptr_t *ahead, struct chunk *c)
{
    const struct format f = format_unsigned(type);
    for (size_t k = 0; k < n_blocks; k++) {
        struct small_block block;
        ahead_ask(ahead, LANES * f.block_bytes);
        small_load(type, rows, k * f.block_bytes, &block);
        UNROLL
        for (int i = 0; i < 8; i++)
            c->w[k][i] = f.is_signed ? bytes_unsigned(block.w[i]) : block.w[i];
        c->a[k] = block.a;
        if (f.has_b)
            c->b[k] = block.b;
    }
}

INLINE void chunk_load_super(uint32_t type, const struct lane_rows *rows, uintptr_t *ahead,
                             struct chunk *c)
{
    const struct format f = format_unsigned(type);
    const int width = super_width(type);
    struct super_scales s;
    super_scales_load(type, rows, &s);
    UNROLL
    for (int j = 0; j < 8; j++) {
        c->a[j] = super_a(f, &s, j);
        if (f.has_b)
            c->b[j] = super_b(f, &s, j);
        if (f.folded)
            c->minima[j] = super_pair(s.m, j, 0, 1);
        if (f.has_sub)
            super_sub(&s, j, c->sub[j]);
    }
    UNROLL
    for (int group = 0; group < super_groups(type); group++)
        UNROLL
    for (int part = 0; part < 2; part++) {
        struct super_part p;
        ahead_ask(ahead, ahead_part_bytes(type));
        super_part_load(type, rows, group, part, &p);
        UNROLL
        for (int k = 0; k < width; k++)
            UNROLL
        for (int i = 0; i < 4; i++)
            c->w[width * group + k][4 * part + i] = super_quants(type, &p, group, k, i);
    }
}

/* Carries the chains of n <= 4 rows (a constant after inlining) over the chunk; `block` is its
 * first block in a row. */
INLINE void chains_advance(uint32_t type, int n, const struct chunk *c, size_t n_blocks,
                           size_t block, const struct activation *x, __m512 *to, __m512 *tom)
{
    const struct format f = format_unsigned(type);
    __m512 acc[4], accm[4];
    UNROLL
    for (int r = 0; r < n; r++)
        acc[r] = to[r], accm[r] = tom[r];
    for (size_t k = 0; k < n_blocks; k++) {
        struct sums s[4];
        UNROLL
        for (int r = 0; r < n; r++)
            s[r] = sums_begin(f, x[r].sum16 + 2 * (block + k));
        UNROLL
        for (int i = 0; i < 8; i++) {
            const __m512i w = c->w[k][i];
            const int half = sums_half(f, i);
            UNROLL
            for (int r = 0; r < n; r++)
                s[r].half[half] = _mm512_dpbusd_epi32(
                    s[r].half[half], w, four_values(x[r].q + 32 * (block + k) + 4 * (size_t)i));
        }
        UNROLL
        for (int r = 0; r < n; r++) {
            acc[r] = chain_step(acc[r], c->a[k], x[r].d[block + k], sums_end(f, s[r], c->sub[k]));
            if (f.has_b)
                accm[r] = chain_step_b(f, accm[r], c->b[k],
                                       f.folded ? c->minima[k] : _mm512_setzero_si512(), &x[r],
                                       block + k);
        }
    }
    UNROLL
    for (int r = 0; r < n; r++)
        to[r] = acc[r], tom[r] = accm[r];
}

/* Bytes of n_blocks blocks of 32 values of a row. */
INLINE size_t chunk_bytes(struct format f, size_t n_blocks)
{
    return f.is_super ? n_blocks / 8 * f.block_bytes : n_blocks * f.block_bytes;
}

/* One chunk with all rows. */
INLINE void chunk_product(uint32_t type, const struct lane_rows *rows, size_t n_blocks,
                          size_t block, const struct activation *x, size_t n_rows, uintptr_t *ahead,
                          struct chains *s)
{
    struct chunk c;
    size_t r = 0;
    if (format_of(type).is_super)
        chunk_load_super(type, rows, ahead, &c);
    else
        chunk_load_small(type, rows, n_blocks, ahead, &c);
    for (; r + 4 <= n_rows; r += 4)
        chains_advance(type, 4, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
    for (; r + 2 <= n_rows; r += 2)
        chains_advance(type, 2, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
    if (r < n_rows)
        chains_advance(type, 1, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
}

/* The same with one row. */
INLINE void chunk_single(uint32_t type, const struct lane_rows *rows, size_t n_blocks, size_t block,
                         const struct activation *x, struct chain *c)
{
    const struct format f = format_of(type);
    if (f.is_super)
        single_super(type, rows, x, block, c);
    else
        for (size_t k = 0; k < n_blocks; k++)
            single_small(type, rows, k * f.block_bytes, x, block + k, c);
}

/* While a tile is computed, the next one, which begins where this one's last row ends, is asked for: its bytes in the
 * order of addresses, which is what the memory's own prefetching goes along with, whatever of this one is read. */
INLINE void product_typed(uint32_t type, bool single, const struct tile_matrix *m,
                          const uint8_t *tile, const struct activation *x, size_t n_rows,
                          struct chains *s)
{
    const size_t n_blocks = m->n_in / 32;
    struct chain c = {s->acc[0], s->accm[0], (uintptr_t)tile + LANES * m->row_bytes};
    struct lane_rows rows;
    lane_rows_set(&rows, tile, m->row_bytes);
    for (size_t block = 0; block < n_blocks; block += CHUNK_BLOCKS) {
        size_t left = n_blocks - block, n = left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        if (single)
            chunk_single(type, &rows, n, block, x, &c);
        else
            chunk_product(type, &rows, n, block, x, n_rows, &c.ahead, s);
        lane_rows_advance(&rows, chunk_bytes(format_of(type), n));
    }
    if (single)
        s->acc[0] = c.acc, s->accm[0] = c.accm;
}

/* One function a type, so that everything above is constant in it. */
typedef void product_function(const struct tile_matrix *m, const uint8_t *tile,
                              const struct activation *x, size_t n_rows, struct chains *s);
#define PRODUCT(name, type)                                                                        \
    static void name(const struct tile_matrix *m, const uint8_t *tile, const struct activation *x, \
                     size_t n_rows, struct chains *s)                                              \
    {                                                                                              \
        if (n_rows == 1)                                                                           \
            product_typed(type, true, m, tile, x, 1, s);                                           \
        else                                                                                       \
            product_typed(type, false, m, tile, x, n_rows, s);                                     \
    }
PRODUCT(product_q4_0, TENSOR_Q4_0)
PRODUCT(product_q4_1, TENSOR_Q4_1)
PRODUCT(product_q5_0, TENSOR_Q5_0)
PRODUCT(product_q5_1, TENSOR_Q5_1)
PRODUCT(product_q8_0, TENSOR_Q8_0)
PRODUCT(product_q2_k, TENSOR_Q2_K)
PRODUCT(product_q3_k, TENSOR_Q3_K)
PRODUCT(product_q4_k, TENSOR_Q4_K)
PRODUCT(product_q5_k, TENSOR_Q5_K)
PRODUCT(product_q6_k, TENSOR_Q6_K)

static product_function *const products[] = {
    [TENSOR_Q4_0] = product_q4_0, [TENSOR_Q4_1] = product_q4_1, [TENSOR_Q5_0] = product_q5_0,
    [TENSOR_Q5_1] = product_q5_1, [TENSOR_Q8_0] = product_q8_0, [TENSOR_Q2_K] = product_q2_k,
    [TENSOR_Q3_K] = product_q3_k, [TENSOR_Q4_K] = product_q4_k, [TENSOR_Q5_K] = product_q5_k,
    [TENSOR_Q6_K] = product_q6_k,
};

/* The last outputs of a matrix, fewer than LANES. */
static void product_end(const struct tile_matrix *m, size_t out, size_t n_out,
                        const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    const size_t width = tile_ops_avx2.outputs;
    float part[TILE_ROWS][TILE_OUTPUTS];
    for (size_t first = 0; first < n_out; first += width) {
        size_t n = n_out - first < width ? n_out - first : width;
        tile_ops_avx2.product(m, out + first, n, x, n_rows, part);
        for (size_t r = 0; r < n_rows; r++)
            memcpy(y[r] + first, part[r], n * sizeof(float));
    }
}

static void product_tile(const struct tile_matrix *m, size_t out, size_t n_out,
                         const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    struct chains s;
    assert(n_rows <= TILE_ROWS && n_out >= 1 && n_out <= LANES && tile_type(m->type));
    if (n_out < LANES) {
        product_end(m, out, n_out, x, n_rows, y);
        return;
    }
    for (size_t r = 0; r < n_rows; r++)
        s.acc[r] = s.accm[r] = _mm512_setzero_ps();
    products[m->type](m, m->weights + out * m->row_bytes, x, n_rows, &s);
    for (size_t r = 0; r < n_rows; r++)
        _mm512_storeu_ps(y[r], _mm512_sub_ps(s.acc[r], s.accm[r]));
}

/* Block k of a row. */
static void quantize_block(const float *x, size_t k, struct activation a)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 v[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    __m512i largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[0]), magnitude),
                                       _mm512_and_si512(_mm512_castps_si512(v[1]), magnitude));
    const int32_t bits = _mm512_reduce_max_epi32(largest);
    int32_t sum[2];
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    bool tiny = amax < ACTIVATION_TINY;
    bool zero = tiny || !(amax < INFINITY);
    const __m512 id = _mm512_set1_ps(127.0f / amax);
    for (int i = 0; i < 2; i++) {
        __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], id));
        n = _mm512_min_epi32(n, _mm512_set1_epi32(zero ? 0 : 127));
        n = _mm512_max_epi32(n, _mm512_set1_epi32(zero ? 0 : -127));
        _mm_storeu_si128((__m128i *)(void *)(a.q + 32 * k + 16 * (size_t)i),
                         _mm512_cvtepi32_epi8(n));
        sum[i] = _mm512_reduce_add_epi32(n);
        a.sum16[2 * k + (size_t)i] = (int16_t)sum[i];
    }
    a.d[k] = tiny ? 0.0f : amax / 127.0f;
    a.sx[k] = a.d[k] * (float)(sum[0] + sum[1]);
}

static void quantize_blocks(const float *x, size_t n_blocks, struct activation a)
{
    for (size_t k = 0; k < n_blocks; k++)
        quantize_block(x + 32 * k, k, a);
}

static void swiglu_values(const float *gate, const float *up, float *y, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, ebb_swiglu16(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));
    for (; i < n; i++)
        y[i] = ebb_swiglu(gate[i], up[i]);
}

const struct tile_ops tile_ops_avx512 = {
    .outputs = LANES,
    .product = product_tile,
    .quantize = quantize_blocks,
    .swiglu = swiglu_values,
    .plain = plain_tile_avx512,
};
