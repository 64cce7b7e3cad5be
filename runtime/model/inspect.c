/* runtime/model/inspect.c - adds up what a model file holds: by group, by type, by layer.
 *
 * Owns the table of layers. Tensors are told apart by their names alone, so that files of
 * architectures that are not computed here can be looked at too. What would stop the model from
 * running is gathered as sentences: the model's own refusal, the tokenizer's, the types that are
 * not computed with, a template that is not known.
 */
#include "runtime/model/inspect.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/model/chat.h"
#include "runtime/model/format_types.h"
#include "runtime/model/show.h"
#include "runtime/model/tokenizer.h"

enum { LAYERS_MAX = 4096 };

const char *inspect_group_name(enum inspect_group group)
{
    static const char *const names[GROUP_COUNT] = {
        [GROUP_EMBEDDING] = "embedding",
        [GROUP_ATTENTION] = "attention",
        [GROUP_FEED_FORWARD] = "feed-forward",
        [GROUP_EXPERTS] = "experts",
        [GROUP_SHARED] = "shared expert",
        [GROUP_ROUTER] = "router",
        [GROUP_NORMS] = "norms",
        [GROUP_HEAD] = "head",
        [GROUP_OTHER] = "other",
    };
    return names[group];
}

/* The layer of "blk.<n>.rest", and the rest; -1: none. */
static int64_t layer_of(const char *name, const char **rest)
{
    char *end;
    *rest = name;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9')
        return -1;
    unsigned long layer = strtoul(name + 4, &end, 10);
    if (*end != '.' || layer >= LAYERS_MAX)
        return -1;
    *rest = end + 1;
    return (int64_t)layer;
}

static enum inspect_group group_of(const char *rest, bool in_layer)
{
    if (!in_layer)
        return strcmp(rest, "token_embd.weight") == 0 ? GROUP_EMBEDDING
               : strcmp(rest, "output.weight") == 0   ? GROUP_HEAD
               : strstr(rest, "norm") != NULL         ? GROUP_NORMS
                                                      : GROUP_OTHER;
    return strstr(rest, "_exps") != NULL            ? GROUP_EXPERTS
           : strstr(rest, "shexp") != NULL          ? GROUP_SHARED
           : strncmp(rest, "ffn_gate_inp", 12) == 0 ? GROUP_ROUTER
           : strstr(rest, "exp_probs") != NULL      ? GROUP_ROUTER
           : strstr(rest, "norm") != NULL           ? GROUP_NORMS
           : strncmp(rest, "attn_", 5) == 0         ? GROUP_ATTENTION
           : strncmp(rest, "ffn_", 4) == 0          ? GROUP_FEED_FORWARD
                                                    : GROUP_OTHER;
}

static void type_add(struct inspect_group_types *g, const struct gguf_tensor *t)
{
    const struct tensor_type_info *info = format_type_find(t->type);
    size_t i = 0;
    while (i < g->n_types && g->types[i].type != t->type)
        i++;
    if (i == INSPECT_TYPES_MAX)
        i--;
    struct inspect_type *at = &g->types[i];
    if (i == g->n_types) {
        g->n_types++;
        *at = (struct inspect_type){.type = t->type,
                                    .is_computed = tensor_type_find(t->type) != NULL};
        if (info != NULL)
            (void)snprintf(at->name, sizeof at->name, "%s", info->name);
        else
            (void)snprintf(at->name, sizeof at->name, "type %u", t->type);
    }
    at->n_tensors++;
    at->bytes += t->bytes;
}

__attribute__((format(printf, 2, 3))) static void problem_add(struct inspection *x,
                                                              const char *format, ...)
{
    va_list args;
    if (x->n_problems == INSPECT_PROBLEMS_MAX)
        return;
    va_start(args, format);
    (void)vsnprintf(x->problems[x->n_problems++], sizeof x->problems[0], format, args);
    va_end(args);
}

