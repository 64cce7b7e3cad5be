/* runtime/model/gguf_internal.h - what gguf.c and gguf_parse.c share; nobody else includes it. */
#pragma once
#include "runtime/model/gguf.h"

struct gguf {
    char *path;                /* owned */
    const unsigned char *base; /* the mapping, owned */
    size_t bytes;
    struct gguf_value *values; /* owned [n_values], in file order */
    size_t n_values;
    struct gguf_tensor *tensors; /* owned [n_tensors], in file order */
    size_t n_tensors;
    const struct gguf_value **values_by_key;    /* owned, sorted by key */
    const struct gguf_tensor **tensors_by_name; /* owned, sorted by name */
    size_t alignment, table_bytes, data_offset;
    uint64_t fingerprint;
};

/* Reads and checks everything from the magic to the last tensor's last byte; fills all of *g
 * below `bytes`. What it allocated is in *g for gguf_close(), also on failure. EBB_EFORMAT,
 * EBB_EUNSUPPORTED, EBB_ENOMEM. */
int gguf_parse(struct gguf *g, struct error *err);

int gguf_string_compare(struct gguf_string a, struct gguf_string b);
