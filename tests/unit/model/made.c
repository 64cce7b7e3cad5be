/* tests/unit/model/made.c - see made.h. Writes version 3 with an alignment of 32. */
#include "tests/unit/model/made.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEYS_MAX = 128, ALIGN = 32 };

static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static size_t text_bytes(const unsigned char *at)
{
    uint64_t n;
    memcpy(&n, at, sizeof n);
    return sizeof n + (size_t)n;
}

/* Of a value behind its type; no arrays of arrays. */
static size_t value_bytes(const struct gguf_value *v)
{
    size_t n = 0;
    if (v->element_type != GGUF_STRING)
        return (size_t)v->n_elements * sizes[v->element_type];
    for (uint64_t i = 0; i < v->n_elements; i++)
        n += text_bytes(v->data + n);
    return n;
}

static void key_copy(struct made *m, const struct gguf_value *v)
{
    char name[64] = "";
    size_t n = value_bytes(v);
    bool is_array = v->type == GGUF_ARRAY;
    unsigned char *value = malloc(n + 12);
    uint32_t type = v->element_type;
    cr_assert(v->key.n_bytes < sizeof name);
    memcpy(name, v->key.bytes, v->key.n_bytes);
    if (is_array) {
        memcpy(value, &type, 4);
        memcpy(value + 4, &v->n_elements, 8);
    }
    memcpy(value + (is_array ? 12 : 0), v->data, n);
    made_set(m, name, v->type, value, n + (is_array ? 12 : 0));
    free(value);
}

void made_open(struct made *m, const char *path)
{
    struct error err;
    memset(m, 0, sizeof *m);
    cr_assert(gguf_open(&m->source, path, &err) == 0, "%s", err.text);
    m->keys = calloc(KEYS_MAX, sizeof *m->keys);
    static const char *const keys[] = {
        "general.architecture",        "general.name",
        "tokenizer.ggml.model",        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",       "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",       "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_bos_token"};
    static const char *const of_arch[] = {"block_count",
                                          "context_length",
                                          "embedding_length",
                                          "feed_forward_length",
                                          "attention.head_count",
                                          "attention.head_count_kv",
                                          "attention.layer_norm_rms_epsilon",
                                          "attention.key_length",
                                          "attention.value_length",
                                          "rope.freq_base",
                                          "rope.dimension_count",
                                          "vocab_size",
                                          "expert_count",
                                          "expert_used_count",
                                          "expert_feed_forward_length",
                                          "expert_shared_feed_forward_length"};
    struct gguf_string arch;
    cr_assert(gguf_text(m->source, "general.architecture", &arch, &err) == 0);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (gguf_find(m->source, keys[i]) != NULL)
            key_copy(m, gguf_find(m->source, keys[i]));
    for (size_t i = 0; i < sizeof of_arch / sizeof of_arch[0]; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%.*s.%s", (int)arch.n_bytes, arch.bytes, of_arch[i]);
        if (gguf_find(m->source, name) != NULL)
            key_copy(m, gguf_find(m->source, name));
    }
    m->n_tensors = gguf_n_tensors(m->source);
    m->tensors = calloc(m->n_tensors + 1, sizeof *m->tensors);
    for (size_t i = 0; i < m->n_tensors; i++)
        m->tensors[i] = *gguf_tensor_at(m->source, i);
    m->fd = memfd_create("made", MFD_CLOEXEC);
    cr_assert(m->fd >= 0);
    (void)snprintf(m->path, sizeof m->path, "/proc/self/fd/%d", m->fd);
}

void made_close(struct made *m)
{
    for (size_t i = 0; i < m->n_keys; i++)
        free(m->keys[i].raw);
    free(m->keys);
    free(m->tensors);
    gguf_close(m->source);
    close(m->fd);
}

void made_remove(struct made *m, const char *key)
{
    for (size_t i = 0; i < m->n_keys; i++)
        if (strcmp(m->keys[i].name, key) == 0) {
            free(m->keys[i].raw);
            memmove(&m->keys[i], &m->keys[i + 1], (m->n_keys - i - 1) * sizeof *m->keys);
            m->n_keys--;
        }
}

void made_set(struct made *m, const char *key, enum gguf_type type, const void *value,
              size_t n_bytes)
{
    uint32_t number = type;
    made_remove(m, key);
    cr_assert(m->n_keys < KEYS_MAX);
    struct made_key *k = &m->keys[m->n_keys++];
    (void)snprintf(k->name, sizeof k->name, "%s", key);
    k->n_raw = n_bytes + 4;
    k->raw = malloc(k->n_raw);
    memcpy(k->raw, &number, 4);
    memcpy(k->raw + 4, value, n_bytes);
}

void made_set_u32(struct made *m, const char *key, uint32_t value)
{
    made_set(m, key, GGUF_U32, &value, 4);
}

void made_set_f32(struct made *m, const char *key, float value)
{
    made_set(m, key, GGUF_F32, &value, 4);
}

void made_set_bool(struct made *m, const char *key, bool value)
{
    unsigned char byte = value;
    made_set(m, key, GGUF_BOOL, &byte, 1);
}

void made_set_text(struct made *m, const char *key, const char *value)
{
    unsigned char bytes[4096];
    uint64_t n = strlen(value);
    cr_assert(n + 8 <= sizeof bytes);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, value, n);
    made_set(m, key, GGUF_STRING, bytes, (size_t)n + 8);
}

