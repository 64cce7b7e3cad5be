/* protocol/message.c - a line cut into verb, bare fields and keys, and the typed reading of those
 * fields.
 *
 * message_parse() works inside the caller's line: it puts NULs between the fields and points at
 * them, so a value of 60 KB is neither copied nor walked twice. It knows no verb but ERR, whose
 * text is free. It refuses what is no text: control bytes, invalid UTF-8; a message that it refused
 * half way still has its whole fields before that place.
 *
 * The getters trust nothing: the whole field must be the number, in range. Their errors name verb,
 * key and value; values are quoted by excerpt. Threads: a message belongs to one thread and lives
 * as long as its line. Nothing allocates.
 */
#include "protocol/message.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/excerpt.h"

/* The offset of the first byte that may not stand in a line; n_bytes if all may. */
static size_t clean_length(const char *line, size_t n_bytes)
{
    size_t at = 0;

    while (at < n_bytes) {
        unsigned char c = (unsigned char)line[at];
        size_t width = c >= 0x20 && c < 0x7F ? 1
                       : c >= 0x80           ? utf8_sequence(line + at, n_bytes - at)
                                             : 0;
        if (width == 0)
            break;
        at += width;
    }
    return at;
}

static int refuse_byte(const char *line, size_t at, struct error *err)
{
    unsigned char c = (unsigned char)line[at];
    const char *what = c == 0 ? "a NUL byte" : c < 0x80 ? "a control byte" : "invalid UTF-8";

    return error_set(err, EBB_EINVAL,
                     "byte %zu: %s (0x%02X) stands in the line; in a text it is written %%%02X", at,
                     what, c, c);
}

static int add_field(struct message *m, char *field, size_t n_bytes, size_t at, struct error *err)
{
    char *equals = strcmp(m->verb, "ERR") == 0 ? NULL : memchr(field, '=', n_bytes);
    struct message_field *slot = &m->fields[m->n_fields];

    if (m->n_fields == MESSAGE_FIELDS_MAX)
        return error_set(err, EBB_EINVAL,
                         "byte %zu: a line has at most %d fields; this is one more", at,
                         MESSAGE_FIELDS_MAX);
    if (equals == field)
        return error_set(err, EBB_EINVAL, "byte %zu: a field begins with \"=\"; wanted key=value",
                         at);
    if (equals == NULL) {
        /* Bare fields stand first: the keys seen so far make room. */
        slot = &m->fields[m->n_bare];
        memmove(slot + 1, slot, (m->n_fields - m->n_bare) * sizeof *slot);
        *slot = (struct message_field){.value = field, .n_bytes = n_bytes};
        m->n_bare++;
    } else {
        *equals = '\0';
        size_t n_key = (size_t)(equals - field) + 1;
        *slot = (struct message_field){
            .key = field, .value = field + n_key, .n_bytes = n_bytes - n_key};
    }
    m->n_fields++;
    return 0;
}

/* Cuts line[0..n_bytes). `cut_short`: the line goes on with a byte that is refused, so a field that
 * reaches the end is not whole and left out. */
static int cut_fields(struct message *m, char *line, size_t n_bytes, bool cut_short,
                      struct error *err)
{
    size_t at = 0;

    for (;;) {
        while (at < n_bytes && line[at] == ' ')
            at++;
        if (at == n_bytes)
            return 0;
        bool to_the_end = m->n_bare == 2 && strcmp(m->verb, "ERR") == 0;
        char *space = to_the_end ? NULL : memchr(line + at, ' ', n_bytes - at);
        size_t stop = space != NULL ? (size_t)(space - line) : n_bytes;

        if (space == NULL && cut_short)
            return 0;
        line[stop] = '\0';
        if (*m->verb == '\0') {
            m->verb = line + at;
        } else {
            int rc = add_field(m, line + at, stop - at, at, err);
            if (rc < 0)
                return rc;
        }
        at = space != NULL ? stop + 1 : stop;
    }
}

