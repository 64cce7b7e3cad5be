/* kernels/experts_float.c - the routed experts of the float set: experts.c's walk with
 * float_tile.h's sums.
 *
 * Same plan, same two loops with one barrier; the hidden values stay fp32 in scratch, unquantised.
 * Owns nothing; all memory is the caller's scratch. Refuses types without a dequantiser and more
 * than EXPERTS_USED_MAX ranks.
 */
#include <assert.h>
#include <math.h>
#include "kernels/experts_plan.h"
#include "kernels/float_tile.h"
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

size_t experts_scratch_bytes_float(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                   size_t d_expert)
{
    (void)d_model;
    return experts_plan_bytes(n_rows, n_used, n_experts) +
           activation_part_bytes(n_rows * n_used * d_expert * 4);
}

struct experts_job {
    struct experts_args args;
    struct experts_plan plan;
    float *hidden; /* [n_rows * n_used][d_expert], by place in plan.pairs */
};

static void hidden_tile(const struct experts_job *job, uint32_t expert, size_t out, size_t place,
                        size_t n)
{
    const struct experts_args *p = &job->args;
    size_t n_out = p->d_expert - out < FLOAT_OUTPUTS ? p->d_expert - out : FLOAT_OUTPUTS;
    const float *x[FLOAT_ROWS];
    double gate[FLOAT_ROWS][FLOAT_OUTPUTS], up[FLOAT_ROWS][FLOAT_OUTPUTS];
    for (size_t r = 0; r < n; r++)
        x[r] = p->x + job->plan.pairs[place + r] / p->n_used * p->d_model;
    float_tile(p->gate_type, p->addresses[expert].gate, p->d_model, out, n_out, x, n, gate);
    float_tile(p->up_type, p->addresses[expert].up, p->d_model, out, n_out, x, n, up);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < n_out; i++) {
            double g = gate[r][i];
            job->hidden[(place + r) * p->d_expert + out + i] =
                (float)(g / (1.0 + exp(-g)) * up[r][i]);
        }
}

static void down_tile(const struct experts_job *job, uint32_t expert, size_t out, size_t place,
                      size_t n)
{
    const struct experts_args *p = &job->args;
    size_t n_out = p->d_model - out < FLOAT_OUTPUTS ? p->d_model - out : FLOAT_OUTPUTS;
    const float *x[FLOAT_ROWS];
    double y[FLOAT_ROWS][FLOAT_OUTPUTS];
    for (size_t r = 0; r < n; r++)
        x[r] = job->hidden + (place + r) * p->d_expert;
    float_tile(p->down_type, p->addresses[expert].down, p->d_expert, out, n_out, x, n, y);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < n_out; i++)
            p->outputs[job->plan.pairs[place + r] * p->d_model + out + i] = (float)y[r][i];
}

static size_t tiles_of(size_t n)
{
    return (n + FLOAT_OUTPUTS - 1) / FLOAT_OUTPUTS;
}

static void hidden_range(void *ctx, size_t first, size_t last)
{
    const struct experts_job *job = ctx;
    size_t n_tiles = tiles_of(job->args.d_expert);
    for (size_t item = first; item < last; item++) {
        const struct experts_group *g = &job->plan.groups[item / n_tiles];
        for (size_t place = g->first; place < g->last; place += FLOAT_ROWS)
            hidden_tile(job, g->expert, item % n_tiles * FLOAT_OUTPUTS, place,
                        g->last - place < FLOAT_ROWS ? g->last - place : FLOAT_ROWS);
    }
}

static void down_range(void *ctx, size_t first, size_t last)
{
    const struct experts_job *job = ctx;
    size_t n_tiles = tiles_of(job->args.d_model);
    for (size_t item = first; item < last; item++) {
        const struct experts_group *g = &job->plan.groups[item / n_tiles];
        for (size_t place = g->first; place < g->last; place += FLOAT_ROWS)
            down_tile(job, g->expert, item % n_tiles * FLOAT_OUTPUTS, place,
                      g->last - place < FLOAT_ROWS ? g->last - place : FLOAT_ROWS);
    }
}

static void experts_run(const void *args, struct exec_cpu_worker *w)
{
    struct experts_job job = *(const struct experts_job *)args;
    const struct experts_args *p = &job.args;
    experts_plan_make(&job.plan, p);
    experts_plan_count(&job.plan, p);
    size_t n_groups = job.plan.n_groups;
    if (n_groups == 0)
        return;
    size_t rows = job.plan.n_pairs / n_groups; /* of an average expert */
    exec_cpu_parallel_for(w, n_groups * tiles_of(p->d_expert),
                          tile_grain(16 * FLOAT_OUTPUTS, p->d_model, rows), hidden_range, &job);
    exec_cpu_parallel_for(w, n_groups * tiles_of(p->d_model),
                          tile_grain(8 * FLOAT_OUTPUTS, p->d_expert, rows), down_range, &job);
}

int experts_float(const struct experts_args *args, struct exec_stream *s)
{
    struct experts_job job = {.args = *args};
    if (tensor_row_bytes(args->gate_type, args->d_model) == 0 ||
        tensor_row_bytes(args->up_type, args->d_model) == 0 ||
        tensor_row_bytes(args->down_type, args->d_expert) == 0 || args->n_used > EXPERTS_USED_MAX ||
        args->d_model % 2 != 0 || args->d_expert % 2 != 0)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_used == 0)
        return EBB_OK;
    assert(args->x != NULL && args->scratch != NULL);
    experts_plan_place(&job.plan, args->scratch, args->n_rows, args->n_used);
    job.hidden = (float *)(void *)((uint8_t *)args->scratch +
                                   experts_plan_bytes(args->n_rows, args->n_used, args->n_experts));
    return exec_cpu_push(s, experts_run, &job, sizeof job);
}
