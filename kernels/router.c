/* router.c - which experts a row goes to, for every set.
 *
 * Two passes: the logits as an unquantised product (cut over experts, so that one row of a large model still uses
 * all workers), then each row's softmax and choice. The scratch holds probabilities afterwards. An expert is chosen
 * by its probability, ties by lower id; a probability that is no number ranks below all others, so ids are always
 * valid and different. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): types other than F32, F16 and BF16, n_used of 0, over EXPERTS_USED_MAX or over n_experts.
 */
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

struct router_job {
    struct router_args args;
    const struct row_ops *ops;
};

static void logits_range(void *ctx, size_t first, size_t last)
{
    const struct router_job *job = ctx;
    const struct router_args *a = &job->args;
    struct product_args product = {
        .type = a->type,
        .weights = a->weights,
        .n_in = a->n_in,
        .n_out = a->n_experts,
        .n_rows = a->n_rows,
        .x = a->x,
        .y = a->logits,
    };
    job->ops->logits(&product, first, last);
}

/* Keeps the n_used best seen so far in falling order; a later equal stays behind, which makes ties go to lower ids. */
static void row_choose(const struct router_args *a, const float *p, int32_t *ids, float *mix)
{
    size_t n = 0;
    for (size_t e = 0; e < a->n_experts; e++) {
        float value = p[e] == p[e] ? p[e] : -1.0f;
        size_t at = n;
        while (at > 0 && value > mix[at - 1])
            at--;
        if (at == a->n_used)
            continue;
        n += n < a->n_used;
        for (size_t i = n - 1; i > at; i--) {
            ids[i] = ids[i - 1];
            mix[i] = mix[i - 1];
        }
        ids[at] = (int32_t)e;
        mix[at] = value;
    }
}

static void choose_range(void *ctx, size_t first, size_t last)
{
    const struct router_job *job = ctx;
    const struct router_args *a = &job->args;
    for (size_t r = first; r < last; r++) {
        float *p = a->logits + r * a->n_experts, *mix = a->mix + r * a->n_used, sum = 0;
        int32_t *ids = a->ids + r * a->n_used;
        if (a->positions[r] < 0) {
            for (size_t i = 0; i < a->n_used; i++) {
                ids[i] = -1;
                mix[i] = 0;
            }
            continue;
        }
        job->ops->softmax(p, a->n_experts);
        row_choose(a, p, ids, mix);
        for (size_t i = 0; i < a->n_used; i++)
            sum = sum + mix[i];
        for (size_t i = 0; i < a->n_used; i++)
            mix[i] = (a->renormalise ? mix[i] / sum : mix[i]) * a->scale;
    }
}

static void router_run(const void *args, struct exec_cpu_worker *w)
{
    struct router_job job = *(const struct router_job *)args;
    const struct router_args *a = &job.args;
    exec_cpu_parallel_for(w, a->n_experts, rows_grain(a->n_in * a->n_rows), logits_range, &job);
    exec_cpu_parallel_for(w, a->n_rows, rows_grain(16 * a->n_experts), choose_range, &job);
}

static int router_push(const struct router_args *args, const struct row_ops *ops,
                       struct exec_stream *s)
{
    struct router_job job = {*args, ops};
    if (args->type != TENSOR_F32 && args->type != TENSOR_F16 && args->type != TENSOR_BF16)
        return EBB_EUNSUPPORTED;
    if (args->n_used == 0 || args->n_used > EXPERTS_USED_MAX || args->n_used > args->n_experts)
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, router_run, &job, sizeof job);
}

int router_reference(const struct router_args *args, struct exec_stream *s)
{
    return router_push(args, &rows_reference, s);
}

int router_avx2(const struct router_args *args, struct exec_stream *s)
{
    return router_push(args, &rows_avx2, s);
}

int router_avx512(const struct router_args *args, struct exec_stream *s)
{
    return router_push(args, &rows_avx512, s);
}

int router_float(const struct router_args *args, struct exec_stream *s)
{
    return router_push(args, &rows_float, s);
}
