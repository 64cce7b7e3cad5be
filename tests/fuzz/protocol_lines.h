/* tests/fuzz/protocol_lines.h - what must hold for any bytes a peer may send, as one function.
 *
 * Shared by the unit test (seeded random bytes) and the fuzz target protocol_lines.c. It reads the
 * bytes in two pieces through a reader, parses every line, checks it in both dialects, asks for
 * everything a message can be asked for and writes an ERR back. It aborts where a promise is
 * broken; the sanitizers find the rest.
 */
#pragma once
#include <stdlib.h>
#include <string.h>
#include "protocol/vram.h"

#define FUZZ_HOLDS(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

static inline void fuzz_ask_everything(const struct message *m)
{
    static const char *const keys[] = {"ids", "text", "top_k", "temperature", "layers", "seed"};
    char text[64];
    struct error err;

    FUZZ_HOLDS(strlen(m->verb) <= LINE_BYTES_MAX && m->n_bare <= m->n_fields);
    for (size_t i = 0; i < m->n_fields; i++) {
        FUZZ_HOLDS((m->fields[i].key == NULL) == (i < m->n_bare));
        FUZZ_HOLDS(strlen(m->fields[i].value) == m->fields[i].n_bytes);
    }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t u;
        int64_t s;
        double f;
        uint32_t first, last;
        size_t n = 0;
        const char *cursor = message_key(m, keys[i]);
        int32_t id;
        (void)message_u64(m, keys[i], 0, 1000, &u, &err);
        (void)message_i64(m, keys[i], -5, 5, &s, &err);
        (void)message_f64(m, keys[i], 0, 2, &f, &err);
        if (message_range(m, keys[i], &first, &last, &err) == 0)
            FUZZ_HOLDS(first <= last);
        if (message_text(m, keys[i], text, sizeof text, &n, &err) == 0)
            FUZZ_HOLDS(n <= sizeof text);
        while (cursor != NULL && ids_next(&cursor, 151935, &id, &err) == 1)
            FUZZ_HOLDS(id >= 0 && id <= 151935);
    }
}

static inline void fuzz_line(char *line, size_t n_bytes)
{
    static struct message m;
    struct error err = {0}, said;
    struct vram_request request;
    struct vram_receipt receipt;
    const char *tag;
    int rc = message_parse(&m, line, n_bytes, &err);

    FUZZ_HOLDS(rc == 0 || (rc == EBB_EINVAL && err.code == rc && err.text[0] != '\0'));
    fuzz_ask_everything(&m);
    tag = message_tag(&m);
    FUZZ_HOLDS(strcmp(tag, "-") == 0 || tag_is_valid(tag));
    for (int dialect = DIALECT_CONTROL; dialect <= DIALECT_STAGE; dialect++) {
        err = (struct error){0};
        rc = message_check(&m, (enum dialect)dialect, &err);
        FUZZ_HOLDS(rc == err.code && (rc == 0 || err.text[0] != '\0'));
    }
    if (vram_request_parse(&m, 2, &request, &err) == 0)
        FUZZ_HOLDS(request.every_card || request.device < 2);
    (void)vram_receipt_read(&m, &receipt, &err);
    (void)message_error(&m, &tag, &said);
}

static inline void fuzz_lines_until_dry(struct line_reader *r, size_t *n_lines)
{
    enum line_status status;
    char *line;
    size_t n_bytes;

    while ((status = line_reader_next(r, &line, &n_bytes)) != LINE_NEED_MORE) {
        (*n_lines)++;
        if (status == LINE_READY) {
            FUZZ_HOLDS(n_bytes < LINE_BYTES_MAX && line[n_bytes] == '\0');
            fuzz_line(line, n_bytes);
        }
    }
}

/* Feeds data[0..cut) and the rest. How many lines there were, too long ones included. */
static inline size_t fuzz_feed(const char *data, size_t n_bytes, size_t cut)
{
    struct line_reader r;
    size_t n_lines = 0, at = 0;
    char *where;

    FUZZ_HOLDS(line_reader_open(&r, NULL) == 0);
    while (at < n_bytes) {
        size_t n = line_reader_room(&r, &where), stop = at < cut ? cut : n_bytes;
        FUZZ_HOLDS(n > 0);
        n = n < stop - at ? n : stop - at;
        memcpy(where, data + at, n);
        line_reader_fed(&r, n);
        at += n;
        fuzz_lines_until_dry(&r, &n_lines);
    }
    char *line;
    size_t n_left;
    if (line_reader_finish(&r, &line, &n_left) == LINE_READY) {
        n_lines++;
        fuzz_line(line, n_left);
    }
    line_reader_close(&r);
    return n_lines;
}

static inline void fuzz_protocol_lines(const char *data, size_t n_bytes)
{
    size_t cut = n_bytes > 0 ? (unsigned char)data[0] % n_bytes : 0;

    FUZZ_HOLDS(fuzz_feed(data, n_bytes, cut) == fuzz_feed(data, n_bytes, n_bytes));
}
