/* runtime/model/gguf_split.c - a model in several files: the names of its parts, that they belong
 * together, and one table of their tensors.
 *
 * The first part has the metadata of the whole; the others have only the split.* keys (and may
 * repeat some). Every part is opened and checked as a file of its own first, so this file sees good
 * tables only. Parts belong together when they agree on every key that two of them have (the
 * number of the part aside), when each stands at its own number, and when their tensors add up to
 * the count that all of them name. Refused: a part that is missing, by its name; parts of different
 * models, by the key that differs. Source of names and keys: ggml-org/ggml docs/gguf.md, "Sharded
 * models", and the files in use.
 *
 * Ownership: the first part owns the others (gguf_close), whose mappings live on; their tables of
 * tensors move into the first's.
 */
#include <stdlib.h>
#include <string.h>
#include "runtime/model/gguf_internal.h"
#include "runtime/model/show.h"

#define KEY_NUMBER  "split.no"
#define KEY_TENSORS "split.tensors.count"
#define ENDING      "-00001-of-00003.gguf"

enum { PARTS_MAX = 65535 };

static int by_name(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    return gguf_string_compare((*x)->name, (*y)->name);
}

int gguf_index(struct gguf *g, struct error *err)
{
    char shown[SHOWN_BYTES];
    for (size_t i = 0; i < g->n_tensors; i++)
        g->tensors_by_name[i] = &g->tensors[i];
    qsort(g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, by_name);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = g->tensors_by_name[i];
        if (by_name(&g->tensors_by_name[i - 1], &g->tensors_by_name[i]) == 0)
            return error_set(err, EBB_EFORMAT, "%s: tensor %s: name: wants one tensor, got two",
                             show_path(gguf_tensor_path(g, t)), show_name(t->name, shown));
    }
    return 0;
}

/* The number in the name of a part and the length of what stands before; false for other names. */
static bool name_read(const char *path, size_t *n_prefix, uint32_t *number, uint32_t *count)
{
    size_t n = strlen(path);
    unsigned int no = 0, of = 0;
    int n_read = 0;
    if (n < sizeof ENDING - 1)
        return false;
    *n_prefix = n - (sizeof ENDING - 1);
    if (sscanf(path + *n_prefix, "-%5u-of-%5u.gguf%n", &no, &of, &n_read) != 2 ||
        n_read != (int)sizeof ENDING - 1)
        return false;
    *number = no;
    *count = of;
    return true;
}

/* The value's bytes in the file; 0 for arrays of arrays, which are compared by their length
 * alone. */
static size_t value_bytes(const struct gguf_value *v)
{
    size_t cursor = 0;
    if (v->element_type == GGUF_ARRAY)
        return 0;
    if (v->element_type != GGUF_STRING)
        return gguf_scalar_bytes(v->element_type) * (size_t)v->n_elements;
    for (uint64_t i = 0; i < v->n_elements; i++)
        (void)gguf_array_string(v, &cursor);
    return cursor;
}

static bool values_are_equal(const struct gguf_value *a, const struct gguf_value *b)
{
    size_t n = value_bytes(a);
    return a->type == b->type && a->element_type == b->element_type &&
           a->n_elements == b->n_elements && n == value_bytes(b) &&
           memcmp(a->data, b->data, n) == 0;
}

/* What is wrong with a key of a part. */
static int mismatch(const struct gguf *part, const char *key, uint32_t wanted, uint32_t got,
                    struct error *err)
{
    return error_set(err, EBB_EFORMAT, "%s: metadata key %s: wants %u (parts of one model), got %u",
                     show_path(part->path), key, wanted, got);
}

/* The part stands at its number and says nothing else than the first does. */
static int part_check(const struct gguf *first, const struct gguf *part, uint32_t number,
                      uint32_t count, struct error *err)
{
    uint32_t value = 0;
    char shown[SHOWN_BYTES];
    int rc = gguf_u32(part, KEY_NUMBER, 0, PARTS_MAX, &value, err);
    if (rc == 0 && value != number)
        rc = mismatch(part, KEY_NUMBER, number, value, err);
    if (rc == 0)
        rc = gguf_u32(part, GGUF_KEY_PARTS, 0, PARTS_MAX, &value, err);
    if (rc == 0 && value != count)
        rc = mismatch(part, GGUF_KEY_PARTS, count, value, err);
    if (rc == EBB_ENOENT)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata keys " KEY_NUMBER ", " GGUF_KEY_PARTS
                         ": wants both in a part, got one or none",
                         show_path(part->path));
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < part->n_values; i++) {
        const struct gguf_value *v = &part->values[i], *of_first = gguf_find_text(first, v->key);
        bool is_number = v->key.n_bytes == sizeof KEY_NUMBER - 1 &&
                         memcmp(v->key.bytes, KEY_NUMBER, v->key.n_bytes) == 0;
        if (of_first != NULL && !is_number && !values_are_equal(v, of_first))
            return error_set(err, EBB_EFORMAT,
                             "%s: metadata key %s: wants the value of part 1, got another: parts "
                             "of different models",
                             show_path(part->path), show_name(v->key, shown));
    }
    return 0;
}

