/* protocol/message.h - one line as a verb, bare fields and keys; strict reading of requests.
 *
 * message_parse() cuts a line into fields (pure, no allocation; pointers go into the caller's line,
 * which it may modify by putting NULs between fields). message_check() holds it against the
 * grammar's table (grammar.c): unknown verb or key, a key given twice (except stop=), too few or
 * many bare fields. Typed getters check the range and that the whole field is the number. Errors
 * name the field, and the nearest known verb or key.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#define MESSAGE_FIELDS_MAX 256
#define MESSAGE_TAG_MAX    64

struct message_field {
    const char *key;   /* NULL: a bare field */
    const char *value; /* NUL-terminated, still percent-encoded */
    size_t n_bytes;
};

struct message {
    const char *verb;
    size_t n_bare; /* they stand first in fields[], whatever their place in the line */
    size_t n_fields;
    struct message_field fields[MESSAGE_FIELDS_MAX];
};

enum dialect {
    DIALECT_CONTROL, /* requests of a controller, shell or gateway */
    DIALECT_STAGE,   /* requests of the coordinator to a stage (also by hand) */
};

/* `line` has n_bytes and a NUL behind them. EBB_EINVAL (err: what, byte offset): a NUL or another
 * control byte, invalid UTF-8, a field that begins with "=", too many fields; m then holds the
 * whole fields before that place, so message_tag() works. An empty or blank line gives verb = ""
 * and no fields: ignored by all. After the verb ERR there are three bare fields, the third being
 * the rest of the line as it stands. */
int message_parse(struct message *m, char *line, size_t n_bytes, struct error *err);
/* Strictness for requests. EBB_EUNKNOWN_VERB, EBB_EUNKNOWN_KEY, EBB_EINVAL (also: a required key is
 * missing, a tag is none, two keys exclude each other), EBB_EUNSUPPORTED (a verb or key of the
 * protocol that is not built). Not used for replies. */
int message_check(const struct message *m, enum dialect dialect, struct error *err);
/* The tag that an ERR about this line carries: its first bare field where the verb takes a tag and
 * it is one, else "-". */
const char *message_tag(const struct message *m);
bool tag_is_valid(const char *text);

const char *message_bare(const struct message *m, size_t i);       /* NULL: not that many */
const char *message_key(const struct message *m, const char *key); /* raw value, NULL: not given */

/* EBB_ENOENT: key not given, *value untouched (a default can stand there). EBB_EINVAL / EBB_ERANGE:
 * err names key and value. */
int message_u64(const struct message *m, const char *key, uint64_t min, uint64_t max,
                uint64_t *value, struct error *err);
int message_f64(const struct message *m, const char *key, double min, double max, double *value,
                struct error *err);
int message_i64(const struct message *m, const char *key, int64_t min, int64_t max, int64_t *value,
                struct error *err);
/* The i-th bare field as a number; `what` names it in errors ("max_new"). EBB_ENOENT: not that many
 * bare fields. */
int message_bare_u64(const struct message *m, size_t i, const char *what, uint64_t min,
                     uint64_t max, uint64_t *value, struct error *err);
/* Percent-decodes into out (capacity bytes; never terminated beyond them). EBB_ERANGE: does not
 * fit. */
int message_text(const struct message *m, const char *key, char *out, size_t capacity,
                 size_t *n_out, struct error *err);
/* The same with a NUL, for what may be missing: "" where it is, or is broken, or does not fit. */
void message_text_take(const struct message *m, const char *key, char *out, size_t capacity);
/* "0-3" -> 0, 3. */
int message_range(const struct message *m, const char *key, uint32_t *first, uint32_t *last,
                  struct error *err);

/* The whole text is the number, decimal, no sign. EBB_EINVAL, EBB_ERANGE. */
int parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *value);
/* Next element of a comma-separated list: *cursor moves on. 1 got one, 0 end, < 0 error. */
int ids_next(const char **cursor, int32_t max, int32_t *id, struct error *err);

#define LOGIT_BIAS_MAX  64
#define LOGIT_BIAS_MOST 100 /* of its size */

struct logit_bias {
    int32_t id;
    float bias; /* -LOGIT_BIAS_MOST to LOGIT_BIAS_MOST */
};

/* A list "<id>:<bias>,…" of at most LOGIT_BIAS_MAX ids, 0 to max_id, none twice, into biases[LOGIT_BIAS_MAX].
 * EBB_EINVAL, EBB_ERANGE. */
int biases_read(const char *list, int32_t max_id, struct logit_bias *biases, size_t *n,
                struct error *err);

/* Is it `ERR <tag|-> <code> <text>`? Then *tag (never NULL) and *said are filled; an unknown code
 * name counts as EBB_EPEER. */
bool message_error(const struct message *m, const char **tag, struct error *said);
/* The code of a name in an ERR line, EBB_EPEER if it is unknown here. */
int error_code_from_name(const char *name);
