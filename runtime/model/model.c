/* runtime/model/model.c - opens a model: architecture, geometry, and every tensor at its place with
 * its shape.
 *
 * Owns the gguf and one block of memory for the layers and the names of their tensors. Read-only
 * after open, for any number of threads. What is in the file beyond what the architecture's row
 * asks for is refused too: a tensor that the forward pass would leave out (a bias, a sink, a second
 * norm) means that its numbers would be wrong.
 */
#include "runtime/model/model.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/model/arch.h"
#include "runtime/model/keys.h"
#include "runtime/model/show.h"

#define NAME_BYTES 64

/* What one opening carries through its steps. */
struct opening {
    struct model *m;
    const struct arch *arch;
    char (*names)[NAME_BYTES]; /* of all views, n_names so far used */
    size_t n_names;
    bool *used; /* owned [tensors of the file]: has a view */
    struct error *err;
};

/* `t`: the tensor, for the path of its part, or NULL. */
__attribute__((format(printf, 5, 6))) static int refuse(const struct opening *o, int code,
                                                        const struct gguf_tensor *t,
                                                        const char *name, const char *format, ...)
{
    const struct gguf *g = o->m->gguf;
    char text[300];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(o->err, code, "%s: tensor %s: %s",
                     show_path(t != NULL ? gguf_tensor_path(g, t) : gguf_path(g)), name, text);
}

static int check_storage(const struct opening *o, const struct arch_tensor *want,
                         const struct gguf_tensor *t, const char *name)
{
    char got[SHOWN_BYTES], wanted[2 * SHOWN_BYTES];
    show_tensor_type(t->type, got);
    if (tensor_type_find(t->type) == NULL)
        return refuse(o, EBB_EUNSUPPORTED, t, name, "wants one of %s, got %s",
                      show_computed_types(wanted), got);
    if (want->storage == STORE_F32 && t->type != TENSOR_F32)
        return refuse(o, EBB_EUNSUPPORTED, t, name, "wants F32, got %s", got);
    if (want->storage == STORE_FLOAT && t->type != TENSOR_F32 && t->type != TENSOR_F16 &&
        t->type != TENSOR_BF16)
        return refuse(o, EBB_EUNSUPPORTED, t, name, "wants F32, F16 or BF16, got %s", got);
    return 0;
}

static int check_shape(const struct opening *o, const struct arch_tensor *want,
                       const struct gguf_tensor *t, const char *name)
{
    uint64_t dims[4];
    uint32_t n_dims = 0;
    char wanted[SHOWN_BYTES], got[SHOWN_BYTES];
    for (uint32_t d = 0; d < 4; d++) {
        dims[d] = arch_dim_value(want->dims[d], &o->m->geometry);
        n_dims += want->dims[d] != DIM_NONE;
    }
    if (memcmp(dims, t->dims, sizeof dims) == 0)
        return 0;
    return refuse(o, EBB_EFORMAT, t, name, "wants %s, got %s", show_dims(dims, n_dims, wanted),
                  show_dims(t->dims, t->n_dims, got));
}

/* Whether the row's tensor is asked for in this model at all. */
static bool is_wanted(const struct opening *o, const struct arch_tensor *want)
{
    bool has_experts = o->m->geometry.n_experts != 0;
    return want->presence == IN_DENSE     ? !has_experts
           : want->presence == IN_EXPERTS ? has_experts
                                          : true;
}

static void mark_used(const struct opening *o, const struct gguf_tensor *t)
{
    if (t != NULL)
        o->used[t - gguf_tensor_at(o->m->gguf, 0)] = true;
}

/* Finds one tensor and fills its view, which lies in `holder` (the model or a layer). */
static int view_open(struct opening *o, const struct arch_tensor *want, void *holder,
                     const char *prefix)
{
    struct tensor_view *view = (struct tensor_view *)((char *)holder + want->view);
    char *name = o->names[o->n_names];
    if (!is_wanted(o, want))
        return 0;
    (void)snprintf(name, NAME_BYTES, "%s%s", prefix, want->name);
    const struct gguf_tensor *t = gguf_tensor_find(o->m->gguf, name);
    if (t == NULL)
        return want->presence == IN_SOME
                   ? 0
                   : refuse(o, EBB_EFORMAT, NULL, name, "wants one, got none");
    int rc = check_shape(o, want, t, name);
    if (rc == 0)
        rc = check_storage(o, want, t, name);
    if (rc != 0)
        return rc;
    o->n_names++;
    mark_used(o, t);
    view->name = name;
    view->type = t->type;
    view->n_dims = t->n_dims;
    memcpy(view->dims, t->dims, sizeof view->dims);
    view->data = t->data;
    view->bytes = t->bytes;
    return 0;
}