static void tensor_add(struct inspection *x, const struct gguf_tensor *t)
{
    char name[128];
    const char *rest;
    uint64_t n = 1;
    (void)snprintf(name, sizeof name, "%.*s", (int)t->name.n_bytes, t->name.bytes);
    int64_t layer = layer_of(name, &rest);
    enum inspect_group group = group_of(rest, layer >= 0);
    type_add(&x->groups[group], t);
    for (uint32_t d = 0; d < 4; d++)
        n *= t->dims[d]; /* fits: the reader has checked it */
    x->n_parameters += n;
    if (layer >= 0 && group == GROUP_EXPERTS)
        x->layers[layer].expert_bytes += t->bytes;
    else if (layer >= 0)
        x->layers[layer].dense_bytes += t->bytes;
    else if (group == GROUP_EMBEDDING)
        x->embedding_bytes += t->bytes;
    else if (group == GROUP_HEAD || strncmp(rest, "output_norm", 11) == 0)
        x->head_bytes += t->bytes;
    else
        x->rest_bytes += t->bytes;
}

static int tensors_add(struct inspection *x, const struct gguf *g, struct error *err)
{
    const char *rest;
    char name[128];
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        (void)snprintf(name, sizeof name, "%.*s", (int)t->name.n_bytes, t->name.bytes);
        int64_t layer = layer_of(name, &rest);
        if (layer >= (int64_t)x->n_layers)
            x->n_layers = (uint32_t)layer + 1;
    }
    x->layers = calloc((size_t)x->n_layers + 1, sizeof *x->layers);
    if (x->layers == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory for its layers", show_path(gguf_path(g)));
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        tensor_add(x, gguf_tensor_at(g, i));
    x->is_tied = x->groups[GROUP_HEAD].n_types == 0 && x->groups[GROUP_EMBEDDING].n_types != 0;
    return 0;
}

/* A number under its usual key; 0 where there is none, or something else. */
static uint32_t number(const struct gguf *g, const char *arch, const char *key)
{
    char name[160];
    uint32_t value = 0;
    (void)snprintf(name, sizeof name, "%s.%s", arch, key);
    (void)gguf_u32(g, name, 0, UINT32_MAX, &value, NULL);
    return value;
}

static void geometry_guess(struct inspection *x, const struct gguf *g)
{
    const char *a = x->architecture;
    struct model_geometry *m = &x->geometry;
    char key[160];
    float base = 0;
    m->n_layers = number(g, a, "block_count");
    m->context_max = number(g, a, "context_length");
    m->d_model = number(g, a, "embedding_length");
    m->n_heads = number(g, a, "attention.head_count");
    m->n_kv_heads = number(g, a, "attention.head_count_kv");
    m->head_dim = number(g, a, "attention.key_length");
    m->n_rot = number(g, a, "rope.dimension_count");
    m->d_ff = number(g, a, "feed_forward_length");
    m->n_experts = number(g, a, "expert_count");
    m->n_experts_used = number(g, a, "expert_used_count");
    m->d_expert = number(g, a, "expert_feed_forward_length");
    m->d_shared = number(g, a, "expert_shared_feed_forward_length");
    (void)snprintf(key, sizeof key, "%s.rope.freq_base", a);
    (void)gguf_f32(g, key, &base, NULL);
    m->rope_base = (double)base;
    if (m->n_kv_heads == 0)
        m->n_kv_heads = m->n_heads;
    if (m->head_dim == 0 && m->n_heads != 0)
        m->head_dim = m->d_model / m->n_heads;
    m->n_vocab = (uint32_t)x->n_tokens;
}

static void text_read(const struct gguf *g, const char *key, char *out, size_t room)
{
    struct gguf_string s;
    char shown[SHOWN_BYTES];
    out[0] = '\0';
    if (gguf_text(g, key, &s, NULL) == 0)
        (void)snprintf(out, room, "%s", show_name(s, shown));
}

