/* kernels/tile_avx2.c - quantised products, quantisation and SwiGLU with AVX2: the bits of
 * tile_reference.c.
 *
 * A product takes eight outputs side by side, each lane its own output (turned.h): a chunk of
 * their weights is unpacked once into the first-level cache and then used by up to TILE_ROWS rows
 * of activations, four rows at a time (one row: single_avx2.h). Integer sums are exact in any order,
 * and none of the 16-bit steps can saturate (sums_avx2.h says why); the float chains are those of NUMERICS rule 3, one multiply
 * and one fused step a block. Owns nothing; any thread; compiled with -mavx2 -mfma -mf16c and
 * called only where set_cpu.c has found all three.
 */
#include <assert.h>
#include <string.h>
#include "kernels/expf_avx2.h"
#include "kernels/plain.h"
#include "kernels/tile.h"
#include "kernels/single_avx2.h"

/* The two chains of each row, one output a lane. */
struct chains {
    __m256 acc[TILE_ROWS], accm[TILE_ROWS];
};

/* Up to eight blocks of 32 values, unpacked: lane r of w[block][i] = quants 4i .. 4i + 3 of row r. */
#define CHUNK_BLOCKS 8
struct chunk {
    __m256i w[CHUNK_BLOCKS][8];
    __m256i sub[CHUNK_BLOCKS][3]; /* sub-scales as int16: first twice, second twice, both */
    __m256i minima[CHUNK_BLOCKS]; /* folded ones */
    __m256 a[CHUNK_BLOCKS], b[CHUNK_BLOCKS];
};

INLINE void chunk_load_small(uint32_t type, const struct lane_rows *rows, size_t n_blocks,
                             struct chunk *c)
{
    const struct format f = format_of(type);
    for (size_t k = 0; k < n_blocks; k++) {
        struct small_block block;
        small_load(type, rows, k * f.block_bytes, &block);
        UNROLL
        for (int i = 0; i < 8; i++)
            c->w[k][i] = block.w[i];
        c->a[k] = block.a;
        if (f.has_b)
            c->b[k] = block.b;
    }
}

INLINE void chunk_load_super(uint32_t type, const struct lane_rows *rows, struct chunk *c)
{
    const struct format f = format_of(type);
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
        if (f.has_sub) {
            c->sub[j][0] = super_pair(s.sc, j, 0, 0);
            c->sub[j][1] = super_pair(s.sc, j, 1, 1);
            c->sub[j][2] = super_pair(s.sc, j, 0, 1);
        }
    }
    UNROLL
    for (int group = 0; group < super_groups(type); group++)
        UNROLL
    for (int part = 0; part < 2; part++) {
        struct super_part p;
        super_part_load(type, rows, group, part, &p);
        UNROLL
        for (int k = 0; k < width; k++)
            UNROLL
        for (int i = 0; i < 4; i++)
            c->w[width * group + k][4 * part + i] = super_quants(type, &p, group, k, i);
    }
}

/* The integer sums of block k of the chunk with n rows of activations. */
INLINE void chunk_sums(uint32_t type, const struct chunk *c, size_t k, int n,
                       const struct activation *x, size_t block, __m256i isum[4])
{
    const struct format f = format_of(type);
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *q[4], *q16[4];
    UNROLL
    for (int r = 0; r < n; r++)
        q[r] = x[r].q + 32 * block, q16[r] = q[r] + 16;
    if (f.is_signed) {
        sums_signed(c->w[k], q, n, isum);
        return;
    }
    UNROLL
    for (int r = 0; r < n; r++)
        isum[r] = sum_offset(f, f.has_sub ? c->sub[k][2] : ones, x[r].sum16 + 2 * block);
    if (f.has_sub) {
        sums_add(f, c->w[k], 4, q, n, c->sub[k][0], isum);
        sums_add(f, c->w[k] + 4, 4, q16, n, c->sub[k][1], isum);
    } else {
        sums_add(f, c->w[k], 8, q, n, ones, isum);
    }
}

/* Carries the chains of n <= 4 rows (a constant after inlining) over the chunk; `block` is its
 * first block in a row. */
INLINE void chains_advance(uint32_t type, int n, const struct chunk *c, size_t n_blocks,
                           size_t block, const struct activation *x, __m256 *acc, __m256 *accm)
{
    const struct format f = format_of(type);
    for (size_t k = 0; k < n_blocks; k++) {
        __m256i isum[4];
        chunk_sums(type, c, k, n, x, block + k, isum);
        UNROLL
        for (int r = 0; r < n; r++) {
            acc[r] = chain_step(acc[r], c->a[k], x[r].d[block + k], isum[r]);
            if (f.has_b)
                accm[r] = chain_step_b(f, accm[r], c->b[k],
                                       f.folded ? c->minima[k] : _mm256_setzero_si256(), &x[r],
                                       block + k);
        }
    }
}

/* Asks for the next tile while this one is computed: its eight rows lie one behind the other, and each chunk of this one
 * asks for as many bytes as it reads, in the order of addresses, which is what the memory's own prefetching goes along
 * with. `at` is where the chunk is in a row. */
INLINE void prefetch_next(const struct tile_matrix *m, const uint8_t *tile, size_t at, size_t bytes)
{
    const uintptr_t from = (uintptr_t)tile + LANES * (m->row_bytes + at);
    for (size_t i = 0; i < LANES * bytes; i += 64)
        _mm_prefetch((const void *)(from + i), _MM_HINT_T0);
}

