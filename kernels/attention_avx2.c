/* attention_avx2.c - attention with AVX2, FMA and F16C; the bits are those of attention_reference.c.
 *
 * Query heads that share a KV head go together, four, two or one at a time, so a key or value is loaded and widened
 * once for all of them. Scores: two registers of lanes per head. Values: a slice of dimensions stays in eight
 * registers over all tokens of the partition, so each dimension's chain runs in ascending order as it must.
 * n_q, n_v and type are constants at every call: the inner loops unroll.
 * Stack only; owns nothing; any thread.
 */
#include "kernels/attention.h"
#include "kernels/expf_avx2.h"
#include "kernels/reduce_avx2.h"
#include "kernels/rows.h"

#define INLINE  static inline __attribute__((always_inline))
#define QUERIES 4

struct queries {
    const float *q; /* [n_q][head_dim] */
    size_t head_dim;
    float scale;
    float e[QUERIES][KV_PARTITION_TOKENS]; /* scores, then their exponentials */
    float part[QUERIES][HEAD_DIM_MAX];
    float out[QUERIES][HEAD_DIM_MAX];
    struct attention_state state[QUERIES];
};

/* Values d .. d + 7 of a key or value; of KV_Q8_0 d is a multiple of 8, so they have one scale. */
INLINE __m256 widen8(struct kv_row row, size_t d, enum kv_type type)
{
    if (type == KV_F32)
        return _mm256_loadu_ps((const float *)(const void *)row.values + d);
    if (type == KV_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128(
            (const __m128i *)(const void *)((const uint16_t *)(const void *)row.values + d)));
    __m256i q =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(row.values + d)));
    return _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(row.scales[d / KV_QUANTS])),
                         _mm256_cvtepi32_ps(q));
}

/* Of heads that are no multiple of 8, which KV_Q8_0 has not. */
INLINE float widen1(struct kv_row row, size_t d, enum kv_type type)
{
    return type == KV_F16 ? half_to_float(((const uint16_t *)(const void *)row.values)[d])
                          : ((const float *)(const void *)row.values)[d];
}

INLINE void token_scores(struct queries *s, struct kv_row key, size_t t, size_t n_q,
                         enum kv_type type)
{
    size_t n = s->head_dim, d = 0;
    __m256 lo[QUERIES], hi[QUERIES];
    for (size_t i = 0; i < n_q; i++)
        lo[i] = hi[i] = _mm256_setzero_ps();
    for (; d + REDUCE_LANES <= n; d += REDUCE_LANES) {
        __m256 k_lo = widen8(key, d, type), k_hi = widen8(key, d + 8, type);
        for (size_t i = 0; i < n_q; i++) {
            lo[i] = _mm256_fmadd_ps(_mm256_loadu_ps(s->q + i * n + d), k_lo, lo[i]);
            hi[i] = _mm256_fmadd_ps(_mm256_loadu_ps(s->q + i * n + d + 8), k_hi, hi[i]);
        }
    }
    if (d == n && n_q == 4) {
        float dots[4];
        _mm_storeu_ps(dots, _mm_mul_ps(reduce_join8x4(lo, hi), _mm_set1_ps(s->scale)));
        for (size_t i = 0; i < 4; i++)
            s->e[i][t] = dots[i];
        return;
    }
    for (size_t i = 0; i < n_q; i++) {
        float lanes[REDUCE_LANES];
        if (d == n) {
            s->e[i][t] = reduce_join8(lo[i], hi[i]) * s->scale;
            continue;
        }
        _mm256_storeu_ps(lanes, lo[i]);
        _mm256_storeu_ps(lanes + 8, hi[i]);
        for (size_t lane = 0; d + lane < n; lane++)
            lanes[lane] = fmaf(s->q[i * n + d + lane], widen1(key, d + lane, type), lanes[lane]);
        s->e[i][t] = reduce_join(lanes) * s->scale;
    }
}

