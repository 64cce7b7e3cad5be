/* tests/unit/model/small_models_test.c - what can be wrong with a model of any architecture is
 * refused in one line naming the file and the field: every tensor in turn, every key that is
 * needed, every cut, thousands of flipped bytes. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/unit/model/made.h"
#include "runtime/model/chat.h"
#include "runtime/model/inspect.h"
#include "runtime/model/model.h"

static const char *const names[] = {"llama", "llama-rope3", "mixtral", "olmoe",
                                    "qwen2", "qwen2moe",    "qwen3",   "qwen3moe"};
#define N_NAMES (sizeof names / sizeof names[0])

static const char *path_of(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, EBBTIDE_TEST_DATA "/arch/%s.gguf", name);
    return path;
}

static const char *key_of(const struct made *m, const char *key)
{
    static char name[128];
    struct gguf_string arch;
    struct error err;
    cr_assert(gguf_text(m->source, "general.architecture", &arch, &err) == 0);
    (void)snprintf(name, sizeof name, "%.*s.%s", (int)arch.n_bytes, arch.bytes, key);
    return name;
}

static void expect_refusal(struct made *m, const char *model, const char *says)
{
    struct model *opened = NULL;
    struct error err = {0};
    made_write(m);
    int rc = model_open(&opened, m->path, &err);
    cr_assert((rc == EBB_EFORMAT || rc == EBB_EUNSUPPORTED) && err.code == rc, "%s: %s: %s: %s",
              model, says, error_code_name(rc), err.text);
    cr_assert(opened == NULL && strstr(err.text, m->path) == err.text, "%s: %s", model, err.text);
    cr_assert(strstr(err.text, says) != NULL, "%s: no \"%s\" in: %s", model, says, err.text);
    cr_assert(strpbrk(err.text, "\r\n") == NULL);
}

static void expect_opens(struct made *m, const char *model)
{
    struct model *opened = NULL;
    struct error err = {0};
    made_write(m);
    cr_assert(model_open(&opened, m->path, &err) == 0, "%s: %s", model, err.text);
    model_close(opened);
}

static const char *tensor_name(const struct gguf_tensor *t)
{
    static char name[80];
    (void)snprintf(name, sizeof name, "%.*s", (int)t->name.n_bytes, t->name.bytes);
    return name;
}

Test(small_models, made_again_they_open)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        struct made m;
        made_open(&m, path_of(names[i]));
        expect_opens(&m, names[i]);
        made_close(&m);
    }
}

Test(small_models, every_tensor_is_missed)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        struct made m;
        made_open(&m, path_of(names[i]));
        for (size_t t = 0; t < m.n_tensors; t++) {
            struct gguf_tensor out = m.tensors[t];
            memmove(&m.tensors[t], &m.tensors[t + 1], (m.n_tensors - t - 1) * sizeof out);
            m.n_tensors--;
            const char *name = tensor_name(&out);
            if (strcmp(name, "output.weight") == 0 || strcmp(name, "rope_freqs.weight") == 0)
                expect_opens(&m, names[i]); /* tied; not scaled */
            else
                expect_refusal(&m, names[i], name);
            memmove(&m.tensors[t + 1], &m.tensors[t], (m.n_tensors - t) * sizeof out);
            m.tensors[t] = out;
            m.n_tensors++;
        }
        made_close(&m);
    }
}

Test(small_models, every_tensors_shape_and_type_are_checked)
{
    static const uint32_t types[] = {16, 39, 77, 1000};
    for (size_t i = 0; i < N_NAMES; i++) {
        struct made m;
        made_open(&m, path_of(names[i]));
        for (size_t t = 0; t < m.n_tensors; t++) {
            struct gguf_tensor good = m.tensors[t], *at = &m.tensors[t];
            at->dims[at->n_dims - 1]--;
            bool is_embedding = strcmp(tensor_name(at), "token_embd.weight") == 0;
            expect_refusal(&m, names[i], is_embedding ? "tokenizer.ggml.tokens" : tensor_name(at));
            *at = good;
            for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
                at->type = types[k];
                expect_refusal(&m, names[i], tensor_name(at));
            }
            *at = good;
        }
        made_close(&m);
    }
}

