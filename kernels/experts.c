/* kernels/experts.c - the routed experts of a launch, for the reference, AVX2 and AVX-512 sets.
 *
 * A job sorts its (row, rank) pairs by expert, so that an expert's weights are unpacked once for
 * all rows that use it, and then runs two loops with one barrier between them:
 *   1. expert x 32 hidden values: gate and up products, SwiGLU, and at once the quantisation of
 *      those 32 values, which are one block of NUMERICS rule 1 (where the down matrix is not
 *      quantised, neither are they);
 *   2. expert x a tile of outputs: the down product of every pair, stored at outputs[row][rank].
 * A pair's bits depend on its own row and expert alone. Addresses, heat and hits are touched only
 * by the job, on the stream's thread or between its two barriers. All memory is the caller's
 * scratch. Ids outside 0..n_experts - 1 are skipped like -1. Refuses types and widths without
 * kernels, and more than EXPERTS_USED_MAX ranks.
 */
#include <assert.h>
#include <string.h>
#include "kernels/experts_plan.h"
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

/* One hidden row takes the larger of its two forms: which one is used depends on the type of down. */
static size_t hidden_row_bytes(size_t d_expert)
{
    size_t quantised = activation_row_bytes(d_expert);
    size_t plain = activation_part_bytes(d_expert * sizeof(float));
    return plain > quantised ? plain : quantised;
}

size_t experts_scratch_bytes_reference(size_t n_rows, size_t n_used, size_t n_experts,
                                       size_t d_model, size_t d_expert)
{
    (void)d_model;
    return experts_plan_bytes(n_rows, n_used, n_experts) +
           n_rows * n_used * hidden_row_bytes(d_expert);
}

size_t experts_scratch_bytes_avx2(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                  size_t d_expert)
{
    return experts_scratch_bytes_reference(n_rows, n_used, n_experts, d_model, d_expert);
}

struct experts_job {
    struct experts_args args;
    const struct tile_ops *ops;
    struct experts_plan plan;
    bool quantised; /* hidden values are, since down is of a quantised type */
    void *hidden;   /* [n_rows * n_used] rows by place in plan.pairs: activation rows, or floats */
};

/* The plain hidden row of a place. */
static float *hidden_plain(const struct experts_job *job, size_t place)
{
    return (float *)job->hidden + place * job->args.d_expert;
}

/* The activations of places [place, place + n) of the plan: the rows of x that they read, in the
 * forms that there are. */
static void inputs_find(const struct experts_job *job, size_t place, size_t n, struct tile_rows *x)
{
    const struct experts_args *p = &job->args;
    for (size_t i = 0; i < n; i++) {
        size_t row = job->plan.pairs[place + i] / p->n_used;
        if (p->a != NULL)
            x->quantised[i] = activation_at(p->a, p->d_model, row);
        if (p->x != NULL)
            x->plain[i] = p->x + row * p->d_model;
    }
}

/* Up to 32 hidden values from `first` of a place: kept in the form that down reads. */
static void hidden_store(const struct experts_job *job, const float *values, size_t n, size_t first,
                         size_t place)
{
    if (job->quantised) {
        struct activation a = activation_at(job->hidden, job->args.d_expert, place);
        size_t block = first / ACTIVATION_BLOCK;
        struct activation at = {a.q + first, a.d + block, a.sx + block, a.sum16 + 2 * block};
        job->ops->quantize(values, 1, at);
    } else {
        memcpy(hidden_plain(job, place) + first, values, n * sizeof *values);
    }
}

/* Hidden values [32 * block, 32 * block + 32), or what there is of them, of n places, from their
 * gate and up products to what down reads. */
static void hidden_block(const struct experts_job *job, const struct tile_matrix m[2], size_t block,
                         size_t place, size_t n)
{
    struct tile_rows x;
    float part[TILE_ROWS][TILE_OUTPUTS], both[2][TILE_ROWS][ACTIVATION_BLOCK];
    const size_t first = ACTIVATION_BLOCK * block, left = job->args.d_expert - first;
    const size_t n_values = left < ACTIVATION_BLOCK ? left : ACTIVATION_BLOCK;
    const size_t outputs = job->ops->outputs;

    inputs_find(job, place, n, &x);
    for (size_t which = 0; which < 2; which++)
        for (size_t i = 0; i < n_values; i += outputs) {
            size_t n_out = n_values - i < outputs ? n_values - i : outputs;
            tile_product(job->ops, &m[which], first + i, n_out, &x, n, part);
            for (size_t r = 0; r < n; r++)
                memcpy(&both[which][r][i], part[r], n_out * sizeof(float));
        }
    for (size_t r = 0; r < n; r++) {
        job->ops->swiglu(both[0][r], both[1][r], both[0][r], n_values);
        hidden_store(job, both[0][r], n_values, first, place + r);
    }
}

