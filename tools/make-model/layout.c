/* tools/make-model/layout.c - plans the tensors of a model, then writes everything that stands before them.
 *
 * The order is that of files in use: what the model has once, then layer by layer. Keys and names are those of
 * ggml-org/ggml docs/gguf.md. Tensors get their keys for randomness by their number, so that a layer's weights do not
 * depend on how many layers follow.
 */
#include "tools/make-model/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/make-model/random.h"
#include "tools/make-model/vocabulary.h"

#define ALIGNMENT        32
#define N_LAYER_TENSORS  13 /* at most */
#define ROUTER_THRESHOLD 2.5
#define SHARE_MAX        0.45

/* How a tensor's values are drawn. */
struct drawn {
    double mean, sigma;
};
#define NORM_WEIGHTS ((struct drawn){1, 0.05})

static struct layout_tensor *tensor_add(struct layout *l, const char *name, uint32_t type,
                                        const uint64_t dims[3], struct drawn drawn)
{
    struct layout_tensor *t = &l->tensors[l->n_tensors];
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    for (uint32_t d = 0; d < 3; d++) {
        t->dims[d] = dims[d];
        t->n_dims += dims[d] != 0;
    }
    fill_open(&t->fill, type, drawn.mean, drawn.sigma,
              random_key(l->settings.seed, 2 * l->n_tensors));
    l->n_tensors++;
    return t;
}

static void matrix_add(struct layout *l, const char *name, uint32_t type, uint64_t n_in,
                       uint64_t n_out)
{
    (void)tensor_add(l, name, type, (uint64_t[3]){n_in, n_out},
                     (struct drawn){0, 1 / sqrt((double)n_in)});
}

static void experts_add(struct layout *l, const char *name, uint32_t type, uint64_t n_in,
                        uint64_t n_out)
{
    (void)tensor_add(l, name, type, (uint64_t[3]){n_in, n_out, l->settings.shape.n_experts},
                     (struct drawn){0, 1 / sqrt((double)n_in)});
}

static void norm_add(struct layout *l, const char *name, uint64_t n)
{
    (void)tensor_add(l, name, TENSOR_F32, (uint64_t[3]){n}, NORM_WEIGHTS);
}