Test(small_models, a_tensor_too_much_or_twice_is_refused)
{
    static const char *const strange[] = {"blk.0.attn_sinks.weight", "blk.1.ffn_gate.bias",
                                          "blk.2.attn_norm.weight", "blk.0.attn_qkv.weight"};
    for (size_t i = 0; i < N_NAMES; i++) {
        struct made m;
        made_open(&m, path_of(names[i]));
        struct gguf_tensor good = m.tensors[m.n_tensors - 1];
        m.tensors[m.n_tensors++] = good;
        expect_refusal(&m, names[i], "wants one tensor, got two");
        for (size_t k = 0; k < sizeof strange / sizeof strange[0]; k++) {
            m.tensors[m.n_tensors - 1].name = (struct gguf_string){strange[k], strlen(strange[k])};
            expect_refusal(&m, names[i], strange[k]);
        }
        made_close(&m);
    }
}

struct key_case {
    const char *key;
    float value;
    bool is_float;
    const char *says;    /* besides the key */
    const char *only_of; /* part of the model's name; NULL: all */
};

static const struct key_case key_cases[] = {
    {"block_count", 0, false, "got 0", NULL},
    {"block_count", 3, false, NULL, NULL},
    {"embedding_length", 0, false, "got 0", NULL},
    {"embedding_length", 32, false, NULL, NULL},
    {"context_length", 0, false, "got 0", NULL},
    {"attention.head_count", 0, false, "got 0", NULL},
    {"attention.head_count_kv", 3, false, "divisor of 4", NULL},
    {"attention.value_length", 8, false, "as the keys", NULL},
    {"attention.layer_norm_rms_epsilon", 0, true, "got 0", NULL},
    {"rope.freq_base", 1, true, "got 1", NULL},
    {"rope.dimension_count", 15, false, "even", NULL},
    {"rope.dimension_count", 128, false, "got 128", NULL},
    {"attention.sliding_window", 256, false, "window of 256", NULL},
    {"attn_logit_softcapping", 50, true, "no cap", NULL},
    {"final_logit_softcapping", 30, true, "no cap", NULL},
    {"attention.max_alibi_bias", 8, true, "no ALiBi", NULL},
    {"attention.clamp_kqv", 8, true, "no clamp", NULL},
    {"attention.scale", -1, true, "positive", NULL},
    {"logit_scale", 2, true, "wants 1", NULL},
    {"residual_scale", 0.5f, true, "wants 1", NULL},
    {"rope.scaling.factor", 0, true, "more than 0", NULL},
    {"feed_forward_length", 0, false, "got 0", "qwen3."},
    {"feed_forward_length", 32, false, NULL, "llama."},
    {"expert_count", 0, false, "got 0", "moe."},
    {"expert_count", 7, false, NULL, "mixtral."},
    {"expert_used_count", 0, false, "got 0", "m"},
    {"expert_used_count", 17, false, "got 17", "m"},
    {"expert_gating_func", 2, false, "softmax", "m"},
    {"expert_weights_scale", -1, true, "positive", "m"},
    {"expert_group_count", 4, false, "one group", "m"},
    {"leading_dense_block_count", 1, false, "every layer", "m"},
    {"expert_feed_forward_length", 32, false, NULL, "m"},
    {"expert_shared_feed_forward_length", 32, false, NULL, "qwen2moe."},
};

static bool applies(const struct key_case *c, const char *name)
{
    char whole[64];
    (void)snprintf(whole, sizeof whole, "%s.", name);
    if (c->only_of != NULL && strcmp(c->only_of, "m") == 0)
        return strstr(name, "moe") != NULL || strcmp(name, "mixtral") == 0;
    return c->only_of == NULL || strstr(whole, c->only_of) != NULL;
}

