/* tools/make-model/bytes.h - a growing run of bytes, and GGUF's way of writing values into it.
 *
 * An append that finds no memory is remembered in `failed`, so that a writer asks once, at its end. Zero it before the
 * first use; bytes_free() at the end.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "runtime/model/gguf.h"

struct bytes {
    unsigned char *data; /* owned */
    size_t n, capacity;
    bool failed;
};

void bytes_add(struct bytes *b, const void *data, size_t n);
void bytes_add_u32(struct bytes *b, uint32_t value);
void bytes_add_u64(struct bytes *b, uint64_t value);
void bytes_add_text(struct bytes *b, const char *text, size_t n); /* its length, then it */
void bytes_pad(struct bytes *b, size_t alignment);
void bytes_free(struct bytes *b);

/* A metadata entry: its key and type; the value is to follow. */
void entry_begin(struct bytes *b, const char *key, enum gguf_type type);
void entry_u32(struct bytes *b, const char *key, uint32_t value);
void entry_f32(struct bytes *b, const char *key, double value);
void entry_bool(struct bytes *b, const char *key, bool value);
void entry_text(struct bytes *b, const char *key, const char *value);
/* An array's head; its elements are to follow. */
void entry_array(struct bytes *b, const char *key, enum gguf_type element, uint64_t n);