/* Blocks of hidden values of an expert, the last perhaps not whole. */
static size_t hidden_blocks(const struct experts_args *p)
{
    return (p->d_expert + ACTIVATION_BLOCK - 1) / ACTIVATION_BLOCK;
}

static void hidden_range(void *ctx, size_t first, size_t last)
{
    const struct experts_job *job = ctx;
    const struct experts_args *p = &job->args;
    size_t n_blocks = hidden_blocks(p);
    for (size_t item = first; item < last; item++) {
        const struct experts_group *g = &job->plan.groups[item / n_blocks];
        const struct tile_matrix m[2] = {
            tile_matrix(p->gate_type, p->addresses[g->expert].gate, p->d_model),
            tile_matrix(p->up_type, p->addresses[g->expert].up, p->d_model)};
        for (size_t place = g->first; place < g->last; place += TILE_ROWS)
            hidden_block(job, m, item % n_blocks, place,
                         g->last - place < TILE_ROWS ? g->last - place : TILE_ROWS);
    }
}

/* The hidden rows of places [place, place + n), n >= 1. */
static void hidden_find(const struct experts_job *job, size_t place, size_t n, struct tile_rows *x)
{
    assert(n >= 1);
    for (size_t i = 0; i < n; i++)
        if (job->quantised)
            x->quantised[i] = activation_at(job->hidden, job->args.d_expert, place + i);
        else
            x->plain[i] = hidden_plain(job, place + i);
}

/* Outputs [out, out + n_out) of n places. */
static void down_tile(const struct experts_job *job, const struct tile_matrix *m, size_t out,
                      size_t place, size_t n)
{
    const struct experts_args *p = &job->args;
    size_t left = p->d_model - out, n_out = left < job->ops->outputs ? left : job->ops->outputs;
    struct tile_rows x;
    float y[TILE_ROWS][TILE_OUTPUTS];
    hidden_find(job, place, n, &x);
    tile_product(job->ops, m, out, n_out, &x, n, y);
    for (size_t r = 0; r < n; r++)
        memcpy(p->outputs + job->plan.pairs[place + r] * p->d_model + out, y[r],
               n_out * sizeof(float));
}

/* Tiles of an expert's outputs. */
static size_t down_tiles(const struct experts_job *job)
{
    return (job->args.d_model + job->ops->outputs - 1) / job->ops->outputs;
}

static void down_range(void *ctx, size_t first, size_t last)
{
    const struct experts_job *job = ctx;
    const struct experts_args *p = &job->args;
    size_t n_tiles = down_tiles(job);
    for (size_t item = first; item < last; item++) {
        const struct experts_group *g = &job->plan.groups[item / n_tiles];
        struct tile_matrix m = tile_matrix(p->down_type, p->addresses[g->expert].down, p->d_expert);
        for (size_t place = g->first; place < g->last; place += TILE_ROWS)
            down_tile(job, &m, item % n_tiles * job->ops->outputs, place,
                      g->last - place < TILE_ROWS ? g->last - place : TILE_ROWS);
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
    exec_cpu_parallel_for(w, n_groups * hidden_blocks(p),
                          tile_grain(2 * ACTIVATION_BLOCK, p->d_model, rows), hidden_range, &job);
    exec_cpu_parallel_for(w, n_groups * down_tiles(&job),
                          tile_grain(job.ops->outputs, p->d_expert, rows), down_range, &job);
}

int experts_push(const struct experts_args *args, const struct tile_ops *ops, struct exec_stream *s)
{
    struct experts_job job = {.args = *args, .ops = ops, .quantised = tile_type(args->down_type)};
    if (tensor_row_bytes(args->gate_type, args->d_model) == 0 ||
        tensor_row_bytes(args->up_type, args->d_model) == 0 ||
        tensor_row_bytes(args->down_type, args->d_expert) == 0 || args->n_used > EXPERTS_USED_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_used == 0)
        return EBB_OK;
    assert((args->a != NULL || args->x != NULL) && args->scratch != NULL);
    experts_plan_place(&job.plan, args->scratch, args->n_rows, args->n_used);
    job.hidden =
        (uint8_t *)args->scratch + experts_plan_bytes(args->n_rows, args->n_used, args->n_experts);
    return exec_cpu_push(s, experts_run, &job, sizeof job);
}
