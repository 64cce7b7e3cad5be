/* kernels/combine.c - the weighted sum of expert outputs, and token embedding: row by row.
 *
 * Embedding is plain C for every set, the sum only where there is no fused instruction to rely on.
 * A value's sum runs over ranks in order in one thread (NUMERICS rule 6). Ranks with id -1 were not
 * computed and are left out; a row of none adds 0. Tokens outside the vocabulary give zeros, as
 * negative ones do. Owns nothing; refuses types without a dequantiser.
 */
#include <math.h>
#include <string.h>
#include "kernels/dequantise.h"
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

/* One row of plain C; combine_avx2.c has the other. */
static void combine_row(const struct combine_args *p, size_t row)
{
    for (size_t i = 0; i < p->d_model; i++) {
        float acc = 0.0f;
        for (size_t pair = row * p->n_used; pair < (row + 1) * p->n_used; pair++)
            if (p->ids[pair] >= 0)
                acc = fmaf(p->mix[pair], p->outputs[pair * p->d_model + i], acc);
        p->hidden[row * p->d_model + i] += acc;
    }
}

struct combine_job {
    struct combine_args args;
    combine_row_function *row;
};

static void combine_range(void *ctx, size_t first, size_t last)
{
    const struct combine_job *job = ctx;
    for (size_t row = first; row < last; row++)
        job->row(&job->args, row);
}

static void combine_run(const void *args, struct exec_cpu_worker *w)
{
    struct combine_job job = *(const struct combine_job *)args;
    size_t grain = 1 + 65536 / (job.args.d_model * job.args.n_used + 1);
    exec_cpu_parallel_for(w, job.args.n_rows, grain, combine_range, &job);
}

int combine_push(const struct combine_args *args, combine_row_function *row, struct exec_stream *s)
{
    struct combine_job job = {*args, row};
    if (args->n_rows == 0 || args->d_model == 0)
        return EBB_OK;
    return exec_cpu_push(s, combine_run, &job, sizeof job);
}

int combine_cpu(const struct combine_args *args, struct exec_stream *s)
{
    return combine_push(args, combine_row, s);
}

static void embed_range(void *ctx, size_t first, size_t last)
{
    const struct embed_args *p = ctx;
    size_t row_bytes = tensor_row_bytes(p->type, p->d_model);
    for (size_t row = first; row < last; row++) {
        float *hidden = p->hidden + row * p->d_model;
        int32_t token = p->tokens[row];
        if (token < 0 || (size_t)token >= p->n_vocab)
            memset(hidden, 0, p->d_model * sizeof *hidden);
        else
            dequantise(p->type, (const uint8_t *)p->table + (size_t)token * row_bytes, hidden,
                       p->d_model);
    }
}

static void embed_run(const void *args, struct exec_cpu_worker *w)
{
    struct embed_args p = *(const struct embed_args *)args;
    exec_cpu_parallel_for(w, p.n_rows, 1 + 16384 / p.d_model, embed_range, &p);
}

int embed_cpu(const struct embed_args *args, struct exec_stream *s)
{
    if (tensor_row_bytes(args->type, args->d_model) == 0)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return EBB_OK;
    return exec_cpu_push(s, embed_run, args, sizeof *args);
}