int message_parse(struct message *m, char *line, size_t n_bytes, struct error *err)
{
    size_t n_clean = clean_length(line, n_bytes);
    int rc;

    m->verb = "";
    m->n_bare = m->n_fields = 0;
    rc = cut_fields(m, line, n_clean, n_clean < n_bytes, err);
    if (rc == 0 && n_clean < n_bytes)
        rc = refuse_byte(line, n_clean, err);
    return rc;
}

bool tag_is_valid(const char *text)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    size_t n = strnlen(text, MESSAGE_TAG_MAX + 1);

    return n > 0 && n <= MESSAGE_TAG_MAX && strspn(text, letters) == n;
}

const char *message_bare(const struct message *m, size_t i)
{
    return i < m->n_bare ? m->fields[i].value : NULL;
}

static const struct message_field *find_key(const struct message *m, const char *key)
{
    for (size_t i = m->n_bare; i < m->n_fields; i++)
        if (strcmp(m->fields[i].key, key) == 0)
            return &m->fields[i];
    return NULL;
}

const char *message_key(const struct message *m, const char *key)
{
    const struct message_field *field = find_key(m, key);

    return field != NULL ? field->value : NULL;
}

static int missing(const struct message *m, const char *key, struct error *err)
{
    return error_set(err, EBB_ENOENT, "%s: %s= is not given", excerpt_of_text(m->verb).text, key);
}

static int refuse_value(const struct message *m, const char *key, const char *wanted,
                        const char *value, struct error *err)
{
    return error_set(err, EBB_EINVAL, "%s: %s wants %s, got \"%s\"", excerpt_of_text(m->verb).text,
                     key, wanted, excerpt_of_text(value).text);
}

/* Digits alone, to the end or to `stop`. */
static int digits_value(const char *text, const char *stop, uint64_t *value)
{
    uint64_t v = 0;

    if (text == stop)
        return EBB_EINVAL;
    for (const char *c = text; c != stop; c++)
        if (*c < '0' || *c > '9')
            return EBB_EINVAL;
    for (const char *c = text; c != stop; c++) {
        uint64_t digit = (uint64_t)(*c - '0');
        if (v > (UINT64_MAX - digit) / 10)
            return EBB_ERANGE;
        v = v * 10 + digit;
    }
    *value = v;
    return 0;
}

int parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *value)
{
    uint64_t v;
    int rc = digits_value(text, text + strlen(text), &v);

    if (rc < 0)
        return rc;
    if (v < min || v > max)
        return EBB_ERANGE;
    *value = v;
    return 0;
}

static int u64_of(const struct message *m, const char *what, const char *text, uint64_t min,
                  uint64_t max, uint64_t *value, struct error *err)
{
    int rc = parse_u64(text, min, max, value);

    if (rc == EBB_EINVAL)
        return refuse_value(m, what, "a whole number", text, err);
    if (rc == EBB_ERANGE)
        return error_set(err, EBB_ERANGE, "%s: %s wants %" PRIu64 " to %" PRIu64 ", got %s",
                         excerpt_of_text(m->verb).text, what, min, max, excerpt_of_text(text).text);
    return rc;
}

int message_u64(const struct message *m, const char *key, uint64_t min, uint64_t max,
                uint64_t *value, struct error *err)
{
    const char *text = message_key(m, key);

    return text != NULL ? u64_of(m, key, text, min, max, value, err) : missing(m, key, err);
}

int message_bare_u64(const struct message *m, size_t i, const char *what, uint64_t min,
                     uint64_t max, uint64_t *value, struct error *err)
{
    const char *text = message_bare(m, i);

    if (text == NULL)
        return error_set(err, EBB_ENOENT, "%s: <%s> is not given", excerpt_of_text(m->verb).text,
                         what);
    return u64_of(m, what, text, min, max, value, err);
}

int message_i64(const struct message *m, const char *key, int64_t min, int64_t max, int64_t *value,
                struct error *err)
{
    const char *text = message_key(m, key);
    bool negative;
    uint64_t size;
    int64_t v;
    int rc;

