/* norm.c - rmsnorm, and what is done to heads before attention: their norm and rotation, and the angles for it.
 *
 * One walk over rows for every set; the arithmetic of a row is in rows_*.c. Jobs carry a copy of the args and the
 * set's table. Rows and heads are independent, so any cut gives the same bits. Owns nothing.
 * Refuses: more rotated pairs than a head has (EBB_EUNSUPPORTED).
 */
#include <math.h>
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

/* What a cosine and a sine cost against a multiplication. */
#define SINCOS_COST 64

struct rmsnorm_job {
    struct rmsnorm_args args;
    const struct row_ops *ops;
};

static void rmsnorm_range(void *ctx, size_t first, size_t last)
{
    const struct rmsnorm_job *job = ctx;
    const struct rmsnorm_args *a = &job->args;
    for (size_t r = first; r < last; r++)
        job->ops->rmsnorm(a->x + r * a->n, a->weight, a->y + r * a->n, a->n, a->eps);
}

static void rmsnorm_run(const void *args, struct exec_cpu_worker *w)
{
    struct rmsnorm_job job = *(const struct rmsnorm_job *)args;
    exec_cpu_parallel_for(w, job.args.n_rows, rows_grain(2 * job.args.n), rmsnorm_range, &job);
}

static int rmsnorm_push(const struct rmsnorm_args *args, const struct row_ops *ops,
                        struct exec_stream *s)
{
    struct rmsnorm_job job = {*args, ops};
    return exec_cpu_push(s, rmsnorm_run, &job, sizeof job);
}

int rmsnorm_reference(const struct rmsnorm_args *args, struct exec_stream *s)
{
    return rmsnorm_push(args, &rows_reference, s);
}

int rmsnorm_avx2(const struct rmsnorm_args *args, struct exec_stream *s)
{
    return rmsnorm_push(args, &rows_avx2, s);
}

int rmsnorm_avx512(const struct rmsnorm_args *args, struct exec_stream *s)
{
    return rmsnorm_push(args, &rows_avx512, s);
}

int rmsnorm_float(const struct rmsnorm_args *args, struct exec_stream *s)
{
    return rmsnorm_push(args, &rows_float, s);
}

/* Inert rows get the angle 0, so that what they compute stays finite. */
static void rope_angles_range(void *ctx, size_t first, size_t last)
{
    const struct rope_angles_args *a = ctx;
    for (size_t r = first; r < last; r++) {
        double position = a->positions[r] < 0 ? 0.0 : (double)a->positions[r];
        float *to = a->angles + r * a->n_half * 2;
        for (size_t i = 0; i < a->n_half; i++) {
            double angle = position * a->inv_freq[i];
            to[2 * i] = (float)cos(angle) * a->scale;
            to[2 * i + 1] = (float)sin(angle) * a->scale;
        }
    }
}

static void rope_angles_run(const void *args, struct exec_cpu_worker *w)
{
    struct rope_angles_args a = *(const struct rope_angles_args *)args;
    exec_cpu_parallel_for(w, a.n_rows, rows_grain(a.n_half * SINCOS_COST), rope_angles_range, &a);
}

int rope_angles_cpu(const struct rope_angles_args *args, struct exec_stream *s)
{
    return exec_cpu_push(s, rope_angles_run, args, sizeof *args);
}

struct head_rope_job {
    struct head_rope_args args;
    const struct row_ops *ops;
};

static void head_rope_range(void *ctx, size_t first, size_t last)
{
    const struct head_rope_job *job = ctx;
    const struct head_rope_args *a = &job->args;
    for (size_t r = first; r < last; r++)
        for (size_t h = 0; h < a->n_heads; h++) {
            float *x = a->x + (r * a->n_heads + h) * a->head_dim;
            if (a->norm_weight != NULL)
                job->ops->rmsnorm(x, a->norm_weight, x, a->head_dim, a->eps);
            job->ops->rotate(x, a->angles + r * a->n_half * 2, a->n_half, a->halves);
        }
}

static void head_rope_run(const void *args, struct exec_cpu_worker *w)
{
    struct head_rope_job job = *(const struct head_rope_job *)args;
    size_t cost = 4 * job.args.n_heads * job.args.head_dim;
    exec_cpu_parallel_for(w, job.args.n_rows, rows_grain(cost), head_rope_range, &job);
}

static int head_rope_push(const struct head_rope_args *args, const struct row_ops *ops,
                          struct exec_stream *s)
{
    struct head_rope_job job = {*args, ops};
    if (args->n_half > args->head_dim / 2)
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, head_rope_run, &job, sizeof job);
}

int head_rope_reference(const struct head_rope_args *args, struct exec_stream *s)
{
    return head_rope_push(args, &rows_reference, s);
}

int head_rope_avx2(const struct head_rope_args *args, struct exec_stream *s)
{
    return head_rope_push(args, &rows_avx2, s);
}

int head_rope_avx512(const struct head_rope_args *args, struct exec_stream *s)
{
    return head_rope_push(args, &rows_avx512, s);
}

int head_rope_float(const struct head_rope_args *args, struct exec_stream *s)
{
    return head_rope_push(args, &rows_float, s);
}
