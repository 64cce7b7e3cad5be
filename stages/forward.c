/* stages/forward.c - the workspace and the launches of a pre-norm transformer layer with routed experts (see forward.h).
 *
 * A layer: hidden += o(attention(rope(norm(q)), rope(norm(k)), v)) of the normed rows, then hidden += the routed experts of the normed
 * rows. Owns the workspace block only; weights, KV and model are borrowed per call. Threads: the control thread launches.
 */
#include "stages/forward.h"

#include <math.h>
#include <stdlib.h>
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

static void carve_in_and_out(struct forward *f, struct carver *c)
{
    const struct forward_shape *s = &f->shape;
    const struct model_geometry *g = s->geometry;
    size_t rows = s->n_rows, table = s->n_layers * g->n_experts;
    f->in.tokens = carve(c, rows, sizeof(int32_t));
    f->in.positions = carve(c, rows, sizeof(int32_t));
    f->in.row_sequence = carve(c, rows, sizeof(int32_t));
    f->in.tables = carve(c, s->n_sequences * s->table_stride, sizeof(int32_t));
    f->in.head_index = carve(c, rows, sizeof(int32_t));
    f->in.sample = carve(c, rows, sizeof(struct sample_params));
    f->in.addresses = carve(c, table, sizeof(struct expert_address));
    f->in.inv_freq = carve(c, g->n_rot / 2, sizeof(double));
    f->out.heat = carve(c, table, sizeof(uint32_t));
    f->out.hits = carve(c, rows, sizeof(uint32_t));
    f->out.ids = carve(c, f->head_rows, sizeof(int32_t));
    f->out.top_ids = carve(c, f->head_rows * FORWARD_TOP_MAX, sizeof(int32_t));
    f->out.top_values = carve(c, f->head_rows * FORWARD_TOP_MAX, sizeof(float));
}

static void carve_activations(struct forward *f, struct carver *c)
{
    const struct model_geometry *g = f->shape.geometry;
    const struct kernel_set *k = f->kernels;
    size_t rows = f->shape.n_rows, heads = (size_t)g->n_heads * g->head_dim,
           kv_heads = (size_t)g->n_kv_heads * g->head_dim;
    f->hidden = carve(c, rows * g->d_model, sizeof(float));
    f->normed = carve(c, rows * g->d_model, sizeof(float));
    f->activations = carve(c, rows, k->activation_bytes(larger(g->d_model, heads)));
    f->q = carve(c, rows * heads, sizeof(float));
    f->k = carve(c, rows * kv_heads, sizeof(float));
    f->v = carve(c, rows * kv_heads, sizeof(float));
    f->attended = carve(c, rows * heads, sizeof(float));
    f->angles = carve(c, rows * g->n_rot, sizeof(float));
    if (g->n_experts > 0) {
        f->router_logits = carve(c, rows * g->n_experts, sizeof(float));
        f->routed = carve(c, rows * g->n_experts_used, sizeof(int32_t));
        f->mix = carve(c, rows * g->n_experts_used, sizeof(float));
        f->expert_outputs = carve(c, rows * g->n_experts_used * g->d_model, sizeof(float));
        f->experts_scratch = carve(c, 1,
                                   k->experts_scratch_bytes(rows, g->n_experts_used, g->n_experts,
                                                            g->d_model, g->d_expert));
    }
    if (f->shape.is_last) {
        f->head_hidden = carve(c, f->head_rows * g->d_model, sizeof(float));
        f->logits = carve(c, f->head_rows * g->n_vocab, sizeof(float));
        f->sample_scratch = carve(c, 1, k->sample_scratch_bytes(FORWARD_SAMPLE_ROWS, g->n_vocab));
    }
}

static void rope_frequencies(const struct model_geometry *g, double *inv_freq)
{
    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        inv_freq[i] = pow(g->rope_base, -2.0 * i / g->n_rot);
}

int forward_open(struct forward *f, struct vmm_driver *driver, const struct kernel_set *kernels,
                 const struct forward_shape *shape, struct error *err)
{
    memset(f, 0, sizeof *f);
    f->shape = *shape;
    f->kernels = kernels;
    f->head_rows = shape->n_rows < FORWARD_HEAD_ROWS ? shape->n_rows : FORWARD_HEAD_ROWS;
    struct carver shared = {0}, memory = {0};
    carve_in_and_out(f, &shared);
    carve_activations(f, &memory);
    int rc = shape->exec->shared_alloc(shape->card, shared.at, &f->shared, err);
    if (rc == 0)
        rc = fixed_block_open(&f->memory, driver, memory.at, err);
    if (rc != 0) {
        forward_close(f);
        return rc;
    }
    shared = (struct carver){.base = f->shared};
    memory = (struct carver){.base = f->memory.base};
    carve_in_and_out(f, &shared);
    carve_activations(f, &memory);
    rope_frequencies(shape->geometry, f->in.inv_freq);
    return 0;
}

