/* runtime/model/gguf_internal.h - what gguf.c, gguf_parse.c and gguf_split.c share; nobody else
 * includes it. */
#pragma once
#include "runtime/model/gguf.h"

#define GGUF_KEY_PARTS "split.count"

struct gguf {
    char *path;                /* owned */
    const unsigned char *base; /* the mapping, owned */
    size_t bytes;
    struct gguf_value *values; /* owned [n_values], in file order */
    size_t n_values;
    struct gguf_tensor *tensors; /* owned [n_tensors], in file order; of all parts */
    size_t n_tensors;
    const struct gguf_value **values_by_key;    /* owned, sorted by key */
    const struct gguf_tensor **tensors_by_name; /* owned, sorted by name */
    size_t alignment, table_bytes, data_offset;
    uint64_t fingerprint;
    struct gguf **others; /* owned [n_others]: the parts behind this first one */
    size_t n_others;
};

/* gguf.c: opens one file, whatever it says of parts. */
int gguf_open_one(struct gguf **g, const char *path, struct error *err);

/* gguf_parse.c: reads and checks everything from the magic to the last tensor's last byte; fills
 * all of *g below `bytes`. What it allocated is in *g for gguf_close(), also on failure.
 * EBB_EFORMAT, EBB_EUNSUPPORTED, EBB_ENOMEM. */
int gguf_parse(struct gguf *g, struct error *err);
size_t gguf_scalar_bytes(enum gguf_type type); /* 0 for strings and arrays */

/* gguf_split.c: where *g is a part of a split file, opens all parts and leaves the first, which
 * then has the tensors of all, in *g. On failure *g is still to be closed. */
int gguf_split_open(struct gguf **g, struct error *err);

/* Sorts the tensors by name. EBB_EFORMAT: one name twice. */
int gguf_index(struct gguf *g, struct error *err);

const struct gguf_value *gguf_find_text(const struct gguf *g, struct gguf_string key);
int gguf_string_compare(struct gguf_string a, struct gguf_string b);