/* Dimensions [d, d + 8 * n_v) of every query's part. */
INLINE void slice_values(struct queries *s, const struct kv_partition *p, size_t d, size_t n_q,
                         size_t n_v, enum kv_type type)
{
    __m256 acc[8];
    for (size_t i = 0; i < n_q * n_v; i++)
        acc[i] = _mm256_setzero_ps();
    for (size_t first = 0; first < p->n_tokens; first += KV_BLOCK_TOKENS) {
        size_t left = p->n_tokens - first, n = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS;
        struct kv_row v = kv_value(p, first);
        for (size_t t = 0; t < n; t++, v.values += p->token_bytes, v.scales += p->token_scales)
            for (size_t j = 0; j < n_v; j++) {
                __m256 wide = widen8(v, d + 8 * j, type);
                for (size_t i = 0; i < n_q; i++)
                    acc[i * n_v + j] = _mm256_fmadd_ps(_mm256_broadcast_ss(&s->e[i][first + t]),
                                                       wide, acc[i * n_v + j]);
            }
    }
    for (size_t i = 0; i < n_q; i++)
        for (size_t j = 0; j < n_v; j++)
            _mm256_storeu_ps(&s->part[i][d + 8 * j], acc[i * n_v + j]);
}

static void tail_values(struct queries *s, const struct kv_partition *p, size_t d, size_t n_q,
                        enum kv_type type)
{
    for (; d < s->head_dim; d++)
        for (size_t i = 0; i < n_q; i++) {
            float acc = 0;
            for (size_t t = 0; t < p->n_tokens; t++)
                acc = fmaf(s->e[i][t], widen1(kv_value(p, t), d, type), acc);
            s->part[i][d] = acc;
        }
}

static float exponentials(float *e, size_t n)
{
    size_t t = 0;
    __m256 max8 = _mm256_set1_ps(-INFINITY);
    float lanes[8], max = -INFINITY;
    for (; t + 8 <= n; t += 8)
        max8 = _mm256_max_ps(_mm256_loadu_ps(e + t), max8);
    _mm256_storeu_ps(lanes, max8);
    for (size_t i = 0; i < 8; i++)
        max = lanes[i] > max ? lanes[i] : max;
    for (; t < n; t++)
        max = e[t] > max ? e[t] : max;
    for (t = 0; t + 8 <= n; t += 8)
        _mm256_storeu_ps(e + t,
                         ebb_expf8(_mm256_sub_ps(_mm256_loadu_ps(e + t), _mm256_set1_ps(max))));
    for (; t < n; t++)
        e[t] = ebb_expf(e[t] - max);
    return max;
}

INLINE void partition_attend(struct queries *s, const struct kv_partition *p, size_t n_q,
                             enum kv_type type)
{
    float max[QUERIES];
    size_t d = 0;
    for (size_t t = 0; t < p->n_tokens; t++)
        token_scores(s, kv_key(p, t), t, n_q, type);
    for (size_t i = 0; i < n_q; i++)
        max[i] = exponentials(s->e[i], p->n_tokens);
    for (; d + 64 / n_q <= s->head_dim; d += 64 / n_q)
        slice_values(s, p, d, n_q, 8 / n_q, type);
    for (; d + 8 <= s->head_dim; d += 8)
        slice_values(s, p, d, n_q, 1, type);
    tail_values(s, p, d, n_q, type);
    for (size_t i = 0; i < n_q; i++)
        attention_merge(&s->state[i], s->out[i], s->part[i], s->head_dim, max[i],
                        reduce_sum8(s->e[i], p->n_tokens));
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

void attend_avx2(const struct attention_args *a, size_t row, size_t kv_head)
{
    if (a->kv.type == KV_F16)
        group_attend(a, row, kv_head, KV_F16);
    else if (a->kv.type == KV_F32)
        group_attend(a, row, kv_head, KV_F32);
    else
        group_attend(a, row, kv_head, KV_Q8_0);
}
