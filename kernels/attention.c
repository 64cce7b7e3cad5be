/* attention.c - storing keys and values, and the walk of attention over rows and KV heads, for every set.
 *
 * The arithmetic is in attention_{reference,avx2,float}.c. One item is one row and one KV head with all query heads
 * that share it; items are independent. How many items make a piece follows from the positions, which are read when
 * the work runs; the cut never shows in the bits. Inert rows are skipped: no KV and no output is touched.
 * Refuses (EBB_EUNSUPPORTED): heads over HEAD_DIM_MAX, query heads that are no multiple of the KV heads, KV_Q8_0 of heads that
 * are no multiple of 32.
 */
#include <string.h>
#include "kernels/attention.h"
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

#define QUANTS_AT_ONCE 256 /* values */

struct kv_store_job {
    struct kv_store_args args;
    const struct row_ops *ops;
};

/* n values of token t as quants and scales. */
static void quants_store(const struct row_ops *ops, char *block, size_t t, const float *from,
                         size_t n)
{
    int8_t *q = (int8_t *)block + t * n;
    uint16_t *scales = (uint16_t *)(void *)(block + KV_BLOCK_TOKENS * n) + t * (n / KV_QUANTS);
    for (size_t i = 0; i < n; i += QUANTS_AT_ONCE) {
        float d[QUANTS_AT_ONCE / KV_QUANTS], sx[QUANTS_AT_ONCE / KV_QUANTS];
        int16_t sum16[QUANTS_AT_ONCE / 16];
        size_t blocks = (n - i < QUANTS_AT_ONCE ? n - i : QUANTS_AT_ONCE) / KV_QUANTS;
        ops->tiles->quantize(from + i, blocks, (struct activation){q + i, d, sx, sum16});
        ops->halves_store(scales + i / KV_QUANTS, d, blocks);
    }
}

/* n values of token t to the keys or values of a block. */
static void token_store(const struct kv_store_job *job, char *block, size_t t, const float *from,
                        size_t n)
{
    switch (job->args.kv.type) {
    case KV_F16: job->ops->halves_store((uint16_t *)(void *)block + t * n, from, n); break;
    case KV_F32: memcpy(block + t * n * sizeof(float), from, n * sizeof(float)); break;
    case KV_Q8_0: quants_store(job->ops, block, t, from, n); break;
    }
}

static void kv_store_range(void *ctx, size_t first, size_t last)
{
    const struct kv_store_job *job = ctx;
    const struct kv_view *kv = &job->args.kv;
    size_t n = kv->n_kv_heads * kv->head_dim;
    size_t half = kv_values_bytes(kv->type, KV_BLOCK_TOKENS * n);
    for (size_t r = first; r < last; r++) {
        if (kv->positions[r] < 0)
            continue;
        size_t position = (size_t)kv->positions[r];
        const int32_t *table = kv->tables + (size_t)kv->row_sequence[r] * kv->table_stride;
        char *block =
            (char *)kv->base + (size_t)table[position / KV_BLOCK_TOKENS] * kv->block_stride;
        token_store(job, block, position % KV_BLOCK_TOKENS, job->args.k + r * n, n);
        token_store(job, block + half, position % KV_BLOCK_TOKENS, job->args.v + r * n, n);
    }
}

static void kv_store_run(const void *args, struct exec_cpu_worker *w)
{
    struct kv_store_job job = *(const struct kv_store_job *)args;
    size_t cost = 4 * job.args.kv.n_kv_heads * job.args.kv.head_dim;
    exec_cpu_parallel_for(w, job.args.n_rows, rows_grain(cost), kv_store_range, &job);
}

static bool kv_computable(const struct kv_view *kv)
{
    return kv->n_kv_heads > 0 && kv->head_dim > 0 && kv->head_dim <= HEAD_DIM_MAX &&
           (kv->type == KV_F16 || kv->type == KV_F32 ||
            (kv->type == KV_Q8_0 && kv->head_dim % KV_QUANTS == 0));
}

static int kv_store_push(const struct kv_store_args *args, const struct row_ops *ops,
                         struct exec_stream *s)
{
    struct kv_store_job job = {*args, ops};
    if (!kv_computable(&args->kv))
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, kv_store_run, &job, sizeof job);
}

int kv_store_reference(const struct kv_store_args *args, struct exec_stream *s)
{
    return kv_store_push(args, &rows_reference, s);
}

int kv_store_avx2(const struct kv_store_args *args, struct exec_stream *s)
{
    return kv_store_push(args, &rows_avx2, s);
}

int kv_store_avx512(const struct kv_store_args *args, struct exec_stream *s)
{
    return kv_store_push(args, &rows_avx512, s);
}

struct attention_job {
    struct attention_args args;
    const struct row_ops *ops;
};

static void attention_range(void *ctx, size_t first, size_t last)
{
    const struct attention_job *job = ctx;
    const struct kv_view *kv = &job->args.kv;
    for (size_t i = first; i < last; i++)
        if (kv->positions[i / kv->n_kv_heads] >= 0)
            job->ops->attend(&job->args, i / kv->n_kv_heads, i % kv->n_kv_heads);
}

static void attention_run(const void *args, struct exec_cpu_worker *w)
{
    struct attention_job job = *(const struct attention_job *)args;
    const struct kv_view *kv = &job.args.kv;
    size_t n_keys = 0, n_items = job.args.n_rows * kv->n_kv_heads;
    if (n_items == 0)
        return;
    for (size_t r = 0; r < job.args.n_rows; r++)
        n_keys += kv->positions[r] < 0 ? 0 : (size_t)kv->positions[r] + 1;
    size_t cost = 2 * n_keys * job.args.n_heads * kv->head_dim / n_items;
    exec_cpu_parallel_for(w, n_items, rows_grain(cost), attention_range, &job);
}

static int attention_push(const struct attention_args *args, const struct row_ops *ops,
                          struct exec_stream *s)
{
    struct attention_job job = {*args, ops};
    if (!kv_computable(&args->kv) || args->n_heads % args->kv.n_kv_heads != 0)
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, attention_run, &job, sizeof job);
}

int attention_reference(const struct attention_args *args, struct exec_stream *s)
{
    return attention_push(args, &rows_reference, s);
}

int attention_avx2(const struct attention_args *args, struct exec_stream *s)
{
    return attention_push(args, &rows_avx2, s);
}

int attention_avx512(const struct attention_args *args, struct exec_stream *s)
{
    return attention_push(args, &rows_avx512, s);
}

int attention_float(const struct attention_args *args, struct exec_stream *s)
{
    return attention_push(args, &rows_float, s);
}