void forward_close(struct forward *f)
{
    fixed_block_close(&f->memory);
    if (f->shared != NULL)
        f->shape.exec->shared_free(f->shape.card, f->shared);
    memset(f, 0, sizeof *f);
}

int forward_begin(struct forward *f, const struct weights *w, size_t n_rows, bool embed,
                  struct exec_stream *s)
{
    const struct model_geometry *g = f->shape.geometry;
    int rc = f->shape.exec->fill(s, f->out.hits, 0, n_rows * sizeof *f->out.hits);
    if (rc == 0)
        rc = f->kernels->rope_angles(&(struct rope_angles_args){.positions = f->in.positions,
                                                                .inv_freq = f->in.inv_freq,
                                                                .n_rows = n_rows,
                                                                .n_half = g->n_rot / 2,
                                                                .scale = 1.0f,
                                                                .angles = f->angles},
                                     s);
    if (rc == 0 && embed)
        rc = f->kernels->embed(&(struct embed_args){.type = w->token_embd.type,
                                                    .table = w->token_embd.data,
                                                    .n_vocab = g->n_vocab,
                                                    .d_model = g->d_model,
                                                    .n_rows = n_rows,
                                                    .tokens = f->in.tokens,
                                                    .hidden = f->hidden},
                               s);
    return rc;
}

static int norm(struct forward *f, const float *x, const struct weight *weight, float *y,
                size_t n_rows, struct exec_stream *s)
{
    const struct model_geometry *g = f->shape.geometry;
    return f->kernels->rmsnorm(&(struct rmsnorm_args){.x = x,
                                                      .weight = weight->data,
                                                      .y = y,
                                                      .n_rows = n_rows,
                                                      .n = g->d_model,
                                                      .eps = g->rms_eps},
                               s);
}

static int quantize(struct forward *f, const float *x, size_t n, size_t n_rows,
                    struct exec_stream *s)
{
    return f->kernels->quantize(
        &(struct quantize_args){.x = x, .a = f->activations, .n_rows = n_rows, .n = n}, s);
}

/* y (+)= weight x; x is also in f->activations, quantised. */
static int product(struct forward *f, const struct weight *weight, const float *x, size_t n_in,
                   size_t n_out, float *y, bool accumulate, size_t n_rows, struct exec_stream *s)
{
    return f->kernels->product(&(struct product_args){.type = weight->type,
                                                      .weights = weight->data,
                                                      .n_in = n_in,
                                                      .n_out = n_out,
                                                      .n_rows = n_rows,
                                                      .x = x,
                                                      .a = f->activations,
                                                      .y = y,
                                                      .accumulate = accumulate},
                               s);
}

static int head_rope(struct forward *f, float *x, size_t n_heads, const struct weight *weight,
                     size_t n_rows, struct exec_stream *s)
{
    const struct model_geometry *g = f->shape.geometry;
    return f->kernels->head_rope(&(struct head_rope_args){.x = x,
                                                          .n_rows = n_rows,
                                                          .n_heads = n_heads,
                                                          .head_dim = g->head_dim,
                                                          .n_half = g->n_rot / 2,
                                                          .norm_weight = weight->data,
                                                          .eps = g->rms_eps,
                                                          .angles = f->angles,
                                                          .halves = g->rope_halves},
                                 s);
}

static int attention(struct forward *f, const struct layer_weights *w, const struct kv *kv,
                     size_t layer, size_t n_rows, struct exec_stream *s)
{
    const struct model_geometry *g = f->shape.geometry;
    size_t heads = (size_t)g->n_heads * g->head_dim, kv_heads = (size_t)g->n_kv_heads * g->head_dim;
    struct kv_view view = kv_layer(kv, layer, f->in.row_sequence, f->in.positions);
    int rc = norm(f, f->hidden, &w->attn_norm, f->normed, n_rows, s);
    if (rc == 0)
        rc = quantize(f, f->normed, g->d_model, n_rows, s);
    if (rc == 0)
        rc = product(f, &w->q, f->normed, g->d_model, heads, f->q, false, n_rows, s);
    if (rc == 0)
        rc = product(f, &w->k, f->normed, g->d_model, kv_heads, f->k, false, n_rows, s);
    if (rc == 0)
        rc = product(f, &w->v, f->normed, g->d_model, kv_heads, f->v, false, n_rows, s);
    if (rc == 0)
        rc = head_rope(f, f->q, g->n_heads, &w->q_norm, n_rows, s);
    if (rc == 0)
        rc = head_rope(f, f->k, g->n_kv_heads, &w->k_norm, n_rows, s);
    if (rc == 0)
        rc = f->kernels->kv_store(
            &(struct kv_store_args){.kv = view, .k = f->k, .v = f->v, .n_rows = n_rows}, s);
    if (rc == 0)
        rc = f->kernels->attention(
            &(struct attention_args){.kv = view,
                                     .q = f->q,
                                     .out = f->attended,
                                     .n_rows = n_rows,
                                     .n_heads = g->n_heads,
                                     .scale = 1.0f / sqrtf((float)g->head_dim)},
            s);
    if (rc == 0)
        rc = quantize(f, f->attended, heads, n_rows, s);
    if (rc == 0)
        rc = product(f, &w->o, f->attended, heads, g->d_model, f->hidden, true, n_rows, s);
    return rc;
}