Test(small_models, keys_that_cannot_be_are_refused_by_name)
{
    for (size_t i = 0; i < N_NAMES; i++)
        for (size_t k = 0; k < sizeof key_cases / sizeof key_cases[0]; k++) {
            const struct key_case *c = &key_cases[k];
            struct made m;
            if (!applies(c, names[i]))
                continue;
            made_open(&m, path_of(names[i]));
            if (c->is_float)
                made_set_f32(&m, key_of(&m, c->key), c->value);
            else
                made_set_u32(&m, key_of(&m, c->key), (uint32_t)c->value);
            if (c->says != NULL)
                expect_refusal(&m, names[i], c->key);
            /* with no words of its own the tensors disagree, and one of them is named */
            expect_refusal(&m, names[i], c->says != NULL ? c->says : "tensor ");
            made_close(&m);
        }
}

Test(small_models, needed_keys_are_missed_by_name)
{
    static const char *const needed[] = {"block_count", "context_length", "embedding_length",
                                         "attention.head_count",
                                         "attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < N_NAMES; i++)
        for (size_t k = 0; k < sizeof needed / sizeof needed[0]; k++) {
            struct made m;
            made_open(&m, path_of(names[i]));
            made_remove(&m, key_of(&m, needed[k]));
            expect_refusal(&m, names[i], needed[k]);
            made_close(&m);
        }
}

Test(small_models, neutral_keys_change_nothing)
{
    struct made m;
    made_open(&m, path_of("qwen3"));
    made_set_u32(&m, key_of(&m, "attention.sliding_window"), 512);
    made_set_f32(&m, key_of(&m, "attn_logit_softcapping"), 0);
    made_set_f32(&m, key_of(&m, "logit_scale"), 1);
    made_set_bool(&m, key_of(&m, "attention.causal"), true);
    made_set_text(&m, key_of(&m, "rope.scaling.type"), "none");
    expect_opens(&m, "qwen3");
    made_set_bool(&m, key_of(&m, "attention.causal"), false);
    expect_refusal(&m, "qwen3", "attention.causal");
    made_close(&m);
}

/* Arrays inside arrays: `depth` of them around two numbers. */
static void set_nested(struct made *m, const char *key, int depth)
{
    unsigned char bytes[256];
    size_t at = 0;
    for (int i = 0; i < depth; i++) {
        uint32_t type = i + 1 < depth ? GGUF_ARRAY : GGUF_U16;
        uint64_t n = i + 1 < depth ? 1 : 2;
        memcpy(bytes + at, &type, 4);
        memcpy(bytes + at + 4, &n, 8);
        at += 12;
    }
    memset(bytes + at, 0, 4);
    made_set(m, key, GGUF_ARRAY, bytes, at + 4);
}

Test(small_models, nested_arrays_are_read_to_a_depth)
{
    struct made m;
    made_open(&m, path_of("llama"));
    for (int depth = 1; depth <= 4; depth++) {
        set_nested(&m, "test.nested", depth);
        expect_opens(&m, "llama");
    }
    set_nested(&m, "test.nested", 5);
    expect_refusal(&m, "llama", "metadata key test.nested: arrays in arrays: wants at most 4");
    set_nested(&m, "test.nested", 19);
    expect_refusal(&m, "llama", "test.nested");
    made_close(&m);
}

struct copy {
    int fd;
    char path[64];
    unsigned char *bytes; /* owned: as it was */
    size_t n, table_bytes;
};

static void copy_open(struct copy *c, const char *path)
{
    struct gguf *g = NULL;
    struct error err;
    struct stat st;
    int from = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(from >= 0 && fstat(from, &st) == 0);
    c->n = (size_t)st.st_size;
    c->bytes = malloc(c->n);
    c->fd = memfd_create("copy", MFD_CLOEXEC);
    cr_assert(read(from, c->bytes, c->n) == (ssize_t)c->n);
    cr_assert(pwrite(c->fd, c->bytes, c->n, 0) == (ssize_t)c->n);
    close(from);
    (void)snprintf(c->path, sizeof c->path, "/proc/self/fd/%d", c->fd);
    cr_assert(gguf_open(&g, path, &err) == 0, "%s", err.text);
    c->table_bytes = gguf_data_offset(g);
    gguf_close(g);
}

static void copy_close(struct copy *c)
{
    close(c->fd);
    free(c->bytes);
}

static void expect_cut(struct copy *c, const char *name, size_t n)
{
    struct model *m = NULL;
    struct error err;
    cr_assert(ftruncate(c->fd, 0) == 0 && pwrite(c->fd, c->bytes, n, 0) == (ssize_t)n);
    int rc = model_open(&m, c->path, &err);
    cr_assert(rc == EBB_EFORMAT && strstr(err.text, c->path) == err.text, "%s at %zu: %s", name, n,
              err.text);
}

Test(small_models, cut_anywhere_they_are_refused)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        struct copy c;
        copy_open(&c, path_of(names[i]));
        for (size_t n = c.n - 1; n > 0; n -= n > 4096 ? 1021 : n > 97 ? 37 : 1)
            expect_cut(&c, names[i], n);
        for (size_t n = (c.n - 1) / 4096 * 4096; n > 0; n -= 4096)
            expect_cut(&c, names[i], n);
        copy_close(&c);
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return x * 0x9e3779b97f4a7c15u >> 16;
}

