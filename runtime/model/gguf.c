/* runtime/model/gguf.c - opens, maps and answers questions about a GGUF file; gguf_parse.c reads
 * its tables, gguf_split.c puts the parts of a split one together.
 *
 * Owns the mapping and the tables. The mapping is shared and read-only: stages register pages of it
 * with a card, and a driver that pins pages of a private mapping may copy them first, which would
 * cost the model's size in memory. Threads: read-only after open, any number may read. The file is
 * not held open.
 *
 * Out of scope: a file that shrinks while it is mapped ends the process with SIGBUS at the next
 * touch of a lost page.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime/model/gguf_internal.h"
#include "runtime/model/show.h"

/* The whole file, read-only. Not a regular file, or an empty one: refused here. */
static int map_file(struct gguf *g, struct error *err)
{
    const char *path = show_path(g->path);
    struct stat st;
    void *base;
    int rc = 0;
    /* O_NONBLOCK: a fifo in the model's place is refused, not waited for */
    int fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, errno == ENOENT ? EBB_ENOENT : EBB_EIO, "%s: cannot open: %s", path,
                         strerror(errno));
    if (fstat(fd, &st) != 0)
        rc = error_set(err, EBB_EIO, "%s: cannot ask for its size: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, EBB_EFORMAT, "%s: wants a GGUF file, got a %s", path,
                       S_ISDIR(st.st_mode) ? "directory" : "device, pipe or socket");
    else if (st.st_size == 0)
        rc = error_set(err, EBB_EFORMAT, "%s: wants a GGUF file, got an empty file", path);
    else if ((base = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = error_set(err, EBB_EIO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                       strerror(errno));
    else {
        g->base = base;
        g->bytes = (size_t)st.st_size;
    }
    close(fd);
    return rc;
}

int gguf_open_one(struct gguf **out, const char *path, struct error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    int rc = 0;
    if (g == NULL || (g->path = strdup(path)) == NULL)
        rc = error_set(err, EBB_ENOMEM, "%s: no memory to open it", show_path(path));
    if (rc == 0)
        rc = map_file(g, err);
    if (rc == 0)
        rc = gguf_parse(g, err);
    if (rc != 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int gguf_open(struct gguf **out, const char *path, struct error *err)
{
    struct gguf *g = NULL;
    int rc = gguf_open_one(&g, path, err);
    if (rc == 0)
        rc = gguf_split_open(&g, err);
    if (rc != 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->n_others; i++)
        gguf_close(g->others[i]);
    free(g->others);
    if (g->base != NULL)
        munmap((void *)g->base, g->bytes);
    free(g->values);
    free(g->tensors);
    free(g->values_by_key);
    free(g->tensors_by_name);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

size_t gguf_file_bytes(const struct gguf *g)
{
    size_t bytes = g->bytes;
    for (size_t i = 0; i < g->n_others; i++)
        bytes += g->others[i]->bytes;
    return bytes;
}

size_t gguf_n_parts(const struct gguf *g)
{
    return 1 + g->n_others;
}

const char *gguf_tensor_path(const struct gguf *g, const struct gguf_tensor *t)
{
    return t->part == 0 ? g->path : g->others[t->part - 1]->path;
}

size_t gguf_data_offset(const struct gguf *g)
{
    return g->data_offset;
}

uint64_t gguf_fingerprint(const struct gguf *g)
{
    return g->fingerprint;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

static int key_against(const void *key, const void *entry)
{
    const struct gguf_value *const *v = entry;
    return gguf_string_compare(*(const struct gguf_string *)key, (*v)->key);
}

static int name_against(const void *name, const void *entry)
{
    const struct gguf_tensor *const *t = entry;
    return gguf_string_compare(*(const struct gguf_string *)name, (*t)->name);
}

const struct gguf_value *gguf_find_text(const struct gguf *g, struct gguf_string key)
{
    const struct gguf_value *const *found =
        bsearch(&key, g->values_by_key, g->n_values, sizeof *g->values_by_key, key_against);
    return found != NULL ? *found : NULL;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    return gguf_find_text(g, (struct gguf_string){key, strlen(key)});
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_string s = {name, strlen(name)};
    const struct gguf_tensor *const *found =
        bsearch(&s, g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, name_against);
    return found != NULL ? *found : NULL;
}

static int absent(const struct gguf *g, const char *key, struct error *err)
{
    return error_set(err, EBB_ENOENT, "%s: metadata key %s: wants a value, got none",
                     show_path(g->path), key);
}

static int wrong_type(const struct gguf *g, const struct gguf_value *v, const char *key,
                      const char *wanted, struct error *err)
{
    return error_set(err, EBB_EFORMAT, "%s: metadata key %s: wants %s, got type %s",
                     show_path(g->path), key, wanted, show_value_type(v->type));
}

/* Any integer type as a magnitude and a sign; false for other types. */
static bool integer_read(const struct gguf_value *v, uint64_t *magnitude, bool *negative)
{
    int64_t i = 0;
    uint64_t u = 0;
    bool is_signed = true;
    switch (v->type) {
    case GGUF_I8: i = (signed char)v->data[0]; break;
    case GGUF_I16: i = (int16_t)(uint16_t)(v->data[0] | v->data[1] << 8); break;
    case GGUF_I32: {
        int32_t x;
        memcpy(&x, v->data, sizeof x);
        i = x;
        break;
    }
    case GGUF_I64: memcpy(&i, v->data, sizeof i); break;
    case GGUF_U8: u = v->data[0], is_signed = false; break;
    case GGUF_U16: memcpy(&u, v->data, 2), is_signed = false; break;
    case GGUF_U32: memcpy(&u, v->data, 4), is_signed = false; break;
    case GGUF_U64: memcpy(&u, v->data, 8), is_signed = false; break;
    default: return false;
    }
    *negative = is_signed && i < 0;
    *magnitude = !is_signed ? u : *negative ? -(uint64_t)i : (uint64_t)i;
    return true;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t min, uint32_t max, uint32_t *value,
             struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    uint64_t magnitude;
    bool negative;
    if (v == NULL)
        return absent(g, key, err);
    if (!integer_read(v, &magnitude, &negative))
        return wrong_type(g, v, key, "an integer", err);
    if (negative || magnitude < min || magnitude > max)
        return error_set(err, EBB_EFORMAT, "%s: metadata key %s: wants %u..%u, got %s%llu",
                         show_path(g->path), key, min, max, negative ? "-" : "",
                         (unsigned long long)magnitude);
    *value = (uint32_t)magnitude;
    return 0;
}

int gguf_f32(const struct gguf *g, const char *key, float *value, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    double wide;
    float f;
    if (v == NULL)
        return absent(g, key, err);
    if (v->type == GGUF_F32) {
        memcpy(&f, v->data, sizeof f);
    } else if (v->type == GGUF_F64) {
        memcpy(&wide, v->data, sizeof wide);
        f = (float)wide;
    } else {
        return wrong_type(g, v, key, "a floating-point number", err);
    }
    if (!isfinite(f))
        return error_set(err, EBB_EFORMAT, "%s: metadata key %s: wants a finite number, got %g",
                         show_path(g->path), key, (double)f);
    *value = f;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *value, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (v == NULL)
        return absent(g, key, err);
    if (v->type != GGUF_BOOL)
        return wrong_type(g, v, key, "a bool", err);
    if (v->data[0] > 1)
        return error_set(err, EBB_EFORMAT, "%s: metadata key %s: wants 0 or 1, got %u",
                         show_path(g->path), key, v->data[0]);
    *value = v->data[0] == 1;
    return 0;
}

int gguf_text(const struct gguf *g, const char *key, struct gguf_string *value, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    size_t cursor = 0;
    if (v == NULL)
        return absent(g, key, err);
    if (v->type != GGUF_STRING)
        return wrong_type(g, v, key, "a string", err);
    *value = gguf_array_string(v, &cursor);
    return 0;
}

struct gguf_string gguf_array_string(const struct gguf_value *v, size_t *cursor)
{
    uint64_t n;
    memcpy(&n, v->data + *cursor, sizeof n);
    struct gguf_string s = {(const char *)v->data + *cursor + sizeof n, (size_t)n};
    *cursor += sizeof n + s.n_bytes;
    return s;
}
