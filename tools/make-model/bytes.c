/* tools/make-model/bytes.c - a growing run of bytes. Grows by doubling; nothing else happens to it. */
#include "tools/make-model/bytes.h"

#include <stdlib.h>
#include <string.h>

void bytes_add(struct bytes *b, const void *data, size_t n)
{
    if (b->failed)
        return;
    if (n > b->capacity - b->n) {
        size_t capacity = 2 * b->capacity + n + 4096;
        unsigned char *grown = realloc(b->data, capacity);
        if (grown == NULL) {
            b->failed = true;
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

void bytes_add_u32(struct bytes *b, uint32_t value)
{
    bytes_add(b, &value, sizeof value);
}

void bytes_add_u64(struct bytes *b, uint64_t value)
{
    bytes_add(b, &value, sizeof value);
}

void bytes_add_text(struct bytes *b, const char *text, size_t n)
{
    bytes_add_u64(b, n);
    bytes_add(b, text, n);
}

void bytes_pad(struct bytes *b, size_t alignment)
{
    while (b->n % alignment != 0 && !b->failed)
        bytes_add(b, "", 1);
}

void bytes_free(struct bytes *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

void entry_begin(struct bytes *b, const char *key, enum gguf_type type)
{
    bytes_add_text(b, key, strlen(key));
    bytes_add_u32(b, (uint32_t)type);
}

void entry_u32(struct bytes *b, const char *key, uint32_t value)
{
    entry_begin(b, key, GGUF_U32);
    bytes_add_u32(b, value);
}

void entry_f32(struct bytes *b, const char *key, double value)
{
    float single = (float)value;
    entry_begin(b, key, GGUF_F32);
    bytes_add(b, &single, sizeof single);
}

void entry_bool(struct bytes *b, const char *key, bool value)
{
    unsigned char byte = value;
    entry_begin(b, key, GGUF_BOOL);
    bytes_add(b, &byte, 1);
}

void entry_text(struct bytes *b, const char *key, const char *value)
{
    entry_begin(b, key, GGUF_STRING);
    bytes_add_text(b, value, strlen(value));
}

void entry_array(struct bytes *b, const char *key, enum gguf_type element, uint64_t n)
{
    entry_begin(b, key, GGUF_ARRAY);
    bytes_add_u32(b, (uint32_t)element);
    bytes_add_u64(b, n);
}
