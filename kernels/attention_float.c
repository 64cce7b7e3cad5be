/* attention_float.c - attention of the measuring set: fp64 scores, exponentials and sums, rounded once at the end.
 *
 * Keys and values are widened once for up to four query heads that share them. Stack only; owns nothing; any thread.
 */
#include "kernels/attention.h"
#include "kernels/rows.h"
#include "kernels/sum_float.h"

#define HEADS 4

struct heads {
    double max[HEADS], sum[HEADS], out[HEADS][HEAD_DIM_MAX];
    size_t n;
};

static void partition_attend(const struct attention_args *a, const struct kv_partition *p,
                             const float *q, struct heads *h)
{
    size_t head_dim = a->kv.head_dim;
    double score[HEADS][KV_PARTITION_TOKENS], max[HEADS];
    float wide[HEAD_DIM_MAX];

    for (size_t i = 0; i < h->n; i++)
        max[i] = h->max[i];
    for (size_t t = 0; t < p->n_tokens; t++) {
        kv_row_widen(wide, kv_key(p, t), head_dim, a->kv.type);
        for (size_t i = 0; i < h->n; i++) {
            score[i][t] = sum_float_dot(q + i * head_dim, wide, head_dim) * (double)a->scale;
            max[i] = score[i][t] > max[i] ? score[i][t] : max[i];
        }
    }
    for (size_t i = 0; i < h->n; i++) {
        double rescale = exp(h->max[i] - max[i]);
        h->max[i] = max[i];
        h->sum[i] *= rescale;
        for (size_t d = 0; d < head_dim; d++)
            h->out[i][d] *= rescale;
    }
    for (size_t t = 0; t < p->n_tokens; t++) {
        kv_row_widen(wide, kv_value(p, t), head_dim, a->kv.type);
        for (size_t i = 0; i < h->n; i++) {
            double e = exp(score[i][t] - max[i]);
            h->sum[i] += e;
            for (size_t d = 0; d < head_dim; d++)
                h->out[i][d] += e * wide[d];
        }
    }
}

void attend_float(const struct attention_args *a, size_t row, size_t kv_head)
{
    size_t head_dim = a->kv.head_dim, position = (size_t)a->kv.positions[row];
    size_t group = a->n_heads / a->kv.n_kv_heads;

    for (size_t i = 0; i < group; i += HEADS) {
        size_t at = (row * a->n_heads + kv_head * group + i) * head_dim;
        struct heads h = {.max = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
        h.n = group - i < HEADS ? group - i : HEADS;
        for (size_t first = 0; first <= position; first += KV_PARTITION_TOKENS) {
            struct kv_partition p = kv_partition_at(&a->kv, row, kv_head, first, position);
            partition_attend(a, &p, a->q + at, &h);
        }
        for (size_t j = 0; j < h.n; j++)
            for (size_t d = 0; d < head_dim; d++)
                a->out[at + j * head_dim + d] = (float)(h.out[j][d] / h.sum[j]);
    }
}