/* Opens all there is to open; what comes of it does not matter. */
static void open_everything(const char *path)
{
    struct error err;
    struct gguf *g;
    struct model *m;
    struct tokenizer *t;
    struct chat *c;
    struct chat_state s = {0};
    int32_t ids[64];
    size_t n_ids = 0;
    if (gguf_open(&g, path, &err) == 0) {
        if (tokenizer_open(&t, g, &err) == 0) {
            (void)tokenizer_encode(t, "the <|im_end|>", 14, true, ids, 64, &n_ids, &err);
            if (chat_open(&c, g, t, &err) == 0) {
                (void)chat_turn(c, &s, CHAT_USER, "the", 3, ids, 64, &n_ids, &err);
                chat_close(c);
            }
            tokenizer_close(t);
        }
        gguf_close(g);
    }
    struct inspection x;
    if (model_open(&m, path, &err) == 0)
        model_close(m);
    if (inspect_open(&x, path, &err) == 0) {
        (void)inspect_share(&x, 0, x.n_layers);
        inspect_close(&x);
    }
}

static void flip_bytes_of(const char *name, uint64_t state)
{
    struct copy c;
    copy_open(&c, path_of(name));
    for (int i = 0; i < 2000; i++) {
        size_t among = random_next(&state) % 8 == 0 ? c.n : c.table_bytes;
        size_t at = random_next(&state) % among;
        unsigned char byte = c.bytes[at] ^ (unsigned char)(1 + random_next(&state) % 255);
        cr_assert(pwrite(c.fd, &byte, 1, (off_t)at) == 1);
        open_everything(c.path);
        cr_assert(pwrite(c.fd, &c.bytes[at], 1, (off_t)at) == 1);
    }
    copy_close(&c);
}

Test(small_models, dense_ones_with_flipped_bytes_never_crash)
{
    flip_bytes_of("llama", 1);
    flip_bytes_of("llama-rope3", 2);
    flip_bytes_of("qwen2", 3);
    flip_bytes_of("qwen3", 4);
}

Test(small_models, those_with_experts_with_flipped_bytes_never_crash)
{
    flip_bytes_of("mixtral", 5);
    flip_bytes_of("olmoe", 6);
    flip_bytes_of("qwen2moe", 7);
    flip_bytes_of("qwen3moe", 8);
}
