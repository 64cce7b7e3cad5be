/* runtime/model/geometry.c - the numbers of a model, from its metadata keys.
 *
 * Owns nothing. Every number is checked against a range before it is used to size or index
 * anything; a key that means something the forward pass here would compute differently (a window,
 * a cap on scores, another router function) is refused by name, never ignored: see `neutral`. The
 * limits are those of the kernels' contract (kernels/kernels.h), which this room may not include.
 */
#include <math.h>
#include <string.h>
#include "runtime/model/keys.h"

enum {
    LAYERS_MAX = 4096,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 256,
    EXPERTS_MAX = 65536,
    EXPERTS_USED_MAX = 16,
    CONTEXT_MAX = 1 << 28,
};

/* Keys that change what is computed, in ways not computed here, with the value that changes
 * nothing. A file may have them with that value. */
static const struct {
    const char *name;
    float value;      /* of a number */
    bool is_bool, on; /* or of a truth */
    const char *what; /* it is, for the message */
} neutral[] = {
    {"attn_logit_softcapping", 0, false, false, "no cap on attention's scores"},
    {"final_logit_softcapping", 0, false, false, "no cap on logits"},
    {"router_logit_softcapping", 0, false, false, "no cap on the router"},
    {"attention.max_alibi_bias", 0, false, false, "no ALiBi"},
    {"attention.clamp_kqv", 0, false, false, "no clamp of q, k, v"},
    {"attention.causal", 0, true, true, "causal attention"},
    {"use_parallel_residual", 0, true, false, "attention, then feed-forward"},
    {"logit_scale", 1, false, false, "logits as they are"},
    {"embedding_scale", 1, false, false, "embeddings as they are"},
    {"residual_scale", 1, false, false, "residuals as they are"},
    {"rope.scaling.yarn_log_multiplier", 0, false, false, "YaRN's own attention factor"},
};

static const struct {
    const char *name;
    uint32_t most;
    const char *what;
} neutral_counts[] = {
    {"leading_dense_block_count", 0, "experts in every layer"},
    {"interleave_moe_layer_step", 1, "experts in every layer"},
    {"expert_group_count", 1, "experts in one group"},
    {"nextn_predict_layers", 0, "no layers that predict further tokens"},
    {"attention.q_lora_rank", 0, "q without a low rank"},
    {"attention.kv_lora_rank", 0, "k, v without a low rank"},
};

