/* runtime/model/gguf_parse.c - from the bytes of a mapping to checked tables of values and tensors.
 *
 * Owns nothing: it fills a struct gguf that gguf.c opened and closes. One pass in file order with
 * one cursor (struct reader): no byte is looked at before take() has said that it is there, and no
 * count sizes an allocation before it was compared with what the rest of the file could hold at the
 * smallest. The tables are indexed by sorting (not hashing), so that no choice of names makes
 * opening slow, and duplicates end up side by side.
 *
 * Refused: versions other than 2 and 3, arrays nested deeper than anybody's, strings that are not
 * UTF-8, duplicate keys or names, tensors that overlap, are misaligned or end past the file. Kept:
 * tensors of types that the format does not name (0 bytes, at least their first byte in the file).
 * One part of a split file is read like a file of its own; gguf_split.c puts them together. Source of
 * the format: ggml-org/ggml docs/gguf.md.
 */
#include "runtime/model/gguf_internal.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/model/format_types.h"
#include "runtime/model/show.h"
#include "runtime/model/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "values are read as they stand in the file");

enum {
    GGUF_VERSION_MIN = 2, /* 3 only adds big-endian files, 1 had 32-bit counts */
    GGUF_VERSION_MAX = 3,
    ARRAY_DEPTH_MAX = 4, /* arrays in arrays: none in use goes deeper than 2 */
    KEY_BYTES_MAX = 65535,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 1 << 20,
    VALUE_BYTES_MIN = 8 + 1 + 4 + 1,          /* a key of one character, a type, a byte */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* a name of one character, one dimension */
};

struct reader {
    struct gguf *g;
    size_t at;
    const char *section;     /* "header", "metadata", "tensor" */
    uint64_t index, n_index; /* which entry of the section */
    struct gguf_string name; /* of that entry, once it is known */
    struct error *err;
};

__attribute__((format(printf, 3, 4))) static int refuse(const struct reader *r, int code,
                                                        const char *format, ...)
{
    char text[256], where[160], shown[SHOWN_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->name.bytes != NULL)
        (void)snprintf(where, sizeof where, "%s %s", r->section, show_name(r->name, shown));
    else if (r->n_index != 0)
        (void)snprintf(where, sizeof where, "%s %llu of %llu", r->section,
                       (unsigned long long)r->index + 1, (unsigned long long)r->n_index);
    else
        (void)snprintf(where, sizeof where, "%s", r->section);
    return error_set(r->err, code, "%s: %s: %s", show_path(r->g->path), where, text);
}

static size_t left(const struct reader *r)
{
    return r->g->bytes - r->at;
}

/* Moves past n bytes that are wholly in the file. */
static int take(struct reader *r, uint64_t n, const char *what)
{
    if (n > left(r))
        return refuse(r, EBB_EFORMAT,
                      "%s wants %llu bytes at offset %zu, file ends %llu bytes short", what,
                      (unsigned long long)n, r->at, (unsigned long long)(n - left(r)));
    r->at += (size_t)n;
    return 0;
}

static int take_u32(struct reader *r, const char *what, uint32_t *value)
{
    int rc = take(r, sizeof *value, what);
    if (rc == 0)
        memcpy(value, r->g->base + r->at - sizeof *value, sizeof *value);
    return rc;
}

static int take_u64(struct reader *r, const char *what, uint64_t *value)
{
    int rc = take(r, sizeof *value, what);
    if (rc == 0)
        memcpy(value, r->g->base + r->at - sizeof *value, sizeof *value);
    return rc;
}

static int take_string(struct reader *r, const char *what, struct gguf_string *s)
{
    uint64_t n = 0;
    int rc = take_u64(r, what, &n);
    if (rc == 0)
        rc = take(r, n, what);
    if (rc != 0)
        return rc;
    s->bytes = (const char *)r->g->base + r->at - n;
    s->n_bytes = (size_t)n;
    return 0;
}