/* Opens part `number` (from 0) of the family that `path` is of. */
static int part_open(struct gguf **part, const char *path, size_t n_prefix, uint32_t number,
                     uint32_t count, struct error *err)
{
    size_t room = n_prefix + sizeof ENDING + 16;
    char *name = malloc(room);
    if (name == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory to open its parts", show_path(path));
    (void)snprintf(name, room, "%.*s-%05u-of-%05u.gguf", (int)n_prefix, path, number + 1, count);
    int rc = gguf_open_one(part, name, err);
    free(name);
    return rc;
}

/* Moves the tensors of all parts into the first's table. */
static int tensors_join(struct gguf *g, struct error *err)
{
    size_t n = g->n_tensors;
    uint32_t wanted = 0;
    for (size_t i = 0; i < g->n_others; i++)
        n += g->others[i]->n_tensors;
    int rc = gguf_u32(g, KEY_TENSORS, 0, UINT32_MAX, &wanted, err);
    if (rc == 0 && wanted != n)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata key " KEY_TENSORS
                         ": wants %zu (what its parts have), got %u",
                         show_path(g->path), n, wanted);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    struct gguf_tensor *all = calloc(n + 1, sizeof *all);
    const struct gguf_tensor **by = calloc(n + 1, sizeof *by);
    if (all == NULL || by == NULL) {
        free(all);
        free(by);
        return error_set(err, EBB_ENOMEM, "%s: no memory for its tables", show_path(g->path));
    }
    memcpy(all, g->tensors, g->n_tensors * sizeof *all);
    for (size_t i = 0, at = g->n_tensors; i < g->n_others; i++) {
        const struct gguf *part = g->others[i];
        for (size_t t = 0; t < part->n_tensors; t++, at++) {
            all[at] = part->tensors[t];
            all[at].part = (uint32_t)i + 1;
        }
    }
    free(g->tensors);
    free(g->tensors_by_name);
    g->tensors = all;
    g->tensors_by_name = by;
    g->n_tensors = n;
    return gguf_index(g, err);
}

/* Opens the parts behind the first one, which is open, and joins them to it. */
static int others_open(struct gguf *g, size_t n_prefix, uint32_t count, struct error *err)
{
    int rc = part_check(g, g, 0, count, err);
    g->others = calloc(count, sizeof *g->others);
    if (rc == 0 && g->others == NULL)
        rc = error_set(err, EBB_ENOMEM, "%s: no memory to open its parts", show_path(g->path));
    for (uint32_t i = 1; rc == 0 && i < count; i++) {
        struct gguf *part = NULL;
        rc = part_open(&part, g->path, n_prefix, i, count, err);
        if (rc != 0)
            break;
        g->others[g->n_others++] = part;
        rc = part_check(g, part, i, count, err);
        g->fingerprint = (g->fingerprint ^ part->fingerprint) * 0x9e3779b97f4a7c15u;
    }
    return rc == 0 ? tensors_join(g, err) : rc;
}

int gguf_split_open(struct gguf **g, struct error *err)
{
    uint32_t count = 1, number = 0, named = 0;
    size_t n_prefix = 0;
    struct gguf *given = *g, *first = NULL;
    int rc = gguf_u32(given, GGUF_KEY_PARTS, 0, PARTS_MAX, &count, err);
    if (rc == EBB_ENOENT || (rc == 0 && count <= 1))
        return 0;
    if (rc != 0)
        return rc;
    if (!name_read(given->path, &n_prefix, &number, &named))
        return error_set(err, EBB_EFORMAT,
                         "%s: one of %u parts: wants a name that ends like \"" ENDING
                         "\", got another",
                         show_path(given->path), count);
    if (named != count || number < 1 || number > count)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata key " GGUF_KEY_PARTS ": wants %u (its name says part %u), "
                         "got %u",
                         show_path(given->path), named, number, count);
    if (number == 1)
        return others_open(given, n_prefix, count, err);
    rc = part_check(given, given, number - 1, count, err);
    if (rc == 0)
        rc = part_open(&first, given->path, n_prefix, 0, count, err);
    if (rc != 0)
        return rc;
    gguf_close(given);
    *g = first;
    return others_open(first, n_prefix, count, err);
}
