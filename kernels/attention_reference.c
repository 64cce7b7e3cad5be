/* attention_reference.c - attention in plain C, one head at a time: what the bits are (attention.h says the order).
 *
 * Everything lives on the stack, bounded by HEAD_DIM_MAX and KV_PARTITION_TOKENS. Owns nothing, any thread.
 */
#include "kernels/attention.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"

static void partition_attend(const struct attention_args *a, const struct kv_partition *p,
                             const float *q, struct attention_state *state, float *out)
{
    size_t head_dim = a->kv.head_dim;
    float e[KV_PARTITION_TOKENS], part[HEAD_DIM_MAX] = {0}, wide[HEAD_DIM_MAX], max = -INFINITY;

    for (size_t t = 0; t < p->n_tokens; t++) {
        kv_row_widen(wide, kv_key(p, t), head_dim, a->kv.type);
        e[t] = reduce_dot(q, wide, head_dim) * a->scale;
        max = e[t] > max ? e[t] : max;
    }
    for (size_t t = 0; t < p->n_tokens; t++) {
        e[t] = ebb_expf(e[t] - max);
        kv_row_widen(wide, kv_value(p, t), head_dim, a->kv.type);
        for (size_t d = 0; d < head_dim; d++)
            part[d] = fmaf(e[t], wide[d], part[d]);
    }
    attention_merge(state, out, part, head_dim, max, reduce_sum(e, p->n_tokens));
}

void attend_reference(const struct attention_args *a, size_t row, size_t kv_head)
{
    size_t head_dim = a->kv.head_dim, position = (size_t)a->kv.positions[row];
    size_t group = a->n_heads / a->kv.n_kv_heads;

    for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float *q = a->q + (row * a->n_heads + head) * head_dim;
        float out[HEAD_DIM_MAX] = {0};
        struct attention_state state = {.max = -INFINITY, .sum = 0};
        for (size_t first = 0; first <= position; first += KV_PARTITION_TOKENS) {
            struct kv_partition p = kv_partition_at(&a->kv, row, kv_head, first, position);
            partition_attend(a, &p, q, &state, out);
        }
        float inverse = 1.0f / state.sum, *to = a->out + (row * a->n_heads + head) * head_dim;
        for (size_t d = 0; d < head_dim; d++)
            to[d] = out[d] * inverse;
    }
}