/* Without the path: the reader knows which file it is. */
static void refusal_add(struct inspection *x, const struct error *err)
{
    const char *behind = strstr(err->text, ".gguf: ");
    problem_add(x, "%s", behind != NULL ? behind + 7 : err->text);
}

static void vocabulary_read(struct inspection *x, const struct gguf *g)
{
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    struct tokenizer *t = NULL;
    struct chat *chat = NULL;
    struct error err;
    text_read(g, "tokenizer.ggml.model", x->tokenizer, sizeof x->tokenizer);
    text_read(g, "tokenizer.ggml.pre", x->pretokenizer, sizeof x->pretokenizer);
    x->n_tokens = tokens != NULL ? tokens->n_elements : 0;
    int rc = tokenizer_open(&t, g, &err);
    if (rc == 0)
        rc = chat_open(&chat, g, t, &err);
    if (rc != 0) {
        refusal_add(x, &err);
        x->is_supported = false;
    } else {
        (void)snprintf(x->template_name, sizeof x->template_name, "%s", chat_name(chat));
        x->template_is_known = chat_warning(chat) == NULL;
        if (!x->template_is_known)
            problem_add(x, "%s", chat_warning(chat));
    }
    chat_close(chat);
    tokenizer_close(t);
}

/* One line for each type that is not computed with, whatever the architecture. */
static void types_judge(struct inspection *x)
{
    for (size_t g = 0; g < GROUP_COUNT; g++)
        for (size_t i = 0; i < x->groups[g].n_types; i++) {
            const struct inspect_type *t = &x->groups[g].types[i];
            if (!t->is_computed)
                problem_add(x, "%s (%u) is not computed with: %llu tensors of %s have it", t->name,
                            t->type, (unsigned long long)t->n_tensors,
                            inspect_group_name((enum inspect_group)g));
        }
}

int inspect_open(struct inspection *x, const char *path, struct error *err)
{
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct error refusal;
    memset(x, 0, sizeof *x);
    int rc = gguf_open(&g, path, err);
    if (rc == 0)
        rc = tensors_add(x, g, err);
    if (rc != 0) {
        gguf_close(g);
        return rc;
    }
    x->n_parts = gguf_n_parts(g);
    x->file_bytes = gguf_file_bytes(g);
    text_read(g, "general.architecture", x->architecture, sizeof x->architecture);
    text_read(g, "general.name", x->name, sizeof x->name);
    x->is_supported = model_open(&m, path, &refusal) == 0;
    if (!x->is_supported)
        refusal_add(x, &refusal);
    types_judge(x);
    vocabulary_read(x, g);
    geometry_guess(x, g);
    if (m != NULL)
        x->geometry = m->geometry;
    x->geometry.inv_freq = NULL;
    model_close(m);
    gguf_close(g);
    return 0;
}

void inspect_close(struct inspection *x)
{
    free(x->layers);
    memset(x, 0, sizeof *x);
}

struct inspect_share inspect_share(const struct inspection *x, uint32_t layer_first,
                                   uint32_t layer_last)
{
    struct inspect_share s = {.layer_first = layer_first, .layer_last = layer_last};
    bool first = layer_first == 0, last = layer_last + 1 >= x->n_layers;
    for (uint32_t i = layer_first; i <= layer_last && i < x->n_layers; i++) {
        s.dense_bytes += x->layers[i].dense_bytes;
        s.expert_bytes += x->layers[i].expert_bytes;
    }
    s.dense_bytes += first ? x->embedding_bytes + x->rest_bytes : 0;
    s.dense_bytes += last ? x->head_bytes : 0;
    s.dense_bytes += last && !first && x->is_tied ? x->embedding_bytes : 0;
    s.kv_bytes = (uint64_t)(layer_last - layer_first + 1) * 2 * x->geometry.n_kv_heads *
                 x->geometry.head_dim * 2 * 1000;
    return s;
}