    if (text == NULL)
        return missing(m, key, err);
    negative = *text == '-';
    rc = parse_u64(text + negative, 0, (uint64_t)INT64_MAX + negative, &size);
    if (rc == EBB_EINVAL)
        return refuse_value(m, key, "a whole number", text, err);
    v = rc == 0 ? (int64_t)(negative ? 0 - size : size) : 0;
    if (rc < 0 || v < min || v > max)
        return error_set(err, EBB_ERANGE, "%s: %s wants %" PRId64 " to %" PRId64 ", got %s",
                         excerpt_of_text(m->verb).text, key, min, max, excerpt_of_text(text).text);
    *value = v;
    return 0;
}

/* [-]digits[.digits][e[+-]digits], a digit before or after the point: strtod() alone would take
 * "0x1p3", "inf" and " 1". */
static bool is_decimal(const char *text)
{
    size_t n_whole, n_fraction = 0, n_exponent;

    text += *text == '-';
    n_whole = strspn(text, "0123456789");
    text += n_whole;
    if (*text == '.') {
        n_fraction = strspn(text + 1, "0123456789");
        text += 1 + n_fraction;
    }
    if (n_whole + n_fraction == 0)
        return false;
    if (*text == 'e' || *text == 'E') {
        text += 1 + (text[1] == '+' || text[1] == '-');
        n_exponent = strspn(text, "0123456789");
        if (n_exponent == 0)
            return false;
        text += n_exponent;
    }
    return *text == '\0';
}

int message_f64(const struct message *m, const char *key, double min, double max, double *value,
                struct error *err)
{
    const char *text = message_key(m, key);
    double v;

    if (text == NULL)
        return missing(m, key, err);
    if (!is_decimal(text))
        return refuse_value(m, key, "a decimal number", text, err);
    v = strtod(text, NULL); /* too large is an infinity, which no range holds */
    if (!(v >= min && v <= max) || v - v != 0)
        return error_set(err, EBB_ERANGE, "%s: %s wants %g to %g, got %s",
                         excerpt_of_text(m->verb).text, key, min, max, excerpt_of_text(text).text);
    *value = v;
    return 0;
}

int message_text(const struct message *m, const char *key, char *out, size_t capacity,
                 size_t *n_out, struct error *err)
{
    const struct message_field *field = find_key(m, key);
    struct error why;
    size_t n_decoded = 0;
    int rc;

    if (field == NULL)
        return missing(m, key, err);
    /* As many as the decoder can write, also where it stops at a bad escape. */
    for (size_t at = 0; at < field->n_bytes; n_decoded++)
        at += field->value[at] == '%' ? 3 : 1;
    if (n_decoded > capacity)
        return error_set(err, EBB_ERANGE, "%s: %s may have %zu bytes, got %zu",
                         excerpt_of_text(m->verb).text, key, capacity, n_decoded);
    rc = percent_decode(field->value, field->n_bytes, out, n_out, &why);
    if (rc < 0)
        return error_set(err, rc, "%s: %s: %s", excerpt_of_text(m->verb).text, key, why.text);
    return 0;
}

void message_text_take(const struct message *m, const char *key, char *out, size_t capacity)
{
    size_t n = 0;
    if (message_text(m, key, out, capacity - 1, &n, NULL) != 0)
        n = 0;
    out[n] = '\0';
}

int message_range(const struct message *m, const char *key, uint32_t *first, uint32_t *last,
                  struct error *err)
{
    const char *text = message_key(m, key);
    const char *dash = text != NULL ? strchr(text, '-') : NULL;
    uint64_t a, b;

    if (text == NULL)
        return missing(m, key, err);
    if (dash == NULL || digits_value(text, dash, &a) < 0 ||
        parse_u64(dash + 1, 0, UINT32_MAX, &b) < 0 || a > b)
        return refuse_value(m, key, "first-last, as in 0-3", text, err);
    *first = (uint32_t)a;
    *last = (uint32_t)b;
    return 0;
}

