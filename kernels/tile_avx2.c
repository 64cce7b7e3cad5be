/* kernels/tile_avx2.c - quantised products, quantisation and SwiGLU with AVX2: the bits of
 * tile_reference.c.
 *
 * A product takes eight outputs side by side, each lane its own output (turned_avx2.h): a chunk of
 * their weights is unpacked once into the first-level cache and then used by up to TILE_ROWS rows
 * of activations, four rows at a time. Integer sums are exact in any order, and none of the 16-bit
 * steps can saturate (each says why); the float chains are those of NUMERICS rule 3, one multiply
 * and one fused step a block. Owns nothing; any thread; compiled with -mavx2 -mfma -mf16c and
 * called only where set_cpu.c has found all three.
 */
#include <assert.h>
#include <string.h>
#include "kernels/expf_avx2.h"
#include "kernels/plain.h"
#include "kernels/tile.h"
#include "kernels/single_avx2.h"
#include "kernels/turned_avx2.h"

/* The two chains of each row, one output a lane. */
struct chains {
    __m256 acc[TILE_ROWS], accm[TILE_ROWS];
};

/* isum[r] for block k of the chunk and N rows. 8 steps of at most 2 * 15 * 127 stay below 2^15. */
INLINE void sums_q4_k(const struct chunk *c, size_t k, const int8_t *const q[], int n,
                      __m256i *isum)
{
    UNROLL
    for (int r = 0; r < n; r++)
        isum[r] = _mm256_maddubs_epi16(c->w[k][0], four_values(q[r]));
    UNROLL
    for (int i = 1; i < 8; i++) {
        __m256i w = c->w[k][i];
        UNROLL
        for (int r = 0; r < n; r++) {
            isum[r] = _mm256_add_epi16(isum[r], _mm256_maddubs_epi16(w, four_values(q[r] + 4 * i)));
            IN_PLACE(isum[r]);
        }
    }
    UNROLL
    for (int r = 0; r < n; r++)
        isum[r] = _mm256_madd_epi16(isum[r], _mm256_set1_epi16(1));
}

/* Signed times signed is |w| times x with the sign of w. One step is at most 2 * 128 * 127 =
 * 32512. */
INLINE void sums_q8_0(const struct chunk *c, size_t k, const int8_t *const q[], int n,
                      __m256i *isum)
{
    UNROLL
    for (int r = 0; r < n; r++)
        isum[r] = _mm256_setzero_si256();
    UNROLL
    for (int i = 0; i < 8; i++) {
        __m256i w = c->w[k][i], size = _mm256_abs_epi8(w);
        UNROLL
        for (int r = 0; r < n; r++) {
            __m256i pairs =
                _mm256_maddubs_epi16(size, _mm256_sign_epi8(four_values(q[r] + 4 * i), w));
            isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            IN_PLACE(isum[r]);
        }
    }
}

/* (q - 32) x = q x - 32 x: q is unsigned, and the sums of 16 x are known. Two steps of at most 2 *
 * 63 * 127 fit. */
INLINE void sums_q6_k(const struct chunk *c, size_t k, const int8_t *const q[],
                      const int16_t *const sum16[], int n, __m256i *isum)
{
    UNROLL
    for (int r = 0; r < n; r++)
        isum[r] = offset_q6_k(c->sub[k][2], sum16[r]);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        __m256i w0 = c->w[k][i], w1 = c->w[k][i + 1], sub = c->sub[k][i / 4];
        UNROLL
        for (int r = 0; r < n; r++) {
            __m256i pairs = _mm256_maddubs_epi16(w0, four_values(q[r] + 4 * i));
            pairs =
                _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w1, four_values(q[r] + 4 * i + 4)));
            isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(pairs, sub));
            IN_PLACE(isum[r]);
        }
    }
}

/* Carries the chains of n <= 4 rows (a constant after inlining) over the chunk; `block` is its
 * first block in a row. */
INLINE void chains_advance(uint32_t type, int n, const struct chunk *c, size_t n_blocks,
                           size_t block, const struct activation *x, __m256 *acc, __m256 *accm)
{
    for (size_t k = 0; k < n_blocks; k++) {
        const int8_t *q[4];
        const int16_t *sum16[4];
        __m256i isum[4];
        UNROLL
        for (int r = 0; r < n; r++)
            q[r] = x[r].q + 32 * (block + k), sum16[r] = x[r].sum16 + 2 * (block + k);
        if (type == TENSOR_Q4_K)
            sums_q4_k(c, k, q, n, isum);
        else if (type == TENSOR_Q6_K)
            sums_q6_k(c, k, q, sum16, n, isum);
        else
            sums_q8_0(c, k, q, n, isum);
        UNROLL
        for (int r = 0; r < n; r++) {
            __m256 scale = _mm256_mul_ps(c->a[k], _mm256_set1_ps(x[r].d[block + k]));
            acc[r] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum[r]), acc[r]);
            if (type == TENSOR_Q4_K)
                accm[r] = _mm256_fmadd_ps(c->b[k], _mm256_set1_ps(x[r].sx[block + k]), accm[r]);
        }
    }
}

