/* tests/unit/model/made.h - files made from a good one: keys set, taken out or added, tensors left
 * out or renamed, the whole cut into parts.
 *
 * A made file begins as a small model's keys and tensors; what is changed lives in memory until it
 * is written. Any failure fails the test at once.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "runtime/model/gguf.h"

struct made_key {
    char name[64];
    unsigned char *raw; /* owned: the type, then the value, as in the file */
    size_t n_raw;
};

struct made {
    struct gguf *source; /* owned: the tensors' bytes are its */
    struct made_key *keys;
    size_t n_keys;
    struct gguf_tensor *tensors; /* owned; names are the source's or literals */
    size_t n_tensors;
    char path[64];
    int fd; /* of path: in memory */
};

void made_open(struct made *m, const char *path);
void made_close(struct made *m);

void made_remove(struct made *m, const char *key);
/* An element type as gguf.h has them; value is n_bytes as they stand in a file. */
void made_set(struct made *m, const char *key, enum gguf_type type, const void *value,
              size_t n_bytes);
void made_set_u32(struct made *m, const char *key, uint32_t value);
void made_set_f32(struct made *m, const char *key, float value);
void made_set_bool(struct made *m, const char *key, bool value);
void made_set_text(struct made *m, const char *key, const char *value);
void made_set_texts(struct made *m, const char *key, const char *const *values, size_t n);
void made_set_numbers(struct made *m, const char *key, enum gguf_type type, const void *values,
                      size_t n);

/* Writes it to m->path, a file in memory. */
void made_write(struct made *m);
/* Writes part `number` (from 0) of `count` with tensors [first, last) and, in part 0, all keys. */
void made_write_part(const struct made *m, const char *path, uint32_t number, uint32_t count,
                     size_t first, size_t last);
