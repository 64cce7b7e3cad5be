/* stages/forward.c - the launches of a pre-norm transformer layer, of the head and of sampling (see forward.h).
 *
 * A layer: hidden += o(attention(rope(q), rope(k), v)) of the normed rows; then hidden += the feed-forward of the normed rows, which is
 * dense, or routed experts with or without a shared one. What a model lacks (biases, norms of q and k, a shared expert) has no weight
 * and is passed over. More rows than the layers' buffers hold go through a layer piece after piece: rows are their own, but for the keys
 * and values of earlier ones, which earlier pieces have stored. Owns nothing; launches on the stream it is given, in order, until one fails.
 * Threads: the control thread.
 */
#include "stages/forward.h"

/* Launches of one call: the first failure is kept, what follows it does nothing. */
struct pass {
    struct forward *f;
    const struct kernel_set *k;
    const struct model_geometry *g;
    size_t n_rows, first;   /* first: in the step */
    float *hidden, *angles; /* of these rows */
    struct exec_stream *s;
    int rc;
};

#define LAUNCH_ARGS(p, op, args)                                                                   \
    do {                                                                                           \
        if ((p)->rc == 0) {                                                                        \
            (p)->rc = (p)->k->op(args, (p)->s);                                                    \
            (p)->f->refused = (p)->rc != 0 ? #op : (p)->f->refused;                                \
        }                                                                                          \
    } while (0)
#define LAUNCH(p, op, ...) LAUNCH_ARGS(p, op, (&(struct op##_args){__VA_ARGS__}))

static struct pass pass_begin(struct forward *f, size_t n_rows, struct exec_stream *s)
{
    return (struct pass){.f = f,
                         .k = f->kernels,
                         .g = f->shape.geometry,
                         .n_rows = n_rows,
                         .hidden = f->hidden,
                         .angles = f->angles,
                         .s = s};
}

/* Rows [first, first + n) of the step. */
static struct pass pass_of(struct forward *f, size_t first, size_t n, struct exec_stream *s)
{
    struct pass p = pass_begin(f, n, s);
    p.first = first;
    p.hidden += first * p.g->d_model;
    p.angles += first * p.g->n_rot;
    return p;
}

static bool is_quantised(const struct weight *w)
{
    const struct tensor_type_info *type = tensor_type_find(w->type);
    return w->data != NULL && type != NULL && type->block_values > 1;
}

static void norm(struct pass *p, const float *x, const struct weight *weight, size_t n, float *y)
{
    LAUNCH(p, rmsnorm, .x = x, .weight = weight->data, .y = y, .n_rows = p->n_rows, .n = n,
           .eps = p->g->rms_eps);
}

/* x quantised, for the products with `wanted` if any of them reads it so. */
static void quantize(struct pass *p, const float *x, size_t n, bool wanted)
{
    if (wanted)
        LAUNCH(p, quantize, .x = x, .a = p->f->activations, .n_rows = p->n_rows, .n = n);
}

struct shape {
    size_t n_in, n_out;
};

/* y (+)= weight x + bias; x is in f->activations too where the weight is quantised. */
static void product(struct pass *p, const struct weight *weight, const struct weight *bias,
                    const float *x, struct shape shape, float *y, bool accumulate)
{
    LAUNCH(p, product, .type = weight->type, .weights = weight->data, .n_in = shape.n_in,
           .n_out = shape.n_out, .n_rows = p->n_rows, .x = x, .a = p->f->activations,
           .bias = bias != NULL ? bias->data : NULL, .y = y, .accumulate = accumulate);
}

