/* logprob.c - the normaliser of a row's logits, for log-probabilities, for every set.
 *
 * As in sampling (sample.c) a token's mass is an integer, floor(ebb_expf(logit - largest) * 2^40), so the sum is exact and
 * no order of addition shows. The masses that are cut off are below 2^-40 of the likeliest token's. The logarithm is one
 * fp64 log(). NaN logits count as -infinity. Owns nothing; any thread. Refuses an empty vocabulary.
 */
#include <math.h>
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

#define MASS_ONE 0x1p40

static double row_norm(const float *logits, size_t n, const struct row_ops *ops)
{
    enum { PIECE = 256 };
    float max = -INFINITY;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > max)
            max = logits[i];
    for (size_t first = 0; first < n; first += PIECE) {
        size_t n_piece = n - first < PIECE ? n - first : PIECE;
        float e[PIECE];
        for (size_t i = 0; i < n_piece; i++) {
            float logit = logits[first + i], z = logit - max;
            e[i] = logit == max ? 0.0f : z <= 0.0f ? z : -INFINITY;
        }
        ops->exponentials(e, n_piece);
        for (size_t i = 0; i < n_piece; i++)
            total += (uint64_t)((double)e[i] * MASS_ONE);
    }
    return total > 0 ? (double)max + log((double)total / MASS_ONE) : (double)max;
}

struct logprob_job {
    struct logprob_args args;
    const struct row_ops *ops;
};

static void logprob_range(void *ctx, size_t first, size_t last)
{
    const struct logprob_job *job = ctx;
    const struct logprob_args *a = &job->args;
    for (size_t r = first; r < last; r++) {
        const float *logits = a->logits + r * a->n_vocab;
        bool known = a->ids[r] >= 0 && (size_t)a->ids[r] < a->n_vocab;
        a->norms[r] = row_norm(logits, a->n_vocab, job->ops);
        a->chosen[r] = known ? logits[a->ids[r]] : -INFINITY;
    }
}

static void logprob_run(const void *args, struct exec_cpu_worker *w)
{
    struct logprob_job job = *(const struct logprob_job *)args;
    exec_cpu_parallel_for(w, job.args.n_rows, rows_grain(4 * job.args.n_vocab), logprob_range,
                          &job);
}

static int logprob_push(const struct logprob_args *args, const struct row_ops *ops,
                        struct exec_stream *s)
{
    struct logprob_job job = {*args, ops};
    if (args->n_vocab == 0)
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, logprob_run, &job, sizeof job);
}

int logprob_reference(const struct logprob_args *args, struct exec_stream *s)
{
    return logprob_push(args, &rows_reference, s);
}

int logprob_avx2(const struct logprob_args *args, struct exec_stream *s)
{
    return logprob_push(args, &rows_avx2, s);
}

int logprob_avx512(const struct logprob_args *args, struct exec_stream *s)
{
    return logprob_push(args, &rows_avx512, s);
}