/* A string that has to be text, as all of the format's strings are. */
static int take_text(struct reader *r, const char *what, struct gguf_string *s)
{
    int rc = take_string(r, what, s);
    size_t valid = rc == 0 ? utf8_valid((const unsigned char *)s->bytes, s->n_bytes) : 0;
    if (rc != 0 || valid == s->n_bytes)
        return rc;
    return refuse(r, EBB_EFORMAT, "%s wants UTF-8, got byte 0x%02x at offset %zu", what,
                  (unsigned char)s->bytes[valid], r->at - s->n_bytes + valid);
}

/* What a file that is not GGUF most likely is, for the message. */
static const char *looks_like(const unsigned char *b, size_t n)
{
    static const struct {
        const char *magic;
        size_t n_bytes;
        const char *what;
    } table[] = {
        {"PK\003\004", 4, "a zip archive (a PyTorch checkpoint?)"},
        {"version https://git-lfs", 23, "a Git LFS pointer: the file itself was not fetched"},
        {"\177ELF", 4, "a program"},
        {"\037\213", 2, "a gzip archive"},
        {"\050\265\057\375", 4, "a zstd archive"},
        {"\200\002", 2, "a Python pickle"},
        {"lmgg", 4, "an old GGML model"},
        {"tjgg", 4, "an old GGJT model"},
        {"fmgg", 4, "an old GGMF model"},
        {"<", 1, "a web page"},
        {"{", 1, "JSON text"},
        {"\0\0\0\0", 4, "zeros"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (n >= table[i].n_bytes && memcmp(b, table[i].magic, table[i].n_bytes) == 0)
            return table[i].what;
    if (n >= 9 && b[8] == '{')
        return "a safetensors file";
    return NULL;
}

static int parse_magic(struct reader *r)
{
    const unsigned char *b = r->g->base;
    size_t n = r->g->bytes;
    if (n >= 4 && memcmp(b, "GGUF", 4) == 0) {
        r->at = 4;
        return 0;
    }
    char got[SHOWN_BYTES];
    const char *what = looks_like(b, n);
    show_name((struct gguf_string){(const char *)b, n < 4 ? n : 4}, got);
    return refuse(r, EBB_EFORMAT, "magic: wants \"GGUF\", got \"%s\"%s%s", got,
                  what != NULL ? ", which looks like " : "", what != NULL ? what : "");
}

static int parse_header(struct reader *r, uint64_t *n_tensors, uint64_t *n_values)
{
    uint32_t version = 0;
    int rc = parse_magic(r);
    if (rc == 0)
        rc = take_u32(r, "version", &version);
    if (rc != 0)
        return rc;
    if (version < GGUF_VERSION_MIN || version > GGUF_VERSION_MAX)
        return refuse(r, EBB_EUNSUPPORTED, "version: wants %d or %d, got %u%s", GGUF_VERSION_MIN,
                      GGUF_VERSION_MAX, version,
                      version == 0x03000000 ? " (3 in big-endian bytes)" : "");
    rc = take_u64(r, "tensor count", n_tensors);
    if (rc == 0)
        rc = take_u64(r, "metadata count", n_values);
    if (rc != 0)
        return rc;
    if (*n_values > left(r) / VALUE_BYTES_MIN)
        return refuse(r, EBB_EFORMAT,
                      "metadata count: wants at most %zu (what the file can hold), got %llu",
                      left(r) / VALUE_BYTES_MIN, (unsigned long long)*n_values);
    if (*n_tensors > left(r) / TENSOR_BYTES_MIN)
        return refuse(r, EBB_EFORMAT,
                      "tensor count: wants at most %zu (what the file can hold), got %llu",
                      left(r) / TENSOR_BYTES_MIN, (unsigned long long)*n_tensors);
    return 0;
}

/* 0 for strings and arrays, whose sizes stand in the file. */
size_t gguf_scalar_bytes(enum gguf_type type)
{
    static const unsigned char bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2,    [GGUF_U32] = 4,
        [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return bytes[type];
}

static int check_type(const struct reader *r, const char *what, uint32_t type)
{
    if (type <= GGUF_F64)
        return 0;
    return refuse(r, EBB_EFORMAT, "%s wants 0..%d, got %u", what, GGUF_F64, type);
}

/* The least that one element takes in the file. */
static size_t element_bytes_min(uint32_t type)
{
    return type == GGUF_STRING  ? sizeof(uint64_t)
           : type == GGUF_ARRAY ? sizeof(uint32_t) + sizeof(uint64_t)
                                : gguf_scalar_bytes(type);
}

/* An array's head, and everything in it. Every element takes bytes of the file, so the work is
 * bounded by them; the depth is bounded because it is this function's own. */
static int parse_array(struct reader *r, struct gguf_value *v, int depth)
{
    uint32_t type = 0;
    struct gguf_string s;
    struct gguf_value inner;
    int rc = take_u32(r, "array's element type", &type);
    if (rc == 0)
        rc = check_type(r, "array's element type", type);
    if (rc == 0)
        rc = take_u64(r, "array's length", &v->n_elements);
    if (rc != 0)
        return rc;
    if (depth > ARRAY_DEPTH_MAX)
        return refuse(r, EBB_EUNSUPPORTED, "arrays in arrays: wants at most %d deep, got more",
                      ARRAY_DEPTH_MAX);
    v->element_type = (enum gguf_type)type;
    v->data = r->g->base + r->at;
    size_t each = element_bytes_min(type);
    if (v->n_elements > left(r) / each)
        return refuse(r, EBB_EFORMAT,
                      "array's length: wants at most %zu (what the file can hold), got %llu",
                      left(r) / each, (unsigned long long)v->n_elements);
    if (type != GGUF_STRING && type != GGUF_ARRAY)
        return take(r, v->n_elements * each, "array");
    for (uint64_t i = 0; rc == 0 && i < v->n_elements; i++)
        rc = type == GGUF_ARRAY ? parse_array(r, &inner, depth + 1)
                                : take_text(r, "a string of the array", &s);
    return rc;
}

static int parse_value(struct reader *r, struct gguf_value *v)
{
    uint32_t type = 0;
    struct gguf_string s;
    int rc = take_text(r, "key", &s);
    if (rc != 0)
        return rc;
    if (s.n_bytes == 0 || s.n_bytes > KEY_BYTES_MAX)
        return refuse(r, EBB_EFORMAT, "key: wants 1..%d bytes, got %zu", KEY_BYTES_MAX, s.n_bytes);
    v->key = r->name = s;
    rc = take_u32(r, "value type", &type);
    if (rc == 0)
        rc = check_type(r, "value type", type);
    if (rc != 0)
        return rc;
    v->type = v->element_type = (enum gguf_type)type;
    v->n_elements = 1;
    v->data = r->g->base + r->at;
    if (type == GGUF_ARRAY)
        return parse_array(r, v, 1);
    if (type == GGUF_STRING)
        return take_text(r, "string", &s);
    return take(r, gguf_scalar_bytes(type), "value");
}

static int parse_tensor(struct reader *r, struct gguf_tensor *t)
{
    struct gguf_string s;
    int rc = take_text(r, "name", &s);
    if (rc != 0)
        return rc;
    if (s.n_bytes == 0 || s.n_bytes > KEY_BYTES_MAX)
        return refuse(r, EBB_EFORMAT, "name: wants 1..%d bytes, got %zu", KEY_BYTES_MAX, s.n_bytes);
    t->name = r->name = s;
    rc = take_u32(r, "dimension count", &t->n_dims);
    if (rc != 0)
        return rc;
    if (t->n_dims < 1 || t->n_dims > 4)
        return refuse(r, EBB_EFORMAT, "dimension count: wants 1..4, got %u", t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->dims[d] = 1;
        if (d < t->n_dims && (rc = take_u64(r, "dimensions", &t->dims[d])) != 0)
            return rc;
        if (t->dims[d] == 0)
            return refuse(r, EBB_EFORMAT, "dimension %u: wants at least 1, got 0", d);
    }
    rc = take_u32(r, "type", &t->type);
    return rc != 0 ? rc : take_u64(r, "offset", &t->offset);
}

/* The tensor's bytes from its type and dimensions; 0 for an unknown type. */
static int tensor_size(const struct reader *r, struct gguf_tensor *t)
{
    const struct tensor_type_info *info = format_type_find(t->type);
    uint64_t n = 1;
    char shown[SHOWN_BYTES];
    for (uint32_t d = 0; d < 4; d++)
        if (__builtin_mul_overflow(n, t->dims[d], &n))
            return refuse(r, EBB_EFORMAT, "dimensions: wants fewer than 2^64 values, got %s",
                          show_dims(t->dims, t->n_dims, shown));
    t->bytes = 0;
    if (info == NULL)
        return 0;
    if (t->dims[0] % info->block_values != 0)
        return refuse(r, EBB_EFORMAT, "row length: wants a multiple of %u (%s), got %llu",
                      info->block_values, info->name, (unsigned long long)t->dims[0]);
    if (__builtin_mul_overflow(n / info->block_values, (uint64_t)info->block_bytes, &t->bytes))
        return refuse(r, EBB_EFORMAT,
                      "dimensions: wants fewer than 2^64 bytes, got %llu values (%s)",
                      (unsigned long long)n, info->name);
    return 0;
}

/* Where the tensor lies: aligned, and wholly in the file (an unknown type's first byte at
 * least). */
static int tensor_place(const struct reader *r, struct gguf_tensor *t)
{
    const struct gguf *g = r->g;
    uint64_t end;
    char shown[SHOWN_BYTES], type[SHOWN_BYTES];
    if (t->offset % g->alignment != 0)
        return refuse(r, EBB_EFORMAT, "offset: wants a multiple of %zu, got %llu", g->alignment,
                      (unsigned long long)t->offset);
    if (__builtin_add_overflow((uint64_t)g->data_offset, t->offset, &end) ||
        __builtin_add_overflow(end, (uint64_t)(t->bytes != 0 ? t->bytes : 1), &end))
        return refuse(r, EBB_EFORMAT, "offset: wants data within the file of %zu bytes, got %llu",
                      g->bytes, (unsigned long long)t->offset);
    if (end > g->bytes)
        return refuse(
            r, EBB_EFORMAT,
            "wants %s values (%s, %zu bytes) at data offset %llu, file ends %llu bytes short",
            show_dims(t->dims, t->n_dims, shown), show_tensor_type(t->type, type), t->bytes,
            (unsigned long long)t->offset, (unsigned long long)(end - g->bytes));
    t->data = g->base + g->data_offset + t->offset;
    return 0;
}

int gguf_string_compare(struct gguf_string a, struct gguf_string b)
{
    int order = memcmp(a.bytes, b.bytes, a.n_bytes < b.n_bytes ? a.n_bytes : b.n_bytes);
    return order != 0 ? order : (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_value *const *x = a, *const *y = b;
    return gguf_string_compare((*x)->key, (*y)->key);
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static int no_memory(const struct reader *r)
{
    return refuse(r, EBB_ENOMEM, "no memory for its tables");
}

static int parse_values(struct reader *r, uint64_t n)
{
    struct gguf *g = r->g;
    g->values = calloc(n + 1, sizeof *g->values);
    g->values_by_key = calloc(n + 1, sizeof *g->values_by_key);
    if (g->values == NULL || g->values_by_key == NULL)
        return no_memory(r);
    r->section = "metadata key";
    r->n_index = n;
    for (r->index = 0; r->index < n; r->index++) {
        r->name.bytes = NULL;
        int rc = parse_value(r, &g->values[r->index]);
        if (rc != 0)
            return rc;
        g->values_by_key[r->index] = &g->values[r->index];
    }
    g->n_values = (size_t)n;
    qsort(g->values_by_key, g->n_values, sizeof *g->values_by_key, by_key);
    for (size_t i = 1; i < g->n_values; i++) {
        r->name = g->values_by_key[i]->key;
        if (gguf_string_compare(g->values_by_key[i - 1]->key, r->name) == 0)
            return refuse(r, EBB_EFORMAT, "wants one value, got two");
    }
    r->name.bytes = NULL;
    return 0;
}

static int parse_tensors(struct reader *r, uint64_t n)
{
    struct gguf *g = r->g;
    g->tensors = calloc(n + 1, sizeof *g->tensors);
    g->tensors_by_name = calloc(n + 1, sizeof *g->tensors_by_name);
    if (g->tensors == NULL || g->tensors_by_name == NULL)
        return no_memory(r);
    r->section = "tensor";
    r->n_index = n;
    for (r->index = 0; r->index < n; r->index++) {
        struct gguf_tensor *t = &g->tensors[r->index];
        r->name.bytes = NULL;
        int rc = parse_tensor(r, t);
        if (rc == 0)
            rc = tensor_size(r, t);
        if (rc != 0)
            return rc;
        g->tensors_by_name[r->index] = t;
    }
    g->n_tensors = (size_t)n;
    return 0;
}

/* Tensors share no byte. Sorts the index by offset on the way; parse_layout() leaves it by name. */
static int check_overlap(struct reader *r)
{
    struct gguf *g = r->g;
    char shown[SHOWN_BYTES];
    qsort(g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, by_offset);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = g->tensors_by_name[i - 1], *b = g->tensors_by_name[i];
        uint64_t a_end = a->offset + (a->bytes != 0 ? a->bytes : 1);
        r->name = b->name;
        if (b->offset < a_end)
            return refuse(r, EBB_EFORMAT, "offset: wants at least %llu, where %s ends, got %llu",
                          (unsigned long long)a_end, show_name(a->name, shown),
                          (unsigned long long)b->offset);
    }
    return 0;
}

static int parse_layout(struct reader *r)
{
    struct gguf *g = r->g;
    int rc;
    g->table_bytes = r->at;
    g->data_offset = (r->at + g->alignment - 1) & ~(g->alignment - 1);
    if (g->n_tensors == 0 && g->data_offset > g->bytes)
        g->data_offset = g->bytes; /* a file of metadata alone need not be padded */
    for (size_t i = 0; i < g->n_tensors; i++) {
        r->name = g->tensors[i].name;
        rc = tensor_place(r, &g->tensors[i]);
        if (rc != 0)
            return rc;
    }
    rc = check_overlap(r);
    return rc != 0 ? rc : gguf_index(g, r->err);
}

static int parse_alignment(struct reader *r)
{
    uint32_t alignment = ALIGNMENT_DEFAULT;
    int rc = gguf_u32(r->g, "general.alignment", ALIGNMENT_MIN, ALIGNMENT_MAX, &alignment, r->err);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    r->g->alignment = alignment;
    if ((alignment & (alignment - 1)) == 0)
        return 0;
    r->name = gguf_find(r->g, "general.alignment")->key;
    return refuse(r, EBB_EFORMAT, "wants a power of two, got %u", alignment);
}

/* Eight bytes at a time, folded by multiplication: tells files apart, defends against nobody. */
static uint64_t fingerprint(const unsigned char *bytes, size_t n, uint64_t file_bytes)
{
    uint64_t h = 0xcbf29ce484222325u ^ file_bytes, word;
    for (size_t at = 0; at < n; at += sizeof word) {
        word = 0;
        memcpy(&word, bytes + at, n - at < sizeof word ? n - at : sizeof word);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return (h ^ n) * 0x9e3779b97f4a7c15u;
}

int gguf_parse(struct gguf *g, struct error *err)
{
    struct reader r = {.g = g, .section = "header", .err = err};
    uint64_t n_tensors = 0, n_values = 0;
    int rc = parse_header(&r, &n_tensors, &n_values);
    if (rc == 0)
        rc = parse_values(&r, n_values);
    if (rc == 0)
        rc = parse_alignment(&r);
    if (rc == 0)
        rc = parse_tensors(&r, n_tensors);
    if (rc == 0)
        rc = parse_layout(&r);
    if (rc != 0)
        return rc;
    g->fingerprint = fingerprint(g->base, g->table_bytes, g->bytes);
    return 0;
}