static int routed_experts(struct forward *f, const struct layer_weights *w,
                          const struct model_layer *m, size_t layer, size_t n_rows,
                          struct exec_stream *s)
{
    const struct model_geometry *g = f->shape.geometry;
    struct router_args router = {.type = w->router.type,
                                 .weights = w->router.data,
                                 .x = f->normed,
                                 .n_in = g->d_model,
                                 .n_experts = g->n_experts,
                                 .n_used = g->n_experts_used,
                                 .n_rows = n_rows,
                                 .renormalise = g->router_renormalise,
                                 .scale = g->router_scale,
                                 .logits = f->router_logits,
                                 .ids = f->routed,
                                 .mix = f->mix,
                                 .positions = f->in.positions};
    struct experts_args experts = {.gate_type = m->gate_exps.type,
                                   .up_type = m->up_exps.type,
                                   .down_type = m->down_exps.type,
                                   .addresses = f->in.addresses + layer * g->n_experts,
                                   .d_model = g->d_model,
                                   .d_expert = g->d_expert,
                                   .n_experts = g->n_experts,
                                   .n_used = g->n_experts_used,
                                   .n_rows = n_rows,
                                   .x = f->normed,
                                   .a = f->activations,
                                   .ids = f->routed,
                                   .scratch = f->experts_scratch,
                                   .outputs = f->expert_outputs,
                                   .heat = f->out.heat + layer * g->n_experts,
                                   .hits = f->out.hits};
    struct combine_args combine = {.outputs = f->expert_outputs,
                                   .mix = f->mix,
                                   .ids = f->routed,
                                   .d_model = g->d_model,
                                   .n_used = g->n_experts_used,
                                   .n_rows = n_rows,
                                   .hidden = f->hidden};
    int rc = norm(f, f->hidden, &w->ffn_norm, f->normed, n_rows, s);
    if (rc == 0)
        rc = quantize(f, f->normed, g->d_model, n_rows, s);
    if (rc == 0)
        rc = f->kernels->router(&router, s);
    if (rc == 0)
        rc = f->kernels->experts(&experts, s);
    if (rc == 0)
        rc = f->kernels->combine(&combine, s);
    return rc;
}

int forward_layer(struct forward *f, const struct weights *w, const struct kv *kv,
                  const struct model_layer *m, size_t layer, size_t n_rows, struct exec_stream *s)
{
    int rc = attention(f, &w->layers[layer], kv, layer, n_rows, s);
    return rc != 0 ? rc : routed_experts(f, &w->layers[layer], m, layer, n_rows, s);
}

int forward_head(struct forward *f, const struct weights *w, size_t first, size_t n, size_t n_top,
                 struct exec_stream *s)
{
    const struct model_geometry *g = f->shape.geometry;
    int rc = f->kernels->gather(&(struct gather_args){.x = f->hidden,
                                                      .index = f->in.head_index + first,
                                                      .y = f->head_hidden,
                                                      .n_rows = n,
                                                      .n = g->d_model},
                                s);
    if (rc == 0)
        rc = norm(f, f->head_hidden, &w->output_norm, f->head_hidden, n, s);
    if (rc == 0)
        rc = quantize(f, f->head_hidden, g->d_model, n, s);
    if (rc == 0)
        rc = product(f, &w->output, f->head_hidden, g->d_model, g->n_vocab, f->logits, false, n, s);
    if (rc != 0)
        return rc;
    if (n_top > 0)
        return f->kernels->top(&(struct top_args){.logits = f->logits,
                                                  .n_rows = n,
                                                  .n_vocab = g->n_vocab,
                                                  .k = n_top,
                                                  .ids = f->out.top_ids,
                                                  .values = f->out.top_values},
                               s);
    for (size_t r = 0; rc == 0 && r < n; r += FORWARD_SAMPLE_ROWS)
        rc = f->kernels->sample(&(struct sample_args){.logits = f->logits + r * g->n_vocab,
                                                      .n_rows = n - r < FORWARD_SAMPLE_ROWS
                                                                    ? n - r
                                                                    : FORWARD_SAMPLE_ROWS,
                                                      .n_vocab = g->n_vocab,
                                                      .params = f->in.sample + first + r,
                                                      .scratch = f->sample_scratch,
                                                      .ids = f->out.ids + r},
                                s);
    return rc;
}
