/* shared.c - adds the shared expert's output to the hidden rows, for every set.
 *
 * A row's gate is one number, so a row is never cut; rows go to workers. The arithmetic of a row is in rows_*.c.
 * Owns nothing, refuses nothing.
 */
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

struct shared_add_job {
    struct shared_add_args args;
    const struct row_ops *ops;
};

static void shared_add_range(void *ctx, size_t first, size_t last)
{
    const struct shared_add_job *job = ctx;
    const struct shared_add_args *a = &job->args;
    for (size_t r = first; r < last; r++) {
        float *hidden = a->hidden + r * a->n;
        const float *y = a->y + r * a->n;
        if (a->gate != NULL)
            job->ops->gated_add(a->gate, a->x + r * a->n, y, hidden, a->n);
        else
            for (size_t i = 0; i < a->n; i++)
                hidden[i] = hidden[i] + y[i];
    }
}

static void shared_add_run(const void *args, struct exec_cpu_worker *w)
{
    struct shared_add_job job = *(const struct shared_add_job *)args;
    exec_cpu_parallel_for(w, job.args.n_rows, rows_grain(2 * job.args.n), shared_add_range, &job);
}

static int shared_add_push(const struct shared_add_args *args, const struct row_ops *ops,
                           struct exec_stream *s)
{
    struct shared_add_job job = {*args, ops};
    return exec_cpu_push(s, shared_add_run, &job, sizeof job);
}

int shared_add_reference(const struct shared_add_args *args, struct exec_stream *s)
{
    return shared_add_push(args, &rows_reference, s);
}

int shared_add_avx2(const struct shared_add_args *args, struct exec_stream *s)
{
    return shared_add_push(args, &rows_avx2, s);
}

int shared_add_avx512(const struct shared_add_args *args, struct exec_stream *s)
{
    return shared_add_push(args, &rows_avx512, s);
}

int shared_add_float(const struct shared_add_args *args, struct exec_stream *s)
{
    return shared_add_push(args, &rows_float, s);
}
