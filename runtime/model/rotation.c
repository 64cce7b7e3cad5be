/* runtime/model/rotation.c - the angles of rotary positions, with what the file says of stretching
 * them.
 *
 * Owns nothing: m->inv_freq is the model's. Pair i of a head is turned by position * inv_freq[i],
 * and both cosine and sine are times rope_scale. Unscaled, inv_freq[i] = base^(-2 i / n_rot)
 * (arXiv 2104.09864). What stretches it, all of which may be in one file:
 *
 *   rope_freqs.weight   inv_freq[i] / factor[i]: a file's own table, Llama 3's for example.
 *   linear              inv_freq[i] / factor (arXiv 2306.15595).
 *   yarn                between the two by a ramp over i: pairs that turn more than beta_fast times
 *                       within the original context stay, those that turn less than beta_slow times
 *                       are stretched; rope_scale = 0.1 ln(factor) + 1 (arXiv 2309.00071, sections
 *                       3.2 to 3.4; the ends of the ramp are rounded outwards as its authors' code
 *                       does). A file that says nothing of its kind but has a factor means linear.
 *
 * Refused: other kinds (longrope, dynamic), by key.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/keys.h"

#define TWO_PI 6.283185307179586476925286766559

struct scaling {
    float factor; /* of the context: at least 1 stretches */
    bool is_yarn;
    uint32_t original_context;
    float beta_fast, beta_slow; /* turns */
    float strength;             /* of the ramp: 1, or what the file says */
    float attention;            /* times the scale of cosines and sines */
};

static int read_positive(struct keys *k, const char *name, float *value)
{
    int rc = read_f32(k, name, OPTIONAL, value);
    return rc != 0 || *value > 0
               ? rc
               : REFUSE(k, EBB_EFORMAT, "wants more than 0, got %g", (double)*value);
}

static bool is_text(struct gguf_string s, const char *text)
{
    return s.n_bytes == strlen(text) && memcmp(s.bytes, text, s.n_bytes) == 0;
}

static int read_kind(struct keys *k, struct scaling *s)
{
    struct gguf_string kind = {"linear", 6};
    char shown[SHOWN_BYTES];
    int rc = read_positive(k, "rope.scale_linear", &s->factor); /* the key's older name */
    if (rc == 0)
        rc = read_positive(k, "rope.scaling.factor", &s->factor);
    if (rc == 0)
        rc = finish(k, gguf_text(k->g, key_of(k, "rope.scaling.type"), &kind, k->err), OPTIONAL);
    if (rc != 0)
        return rc;
    s->is_yarn = is_text(kind, "yarn");
    if (is_text(kind, "none"))
        s->factor = 1;
    else if (!s->is_yarn && !is_text(kind, "linear"))
        return REFUSE(k, EBB_EUNSUPPORTED, "wants \"none\", \"linear\" or \"yarn\", got \"%s\"",
                      show_name(kind, shown));
    return 0;
}

static int read_scaling(struct keys *k, const struct model_geometry *m, struct scaling *s)
{
    *s = (struct scaling){.factor = 1,
                          .original_context = m->context_max,
                          .beta_fast = 32,
                          .beta_slow = 1,
                          .strength = 1,
                          .attention = 1};
    int rc = read_kind(k, s);
    if (rc == 0)
        rc = read_u32(k, "rope.scaling.original_context_length", OPTIONAL, UINT32_MAX,
                      &s->original_context);
    if (rc == 0)
        rc = read_positive(k, "rope.scaling.attn_factor", &s->attention);
    if (rc == 0)
        rc = read_positive(k, "rope.scaling.yarn_attn_factor", &s->attention);
    if (rc == 0)
        rc = read_positive(k, "rope.scaling.yarn_beta_fast", &s->beta_fast);
    if (rc == 0)
        rc = read_positive(k, "rope.scaling.yarn_beta_slow", &s->beta_slow);
    if (rc == 0)
        rc = read_f32(k, "rope.scaling.yarn_ext_factor", OPTIONAL, &s->strength);
    if (rc == 0 && s->strength < 0) /* "as the reader thinks best" in files of some writers */
        s->strength = 1;
    return rc;
}

/* The pair that turns `turns` times within the original context, as a real number: section 3.2. */
static double pair_of_turns(const struct model_geometry *m, const struct scaling *s, double turns)
{
    return m->n_rot * log(s->original_context / (turns * TWO_PI)) / (2 * log(m->rope_base));
}