static int views_open(struct opening *o)
{
    struct model *m = o->m;
    char prefix[32];
    for (size_t i = 0; i < arch_n_model_tensors; i++) {
        int rc = view_open(o, &arch_model_tensors[i], m, "");
        if (rc != 0)
            return rc;
    }
    for (uint32_t layer = 0; layer < m->geometry.n_layers; layer++) {
        (void)snprintf(prefix, sizeof prefix, "blk.%u.", layer);
        for (size_t i = 0; i < o->arch->n_layer_tensors; i++) {
            int rc = view_open(o, &o->arch->layer_tensors[i], &m->layers[layer], prefix);
            if (rc != 0)
                return rc;
        }
    }
    if (m->output.data == NULL)
        m->output = m->token_embd;
    return 0;
}

/* Every tensor of the file is one that was asked for. */
static int nothing_left(const struct opening *o)
{
    const struct gguf *g = o->m->gguf;
    char shown[SHOWN_BYTES];
    mark_used(o, gguf_tensor_find(g, ROTATION_TENSOR));
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (!o->used[i])
            return refuse(o, EBB_EUNSUPPORTED, t, show_name(t->name, shown),
                          "wants no such tensor in a %s model of %u %slayers, got one",
                          o->arch->name, o->m->geometry.n_layers,
                          o->m->geometry.n_experts == 0 ? "dense " : "");
    }
    return 0;
}

/* The vocabulary's size is the embedding's number of rows; what the metadata says of it must
 * agree. */
static int read_vocabulary(const struct opening *o)
{
    const struct gguf *g = o->m->gguf;
    const char *path = show_path(gguf_path(g));
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    if (embd == NULL)
        return refuse(o, EBB_EFORMAT, NULL, "token_embd.weight", "wants one, got none");
    if (embd->dims[1] > INT32_MAX)
        return refuse(o, EBB_EFORMAT, embd, "token_embd.weight", "wants at most %d rows, got %llu",
                      INT32_MAX, (unsigned long long)embd->dims[1]);
    if (tokens != NULL && tokens->n_elements != embd->dims[1])
        return error_set(o->err, EBB_EFORMAT,
                         "%s: metadata key tokenizer.ggml.tokens: wants %llu tokens (the rows of "
                         "token_embd.weight), got %llu",
                         path, (unsigned long long)embd->dims[1],
                         (unsigned long long)tokens->n_elements);
    o->m->geometry.n_vocab = (uint32_t)embd->dims[1];
    return 0;
}

/* One block: the layers, then the names of all views. */
static int layers_allocate(struct opening *o)
{
    size_t n_layers = o->m->geometry.n_layers;
    size_t n_names = arch_n_model_tensors + n_layers * o->arch->n_layer_tensors;
    size_t layers_bytes = n_layers * sizeof *o->m->layers;
    /* one more: an absent optional tensor's name is written, then not kept */
    o->m->layers = calloc(1, layers_bytes + (n_names + 1) * NAME_BYTES);
    o->used = calloc(gguf_n_tensors(o->m->gguf) + 1, sizeof *o->used);
    if (o->m->layers == NULL || o->used == NULL)
        return error_set(o->err, EBB_ENOMEM, "%s: no memory for %zu layers",
                         show_path(gguf_path(o->m->gguf)), n_layers);
    o->names = (char(*)[NAME_BYTES])((char *)o->m->layers + layers_bytes);
    return 0;
}

int model_open(struct model **out, const char *path, struct error *err)
{
    struct opening o = {.m = calloc(1, sizeof *o.m), .err = err};
    if (o.m == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory to open it", show_path(path));
    int rc = gguf_open(&o.m->gguf, path, err);
    if (rc == 0)
        rc = arch_find(&o.arch, o.m->gguf, err);
    if (rc == 0)
        rc = arch_geometry(o.arch, o.m->gguf, &o.m->geometry, err);
    if (rc == 0)
        rc = read_vocabulary(&o);
    if (rc == 0)
        rc = layers_allocate(&o);
    if (rc == 0)
        rc = views_open(&o);
    if (rc == 0)
        rc = nothing_left(&o);
    free(o.used);
    if (rc != 0) {
        model_close(o.m);
        return rc;
    }
    (void)snprintf(o.m->architecture, sizeof o.m->architecture, "%s", o.arch->name);
    o.m->fingerprint = gguf_fingerprint(o.m->gguf);
    *out = o.m;
    return 0;
}

void model_close(struct model *m)
{
    if (m == NULL)
        return;
    gguf_close(m->gguf);
    free(m->geometry.inv_freq);
    free(m->layers);
    free(m);
}