void made_set_texts(struct made *m, const char *key, const char *const *values, size_t n)
{
    size_t room = 12, at = 12;
    uint32_t type = GGUF_STRING;
    uint64_t count = n;
    for (size_t i = 0; i < n; i++)
        room += 8 + strlen(values[i]);
    unsigned char *bytes = malloc(room);
    memcpy(bytes, &type, 4);
    memcpy(bytes + 4, &count, 8);
    for (size_t i = 0; i < n; i++) {
        uint64_t length = strlen(values[i]);
        memcpy(bytes + at, &length, 8);
        memcpy(bytes + at + 8, values[i], length);
        at += 8 + (size_t)length;
    }
    made_set(m, key, GGUF_ARRAY, bytes, room);
    free(bytes);
}

void made_set_numbers(struct made *m, const char *key, enum gguf_type type, const void *values,
                      size_t n)
{
    size_t n_bytes = n * sizes[type];
    unsigned char *bytes = malloc(12 + n_bytes);
    uint32_t number = type;
    uint64_t count = n;
    memcpy(bytes, &number, 4);
    memcpy(bytes + 4, &count, 8);
    memcpy(bytes + 12, values, n_bytes);
    made_set(m, key, GGUF_ARRAY, bytes, 12 + n_bytes);
    free(bytes);
}

static void put(FILE *f, const void *bytes, size_t n)
{
    cr_assert(n == 0 || fwrite(bytes, n, 1, f) == 1);
}

static void put_u64(FILE *f, uint64_t value)
{
    put(f, &value, 8);
}

static void put_name(FILE *f, const char *bytes, size_t n)
{
    put_u64(f, n);
    put(f, bytes, n);
}

static void put_padding(FILE *f)
{
    while (ftell(f) % ALIGN != 0)
        put(f, "", 1);
}

static void write_file(FILE *f, const struct made_key *keys, size_t n_keys,
                       const struct gguf_tensor *tensors, size_t n_tensors)
{
    uint64_t offset = 0;
    put(f, "GGUF\3\0\0\0", 8);
    put_u64(f, n_tensors);
    put_u64(f, n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        put_name(f, keys[i].name, strlen(keys[i].name));
        put(f, keys[i].raw, keys[i].n_raw);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        put_name(f, tensors[i].name.bytes, tensors[i].name.n_bytes);
        put(f, &tensors[i].n_dims, 4);
        put(f, tensors[i].dims, 8 * (size_t)tensors[i].n_dims);
        put(f, &tensors[i].type, 4);
        put_u64(f, offset);
        offset += (tensors[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        put_padding(f);
        put(f, tensors[i].data, tensors[i].bytes);
    }
    put_padding(f);
    cr_assert(fclose(f) == 0);
}

void made_write(struct made *m)
{
    FILE *f = fopen(m->path, "wb");
    cr_assert(f != NULL);
    write_file(f, m->keys, m->n_keys, m->tensors, m->n_tensors);
}

void made_write_part(const struct made *m, const char *path, uint32_t number, uint32_t count,
                     size_t first, size_t last)
{
    struct made part = {.keys = calloc(KEYS_MAX, sizeof *part.keys)};
    uint16_t no = (uint16_t)number, of = (uint16_t)count;
    int32_t total = (int32_t)m->n_tensors;
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL, "%s", path);
    for (size_t i = 0; number == 0 && i < m->n_keys; i++) {
        uint32_t type;
        memcpy(&type, m->keys[i].raw, 4);
        made_set(&part, m->keys[i].name, (enum gguf_type)type, m->keys[i].raw + 4,
                 m->keys[i].n_raw - 4);
    }
    made_set(&part, "split.no", GGUF_U16, &no, 2);
    made_set(&part, "split.count", GGUF_U16, &of, 2);
    made_set(&part, "split.tensors.count", GGUF_I32, &total, 4);
    write_file(f, part.keys, part.n_keys, m->tensors + first, last - first);
    for (size_t i = 0; i < part.n_keys; i++)
        free(part.keys[i].raw);
    free(part.keys);
}
