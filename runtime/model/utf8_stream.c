/* runtime/model/utf8_stream.c - whole characters out of pieces that may end in the middle of one.
 *
 * State is the beginning of one character, at most three bytes, kept by the caller. Every byte that
 * goes in comes out once and in order: in a whole character, or at once when it cannot be part of
 * one. Allocates nothing, fails never.
 */
#include <string.h>
#include "runtime/model/tokenizer.h"
#include "runtime/model/utf8.h"

size_t utf8_stream_flush(struct utf8_stream *u, char *out)
{
    size_t n = u->n_pending;
    memcpy(out, u->pending, n);
    u->n_pending = 0;
    return n;
}

size_t utf8_stream_add(struct utf8_stream *u, const char *bytes, size_t n_bytes, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (u->n_pending != 0 && !utf8_continues(u->pending[0], u->n_pending, c))
            n_out += utf8_stream_flush(u, out + n_out); /* what waited has no end */
        u->pending[u->n_pending++] = c;
        if (u->n_pending >= utf8_length(u->pending[0]))
            n_out += utf8_stream_flush(u, out + n_out);
    }
    return n_out;
}
