/* top.c - the k largest logits of each row, for every set.
 *
 * The output arrays are the heap: its root is the worst of the k best so far (smallest value, then highest id), and
 * a heap sort in place ends with falling order. O(n log k), usually one comparison a logit. NaN counts as -infinity.
 * Owns nothing. Refuses k over n_vocab (EBB_EUNSUPPORTED).
 */
#include <math.h>
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

static bool worse(float value, int32_t id, float than_value, int32_t than_id)
{
    return value < than_value || (value == than_value && id > than_id);
}

/* Puts (value, id) into the hole at `at` of a heap of n, or further down. */
static void sift_down(float *values, int32_t *ids, size_t at, size_t n, float value, int32_t id)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && worse(values[child + 1], ids[child + 1], values[child], ids[child]))
            child++;
        if (!worse(values[child], ids[child], value, id))
            break;
        values[at] = values[child];
        ids[at] = ids[child];
        at = child;
    }
    values[at] = value;
    ids[at] = id;
}

static float number(float logit)
{
    return logit == logit ? logit : -INFINITY;
}

static void top_row(const float *logits, size_t n, size_t k, float *values, int32_t *ids)
{
    for (size_t i = 0; i < k; i++) {
        values[i] = number(logits[i]);
        ids[i] = (int32_t)i;
    }
    for (size_t i = k / 2; i-- > 0;)
        sift_down(values, ids, i, k, values[i], ids[i]);
    for (size_t i = k; i < n;
         i++) /* ids rise, so an equal value is worse than what is held; NaN is never larger */
        if (logits[i] > values[0])
            sift_down(values, ids, 0, k, logits[i], (int32_t)i);
    for (size_t left = k; left-- > 1;) {
        float value = values[left];
        int32_t id = ids[left];
        values[left] = values[0];
        ids[left] = ids[0];
        sift_down(values, ids, 0, left, value, id);
    }
}

static void top_range(void *ctx, size_t first, size_t last)
{
    const struct top_args *a = ctx;
    for (size_t r = first; r < last; r++)
        top_row(a->logits + r * a->n_vocab, a->n_vocab, a->k, a->values + r * a->k,
                a->ids + r * a->k);
}

static void top_run(const void *args, struct exec_cpu_worker *w)
{
    struct top_args a = *(const struct top_args *)args;
    exec_cpu_parallel_for(w, a.n_rows, rows_grain(2 * a.n_vocab), top_range, &a);
}

int top_cpu(const struct top_args *args, struct exec_stream *s)
{
    if (args->k > args->n_vocab)
        return EBB_EUNSUPPORTED;
    if (args->k == 0)
        return 0;
    return exec_cpu_push(s, top_run, args, sizeof *args);
}