/* Launches a fused operation. False: the set has none, or not for this shape, and nothing was launched. */
#define FUSED(p, op, ...)                                                                          \
    ((p)->rc == 0 && (p)->k->op != NULL &&                                                         \
     fused_done(p, (p)->k->op(&(struct op##_args){__VA_ARGS__}, (p)->s), #op))

static bool fused_done(struct pass *p, int rc, const char *op)
{
    if (rc == EBB_EUNSUPPORTED)
        return false;
    p->rc = rc;
    p->f->refused = rc != 0 ? op : p->f->refused;
    return true;
}

/* normed = norm of hidden, also quantised where a product wants it so. */
static void norm_quantize(struct pass *p, const struct weight *weight, bool wanted)
{
    struct forward *f = p->f;
    size_t n = p->g->d_model;
    struct rmsnorm_args args = {.x = p->hidden,
                                .weight = weight->data,
                                .y = f->normed,
                                .n_rows = p->n_rows,
                                .n = n,
                                .eps = p->g->rms_eps};
    if (wanted && FUSED(p, rmsnorm_quantize, .norm = args, .a = f->activations))
        return;
    norm(p, p->hidden, weight, n, f->normed);
    quantize(p, f->normed, n, wanted);
}

/* How the heads of q or k are normed, if the model does that, and rotated. */
static struct head_rope_args rotation(const struct pass *p, float *x, size_t n_heads,
                                      const struct weight *weight)
{
    const struct model_geometry *g = p->g;
    return (struct head_rope_args){.x = x,
                                   .n_rows = p->n_rows,
                                   .n_heads = n_heads,
                                   .head_dim = g->head_dim,
                                   .n_half = g->n_rot / 2,
                                   .norm_weight = g->qk_norm_whole ? NULL : weight->data,
                                   .eps = g->rms_eps,
                                   .angles = p->angles,
                                   .halves = g->rope_halves};
}

/* What the heads of all rows have: [n_rows][n_heads][head_dim], k and v [n_rows][n_kv_heads][head_dim]. */
struct heads {
    float *q, *k, *v;
};

/* Two matrices behind one another, of one type and without biases: for one row their products are one. */
static bool are_one(const struct weight *a, const struct weight *a_bias, const struct weight *b,
                    const struct weight *b_bias, struct shape of_a)
{
    size_t bytes = of_a.n_out * tensor_row_bytes(a->type, of_a.n_in);
    return a->type == b->type && a_bias->data == NULL && b_bias->data == NULL &&
           (const unsigned char *)a->data + bytes == (const unsigned char *)b->data;
}

static struct heads heads_make(struct pass *p, const struct layer_weights *w)
{
    struct forward *f = p->f;
    const struct model_geometry *g = p->g;
    struct shape q = {g->d_model, (size_t)g->n_heads * g->head_dim};
    struct shape kv = {g->d_model, (size_t)g->n_kv_heads * g->head_dim};
    struct heads h = {f->q, f->k, f->v};
    bool with_k = false, with_v = false;
    if (p->n_rows == 1) { /* a row's q, k and v then lie behind one another, too */
        h.k = h.q + q.n_out;
        h.v = h.k + kv.n_out;
        with_k = are_one(&w->q, &w->q_bias, &w->k, &w->k_bias, q);
        with_v = with_k && are_one(&w->k, &w->k_bias, &w->v, &w->v_bias, kv);
    }
    q.n_out += (with_k ? kv.n_out : 0) + (with_v ? kv.n_out : 0);
    product(p, &w->q, &w->q_bias, f->normed, q, h.q, false);
    if (!with_k)
        product(p, &w->k, &w->k_bias, f->normed, kv, h.k, false);
    if (!with_v)
        product(p, &w->v, &w->v_bias, f->normed, kv, h.v, false);
    return h;
}

/* q and k normed and rotated, k and v stored. */
static void heads_store(struct pass *p, const struct layer_weights *w, const struct heads *h,
                        const struct kv_view *view)
{
    const struct model_geometry *g = p->g;
    if (g->qk_norm_whole && w->q_norm.data != NULL)
        norm(p, h->q, &w->q_norm, (size_t)g->n_heads * g->head_dim, h->q);
    if (g->qk_norm_whole && w->k_norm.data != NULL)
        norm(p, h->k, &w->k_norm, (size_t)g->n_kv_heads * g->head_dim, h->k);
    struct head_rope_args q = rotation(p, h->q, g->n_heads, &w->q_norm);
    struct head_rope_args k = rotation(p, h->k, g->n_kv_heads, &w->k_norm);
    struct kv_store_args store = {.kv = *view, .k = h->k, .v = h->v, .n_rows = p->n_rows};
    if (FUSED(p, heads_store, .q = q, .k = k, .store = store))
        return;
    LAUNCH_ARGS(p, head_rope, &q);
    LAUNCH_ARGS(p, head_rope, &k);
    LAUNCH_ARGS(p, kv_store, &store);
}

static void attention(struct pass *p, const struct layer_weights *w, const struct kv_view *view)
{
    struct forward *f = p->f;
    const struct model_geometry *g = p->g;
    size_t heads = (size_t)g->n_heads * g->head_dim;
    norm_quantize(p, &w->attn_norm,
                  is_quantised(&w->q) || is_quantised(&w->k) || is_quantised(&w->v));
    struct heads h = heads_make(p, w);
    heads_store(p, w, &h, view);
    struct attention_args args = {.kv = *view,
                                  .q = h.q,
                                  .out = f->attended,
                                  .n_rows = p->n_rows,
                                  .n_heads = g->n_heads,
                                  .scale = g->attention_scale,
                                  .n_positions = f->shape.table_stride * KV_BLOCK_TOKENS,
                                  .scratch = f->attention_scratch};
    if (!is_quantised(&w->o) ||
        !FUSED(p, attention_quantize, .attention = args, .a = f->activations)) {
        LAUNCH_ARGS(p, attention, &args);
        quantize(p, f->attended, heads, is_quantised(&w->o));
    }
    product(p, &w->o, &w->o_bias, f->attended, (struct shape){heads, g->d_model}, p->hidden, true);
}

/* y (+)= down(silu(gate x) * up x), x = the normed rows, also in f->activations. */
static void feed_forward(struct pass *p, const struct weight *gate, const struct weight *up,
                         const struct weight *down, size_t width, float *y, bool accumulate)
{
    struct forward *f = p->f;
    struct shape in = {p->g->d_model, width}, out = {width, p->g->d_model};
    product(p, gate, NULL, f->normed, in, f->gate, false);
    product(p, up, NULL, f->normed, in, f->up, false);
    LAUNCH(p, swiglu, .gate = f->gate, .up = f->up, .y = f->gate, .n_rows = p->n_rows, .n = width);
    quantize(p, f->gate, width, is_quantised(down));
    product(p, down, NULL, f->gate, out, y, accumulate);
}

#define MISS_LAUNCH(p, op, ...)                                                                    \
    do {                                                                                           \
        if ((p)->rc == 0) {                                                                        \
            (p)->rc =                                                                              \
                (p)->f->misses->set.ops->op(&(struct miss_##op##_args){__VA_ARGS__}, (p)->s);      \
            (p)->f->refused = (p)->rc != 0 ? "miss_" #op : (p)->f->refused;                        \
        }                                                                                          \
    } while (0)

/* Has the host compute some of the experts that are not on the card; the ids of the others, or NULL where it computes none. */
static const int32_t *misses_ask(struct pass *p, size_t layer)
{
    struct forward *f = p->f;
    const struct model_geometry *g = p->g;
    const struct misses *x = f->misses;
    uint32_t index, tag;
    if (x == NULL || !misses_ask_of(x, layer, p->n_rows, &index, &tag))
        return NULL;
    MISS_LAUNCH(p, ask, .addresses = f->card_in.addresses + layer * g->n_experts, .ids = f->routed,
                .d_model = g->d_model, .n_experts = g->n_experts, .n_used = g->n_experts_used,
                .n_rows = p->n_rows, .x = f->normed, .control = f->card_in.miss, .index = index,
                .tag = tag, .heat = f->card_out.heat + layer * g->n_experts, .here = f->here,
                .request = x->request, .away = x->away, .away_x = x->away_x);
    return f->here;
}

/* Waits for the host's answer, on the card, and puts its rows beside the others. */
static void misses_take(struct pass *p)
{
    struct forward *f = p->f;
    const struct model_geometry *g = p->g;
    if (p->rc == 0)
        p->rc = f->misses->set.ops->wait(&f->misses->request->answered, 1, p->s);
    MISS_LAUNCH(p, take, .ids = f->routed, .here = f->here, .d_model = g->d_model,
                .n_used = g->n_experts_used, .n_rows = p->n_rows, .rows = f->misses->rows,
                .outputs = f->expert_outputs);
}

static void routed_experts(struct pass *p, const struct layer_weights *w,
                           const struct model_layer *m, size_t layer)
{
    struct forward *f = p->f;
    const struct model_geometry *g = p->g;
    LAUNCH(p, router, .type = w->router.type, .weights = w->router.data, .x = f->normed,
           .n_in = g->d_model, .n_experts = g->n_experts, .n_used = g->n_experts_used,
           .n_rows = p->n_rows, .renormalise = g->router_renormalise, .scale = g->router_scale,
           .logits = f->router_logits, .ids = f->routed, .mix = f->mix,
           .positions = f->card_in.positions + p->first);
    const int32_t *here = misses_ask(p, layer);
    LAUNCH(p, experts, .gate_type = m->gate_exps.type, .up_type = m->up_exps.type,
           .down_type = m->down_exps.type, .addresses = f->card_in.addresses + layer * g->n_experts,
           .d_model = g->d_model, .d_expert = g->d_expert, .n_experts = g->n_experts,
           .n_used = g->n_experts_used, .n_rows = p->n_rows, .x = f->normed, .a = f->activations,
           .ids = here != NULL ? here : f->routed, .scratch = f->experts_scratch,
           .outputs = f->expert_outputs, .heat = f->card_out.heat + layer * g->n_experts,
           .hits = f->card_out.hits + p->first);
    if (here != NULL)
        misses_take(p);
    LAUNCH(p, combine, .outputs = f->expert_outputs, .mix = f->mix, .ids = f->routed,
           .d_model = g->d_model, .n_used = g->n_experts_used, .n_rows = p->n_rows,
           .hidden = p->hidden);
    if (w->gate_shared.data == NULL)
        return;
    feed_forward(p, &w->gate_shared, &w->up_shared, &w->down_shared, g->d_shared, f->shared_output,
                 false);
    LAUNCH(p, shared_add, .gate = w->shared_router.data, .x = f->normed, .y = f->shared_output,
           .n_rows = p->n_rows, .n = g->d_model, .hidden = p->hidden);
}

int forward_begin(struct forward *f, const struct weights *w, size_t n_rows, bool embed,
                  struct exec_stream *s)
{
    struct pass p = pass_begin(f, n_rows, s);
    p.rc = f->shape.exec->fill(s, f->card_out.hits, 0, n_rows * sizeof *f->card_out.hits);
    LAUNCH(&p, rope_angles, .positions = f->card_in.positions, .inv_freq = f->card_in.inv_freq,
           .n_rows = n_rows, .n_half = p.g->n_rot / 2, .scale = p.g->rope_scale,
           .angles = f->angles);
    if (embed)
        LAUNCH(&p, embed, .type = w->token_embd.type, .table = w->token_embd.data,
               .n_vocab = p.g->n_vocab, .d_model = p.g->d_model, .n_rows = n_rows,
               .tokens = f->card_in.tokens, .hidden = f->hidden);
    return p.rc;
}

/* A layer for the rows of one pass. */
static int layer_pass(struct pass *p, const struct weights *w, const struct kv *kv,
                      const struct model_layer *m, size_t layer)
{
    const struct forward_in *in = &p->f->card_in;
    const struct layer_weights *l = &w->layers[layer];
    struct kv_view view =
        kv_layer(kv, layer, in->tables, in->row_sequence + p->first, in->positions + p->first);
    attention(p, l, &view);
    bool routed = l->router.data != NULL;
    const struct weight *gate =
        routed ? &(struct weight){m->gate_exps.type, m->gate_exps.data} : &l->gate;
    const struct weight *up = routed ? &(struct weight){m->up_exps.type, m->up_exps.data} : &l->up;
    norm_quantize(p, &l->ffn_norm,
                  is_quantised(gate) || is_quantised(up) || is_quantised(&l->gate_shared) ||
                      is_quantised(&l->up_shared));
    if (routed)
        routed_experts(p, l, m, layer);
    else
        feed_forward(p, &l->gate, &l->up, &l->down, p->g->d_ff, p->hidden, true);
    return p->rc;
}

int forward_layer(struct forward *f, const struct weights *w, const struct kv *kv,
                  const struct model_layer *m, size_t layer, size_t n_rows, struct exec_stream *s)
{
    int rc = 0;
    for (size_t first = 0; rc == 0 && first < n_rows; first += f->rows) {
        size_t n = n_rows - first < f->rows ? n_rows - first : f->rows;
        struct pass p = pass_of(f, first, n, s);
        rc = layer_pass(&p, w, kv, m, layer);
    }
    return rc;
}

/* The normaliser and the k largest logits of row r of a pass; sampling left the logits as they were. */
static void logprobs(struct pass *p, size_t r, size_t k)
{
    struct forward *f = p->f;
    size_t n_vocab = p->g->n_vocab;
    LAUNCH(p, logprob, .logits = f->logits + r * n_vocab, .n_rows = 1, .n_vocab = n_vocab,
           .ids = f->card_out.ids + r, .norms = f->card_out.norms + r,
           .chosen = f->card_out.chosen + r);
    if (k > 0)
        LAUNCH(p, top, .logits = f->logits + r * n_vocab, .n_rows = 1, .n_vocab = n_vocab, .k = k,
               .ids = f->card_out.top_ids + r * FORWARD_TOP_MAX,
               .values = f->card_out.top_values + r * FORWARD_TOP_MAX);
}

int forward_head(struct forward *f, const struct weights *w, size_t first, size_t n, size_t n_top,
                 struct exec_stream *s)
{
    struct pass p = pass_begin(f, n, s);
    size_t n_vocab = p.g->n_vocab;
    LAUNCH(&p, gather, .x = f->hidden, .index = f->card_in.head_index + first, .y = f->head_hidden,
           .n_rows = n, .n = p.g->d_model);
    norm(&p, f->head_hidden, &w->output_norm, p.g->d_model, f->head_hidden);
    quantize(&p, f->head_hidden, p.g->d_model, is_quantised(&w->output));
    product(&p, &w->output, NULL, f->head_hidden, (struct shape){p.g->d_model, n_vocab}, f->logits,
            false);
    if (n_top > 0) {
        LAUNCH(&p, top, .logits = f->logits, .n_rows = n, .n_vocab = n_vocab, .k = n_top,
               .ids = f->card_out.top_ids, .values = f->card_out.top_values);
        return p.rc;
    }
    for (size_t r = 0; r < n; r += FORWARD_SAMPLE_ROWS)
        LAUNCH(
            &p, sample, .logits = f->logits + r * n_vocab,
            .n_rows = n - r < FORWARD_SAMPLE_ROWS ? n - r : FORWARD_SAMPLE_ROWS, .n_vocab = n_vocab,
            .params = f->card_in.sample + first + r, .scratch = f->sample_scratch,
            .ids = f->card_out.ids + r, .history = f->card_in.history,
            .history_stride = f->shape.table_stride * KV_BLOCK_TOKENS, .biases = f->card_in.biases);
    for (size_t r = 0; r < n; r++)
        if (f->in.logprobs[first + r] >= 0)
            logprobs(&p, r, (size_t)f->in.logprobs[first + r]);
    return p.rc;
}