int ids_next(const char **cursor, int32_t max, int32_t *id, struct error *err)
{
    const char *text = *cursor, *stop = text;
    uint64_t v = 0;
    int rc;

    while (*stop >= '0' && *stop <= '9')
        stop++;
    if (*text == '\0')
        return 0;
    if (*stop != ',' && *stop != '\0')
        return error_set(err, EBB_EINVAL, "a list of ids wants numbers between commas, got \"%s\"",
                         excerpt_of_text(text).text);
    rc = digits_value(text, stop, &v);
    if (rc == EBB_EINVAL || (*stop == ',' && stop[1] == '\0'))
        return error_set(err, EBB_EINVAL, "a list of ids has an empty place at \"%s\"",
                         excerpt_of_text(text).text);
    if (rc == EBB_ERANGE || max < 0 || v > (uint64_t)max)
        return error_set(err, EBB_ERANGE, "an id wants 0 to %" PRId32 ", got %s", max,
                         excerpt_of(text, (size_t)(stop - text)).text);
    *id = (int32_t)v;
    *cursor = *stop == ',' ? stop + 1 : stop;
    return 1;
}

/* One "<id>:<bias>" of n bytes. */
static int bias_read(const char *text, size_t n, int32_t max_id, struct logit_bias *out,
                     struct error *err)
{
    const char *colon = memchr(text, ':', n);
    size_t n_number = colon != NULL ? (size_t)(text + n - colon) - 1 : 0;
    char number[64];
    uint64_t id = 0;
    int rc = colon == NULL ? EBB_EINVAL : digits_value(text, colon, &id);

    if (rc == EBB_ERANGE || (rc == 0 && (max_id < 0 || id > (uint64_t)max_id)))
        return error_set(err, EBB_ERANGE, "a bias wants an id from 0 to %" PRId32 ", got %s",
                         max_id, excerpt_of(text, n).text);
    if (rc == 0 && n_number < sizeof number) {
        memcpy(number, colon + 1, n_number);
        number[n_number] = '\0';
    }
    if (rc < 0 || n_number >= sizeof number || !is_decimal(number))
        return error_set(err, EBB_EINVAL,
                         "a list of biases wants <id>:<number> between commas, got \"%s\"",
                         excerpt_of(text, n).text);
    double bias = strtod(number, NULL);
    if (!(bias >= -LOGIT_BIAS_MOST && bias <= LOGIT_BIAS_MOST))
        return error_set(err, EBB_ERANGE, "a bias wants %d to %d, got %s", -LOGIT_BIAS_MOST,
                         LOGIT_BIAS_MOST, excerpt_of(text, n).text);
    *out = (struct logit_bias){.id = (int32_t)id, .bias = (float)bias};
    return 0;
}

int biases_read(const char *list, int32_t max_id, struct logit_bias *biases, size_t *n,
                struct error *err)
{
    *n = 0;
    for (;;) {
        size_t n_bytes = strcspn(list, ",");
        if (*n == LOGIT_BIAS_MAX)
            return error_set(err, EBB_ERANGE, "a list of biases may name %d ids, got more",
                             LOGIT_BIAS_MAX);
        int rc = bias_read(list, n_bytes, max_id, &biases[*n], err);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < *n; i++)
            if (biases[i].id == biases[*n].id)
                return error_set(err, EBB_EINVAL, "a list of biases names id %" PRId32 " twice",
                                 biases[i].id);
        ++*n;
        if (list[n_bytes] == '\0')
            return 0;
        list += n_bytes + 1;
    }
}

int error_code_from_name(const char *name)
{
    for (int code = EBB_EINVAL; code >= EBB_EMISMATCH; code--)
        if (strcmp(error_code_name(code), name) == 0)
            return code;
    return EBB_EPEER;
}

bool message_error(const struct message *m, const char **tag, struct error *said)
{
    const char *name, *text;

    if (strcmp(m->verb, "ERR") != 0)
        return false;
    name = message_bare(m, 1);
    text = message_bare(m, 2);
    *tag = m->n_bare > 0 ? m->fields[0].value : "-";
    error_set(said, name != NULL ? error_code_from_name(name) : EBB_EPEER, "%s",
              text != NULL ? text : "");
    return true;
}