/* Asks for the lines that the next tile will read where this one reads `bytes` now. */
INLINE void prefetch_next(const struct tile_matrix *m, const uint8_t *const row[8], size_t bytes)
{
    for (size_t i = 0; i < 8; i++)
        for (size_t at = 0; at < bytes; at += 64)
            _mm_prefetch((const void *)((uintptr_t)row[i] + TILE_OUTPUTS * m->row_bytes + at),
                         _MM_HINT_T0);
}

INLINE void product_typed(uint32_t type, const struct tile_matrix *m, const uint8_t *row[8],
                          const struct activation *x, size_t n_rows, struct chains *s)
{
    const size_t step = type == TENSOR_Q4_K   ? sizeof(struct block_q4_k)
                        : type == TENSOR_Q6_K ? sizeof(struct block_q6_k)
                                              : CHUNK_BLOCKS * sizeof(struct block_q8_0);
    struct chunk c;
    for (size_t block = 0; block < m->n_in / 32; block += CHUNK_BLOCKS) {
        size_t left = m->n_in / 32 - block, r = 0;
        size_t n_blocks = type == TENSOR_Q8_0 && left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        if (n_rows < 4)
            prefetch_next(m, row, step);
        if (type == TENSOR_Q4_K)
            chunk_load_q4_k(&c, row);
        else if (type == TENSOR_Q6_K)
            chunk_load_q6_k(&c, row);
        else
            chunk_load_q8_0(&c, row, n_blocks);
        for (; r + 4 <= n_rows; r += 4)
            chains_advance(type, 4, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
        for (; r < n_rows; r++)
            chains_advance(type, 1, &c, n_blocks, block, x + r, s->acc + r, s->accm + r);
        for (int i = 0; i < 8; i++)
            row[i] += step;
    }
}

/* Q4_K and Q6_K for one row of activations. */
INLINE void product_single(uint32_t type, const struct tile_matrix *m, const uint8_t *row[8],
                           const struct activation *x, struct chains *s)
{
    const size_t step = type == TENSOR_Q4_K ? sizeof(struct block_q4_k) : sizeof(struct block_q6_k);
    __m256 acc = s->acc[0], accm = s->accm[0];
    for (size_t block = 0; block < m->n_in / 32; block += CHUNK_BLOCKS) {
        prefetch_next(m, row, step);
        if (type == TENSOR_Q4_K)
            single_q4_k(row, x, block, &acc, &accm);
        else
            single_q6_k(row, x, block, &acc);
        for (int i = 0; i < 8; i++)
            row[i] += step;
    }
    s->acc[0] = acc;
    s->accm[0] = accm;
}

static void product_tile(const struct tile_matrix *m, size_t out, size_t n_out,
                         const struct activation *x, size_t n_rows, float (*y)[TILE_OUTPUTS])
{
    const uint8_t *row[8];
    struct chains s;
    assert(n_rows <= TILE_ROWS && n_out >= 1 && tile_type(m->type));
    for (size_t i = 0; i < 8; i++)
        row[i] = m->weights + (out + (i < n_out ? i : n_out - 1)) * m->row_bytes;
    for (size_t r = 0; r < n_rows; r++)
        s.acc[r] = s.accm[r] = _mm256_setzero_ps();
    if (n_rows == 1 && m->type == TENSOR_Q4_K)
        product_single(TENSOR_Q4_K, m, row, x, &s);
    else if (n_rows == 1 && m->type == TENSOR_Q6_K)
        product_single(TENSOR_Q6_K, m, row, x, &s);
    else if (m->type == TENSOR_Q4_K)
        product_typed(TENSOR_Q4_K, m, row, x, n_rows, &s);
    else if (m->type == TENSOR_Q6_K)
        product_typed(TENSOR_Q6_K, m, row, x, n_rows, &s);
    else
        product_typed(TENSOR_Q8_0, m, row, x, n_rows, &s);
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
    .product = product_tile,
    .quantize = quantize_blocks,
    .swiglu = swiglu_values,
    .plain = plain_tile_avx2,
};
