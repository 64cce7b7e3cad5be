/* kernels/product.c - quantize, product and swiglu: the walks over tiles that the reference, AVX2 and
 * AVX-512 sets share.
 *
 * Owns nothing; each launcher checks its shape and pushes one job with a copy of its args and the
 * set's table of inner loops (tile.h). A piece of a job is a range of outputs (product) or rows;
 * where a piece begins never shows in the bits, since every output is one chain computed by one
 * thread. Refuses types and widths without kernels.
 */
#include <assert.h>
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

struct quantize_job {
    struct quantize_args args;
    const struct tile_ops *ops;
};

static void quantize_range(void *ctx, size_t first, size_t last)
{
    const struct quantize_job *job = ctx;
    for (size_t r = first; r < last; r++)
        job->ops->quantize(job->args.x + r * job->args.n, job->args.n / ACTIVATION_BLOCK,
                           activation_at(job->args.a, job->args.n, r));
}

static void quantize_run(const void *args, struct exec_cpu_worker *w)
{
    struct quantize_job job = *(const struct quantize_job *)args;
    exec_cpu_parallel_for(w, job.args.n_rows, 1 + 65536 / job.args.n, quantize_range, &job);
}

int quantize_push(const struct quantize_args *args, const struct tile_ops *ops,
                  struct exec_stream *s)
{
    struct quantize_job job = {*args, ops};
    if (args->n % ACTIVATION_BLOCK != 0)
        return EBB_EUNSUPPORTED;
    if (args->n == 0 || args->n_rows == 0)
        return EBB_OK;
    return exec_cpu_push(s, quantize_run, &job, sizeof job);
}

struct product_job {
    struct product_args args;
    const struct tile_ops *ops;
};

/* Adds the bias, then the old y, each with its own rounding. */
static void store_element(const struct product_args *p, size_t row, size_t out, float element)
{
    float *y = p->y + row * p->n_out + out;
    if (p->bias != NULL)
        element = element + p->bias[out];
    *y = p->accumulate ? *y + element : element;
}

static void product_tiles(void *ctx, size_t first, size_t last)
{
    const struct product_job *job = ctx;
    const struct product_args *p = &job->args;
    struct tile_matrix m = tile_matrix(p->type, p->weights, p->n_in);
    const size_t outputs = job->ops->outputs;
    struct tile_rows x;
    float y[TILE_ROWS][TILE_OUTPUTS];

    for (size_t row = 0; row < p->n_rows; row += TILE_ROWS) {
        size_t n_rows = p->n_rows - row < TILE_ROWS ? p->n_rows - row : TILE_ROWS;
        for (size_t r = 0; r < n_rows; r++)
            if (tile_type(p->type))
                x.quantised[r] = activation_at(p->a, p->n_in, row + r);
            else
                x.plain[r] = p->x + (row + r) * p->n_in;
        for (size_t tile = first; tile < last; tile++) {
            size_t out = tile * outputs,
                   n_out = p->n_out - out < outputs ? p->n_out - out : outputs;
            tile_product(job->ops, &m, out, n_out, &x, n_rows, y);
            for (size_t r = 0; r < n_rows; r++)
                for (size_t i = 0; i < n_out; i++)
                    store_element(p, row + r, out + i, y[r][i]);
        }
    }
}

static void product_run(const void *args, struct exec_cpu_worker *w)
{
    struct product_job job = *(const struct product_job *)args;
    const struct product_args *p = &job.args;
    size_t outputs = job.ops->outputs, n_tiles = (p->n_out + outputs - 1) / outputs;
    exec_cpu_parallel_for(w, n_tiles, tile_grain(outputs, p->n_in, p->n_rows), product_tiles, &job);
}

int product_push(const struct product_args *args, const struct tile_ops *ops, struct exec_stream *s)
{
    struct product_job job = {*args, ops};
    if (tensor_row_bytes(args->type, args->n_in) == 0)
        return EBB_EUNSUPPORTED;
    if (args->n_out == 0 || args->n_rows == 0)
        return EBB_OK;
    assert(tile_type(args->type) ? args->a != NULL : args->x != NULL);
    return exec_cpu_push(s, product_run, &job, sizeof job);
}

struct swiglu_job {
    struct swiglu_args args;
    const struct tile_ops *ops;
};

static void swiglu_range(void *ctx, size_t first, size_t last)
{
    const struct swiglu_job *job = ctx;
    const struct swiglu_args *p = &job->args;
    job->ops->swiglu(p->gate + first, p->up + first, p->y + first, last - first);
}

static void swiglu_run(const void *args, struct exec_cpu_worker *w)
{
    struct swiglu_job job = *(const struct swiglu_job *)args;
    exec_cpu_parallel_for(w, job.args.n_rows * job.args.n, 8192, swiglu_range, &job);
}

int swiglu_push(const struct swiglu_args *args, const struct tile_ops *ops, struct exec_stream *s)
{
    struct swiglu_job job = {*args, ops};
    if (args->n_rows * args->n == 0)
        return EBB_OK;
    return exec_cpu_push(s, swiglu_run, &job, sizeof job);
}