static void stretch_yarn(struct model_geometry *m, const struct scaling *s)
{
    double low = floor(pair_of_turns(m, s, (double)s->beta_fast));
    double high = ceil(pair_of_turns(m, s, (double)s->beta_slow));
    low = low > 0 ? low : 0;
    high = high < m->n_rot - 1 ? high : m->n_rot - 1;
    for (uint32_t i = 0; i < m->n_rot / 2; i++) {
        double span = high - low > 0.001 ? high - low : 0.001;
        double ramp = (i - low) / span; /* 0: kept, 1: stretched */
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        double kept = (1 - ramp) * (double)s->strength;
        m->inv_freq[i] = m->inv_freq[i] / (double)s->factor * (1 - kept) + m->inv_freq[i] * kept;
    }
    if (s->factor > 1)
        m->rope_scale *= 0.1f * logf(s->factor) + 1;
}

static void stretch_linear(struct model_geometry *m, const struct scaling *s)
{
    for (uint32_t i = 0; s->factor != 1 && i < m->n_rot / 2; i++)
        m->inv_freq[i] /= (double)s->factor;
}

/* rope_freqs.weight, where there is one. */
static int divide_by_table(struct keys *k, struct model_geometry *m)
{
    const struct gguf_tensor *t = gguf_tensor_find(k->g, ROTATION_TENSOR);
    char type[SHOWN_BYTES], dims[SHOWN_BYTES];
    float factor;
    if (t == NULL)
        return 0;
    const char *path = show_path(gguf_tensor_path(k->g, t));
    if (t->type != TENSOR_F32)
        return error_set(k->err, EBB_EUNSUPPORTED, "%s: tensor %s: wants F32, got %s", path,
                         ROTATION_TENSOR, show_tensor_type(t->type, type));
    if (t->dims[0] != m->n_rot / 2 || t->dims[1] != 1 || t->dims[2] != 1 || t->dims[3] != 1)
        return error_set(k->err, EBB_EFORMAT, "%s: tensor %s: wants %u, got %s", path,
                         ROTATION_TENSOR, m->n_rot / 2, show_dims(t->dims, t->n_dims, dims));
    for (uint32_t i = 0; i < m->n_rot / 2; i++) {
        memcpy(&factor, t->data + i * sizeof factor, sizeof factor);
        if (!(factor > 0) || !isfinite(factor))
            return error_set(k->err, EBB_EFORMAT,
                             "%s: tensor %s: value %u: wants a positive number, got %g", path,
                             ROTATION_TENSOR, i, (double)factor);
        m->inv_freq[i] /= (double)factor;
    }
    return 0;
}

static int read_base(struct keys *k, struct model_geometry *m)
{
    float base = 10000;
    m->n_rot = m->head_dim;
    int rc = read_u32(k, "rope.dimension_count", OPTIONAL, m->head_dim, &m->n_rot);
    if (rc == 0 && m->n_rot % 2 != 0)
        rc = REFUSE(k, EBB_EFORMAT, "wants an even number, got %u", m->n_rot);
    if (rc == 0)
        rc = read_f32(k, "rope.freq_base", OPTIONAL, &base);
    if (rc == 0 && !(base > 1))
        rc = REFUSE(k, EBB_EFORMAT, "wants more than 1, got %g", (double)base);
    m->rope_base = (double)base;
    m->rope_halves = k->arch->rope_halves;
    return rc;
}

int rotation_read(struct keys *k, struct model_geometry *m)
{
    struct scaling s;
    int rc = read_base(k, m);
    if (rc == 0)
        rc = read_scaling(k, m, &s);
    if (rc != 0)
        return rc;
    m->inv_freq = calloc(m->n_rot / 2, sizeof *m->inv_freq);
    if (m->inv_freq == NULL)
        return error_set(k->err, EBB_ENOMEM, "%s: no memory for its rotation",
                         show_path(gguf_path(k->g)));
    for (uint32_t i = 0; i < m->n_rot / 2; i++)
        m->inv_freq[i] = pow(m->rope_base, -2.0 * i / m->n_rot);
    rc = divide_by_table(k, m);
    if (rc != 0)
        return rc;
    m->rope_scale = s.attention;
    if (s.is_yarn)
        stretch_yarn(m, &s);
    else
        stretch_linear(m, &s);
    return 0;
}
