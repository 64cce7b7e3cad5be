/* kernels/combine.c - the weighted sum of expert outputs, and token embedding: row by row, the same for all CPU sets.
 *
 * Both are memory-bound, so plain C serves every set. A value's sum runs over ranks in order in one thread (NUMERICS
 * rule 6). Ranks with id -1 were not computed and are left out; a row of none adds 0. Tokens outside the vocabulary
 * give zeros, as negative ones do. Owns nothing; refuses types without a dequantiser.
 */
#include <math.h>
#include <string.h>
#include "kernels/dequantise.h"
#include "kernels/ops_cpu.h"

#define STRIP 64 /* values whose sums are carried at once */

static void combine_strip(const struct combine_args *p, size_t row, size_t first, size_t n)
{
    float acc[STRIP] = {0};
    for (size_t rank = 0; rank < p->n_used; rank++) {
        size_t pair = row * p->n_used + rank;
        const float *y = p->outputs + pair * p->d_model + first;
        if (p->ids[pair] < 0)
            continue;
        for (size_t i = 0; i < n; i++)
            acc[i] = fmaf(p->mix[pair], y[i], acc[i]);
    }
    float *hidden = p->hidden + row * p->d_model + first;
    for (size_t i = 0; i < n; i++)
        hidden[i] += acc[i];
}

static void combine_range(void *ctx, size_t first, size_t last)
{
    const struct combine_args *p = ctx;
    for (size_t row = first; row < last; row++)
        for (size_t i = 0; i < p->d_model; i += STRIP)
            combine_strip(p, row, i, p->d_model - i < STRIP ? p->d_model - i : STRIP);
}

static void combine_run(const void *args, struct exec_cpu_worker *w)
{
    struct combine_args p = *(const struct combine_args *)args;
    exec_cpu_parallel_for(w, p.n_rows, 1 + 32768 / (p.d_model * p.n_used + 1), combine_range, &p);
}

int combine_cpu(const struct combine_args *args, struct exec_stream *s)
{
    if (args->n_rows == 0 || args->d_model == 0)
        return EBB_OK;
    return exec_cpu_push(s, combine_run, args, sizeof *args);
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
