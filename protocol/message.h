/* protocol/message.h - one line as a verb, bare fields and keys; strict reading of requests.
 *
 * message_parse() cuts a line into fields (pure, no allocation; pointers go into the caller's line, which it may modify by
 * putting NULs between fields). message_check() holds it against the grammar's table (grammar.c): unknown verb or key, a key
 * given twice (except stop=), too few or many bare fields. Typed getters check the range and that the whole field is the number.
 * Errors name the field, and the nearest known verb or key.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#define MESSAGE_FIELDS_MAX 256
#define MESSAGE_TAG_MAX 64

struct message_field {
    const char *key;   /* NULL: a bare field */
    const char *value; /* NUL-terminated, still percent-encoded */
    size_t n_bytes;
};

struct message {
    const char *verb;
    size_t n_bare, n_fields; /* bare fields stand first in fields[] whatever their place in the line */
    struct message_field fields[MESSAGE_FIELDS_MAX];
};

enum dialect {
    DIALECT_CONTROL, /* requests of a controller, shell or gateway */
    DIALECT_STAGE,   /* requests of the coordinator to a stage (also by hand) */
};

/* EBB_EINVAL (err: what, byte offset). An empty or blank line gives verb = "" and no fields: ignored by all. */
int message_parse(struct message *m, char *line, size_t n_bytes, struct error *err);
/* Strictness for requests. EBB_EUNKNOWN_VERB, EBB_EUNKNOWN_KEY, EBB_EINVAL. Not used for replies. */
int message_check(const struct message *m, enum dialect dialect, struct error *err);
/* The tag that an ERR about this line carries: its first bare field where the verb takes a tag and it is one, else "-". */
const char *message_tag(const struct message *m);
bool tag_is_valid(const char *text);

const char *message_bare(const struct message *m, size_t i); /* NULL: not that many */
const char *message_key(const struct message *m, const char *key); /* raw value, NULL: not given */

/* EBB_ENOENT: key not given, *value untouched (a default can stand there). EBB_EINVAL / EBB_ERANGE: err names key and value. */
int message_u64(const struct message *m, const char *key, uint64_t min, uint64_t max, uint64_t *value, struct error *err);
int message_f64(const struct message *m, const char *key, double min, double max, double *value, struct error *err);
/* Percent-decodes into out (capacity bytes; never terminated beyond them). EBB_ERANGE: does not fit. */
int message_text(const struct message *m, const char *key, char *out, size_t capacity, size_t *n_out, struct error *err);
/* "0-3" -> 0, 3. */
int message_range(const struct message *m, const char *key, uint32_t *first, uint32_t *last, struct error *err);

int parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *value); /* whole text, decimal, no sign; EBB_EINVAL, EBB_ERANGE */
/* Next element of a comma-separated list: *cursor moves on. 1 got one, 0 end, < 0 error. */
int ids_next(const char **cursor, int32_t max, int32_t *id, struct error *err);
