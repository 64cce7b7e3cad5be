/* runtime/model/geometry.c - the numbers of a model, from its metadata keys.
 *
 * Owns nothing. Every number is checked against a range before it is used to size or index
 * anything; a combination that the forward pass here would compute differently from what the file
 * means (scaled rotation, sliding windows, another router function) is refused by key, never
 * ignored. The limits are those of the kernels' contract (kernels/kernels.h), which this room may
 * not include.
 */
#include <math.h>
#include <string.h>
#include "runtime/model/arch.h"
#include "runtime/model/show.h"

enum {
    LAYERS_MAX = 4096,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 256,
    EXPERTS_MAX = 65536,
    EXPERTS_USED_MAX = 16,
    CONTEXT_MAX = 1 << 28,
};

enum presence { REQUIRED, OPTIONAL };

struct keys {
    const struct arch *arch;
    const struct gguf *g;
    struct error *err;
    char key[128]; /* the last one asked for, with its prefix */
};

static const char *key_of(struct keys *k, const char *name)
{
    (void)snprintf(k->key, sizeof k->key, "%s.%s", k->arch->name, name);
    return k->key;
}

/* An absent optional key leaves *value as it was. */
static int finish(struct keys *k, int rc, enum presence p)
{
    if (rc != EBB_ENOENT)
        return rc;
    return p == OPTIONAL
               ? 0
               : error_set(k->err, EBB_EFORMAT, "%s: metadata key %s: wants a number, got none",
                           show_path(gguf_path(k->g)), k->key);
}

static int read_u32(struct keys *k, const char *name, enum presence p, uint32_t max,
                    uint32_t *value)
{
    return finish(k, gguf_u32(k->g, key_of(k, name), 1, max, value, k->err), p);
}

static int read_f32(struct keys *k, const char *name, enum presence p, float *value)
{
    return finish(k, gguf_f32(k->g, key_of(k, name), value, k->err), p);
}

/* For the key asked for last. */
#define REFUSE(k, code, format, ...)                                                               \
    error_set((k)->err, code, "%s: metadata key %s: " format, show_path(gguf_path((k)->g)),        \
              (k)->key, __VA_ARGS__)

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

static int read_attention(struct keys *k, struct model_geometry *m)
{
    uint32_t window = 0;
    int rc = read_u32(k, "attention.head_count", REQUIRED, HEADS_MAX, &m->n_heads);
    if (rc != 0)
        return rc;
    m->n_kv_heads = m->n_heads;
    rc = read_u32(k, "attention.head_count_kv", OPTIONAL, m->n_heads, &m->n_kv_heads);
    if (rc == 0 && m->n_heads % m->n_kv_heads != 0)
        rc = REFUSE(k, EBB_EFORMAT, "wants a divisor of %u heads, got %u", m->n_heads,
                    m->n_kv_heads);
    if (rc == 0)
        rc = read_head_dim(k, m);
    if (rc == 0)
        rc = finish(
            k,
            gguf_u32(k->g, key_of(k, "attention.sliding_window"), 0, UINT32_MAX, &window, k->err),
            OPTIONAL);
    if (rc == 0 && window != 0)
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants 0 (whole attention), got a window of %u", window);
    return rc;
}

static int read_rotation(struct keys *k, struct model_geometry *m)
{
    float base = 10000;
    struct gguf_string scaling;
    char shown[SHOWN_BYTES];
    m->n_rot = m->head_dim;
    int rc = read_u32(k, "rope.dimension_count", OPTIONAL, m->head_dim, &m->n_rot);
    if (rc == 0 && m->n_rot % 2 != 0)
        rc = REFUSE(k, EBB_EFORMAT, "wants an even number, got %u", m->n_rot);
    if (rc == 0)
        rc = read_f32(k, "rope.freq_base", OPTIONAL, &base);
    if (rc == 0 && base < 1)
        rc = REFUSE(k, EBB_EFORMAT, "wants at least 1, got %g", (double)base);
    m->rope_base = (double)base;
    m->rope_halves = k->arch->rope_halves;
    if (rc != 0)
        return rc;
    rc = gguf_text(k->g, key_of(k, "rope.scaling.type"), &scaling, k->err);
    if (rc == 0 && (scaling.n_bytes != 4 || memcmp(scaling.bytes, "none", 4) != 0))
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants \"none\", got \"%s\"", show_name(scaling, shown));
    return finish(k, rc, OPTIONAL);
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
    if (rc == 0 && !(m->router_scale > 0))
        rc = REFUSE(k, EBB_EFORMAT, "wants a positive number, got %g", (double)m->router_scale);
    if (rc == 0)
        rc = read_u32(k, "expert_gating_func", OPTIONAL, UINT32_MAX, &function);
    if (rc == 0 && function != 1)
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants 1 (softmax), got %u", function);
    return rc;
}

static int read_experts(struct keys *k, struct model_geometry *m)
{
    if (!k->arch->has_experts)
        return 0;
    int rc = read_u32(k, "expert_count", REQUIRED, EXPERTS_MAX, &m->n_experts);
    if (rc != 0)
        return rc;
    rc = read_u32(k, "expert_used_count", REQUIRED, m->n_experts, &m->n_experts_used);
    if (rc == 0 && m->n_experts_used > EXPERTS_USED_MAX)
        rc = REFUSE(k, EBB_EUNSUPPORTED, "wants at most %d, got %u", EXPERTS_USED_MAX,
                    m->n_experts_used);
    if (rc == 0)
        rc = read_u32(k, "expert_feed_forward_length", REQUIRED, WIDTH_MAX, &m->d_expert);
    return rc == 0 ? read_router(k, m) : rc;
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
        rc = read_rotation(&k, m);
    if (rc == 0)
        rc = read_experts(&k, m);
    return rc;
}
