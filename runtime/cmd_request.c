/* runtime/cmd_request.c - a request's text or ids as PART lines, and the events that come back.
 *
 * A text goes to the engine as text while it fits one line. A longer one is cut into ids here, with the model's own
 * tokenizer: the engine tokenises part by part, so ids are what keeps a long text one text and a long turn one turn. Used
 * by the caller's thread, except for the two readers of files, which run before there is one.
 */
#include "runtime/cmd_client.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/client.h"
#include "runtime/model/chat.h"
#include "runtime/model/gguf.h"

#define TEXT_BYTES_MAX   20000 /* three bytes each in a line at most, which leaves it below 60 KB */
#define PROMPT_BYTES_MAX ((size_t)64 << 20)
#define IDS_PER_PART     4096

int bytes_read(const char *path, char **bytes, size_t *n_bytes, struct error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "stdin" : path;
    FILE *file = is_stdin ? stdin : fopen(path, "rbe");
    char *buffer = NULL;
    size_t n = 0, capacity = 0, got;
    int code = 0;
    if (file == NULL)
        return error_set(err, EBB_ENOENT, "%s: %s", name, strerror(errno));
    do {
        if (n == capacity) {
            capacity = capacity == 0 ? 65536 : capacity * 2;
            char *larger = realloc(buffer, capacity + 1);
            if (larger == NULL) {
                code = error_set(err, EBB_ENOMEM, "%s: out of memory", name);
                break;
            }
            buffer = larger;
        }
        got = fread(buffer + n, 1, capacity - n, file);
        n += got;
        if (n > PROMPT_BYTES_MAX)
            code = error_set(err, EBB_ERANGE, "%s: wanted at most %zu bytes, got more", name,
                             PROMPT_BYTES_MAX);
    } while (got > 0 && code == 0);
    if (code == 0 && ferror(file))
        code = error_set(err, EBB_EIO, "%s: %s", name, strerror(errno));
    if (!is_stdin)
        (void)fclose(file);
    if (code != 0) {
        free(buffer);
        return code;
    }
    buffer[n] = '\0';
    *bytes = buffer;
    *n_bytes = n;
    return 0;
}

/* Runs of commas and blanks become one comma; in place. */
static void list_normalise(char *list)
{
    char *out = list;
    for (const char *in = list; *in != '\0'; in++) {
        bool is_gap = *in == ',' || isspace((unsigned char)*in);
        if (!is_gap)
            *out++ = *in;
        else if (out > list && out[-1] != ',')
            *out++ = ',';
    }
    if (out > list && out[-1] == ',')
        out--;
    *out = '\0';
}

int ids_read(const struct settings *s, char **list, struct error *err)
{
    size_t n_bytes;
    int code;
    if (s->ids_file == NULL) {
        *list = strdup(s->ids);
        return *list != NULL ? 0 : error_set(err, EBB_ENOMEM, "--ids: out of memory");
    }
    code = bytes_read(s->ids_file, list, &n_bytes, err);
    if (code == 0 && strlen(*list) != n_bytes) {
        free(*list);
        return error_set(err, EBB_EINVAL, "%s: wanted token ids, got a zero byte", s->ids_file);
    }
    if (code == 0)
        list_normalise(*list);
    return code;
}

int request_line(struct channel *c, struct line_writer *w, struct error *err)
{
    int n_bytes = line_end(w);
    if (n_bytes < 0)
        return error_set(err, n_bytes, "a request's line is longer than %d bytes", LINE_BYTES_MAX);
    if (channel_send(c, w->buffer, (size_t)n_bytes) != 0)
        return error_set(err, EBB_EGONE, "the engine ended before the request was made");
    return 0;
}

static int text_line(struct channel *c, const char *tag, const char *role, const char *bytes,
                     size_t n_bytes, struct error *err)
{
    char buffer[LINE_BYTES_MAX];
    struct line_writer w;
    line_begin(&w, buffer, sizeof buffer, "PART");
    line_bare(&w, tag);
    if (role != NULL)
        line_key(&w, "role", role);
    line_text(&w, "text", bytes, n_bytes);
    return request_line(c, &w, err);
}

static int ids_lines(struct channel *c, const char *tag, const int32_t *ids, size_t n_ids,
                     struct error *err)
{
    char buffer[LINE_BYTES_MAX];
    int code = 0;
    for (size_t at = 0; at < n_ids && code == 0; at += IDS_PER_PART) {
        size_t n = n_ids - at < IDS_PER_PART ? n_ids - at : IDS_PER_PART;
        struct line_writer w;
        line_begin(&w, buffer, sizeof buffer, "PART");
        line_bare(&w, tag);
        line_ids(&w, "ids", ids + at, n);
        code = request_line(c, &w, err);
    }
    return code;
}

