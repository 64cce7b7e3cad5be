/* tests/unit/protocol/feeding.h - a stream fed to a line reader in pieces, and what came out of it
 * as one text. */
#pragma once
#include <stdlib.h>
#include <string.h>
#include "protocol/line.h"

/* Notes a line as "[…]", one that was too long as "(too long)". */
static inline char *note_line(char *seen, enum line_status status, const char *line, size_t n_bytes)
{
    if (status == LINE_TOO_LONG)
        return (char *)memcpy(seen, "(too long)", 10) + 10;
    *seen++ = '[';
    memcpy(seen, line, n_bytes);
    seen += n_bytes;
    *seen++ = ']';
    return seen;
}

/* Feeds text[0..first) in one piece and the rest in pieces of `piece`. The caller frees the result.
 */
static inline char *fed_in_pieces(const char *text, size_t n_bytes, size_t first, size_t piece)
{
    char *seen = malloc(12 * n_bytes + 16), *at = seen, *line, *where;
    size_t n_fed = 0, n_line;
    struct line_reader r;
    enum line_status status;

    if (seen == NULL || line_reader_open(&r, NULL) < 0)
        abort();
    while (n_fed < n_bytes) {
        size_t n = n_fed < first ? first - n_fed : piece, room = line_reader_room(&r, &where);
        if (room == 0)
            abort();
        n = n < n_bytes - n_fed ? n : n_bytes - n_fed;
        n = n < room ? n : room;
        memcpy(where, text + n_fed, n);
        line_reader_fed(&r, n);
        n_fed += n;
        while ((status = line_reader_next(&r, &line, &n_line)) != LINE_NEED_MORE)
            at = note_line(at, status, line, n_line);
    }
    if ((status = line_reader_finish(&r, &line, &n_line)) != LINE_NEED_MORE)
        at = note_line(at, status, line, n_line);
    line_reader_close(&r);
    *at = '\0';
    return seen;
}