static int check_neutral(struct keys *k)
{
    for (size_t i = 0; i < sizeof neutral / sizeof neutral[0]; i++) {
        float number = neutral[i].value;
        bool on = neutral[i].on;
        int rc = neutral[i].is_bool
                     ? finish(k, gguf_bool(k->g, key_of(k, neutral[i].name), &on, k->err), OPTIONAL)
                     : read_f32(k, neutral[i].name, OPTIONAL, &number);
        if (rc == 0 && neutral[i].is_bool && on != neutral[i].on)
            rc = REFUSE(k, EBB_EUNSUPPORTED, "wants %s (%s), got %s",
                        neutral[i].on ? "true" : "false", neutral[i].what, on ? "true" : "false");
        if (rc == 0 && number != neutral[i].value)
            rc = REFUSE(k, EBB_EUNSUPPORTED, "wants %g (%s), got %g", (double)neutral[i].value,
                        neutral[i].what, (double)number);
        if (rc != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof neutral_counts / sizeof neutral_counts[0]; i++) {
        uint32_t count = 0;
        const char *key = key_of(k, neutral_counts[i].name);
        int rc = finish(k, gguf_u32(k->g, key, 0, UINT32_MAX, &count, k->err), OPTIONAL);
        if (rc == 0 && count > neutral_counts[i].most)
            rc = REFUSE(k, EBB_EUNSUPPORTED, "wants %u (%s), got %u", neutral_counts[i].most,
                        neutral_counts[i].what, count);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_sizes(struct keys *k, struct model_geometry *m)
{
    int rc = read_u32(k, "block_count", REQUIRED, LAYERS_MAX, &m->n_layers);
    if (rc == 0)
        rc = read_u32(k, "context_length", REQUIRED, CONTEXT_MAX, &m->context_max);
    if (rc == 0)
        rc = read_u32(k, "embedding_length", REQUIRED, WIDTH_MAX, &m->d_model);
    if (rc == 0)
        rc = read_f32(k, "attention.layer_norm_rms_epsilon", REQUIRED, &m->rms_eps);
    if (rc == 0 && !(m->rms_eps > 0 && m->rms_eps < 1))
        rc = REFUSE(k, EBB_EFORMAT, "wants a number between 0 and 1, got %g", (double)m->rms_eps);
    return rc;
}

static int read_head_dim(struct keys *k, struct model_geometry *m)
{
    uint32_t value_dim;
    bool divides = m->d_model % m->n_heads == 0;
    m->head_dim = divides ? m->d_model / m->n_heads : 0;
    int rc = read_u32(k, "attention.key_length", divides ? OPTIONAL : REQUIRED, HEAD_DIM_MAX,
                      &m->head_dim);
    if (rc != 0)
        return rc;
    if (m->head_dim > HEAD_DIM_MAX)
        return REFUSE(k, EBB_EUNSUPPORTED, "wants at most %d (d_model / n_heads), got %u",
                      HEAD_DIM_MAX, m->head_dim);
    value_dim = divides ? m->d_model / m->n_heads : m->head_dim;
    rc = read_u32(k, "attention.value_length", OPTIONAL, HEAD_DIM_MAX, &value_dim);
    if (rc == 0 && value_dim != m->head_dim)
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants %u (as the keys), got %u", m->head_dim, value_dim);
    return rc;
}

/* A window that no context here outgrows changes nothing. */
static int read_window(struct keys *k, const struct model_geometry *m)
{
    uint32_t window = 0;
    int rc = finish(
        k, gguf_u32(k->g, key_of(k, "attention.sliding_window"), 0, UINT32_MAX, &window, k->err),
        OPTIONAL);
    if (rc == 0 && window != 0 && window < m->context_max)
        rc = REFUSE(k, EBB_EUNSUPPORTED,
                    "wants 0 (whole attention) or the context's %u, got a window of %u",
                    m->context_max, window);
    return rc;
}

static int read_attention(struct keys *k, struct model_geometry *m)
{
    int rc = read_u32(k, "attention.head_count", REQUIRED, HEADS_MAX, &m->n_heads);
    if (rc != 0)
        return rc;
    m->n_kv_heads = m->n_heads;
    m->qk_norm_whole = k->arch->qk_norm_whole;
    rc = read_u32(k, "attention.head_count_kv", OPTIONAL, m->n_heads, &m->n_kv_heads);
    if (rc == 0 && m->n_heads % m->n_kv_heads != 0)
        rc = REFUSE(k, EBB_EFORMAT, "wants a divisor of %u heads, got %u", m->n_heads,
                    m->n_kv_heads);
    if (rc == 0)
        rc = read_head_dim(k, m);
    if (rc == 0)
        rc = read_window(k, m);
    if (rc != 0)
        return rc;
    m->attention_scale = 1.0f / sqrtf((float)m->head_dim);
    rc = read_f32(k, "attention.scale", OPTIONAL, &m->attention_scale);
    if (rc == 0 && !(m->attention_scale > 0))
        rc = REFUSE(k, EBB_EFORMAT, "wants a positive number, got %g", (double)m->attention_scale);
    return rc;
}

static int read_router(struct keys *k, struct model_geometry *m)
{
    uint32_t function = 1;
    m->router_scale = 1;
    m->router_renormalise = k->arch->router_renormalise;
    int rc =
        finish(k, gguf_bool(k->g, key_of(k, "expert_weights_norm"), &m->router_renormalise, k->err),
               OPTIONAL);
    if (rc == 0)
        rc = read_f32(k, "expert_weights_scale", OPTIONAL, &m->router_scale);
    if (rc == 0 && m->router_scale == 0) /* how some writers say nothing */
        m->router_scale = 1;
    if (rc == 0 && !(m->router_scale > 0))
        rc = REFUSE(k, EBB_EFORMAT, "wants a positive number, got %g", (double)m->router_scale);
    if (rc == 0)
        rc = finish(
            k, gguf_u32(k->g, key_of(k, "expert_gating_func"), 0, UINT32_MAX, &function, k->err),
            OPTIONAL);
    if (rc == 0 && function > 1) /* 0: not said */
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants 1 (softmax), got %u", function);
    return rc;
}

static int read_shared(struct keys *k, struct model_geometry *m, uint32_t d_ff)
{
    if (!k->arch->has_shared_expert)
        return 0;
    m->d_shared = d_ff;
    return read_u32(k, "expert_shared_feed_forward_length", d_ff != 0 ? OPTIONAL : REQUIRED,
                    WIDTH_MAX, &m->d_shared);
}

static int read_experts(struct keys *k, struct model_geometry *m, uint32_t d_ff)
{
    bool width_is_known = k->arch->experts_as_wide_as_ff && d_ff != 0;
    int rc = read_u32(k, "expert_used_count", REQUIRED, m->n_experts, &m->n_experts_used);
    if (rc == 0 && m->n_experts_used > EXPERTS_USED_MAX)
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants at most %d, got %u", EXPERTS_USED_MAX,
                    m->n_experts_used);
    m->d_expert = width_is_known ? d_ff : 0;
    if (rc == 0)
        rc = read_u32(k, "expert_feed_forward_length", width_is_known ? OPTIONAL : REQUIRED,
                      WIDTH_MAX, &m->d_expert);
    if (rc == 0)
        rc = read_shared(k, m, d_ff);
    return rc == 0 ? read_router(k, m) : rc;
}

/* Either experts, or one feed-forward of width d_ff. */
static int read_feed_forward(struct keys *k, struct model_geometry *m)
{
    enum arch_experts experts = k->arch->experts;
    uint32_t d_ff = 0;
    int rc = 0;
    m->router_scale = 1;
    if (experts == EXPERTS_ALWAYS)
        rc = read_u32(k, "expert_count", REQUIRED, EXPERTS_MAX, &m->n_experts);
    else if (experts == EXPERTS_MAYBE)
        rc = finish(
            k, gguf_u32(k->g, key_of(k, "expert_count"), 0, EXPERTS_MAX, &m->n_experts, k->err),
            OPTIONAL);
    if (rc == 0)
        rc = read_u32(k, "feed_forward_length", m->n_experts != 0 ? OPTIONAL : REQUIRED, WIDTH_MAX,
                      &d_ff);
    if (rc != 0)
        return rc;
    if (m->n_experts != 0)
        return read_experts(k, m, d_ff);
    m->d_ff = d_ff;
    return 0;
}

int arch_geometry(const struct arch *a, const struct gguf *g, struct model_geometry *m,
                  struct error *err)
{
    struct keys k = {.arch = a, .g = g, .err = err};
    memset(m, 0, sizeof *m);
    int rc = read_sizes(&k, m);
    if (rc == 0)
        rc = read_attention(&k, m);
    if (rc == 0)
        rc = read_feed_forward(&k, m);
    if (rc == 0)
        rc = check_neutral(&k);
    return rc == 0 ? rotation_read(&k, m) : rc;
}
