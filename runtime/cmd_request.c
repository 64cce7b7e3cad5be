/* runtime/cmd_request.c - a request's text or ids as PART lines, and the events that come back.
 *
 * A PART stays well below the limit of a line and is cut between whole characters, so what is joined at the other end is
 * the same bytes. Used by the caller's thread, except for the two readers of files, which run before there is one.
 */
#include "runtime/cmd_client.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/client.h"

#define PART_BYTES_MAX   60000
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

static bool is_continuation(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* How many of the bytes go into one PART if each may take three: all, or up to the start of a character. */
static size_t part_take(const char *bytes, size_t n_bytes)
{
    size_t n = PART_BYTES_MAX / 3;
    if (n_bytes <= n)
        return n_bytes;
    for (size_t back = 0; back < 4; back++)
        if (!is_continuation(bytes[n - back]))
            return n - back;
    return n;
}

int request_text(struct channel *c, const char *tag, const char *role, const char *bytes,
                 size_t n_bytes, struct error *err)
{
    char buffer[LINE_BYTES_MAX];
    int code = 0;
    do {
        struct line_writer w;
        size_t n = part_take(bytes, n_bytes);
        line_begin(&w, buffer, sizeof buffer, "PART");
        line_bare(&w, tag);
        if (role != NULL)
            line_key(&w, "role", role);
        line_text(&w, "text", bytes, n);
        code = request_line(c, &w, err);
        bytes += n;
        n_bytes -= n;
    } while (code == 0 && n_bytes > 0);
    return code;
}

int request_ids(struct channel *c, const char *tag, const char *list, struct error *err)
{
    char buffer[LINE_BYTES_MAX];
    int32_t ids[IDS_PER_PART];
    int got = 1;
    while (got > 0) {
        struct line_writer w;
        size_t n = 0;
        while (n < IDS_PER_PART && (got = ids_next(&list, INT32_MAX, &ids[n], err)) > 0)
            n++;
        if (got < 0 || n == 0)
            return got;
        line_begin(&w, buffer, sizeof buffer, "PART");
        line_bare(&w, tag);
        line_ids(&w, "ids", ids, n);
        int code = request_line(c, &w, err);
        if (code != 0)
            return code;
    }
    return 0;
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