/* What the engine would make of the text if it came in one part. */
static int text_cut(struct tokenizer *t, const struct chat *chat, const char *bytes, size_t n_bytes,
                    int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err)
{
    struct chat_state state = {0};
    int code;
    if (chat == NULL) {
        if (tokenizer_adds_bos(t) && tokenizer_bos(t) >= 0)
            ids[(*n_ids)++] = tokenizer_bos(t);
        return tokenizer_encode(t, bytes, n_bytes, true, ids, ids_max, n_ids, err);
    }
    code = chat_turn(chat, &state, CHAT_USER, bytes, n_bytes, ids, ids_max, n_ids, err);
    return code != 0 ? code : chat_answer_begin(chat, &state, ids, ids_max, n_ids, err);
}

static int long_text(struct channel *c, const char *tag, const struct settings *s,
                     const char *bytes, size_t n_bytes, struct error *err)
{
    size_t ids_max = n_bytes + 4096, n_ids = 0;
    struct tokenizer *t = NULL;
    struct chat *chat = NULL;
    struct gguf *g = NULL;
    int32_t *ids = malloc(ids_max * sizeof *ids);
    int code = ids != NULL ? gguf_open(&g, s->model, err)
                           : error_set(err, EBB_ENOMEM, "out of memory for the prompt's ids");
    if (code == 0)
        code = tokenizer_open(&t, g, err);
    if (code == 0 && s->chat)
        code = chat_open(&chat, g, t, err);
    if (code == 0)
        code = text_cut(t, chat, bytes, n_bytes, ids, ids_max, &n_ids, err);
    if (code == 0)
        code = ids_lines(c, tag, ids, n_ids, err);
    chat_close(chat);
    if (t != NULL)
        tokenizer_close(t);
    if (g != NULL)
        gguf_close(g);
    free(ids);
    return code;
}

int request_text(struct channel *c, const char *tag, const struct settings *s, const char *bytes,
                 size_t n_bytes, struct error *err)
{
    if (n_bytes <= TEXT_BYTES_MAX)
        return text_line(c, tag, s->chat ? "user" : NULL, bytes, n_bytes, err);
    return long_text(c, tag, s, bytes, n_bytes, err);
}

int request_ids(struct channel *c, const char *tag, const char *list, struct error *err)
{
    int32_t ids[IDS_PER_PART];
    int code = 0, got = 1;
    while (got > 0 && code == 0) {
        size_t n = 0;
        while (n < IDS_PER_PART && (got = ids_next(&list, INT32_MAX, &ids[n], err)) > 0)
            n++;
        code = got < 0 ? got : ids_lines(c, tag, ids, n, err);
    }
    return code;
}

/* `ERR <tag> <code> <text>`: the text is what a person wants to read. */
static int error_line(const char *line, struct error *err)
{
    const char *text = line;
    for (int field = 0; field < 3 && *text != '\0'; field++) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return error_set(err, EBB_EPEER, "%s", *text != '\0' ? text : line);
}

int event_next(struct channel *c, struct message *m, struct error *err)
{
    char *line;
    size_t n_bytes;
    do {
        int code = client_wait_line(c, -1, &line, &n_bytes, err);
        if (code != 0)
            return error_set(err, code, "the engine ended before the request did");
        if (strncmp(line, "ERR ", 4) == 0)
            return error_line(line, err);
        code = message_parse(m, line, n_bytes, err);
        if (code != 0)
            return code;
    } while (m->verb[0] == '\0');
    return 0;
}

int event_text(const struct message *m, const char *key, char *bytes, size_t capacity,
               size_t *n_bytes)
{
    int code;
    *n_bytes = 0;
    code = message_text(m, key, bytes, capacity, n_bytes, NULL);
    return code == EBB_ENOENT ? 0 : code;
}

uint64_t event_u64(const struct message *m, const char *key)
{
    uint64_t value = 0;
    (void)message_u64(m, key, 0, UINT64_MAX, &value, NULL);
    return value;
}

double event_f64(const struct message *m, const char *key)
{
    double value = 0;
    (void)message_f64(m, key, 0, 1e18, &value, NULL);
    return value;
}

int event_done(const struct message *m, struct error *err)
{
    char text[sizeof err->text];
    size_t n_bytes;
    const char *reason = message_bare(m, 1);
    if (reason == NULL || strcmp(reason, "error") != 0)
        return 0;
    if (event_text(m, "error", text, sizeof text - 1, &n_bytes) != 0 || n_bytes == 0)
        return error_set(err, EBB_EPEER, "the request failed");
    return error_set(err, EBB_EPEER, "%.*s", (int)n_bytes, text);
}
