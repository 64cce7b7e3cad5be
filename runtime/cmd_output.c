/* runtime/cmd_output.c - a request's events on stdout: the text, the ids, or JSON lines.
 *
 * Every event is flushed as it comes, so that a pipe's reader sees tokens when they are made. Text is written byte for
 * byte; in JSON, bytes that are no UTF-8 become U+FFFD, since a JSON string cannot hold them.
 */
#include "runtime/cmd_client.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#define REPLACEMENT "\xEF\xBF\xBD"

void output_open(struct output *o, const char *form)
{
    memset(o, 0, sizeof *o);
    o->form = strcmp(form, "ids") == 0     ? OUTPUT_IDS
              : strcmp(form, "jsonl") == 0 ? OUTPUT_JSONL
                                           : OUTPUT_TEXT;
}

static int output_bytes(struct output *o, const char *bytes, size_t n_bytes, struct error *err)
{
    if (n_bytes == 0)
        return 0;
    if (fwrite(bytes, 1, n_bytes, stdout) != n_bytes || fflush(stdout) != 0)
        return error_set(err, EBB_EIO, "stdout: %s", strerror(errno));
    o->line_is_open = bytes[n_bytes - 1] != '\n';
    return 0;
}

static int text_event(struct output *o, const struct message *m, struct error *err)
{
    char bytes[LINE_BYTES_MAX];
    size_t n_bytes;
    const char *key = strcmp(m->verb, "T") == 0 ? "text" : "tail";
    int code = event_text(m, key, bytes, sizeof bytes, &n_bytes);
    if (code != 0)
        return error_set(err, code, "%s: a bad %s= from the engine", m->verb, key);
    return output_bytes(o, bytes, n_bytes, err);
}

static int ids_event(struct output *o, const struct message *m, struct error *err)
{
    char text[32];
    const char *id = message_bare(m, 1);
    int n = snprintf(text, sizeof text, "%s%s", o->n_tokens > 1 ? "," : "", id != NULL ? id : "?");
    return output_bytes(o, text, (size_t)n, err);
}

static json_t *json_text(const char *bytes, size_t n_bytes)
{
    char clean[3 * LINE_BYTES_MAX];
    size_t n_clean = 0;
    for (size_t i = 0; i < n_bytes;) {
        size_t n = utf8_sequence(bytes + i, n_bytes - i);
        memcpy(clean + n_clean, n > 0 ? bytes + i : REPLACEMENT, n > 0 ? n : 3);
        n_clean += n > 0 ? n : 3;
        i += n > 0 ? n : 1;
    }
    return json_stringn(clean, n_clean);
}

/* A field as JSON: numbers as numbers, except where the field is text by its meaning. */
static json_t *json_field(const char *key, const char *value)
{
    static const char *const texts[] = {"tag",  "text", "tail",  "error",  "reason",
                                        "name", "kind", "model", "version"};
    char bytes[LINE_BYTES_MAX];
    size_t n_bytes;
    char *end;
    bool is_text = value[0] == '\0' || value[strspn(value, "0123456789+-.eE")] != '\0';
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        is_text = is_text || strcmp(key, texts[i]) == 0;
    if (!is_text && value[strspn(value, "-0123456789")] == '\0') {
        errno = 0;
        long long whole = strtoll(value, &end, 10);
        if (*end == '\0' && errno == 0)
            return json_integer(whole);
    }
    if (!is_text) {
        double real = strtod(value, &end);
        if (*end == '\0')
            return json_real(real);
    }
    if (percent_decode(value, strlen(value), bytes, &n_bytes, NULL) != 0)
        return json_text(value, strlen(value));
    return json_text(bytes, n_bytes);
}

/* What the bare fields of an event are called, in their order. */
static const char *bare_name(const char *verb, size_t i)
{
    static const struct {
        const char *verb, *names[4];
    } events[] = {{"RESUME", {"tag"}},         {"PP", {"tag", "done", "total", "ms"}},
                  {"T", {"tag", "id"}},        {"LOGITS", {"tag", "pos", "id"}},
                  {"DONE", {"tag", "reason"}}, {"READY", {"context"}}};
    for (size_t e = 0; e < sizeof events / sizeof events[0]; e++)
        if (strcmp(events[e].verb, verb) == 0 && i < 4 && events[e].names[i] != NULL)
            return events[e].names[i];
    return NULL;
}

static int json_event(struct output *o, const struct message *m, struct error *err)
{
    json_t *object = json_object();
    int code = json_object_set_new(object, "event", json_string(m->verb));
    for (size_t i = 0; i < m->n_fields && code == 0; i++) {
        const struct message_field *field = &m->fields[i];
        const char *key = field->key != NULL ? field->key : bare_name(m->verb, i);
        if (key != NULL)
            code = json_object_set_new(object, key, json_field(key, field->value));
    }
    if (code == 0)
        code = json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(object);
    if (code != 0)
        return error_set(err, EBB_EIO, "stdout: an event could not be written as JSON");
    return output_bytes(o, "\n", 1, err);
}

int output_event(struct output *o, const struct message *m, struct error *err)
{
    bool is_token = strcmp(m->verb, "T") == 0, is_done = strcmp(m->verb, "DONE") == 0;
    o->n_tokens += is_token;
    switch (o->form) {
    case OUTPUT_TEXT: return is_token || is_done ? text_event(o, m, err) : 0;
    case OUTPUT_IDS: return is_token ? ids_event(o, m, err) : 0;
    case OUTPUT_JSONL: return json_event(o, m, err);
    }
    return 0;
}

int output_end(struct output *o, struct error *err)
{
    bool wants_line = o->line_is_open ||
                      (o->form == OUTPUT_TEXT && o->n_tokens > 0 && isatty(STDOUT_FILENO) == 1);
    return wants_line ? output_bytes(o, "\n", 1, err) : 0;
}