/* x with P(normal > x) = share, for shares below one half. */
static double normal_quantile(double share)
{
    double low = 0, high = 8;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (erfc(middle / sqrt(2.0)) / 2 > share)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double rank_weight(uint32_t rank) /* from 0 */
{
    return pow(rank + 5.0, -0.8);
}

/* The lengths of a router's rows: see layout.h. */
static int router_scales(const struct layout *l, struct layout_tensor *t, struct error *err)
{
    uint32_t n = l->settings.shape.n_experts;
    double sum = 0;
    t->row_scale = calloc(n, sizeof *t->row_scale);
    if (t->row_scale == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a router of %u experts", n);
    for (uint32_t rank = 0; rank < n; rank++)
        sum += rank_weight(rank);
    for (uint32_t rank = 0; rank < n; rank++) {
        double share = l->settings.shape.n_experts_used * rank_weight(rank) / sum;
        share = share < SHARE_MAX ? share : SHARE_MAX;
        t->row_scale[rank] = (float)(ROUTER_THRESHOLD / normal_quantile(share));
    }
    for (uint32_t i = n; i > 1; i--) { /* which expert has which rank */
        uint32_t k = (uint32_t)(random_word(t->fill.key + 1, i) % i);
        float held = t->row_scale[i - 1];
        t->row_scale[i - 1] = t->row_scale[k];
        t->row_scale[k] = held;
    }
    t->fill.row_scale = t->row_scale;
    t->fill.row_values = l->settings.shape.d_model;
    return 0;
}

/* The layers that a mix gives more bits: the first and the last eighth, and every third between. */
static bool layer_is_special(uint32_t layer, uint32_t n_layers)
{
    uint32_t eighth = n_layers / 8;
    return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

static int layer_add(struct layout *l, uint32_t layer, struct error *err)
{
    const struct shape *s = &l->settings.shape;
    const struct type_mix *mix = l->settings.mix;
    uint64_t d = s->d_model, queries = (uint64_t)s->n_heads * s->head_dim;
    uint64_t keys = (uint64_t)s->n_kv_heads * s->head_dim;
    uint32_t special = layer_is_special(layer, s->n_layers) ? mix->special : mix->type;
    char name[64];
#define NAMED(of) ((void)snprintf(name, sizeof name, "blk.%u." of ".weight", layer), name)
    norm_add(l, NAMED("attn_norm"), d);
    matrix_add(l, NAMED("attn_q"), mix->type, d, queries);
    matrix_add(l, NAMED("attn_k"), mix->type, d, keys);
    matrix_add(l, NAMED("attn_v"), special, d, keys);
    matrix_add(l, NAMED("attn_output"), mix->type, queries, d);
    if (s->qk_norms != NORMS_NONE) {
        norm_add(l, NAMED("attn_q_norm"), s->qk_norms == NORMS_HEAD ? s->head_dim : queries);
        norm_add(l, NAMED("attn_k_norm"), s->qk_norms == NORMS_HEAD ? s->head_dim : keys);
    }
    norm_add(l, NAMED("ffn_norm"), d);
    matrix_add(l, NAMED("ffn_gate_inp"), TENSOR_F32, d, s->n_experts);
    int code = router_scales(l, &l->tensors[l->n_tensors - 1], err);
    experts_add(l, NAMED("ffn_gate_exps"), mix->type, d, s->d_expert);
    experts_add(l, NAMED("ffn_up_exps"), mix->type, d, s->d_expert);
    experts_add(l, NAMED("ffn_down_exps"), special, s->d_expert, d);
#undef NAMED
    return code;
}

/* Where each tensor lies; the file's size beyond its header. */
static int tensors_place(struct layout *l, size_t *data_bytes, struct error *err)
{
    size_t offset = 0;
    for (size_t i = 0; i < l->n_tensors; i++) {
        struct layout_tensor *t = &l->tensors[i];
        size_t row = tensor_row_bytes(t->type, t->dims[0]);
        if (row == 0)
            return error_set(err, EBB_EUNSUPPORTED,
                             "%s: %s wants rows of a multiple of %u values, they have %llu",
                             t->name, tensor_type_find(t->type)->name,
                             tensor_type_find(t->type)->block_values,
                             (unsigned long long)t->dims[0]);
        t->bytes = row * (t->n_dims > 1 ? t->dims[1] : 1) * (t->n_dims > 2 ? t->dims[2] : 1);
        t->offset = offset;
        offset += (t->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    *data_bytes = offset;
    return 0;
}

static void key_u32(struct bytes *b, const struct shape *s, const char *name, uint32_t value)
{
    char key[128];
    (void)snprintf(key, sizeof key, "%s.%s", s->architecture, name);
    entry_u32(b, key, value);
}

static void key_f32(struct bytes *b, const struct shape *s, const char *name, double value)
{
    char key[128];
    (void)snprintf(key, sizeof key, "%s.%s", s->architecture, name);
    entry_f32(b, key, value);
}

/* Returns how many entries. */
static size_t facts_add(struct bytes *b, const struct layout_settings *settings)
{
    const struct shape *s = &settings->shape;
    const struct {
        const char *name;
        uint32_t value;
    } facts[] = {
        {"block_count", s->n_layers},
        {"context_length", s->context},
        {"embedding_length", s->d_model},
        {"feed_forward_length", s->d_ff},
        {"attention.head_count", s->n_heads},
        {"attention.head_count_kv", s->n_kv_heads},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"rope.dimension_count", s->head_dim},
        {"expert_count", s->n_experts},
        {"expert_used_count", s->n_experts_used},
        {"expert_feed_forward_length", s->d_expert},
        {"vocab_size", s->n_vocab},
    };
    char said[160];
    (void)snprintf(said, sizeof said,
                   "random weights in the shape of %s, seed %llu: to measure with", s->name,
                   (unsigned long long)settings->seed);
    entry_text(b, "general.architecture", s->architecture);
    entry_text(b, "general.name", s->name);
    entry_text(b, "general.description", said);
    entry_u32(b, "general.alignment", ALIGNMENT);
    entry_u32(b, "general.quantization_version", 2);
    entry_u32(b, "general.file_type", settings->mix->file_type);
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        key_u32(b, s, facts[i].name, facts[i].value);
    key_f32(b, s, "attention.layer_norm_rms_epsilon", s->rms_eps);
    key_f32(b, s, "rope.freq_base", s->rope_base);
    return 6 + sizeof facts / sizeof facts[0] + 2;
}

static int header_write(struct layout *l, struct error *err)
{
    struct bytes entries = {0}, *b = &l->header;
    uint32_t n_vocab = l->settings.shape.n_vocab;
    size_t n = facts_add(&entries, &l->settings), n_tokens = 0;
    int code = l->settings.tokenizer != NULL
                   ? vocabulary_copied(&entries, l->settings.tokenizer, n_vocab, &n_tokens, err)
                   : vocabulary_made(&entries, n_vocab, &n_tokens, err);
    bytes_add(b, "GGUF\3\0\0\0", 8);
    bytes_add_u64(b, l->n_tensors);
    bytes_add_u64(b, n + n_tokens);
    bytes_add(b, entries.data, entries.n);
    for (size_t i = 0; i < l->n_tensors; i++) {
        const struct layout_tensor *t = &l->tensors[i];
        bytes_add_text(b, t->name, strlen(t->name));
        bytes_add_u32(b, t->n_dims);
        bytes_add(b, t->dims, t->n_dims * sizeof t->dims[0]);
        bytes_add_u32(b, t->type);
        bytes_add_u64(b, t->offset);
    }
    bytes_pad(b, ALIGNMENT);
    if (code == 0 && (entries.failed || b->failed))
        code = error_set(err, EBB_ENOMEM, "no memory for the header");
    bytes_free(&entries);
    return code;
}

int layout_open(struct layout *l, const struct layout_settings *settings, struct error *err)
{
    const struct shape *s = &settings->shape;
    uint32_t type = settings->mix->type, special = settings->mix->special;
    size_t data_bytes = 0;
    int code = 0;
    memset(l, 0, sizeof *l);
    l->settings = *settings;
    l->n_capacity = 3 + (size_t)s->n_layers * N_LAYER_TENSORS;
    l->tensors = calloc(l->n_capacity, sizeof *l->tensors);
    if (l->tensors == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for %zu tensors", l->n_capacity);
    (void)tensor_add(l, "token_embd.weight", type, (uint64_t[3]){s->d_model, s->n_vocab},
                     (struct drawn){0, 1});
    (void)tensor_add(l, "output.weight", special, (uint64_t[3]){s->d_model, s->n_vocab},
                     (struct drawn){0, 3 / sqrt((double)s->d_model)});
    norm_add(l, "output_norm.weight", s->d_model);
    for (uint32_t layer = 0; layer < s->n_layers && code == 0; layer++)
        code = layer_add(l, layer, err);
    if (code == 0)
        code = tensors_place(l, &data_bytes, err);
    if (code == 0)
        code = header_write(l, err);
    l->file_bytes = l->header.n + data_bytes;
    if (code != 0)
        layout_close(l);
    return code;
}

void layout_close(struct layout *l)
{
    for (size_t i = 0; i < l->n_tensors; i++)
        free(l->tensors[i].row_scale);
    free(l->tensors);
    bytes_free(&l->header);
    memset(l, 0, sizeof *l);
}
