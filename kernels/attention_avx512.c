/* attention_avx512.c - attention with AVX-512; the bits are those of attention_reference.c.
 *
 * Query heads that share a KV head go together, four, two or one at a time, so a key or value is loaded and widened
 * once for all of them. Scores: one register of lanes per head. Values: a slice of dimensions stays in sixteen
 * registers over all tokens of the partition, so each dimension's chain runs in ascending order as it must. Dimensions
 * past a multiple of sixteen are steps with a mask, and what the mask leaves out is not read.
 * n_q, n_v and type are constants at every call: the inner loops unroll.
 * Stack only; owns nothing; any thread.
 */
#include <string.h>
#include "kernels/attention.h"
#include "kernels/expf_avx512.h"
#include "kernels/format.h"
#include "kernels/reduce_avx512.h"
#include "kernels/rows.h"

#define QUERIES 4
#define SLICES  16 /* registers of values' sums */

struct queries {
    const float *q; /* [n_q][head_dim] */
    size_t head_dim;
    float scale;
    float e[QUERIES][KV_PARTITION_TOKENS]; /* scores, then their exponentials */
    float part[QUERIES][HEAD_DIM_MAX];
    float out[QUERIES][HEAD_DIM_MAX];
    struct attention_state state[QUERIES];
};

/* Values d .. d + 15 of a key or value, as far as `mask` goes; of KV_Q8_0 that is all, and they have one scale. */
INLINE __m512 widen16(struct kv_row row, size_t d, __mmask16 mask, enum kv_type type)
{
    if (type == KV_F32)
        return reduce_load((const float *)(const void *)row.values + d, mask);
    if (type == KV_Q8_0) {
        __m128i q = _mm_loadu_si128((const __m128i *)(const void *)(row.values + d));
        return _mm512_mul_ps(_mm512_set1_ps(_cvtsh_ss(row.scales[d / KV_QUANTS])),
                             _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
    }
    const void *at = (const uint16_t *)(const void *)row.values + d;
    return _mm512_cvtph_ps(mask == REDUCE_ALL ? _mm256_loadu_si256(at)
                                              : _mm256_maskz_loadu_epi16(mask, at));
}

INLINE void score_step(const struct queries *s, struct kv_row key, size_t d, size_t n_q,
                       __mmask16 mask, enum kv_type type, __m512 sums[QUERIES])
{
    const __m512 k = widen16(key, d, mask, type);
    UNROLL
    for (size_t i = 0; i < n_q; i++)
        sums[i] = reduce_step(reduce_load(s->q + i * s->head_dim + d, mask), k, sums[i], mask);
}

INLINE void token_scores(struct queries *s, struct kv_row key, size_t t, size_t n_q,
                         enum kv_type type)
{
    size_t n = s->head_dim, d = 0;
    __m512 sums[QUERIES];
    UNROLL
    for (size_t i = 0; i < n_q; i++)
        sums[i] = _mm512_setzero_ps();
    for (; d + REDUCE_LANES <= n; d += REDUCE_LANES)
        score_step(s, key, d, n_q, REDUCE_ALL, type, sums);
    if (d < n)
        score_step(s, key, d, n_q, reduce_mask(n - d), type, sums);
    if (n_q == 4) {
        float dots[4];
        _mm_storeu_ps(dots, _mm_mul_ps(reduce_join16x4(sums), _mm_set1_ps(s->scale)));
        UNROLL
        for (size_t i = 0; i < 4; i++)
            s->e[i][t] = dots[i];
        return;
    }
    UNROLL
    for (size_t i = 0; i < n_q; i++)
        s->e[i][t] = reduce_join16(sums[i]) * s->scale;
}

/* n_v times sixteen dimensions from d of every query's part; `mask` are those of the last sixteen. */
INLINE void slice_values(struct queries *s, const struct kv_partition *p, size_t d, size_t n_q,
                         size_t n_v, __mmask16 mask, enum kv_type type)
{
    __m512 acc[QUERIES][SLICES];
    UNROLL
    for (size_t i = 0; i < n_q; i++)
        UNROLL
    for (size_t j = 0; j < n_v; j++)
        acc[i][j] = _mm512_setzero_ps();
    for (size_t first = 0; first < p->n_tokens; first += KV_BLOCK_TOKENS) {
        size_t left = p->n_tokens - first, n = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS;
        struct kv_row v = kv_value(p, first);
        for (size_t t = 0; t < n; t++, v.values += p->token_bytes, v.scales += p->token_scales)
            UNROLL
        for (size_t j = 0; j < n_v; j++) {
            const __m512 wide = widen16(v, d + 16 * j, mask, type);
            UNROLL
            for (size_t i = 0; i < n_q; i++)
                acc[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(s->e[i][first + t]), wide, acc[i][j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < n_q; i++)
        UNROLL
    for (size_t j = 0; j < n_v; j++)
        _mm512_mask_storeu_ps(&s->part[i][d + 16 * j], mask, acc[i][j]);
}

/* The scores' exponentials, in place; returns their maximum. A score that is no number never is the maximum. */
static float exponentials(float *e, size_t n)
{
    __m512 max16 = _mm512_set1_ps(-INFINITY);
    size_t t = 0;
    for (; t + 16 <= n; t += 16)
        max16 = _mm512_max_ps(_mm512_loadu_ps(e + t), max16);
    const __mmask16 rest = reduce_mask(n - t);
    max16 = _mm512_mask_max_ps(max16, rest, _mm512_maskz_loadu_ps(rest, e + t), max16);
    const float max = _mm512_reduce_max_ps(max16);
    const __m512 all = _mm512_set1_ps(max);
    for (t = 0; t + 16 <= n; t += 16)
        _mm512_storeu_ps(e + t, ebb_expf16(_mm512_sub_ps(_mm512_loadu_ps(e + t), all)));
    _mm512_mask_storeu_ps(e + t, rest,
                          ebb_expf16(_mm512_sub_ps(_mm512_maskz_loadu_ps(rest, e + t), all)));
    return max;
}

INLINE void partition_attend(struct queries *s, const struct kv_partition *p, size_t n_q,
                             enum kv_type type)
{
    const size_t n_v = n_q == 1 ? 8 : SLICES / n_q;
    float max[QUERIES];
    size_t d = 0;
    for (size_t t = 0; t < p->n_tokens; t++)
        token_scores(s, kv_key(p, t), t, n_q, type);
    for (size_t i = 0; i < n_q; i++)
        max[i] = exponentials(s->e[i], p->n_tokens);
    for (; d + 16 * n_v <= s->head_dim; d += 16 * n_v)
        slice_values(s, p, d, n_q, n_v, REDUCE_ALL, type);
    for (; d + 16 <= s->head_dim; d += 16)
        slice_values(s, p, d, n_q, 1, REDUCE_ALL, type);
    if (d < s->head_dim)
        slice_values(s, p, d, n_q, 1, reduce_mask(s->head_dim - d), type);
    for (size_t i = 0; i < n_q; i++)
        attention_merge(&s->state[i], s->out[i], s->part[i], s->head_dim, max[i],
                        reduce_sum16(s->e[i], p->n_tokens));
}

INLINE void heads_attend(const struct attention_args *a, size_t row, size_t head, size_t n_q,
                         enum kv_type type)
{
    size_t head_dim = a->kv.head_dim, position = (size_t)a->kv.positions[row];
    size_t kv_head = head / (a->n_heads / a->kv.n_kv_heads),
           at = (row * a->n_heads + head) * head_dim;
    struct queries s;
    s.q = a->q + at;
    s.head_dim = head_dim;
    s.scale = a->scale;
    for (size_t i = 0; i < n_q; i++) {
        s.state[i] = (struct attention_state){.max = -INFINITY, .sum = 0};
        memset(s.out[i], 0, head_dim * sizeof(float));
    }
    for (size_t first = 0; first <= position; first += KV_PARTITION_TOKENS) {
        struct kv_partition p = kv_partition_at(&a->kv, row, kv_head, first, position);
        partition_attend(&s, &p, n_q, type);
    }
    for (size_t i = 0; i < n_q; i++) {
        float inverse = 1.0f / s.state[i].sum, *to = a->out + at + i * head_dim;
        for (size_t d = 0; d < head_dim; d++)
            to[d] = s.out[i][d] * inverse;
    }
}

INLINE void group_attend(const struct attention_args *a, size_t row, size_t kv_head,
                         enum kv_type type)
{
    size_t group = a->n_heads / a->kv.n_kv_heads, head = kv_head * group, end = head + group;
    for (; head + 4 <= end; head += 4)
        heads_attend(a, row, head, 4, type);
    for (; head + 2 <= end; head += 2)
        heads_attend(a, row, head, 2, type);
    for (; head < end; head++)
        heads_attend(a, row, head, 1, type);
}

void attend_avx512(const struct attention_args *a, size_t row, size_t kv_head)
{
    if (a->kv.type == KV_F16)
        group_attend(a, row, kv_head, KV_F16);
    else if (a->kv.type == KV_F32)
        group_attend(a, row, kv_head, KV_F32);
    else
        group_attend(a, row, kv_head, KV_Q8_0);
}