/* Bytes of a chunk of a row. */
INLINE size_t chunk_bytes(struct format f)
{
    return f.is_super ? f.block_bytes : CHUNK_BLOCKS * f.block_bytes;
}

INLINE void product_many(uint32_t type, const struct tile_matrix *m, struct lane_rows *rows,
                         const struct activation *x, size_t n_rows, struct chains *s)
{
    const struct format f = format_of(type);
    const uint8_t *tile = rows->row[0];
    struct chunk c;
    for (size_t block = 0; block < m->n_in / 32; block += CHUNK_BLOCKS) {
        size_t left = m->n_in / 32 - block, r = 0;
        size_t n_blocks = !f.is_super && left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        prefetch_next(m, tile, (size_t)(rows->row[0] - tile),
                      f.is_super ? f.block_bytes : n_blocks * f.block_bytes);
        if (f.is_super)
            chunk_load_super(type, rows, &c);
        else
            chunk_load_small(type, rows, n_blocks, &c);
        for (; r + 4 <= n_rows; r += 4)
            chains_advance(type, 4, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
        for (; r < n_rows; r++)
            chains_advance(type, 1, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
        lane_rows_advance(rows, chunk_bytes(f));
    }
}

INLINE void product_single(uint32_t type, const struct tile_matrix *m, struct lane_rows *rows,
                           const struct activation *x, struct chains *s)
{
    const struct format f = format_of(type);
    const uint8_t *tile = rows->row[0];
    __m256 acc = s->acc[0], accm = s->accm[0];
    for (size_t block = 0; block < m->n_in / 32; block += CHUNK_BLOCKS) {
        size_t left = m->n_in / 32 - block;
        size_t n_blocks = left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        prefetch_next(m, tile, (size_t)(rows->row[0] - tile),
                      f.is_super ? f.block_bytes : n_blocks * f.block_bytes);
        if (f.is_super)
            single_super(type, rows, x, block, &acc, &accm);
        else
            for (size_t k = 0; k < n_blocks; k++)
                single_small(type, rows, k * f.block_bytes, x, block + k, &acc, &accm);
        lane_rows_advance(rows, chunk_bytes(f));
    }
    s->acc[0] = acc;
    s->accm[0] = accm;
}

/* One function a type, so that everything above is constant in it. */
typedef void product_function(const struct tile_matrix *m, struct lane_rows *rows,
                              const struct activation *x, size_t n_rows, struct chains *s);
#define PRODUCT(name, type)                                                                        \
    static void name(const struct tile_matrix *m, struct lane_rows *rows,                          \
                     const struct activation *x, size_t n_rows, struct chains *s)                  \
    {                                                                                              \
        if (n_rows == 1)                                                                           \
            product_single(type, m, rows, x, s);                                                   \
        else                                                                                       \
            product_many(type, m, rows, x, n_rows, s);                                             \
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

static void product_tile(const struct tile_matrix *m, size_t out, size_t n_out,
                         const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    struct lane_rows rows;
    struct chains s;
    assert(n_rows <= TILE_ROWS && n_out >= 1 && n_out <= LANES && tile_type(m->type));
    lane_rows_set(&rows, m->weights + out * m->row_bytes, m->row_bytes, n_out);
    for (size_t r = 0; r < n_rows; r++)
        s.acc[r] = s.accm[r] = _mm256_setzero_ps();
    products[m->type](m, &rows, x, n_rows, &s);
    for (size_t r = 0; r < n_rows; r++)
        _mm256_storeu_ps(y[r], _mm256_sub_ps(s.acc[r], s.accm[r]));
}

static float largest_magnitude(const __m256 v[4])
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

/* The sum of sixteen int32. */
static int32_t sum_sixteen(__m256i a, __m256i b)
{
    __m256i sums = _mm256_add_epi32(a, b);
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

/* Block k of a row. */
static void quantize_block(const float *x, size_t k, struct activation a)
{
    __m256 v[4];
    __m256i n[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_loadu_ps(x + 8 * i);
    float amax = largest_magnitude(v);
    bool tiny = amax < ACTIVATION_TINY;
    bool zero = tiny || !(amax < INFINITY);
    __m256 id = _mm256_set1_ps(127.0f / amax);
    for (int i = 0; i < 4; i++) {
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], id));
        n[i] = _mm256_min_epi32(n[i], _mm256_set1_epi32(zero ? 0 : 127));
        n[i] = _mm256_max_epi32(n[i], _mm256_set1_epi32(zero ? 0 : -127));
    }
    __m256i words[2] = {_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3])};
    __m256i bytes = _mm256_packs_epi16(words[0], words[1]);
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)(a.q + 32 * k), bytes);

    int32_t first = sum_sixteen(n[0], n[1]), second = sum_sixteen(n[2], n[3]);
    a.d[k] = tiny ? 0.0f : amax / 127.0f;
    a.sx[k] = a.d[k] * (float)(first + second);
    a.sum16[2 * k] = (int16_t)first;
    a.sum16[2 * k + 1] = (int16_t)second;
}

static void quantize_blocks(const float *x, size_t n_blocks, struct activation a)
{
    for (size_t k = 0; k < n_blocks; k++)
        quantize_block(x + 32 * k, k, a);
}

static void swiglu_values(const float *gate, const float *up, float *y, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, ebb_swiglu8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    for (; i < n; i++)
        y[i] = ebb_swiglu(gate[i], up[i]);
}

const struct tile_ops tile_ops_avx2 = {
    .outputs = LANES,
    .product = product_tile,
    .quantize = quantize_blocks,
    .swiglu = swiglu_values,
    .plain = plain_tile_avx2,
};
