/* stages/workspace.c - the fixed-address buffers of the forward pass: what kernels and the control thread share, and what only
 * kernels touch (see forward.h).
 *
 * Two passes over the same list of buffers: the first adds up sizes, the second gives addresses. Nothing is allocated afterwards. Owns
 * both blocks and the range that is lent to. The layers' buffers are carved anew, from the block or from that range, when what is lent
 * changes. Threads: opened, changed and closed by the control thread while nothing runs.
 */
#include "stages/forward.h"

#include <string.h>

#define BUFFER_ALIGN 256

/* Carves buffers out of the workspace. With base NULL it only adds up. */
struct carver {
    unsigned char *base;
    size_t at;
};

static void *carve(struct carver *c, size_t count, size_t bytes)
{
    void *p = c->base != NULL ? c->base + c->at : NULL;
    c->at += (count * bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
    return p;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What a device has a copy of: first the values of a step, then what changes now and then, then what kernels count. */
static void carve_mirrored(const struct forward *f, struct carver *c, struct forward_in *in,
                           struct forward_out *out)
{
    const struct forward_shape *s = &f->shape;
    const struct model_geometry *g = s->geometry;
    size_t rows = s->n_rows, table = s->n_layers * g->n_experts;
    in->tokens = carve(c, rows, sizeof(int32_t));
    in->positions = carve(c, rows, sizeof(int32_t));
    in->row_sequence = carve(c, rows, sizeof(int32_t));
    in->head_index = carve(c, rows, sizeof(int32_t));
    in->miss = carve(c, 1, sizeof *in->miss);
    in->tables = carve(c, s->n_sequences * s->table_stride, sizeof(int32_t));
    in->addresses = carve(c, table, sizeof(struct expert_address));
    in->inv_freq = carve(c, g->n_rot / 2, sizeof(double));
    out->heat = carve(c, table, sizeof(uint32_t));
    out->hits = carve(c, rows, sizeof(uint32_t));
}

static void carve_in_and_out(struct forward *f, struct carver *c)
{
    const struct forward_shape *s = &f->shape;
    size_t rows = s->n_rows;
    carve_mirrored(f, c, &f->in, &f->out);
    f->in.sample = carve(c, rows, sizeof(struct sample_params));
    f->in.logprobs = carve(c, rows, sizeof(int32_t));
    f->out.ids = carve(c, f->head_rows, sizeof(int32_t));
    f->out.top_ids = carve(c, f->head_rows * FORWARD_TOP_MAX, sizeof(int32_t));
    f->out.top_values = carve(c, f->head_rows * FORWARD_TOP_MAX, sizeof(float));
    if (!s->is_last)
        return;
    f->in.biases =
        carve(c, smaller(rows, s->n_sequences) * FORWARD_BIAS_MAX, sizeof(struct sample_bias));
    f->in.history = carve(c, s->n_sequences * s->table_stride * KV_BLOCK_TOKENS, sizeof(int32_t));
    f->out.norms = carve(c, f->head_rows, sizeof(double));
    f->out.chosen = carve(c, f->head_rows, sizeof(float));
}

/* What is there for life: beside the mirror, what passes from layer to layer, and what the head needs. */
static void carve_fixed(struct forward *f, struct carver *c)
{
    const struct model_geometry *g = f->shape.geometry;
    const struct kernel_set *k = f->kernels;
    size_t rows = f->shape.n_rows;
    if (f->shape.exec->is_device) {
        struct carver inside = {0};
        struct forward_in in;
        struct forward_out out;
        carve_mirrored(f, &inside, &in, &out);
        f->mirror = carve(c, 1, inside.at);
    }
    f->hidden = carve(c, rows * g->d_model, sizeof(float));
    f->angles = carve(c, rows * g->n_rot, sizeof(float));
    if (f->shape.is_last) {
        f->head_hidden = carve(c, f->head_rows * g->d_model, sizeof(float));
        f->logits = carve(c, f->head_rows * g->n_vocab, sizeof(float));
        f->sample_scratch = carve(c, 1, k->sample_scratch_bytes(FORWARD_SAMPLE_ROWS, g->n_vocab));
    }
}

/* What a layer needs for so many rows. */
static void carve_layer(struct forward *f, struct carver *c, size_t rows)
{
    const struct model_geometry *g = f->shape.geometry;
    const struct kernel_set *k = f->kernels;
    size_t heads = (size_t)g->n_heads * g->head_dim, kv_heads = (size_t)g->n_kv_heads * g->head_dim;
    size_t width = larger(g->d_ff, g->d_shared); /* of a feed-forward that is not routed */
    f->normed = carve(c, rows * g->d_model, sizeof(float));
    f->activations = carve(c, rows, k->activation_bytes(larger(larger(g->d_model, heads), width)));
    f->q = carve(c, rows * heads + 2 * kv_heads, sizeof(float)); /* one row's k and v go behind */
    f->k = carve(c, rows * kv_heads, sizeof(float));
    f->v = carve(c, rows * kv_heads, sizeof(float));
    f->attended = carve(c, rows * heads, sizeof(float));
    if (k->attention_scratch_bytes != NULL)
        f->attention_scratch =
            carve(c, 1,
                  k->attention_scratch_bytes(rows, g->n_heads, g->head_dim,
                                             f->shape.table_stride * KV_BLOCK_TOKENS));
    f->gate = carve(c, rows * width, sizeof(float));
    f->up = carve(c, rows * width, sizeof(float));
    if (g->d_shared > 0)
        f->shared_output = carve(c, rows * g->d_model, sizeof(float));
    if (g->n_experts > 0) {
        f->router_logits = carve(c, rows * g->n_experts, sizeof(float));
        f->routed = carve(c, rows * g->n_experts_used, sizeof(int32_t));
        f->here = carve(c, MISS_ROWS_MAX * g->n_experts_used, sizeof(int32_t));
        f->mix = carve(c, rows * g->n_experts_used, sizeof(float));
        f->expert_outputs = carve(c, rows * g->n_experts_used * g->d_model, sizeof(float));
        f->experts_scratch = carve(c, 1,
                                   k->experts_scratch_bytes(rows, g->n_experts_used, g->n_experts,
                                                            g->d_model, g->d_expert));
    }
}

/* What a layer's buffers take for so many rows. */
static size_t layer_bytes(const struct forward *f, size_t rows)
{
    struct forward scratch = *f;
    struct carver sum = {0};
    carve_layer(&scratch, &sum, rows);
    return sum.at;
}

int forward_open(struct forward *f, struct vmm_driver *driver, const struct kernel_set *kernels,
                 const struct forward_shape *shape, struct error *err)
{
    memset(f, 0, sizeof *f);
    f->shape = *shape;
    f->kernels = kernels;
    if (shape->rows_base == 0 || shape->rows_base > shape->n_rows)
        f->shape.rows_base = shape->n_rows;
    f->rows = f->shape.rows_base;
    f->head_rows = f->rows < FORWARD_HEAD_ROWS ? f->rows : FORWARD_HEAD_ROWS;
    struct carver shared = {0}, memory = {0};
    carve_in_and_out(f, &shared);
    carve_fixed(f, &memory);
    f->base_at = memory.at;
    carve_layer(f, &memory, f->rows);
    int rc = shape->exec->shared_alloc(shape->card, shared.at, &f->shared, err);
    f->shared_bytes = shared.at;
    if (rc == 0)
        rc = fixed_block_open(&f->memory, driver, memory.at, err);
    if (rc != 0) {
        forward_close(f);
        return rc;
    }
    shared = (struct carver){.base = f->shared};
    memory = (struct carver){.base = f->memory.base};
    carve_in_and_out(f, &shared);
    carve_fixed(f, &memory);
    carve_layer(f, &memory, f->rows);
    f->card_in = f->in;
    f->card_out = f->out;
    if (f->mirror != NULL)
        carve_mirrored(f, &(struct carver){.base = f->mirror}, &f->card_in, &f->card_out);
    memcpy(f->in.inv_freq, shape->geometry->inv_freq, shape->geometry->n_rot / 2 * sizeof(double));
    return 0;
}

int forward_send(struct forward *f, bool tables, bool addresses, struct exec_stream *s)
{
    if (f->mirror == NULL)
        return 0;
    const unsigned char *from = f->shared; /* neighbours, in this order: see carve_mirrored() */
    const void *end = f->in.tables;
    if (tables)
        end = f->in.addresses;
    if (addresses)
        end = f->in.inv_freq;
    if (!f->mirrored)
        end = f->out.hits + f->shape.n_rows;
    int rc = f->shape.exec->copy(s, f->mirror, from, (size_t)((const unsigned char *)end - from));
    f->mirrored = f->mirrored || rc == 0;
    return rc;
}

int forward_receive(struct forward *f, struct exec_stream *s)
{
    if (f->mirror == NULL)
        return 0;
    const struct exec_driver *exec = f->shape.exec;
    size_t table = f->shape.n_layers * f->shape.geometry->n_experts * sizeof(uint32_t);
    int rc = exec->copy(s, f->out.heat, f->card_out.heat, table);
    if (rc == 0)
        rc = exec->fill(s, f->card_out.heat, 0, table);
    if (rc == 0)
        rc = exec->copy(s, f->out.hits, f->card_out.hits, f->shape.n_rows * sizeof(uint32_t));
    return rc;
}

size_t forward_lendable_bytes(const struct forward *f)
{
    return f->shape.n_rows > f->shape.rows_base ? layer_bytes(f, f->shape.n_rows) : 0;
}

int forward_lend_open(struct forward *f, struct pool *pool, struct error *err)
{
    size_t bytes = forward_lendable_bytes(f);
    if (bytes == 0)
        return 0;
    return region_open(&f->lent, pool, (bytes + pool->segment_bytes - 1) / pool->segment_bytes,
                       err);
}

void forward_lend_close(struct forward *f)
{
    region_close(&f->lent);
}

size_t forward_segments_for(const struct forward *f, size_t rows)
{
    if (f->lent.pool == NULL || rows <= f->shape.rows_base)
        return 0;
    size_t segment = f->lent.pool->segment_bytes;
    return (layer_bytes(f, smaller(rows, f->shape.n_rows)) + segment - 1) / segment;
}

size_t forward_rows_within(const struct forward *f, size_t n_segments)
{
    size_t rows = f->shape.rows_base;
    while (f->lent.pool != NULL && rows < f->shape.n_rows) {
        size_t more = smaller(rows * 2, f->shape.n_rows);
        if (forward_segments_for(f, more) > n_segments)
            break;
        rows = more;
    }
    return rows;
}

int forward_back(struct forward *f, size_t n_segments, struct error *err)
{
    struct region *r = &f->lent;
    int rc = 0;
    while (rc == 0 && r->n_backed < n_segments)
        rc = region_back(r, r->n_backed, err);
    while (rc == 0 && r->n_backed > n_segments)
        rc = region_unback(r, r->n_backed - 1, err);
    f->rows = forward_rows_within(f, r->n_backed);
    bool is_base = f->rows == f->shape.rows_base;
    struct carver at = {.base = is_base ? (unsigned char *)f->memory.base + f->base_at : r->base};
    carve_layer(f, &at, f->rows);
    return rc;
}

void forward_close(struct forward *f)
{
    fixed_block_close(&f->memory);
    if (f->shared != NULL)
        f->shape.exec->shared_free(f->shape.card, f->shared);
    memset(f, 0, sizeof *f);
}
