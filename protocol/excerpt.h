/* protocol/excerpt.h - a short piece of what a peer wrote, for the text of an error. Internal to
 * this room.
 *
 * Error texts quote input, and input may be 64 KB of anything: an excerpt is cut between
 * characters, and what is no printable UTF-8 becomes "?", so that an ERR line made of it is always
 * a good line.
 */
#pragma once
#include <string.h>
#include "protocol/line.h"

#define EXCERPT_BYTES 40

struct excerpt {
    char text[EXCERPT_BYTES + 4]; /* with "…" where it was cut */
};

static inline struct excerpt excerpt_of(const char *text, size_t n_bytes)
{
    struct excerpt e;
    size_t n = 0, at = 0;

    while (at < n_bytes && n < EXCERPT_BYTES) {
        size_t width = utf8_sequence(text + at, n_bytes - at);
        bool printable =
            width > 1 || (width == 1 && (unsigned char)text[at] >= 0x20 && text[at] != 0x7F);
        if (!printable) {
            e.text[n++] = '?';
            at++;
            continue;
        }
        if (n + width > EXCERPT_BYTES)
            break;
        memcpy(e.text + n, text + at, width);
        n += width;
        at += width;
    }
    memcpy(e.text + n, at < n_bytes ? "…" : "", at < n_bytes ? 4 : 1);
    return e;
}

static inline struct excerpt excerpt_of_text(const char *text)
{
    return excerpt_of(text, strnlen(text, EXCERPT_BYTES + 4));
}
