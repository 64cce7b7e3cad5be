/* runtime/model/gguf.h - the container: header, metadata and tensor table of a GGUF file, mapped and checked.
 *
 * Format: ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian. A model in several files (…-00001-of-00003.gguf) is opened by
 * any of them, as one: metadata of the first, tensors of all. Every length and count is checked against what is left of
 * the file before it is used, products against overflow; nothing is believed. Strings stay in the mapping. Threads: read-only after open, any number may read.
 * Out of scope: a file that shrinks while it is mapped ends the process with SIGBUS when a lost page is touched.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_string {
    const char *bytes; /* not terminated */
    size_t n_bytes;
};

struct gguf_value {
    struct gguf_string key;
    enum gguf_type type;         /* of the value, GGUF_ARRAY for arrays */
    enum gguf_type element_type; /* of an array's elements */
    uint64_t n_elements;         /* 1 for scalars */
    const unsigned char *data;   /* first byte of the value or first element, unaligned */
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t type; /* as in the file, known or not */
    uint32_t n_dims;
    uint64_t dims[4];
    uint64_t offset; /* in the data section */
    const unsigned char *data;
    size_t bytes;  /* 0 for a type that the format does not name */
    uint32_t part; /* of a split file, from 0: which one has it */
};

struct gguf; /* opaque; gguf.c */

/* EBB_ENOENT, EBB_EIO, EBB_EFORMAT (err: file, field, wanted, got), EBB_EUNSUPPORTED (version, by number), EBB_ENOMEM. On success
 * every tensor of a type that the format names lies in its file, aligned, and shares no byte with another. */
int gguf_open(struct gguf **g, const char *path, struct error *err);
void gguf_close(struct gguf *g);
const char *gguf_path(const struct gguf *g);
size_t gguf_n_parts(const struct gguf *g);
size_t gguf_file_bytes(const struct gguf *g); /* of all parts */
size_t gguf_data_offset(
    const struct gguf *g); /* of the first part: bytes of header, metadata and table, padded */
uint64_t gguf_fingerprint(const struct gguf *g);

const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* NULL: no such key */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const char *gguf_tensor_path(const struct gguf *g,
                             const struct gguf_tensor *t); /* of the part that has it */

/* Typed reads of a key. Any integer type that holds the value in range is accepted for u32. EBB_ENOENT: no such key (value
 * untouched, so that a default can stand there before); EBB_EFORMAT: wrong type or range, err names file and key. */
int gguf_u32(const struct gguf *g, const char *key, uint32_t min, uint32_t max, uint32_t *value,
             struct error *err);
int gguf_f32(const struct gguf *g, const char *key, float *value, struct error *err);
int gguf_bool(const struct gguf *g, const char *key, bool *value, struct error *err);
int gguf_text(const struct gguf *g, const char *key, struct gguf_string *value, struct error *err);

/* Walks an array of strings: start with *cursor = 0, n_elements calls. Bounds were checked at open. */
struct gguf_string gguf_array_string(const struct gguf_value *v, size_t *cursor);
