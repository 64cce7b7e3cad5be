/* protocol/line.h - framing: bytes in, lines out; and the writing of one line.
 *
 * A line is UTF-8 text ended by LF (a CR before it is ignored), at most LINE_BYTES_MAX bytes with
 * its LF. A longer one is discarded up to its LF and reported once. The reader is pure: it is fed
 * bytes cut anywhere and makes no system call.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#define LINE_BYTES_MAX 65536

enum line_status { LINE_NEED_MORE = 0, LINE_READY = 1, LINE_TOO_LONG = 2 };

struct line_reader {
    char *buffer; /* owned, LINE_BYTES_MAX * 2 */
    size_t start, end;
    size_t scanned;         /* buffer[start..scanned) holds no LF: every byte is looked at once */
    bool discarding;        /* inside a line that was too long */
    uint64_t stream_offset; /* bytes consumed before buffer[start], for error reports */
};

int line_reader_open(struct line_reader *r, struct error *err);
void line_reader_close(struct line_reader *r);
/* Room for more bytes: where to read() to and how many. Never 0 after next() said NEED_MORE. */
size_t line_reader_room(struct line_reader *r, char **where);
void line_reader_fed(struct line_reader *r, size_t n_bytes);
/* The next line without LF and CR, terminated with NUL, valid until the next call of room() or
 * next(). */
enum line_status line_reader_next(struct line_reader *r, char **line, size_t *n_bytes);
/* At the end of input, after next() said LINE_NEED_MORE: what is left without an LF is a line too
 * (LINE_READY, once). */
enum line_status line_reader_finish(struct line_reader *r, char **line, size_t *n_bytes);

/* Writes one line into a caller's buffer. Overflow is remembered and told by line_end(). */
struct line_writer {
    char *buffer;
    size_t capacity, n_bytes;
    bool overflow;
};
void line_begin(struct line_writer *w, char *buffer, size_t capacity, const char *verb);
void line_bare(struct line_writer *w, const char *field); /* already clean text */
void line_bare_i64(struct line_writer *w, int64_t value);
void line_key(struct line_writer *w, const char *key, const char *clean_value);
void line_u64(struct line_writer *w, const char *key, uint64_t value);
void line_i64(struct line_writer *w, const char *key, int64_t value);
/* The shortest decimal that reads back the same float. */
void line_f64(struct line_writer *w, const char *key, double value);
/* Percent-encoded; key NULL = bare (an empty bare field is none: give it a key). */
void line_text(struct line_writer *w, const char *key, const char *bytes, size_t n_bytes);
void line_ids(struct line_writer *w, const char *key, const int32_t *ids, size_t n_ids); /* 1,2,3 */
/* Adds the LF, and a NUL behind it where the buffer has room. Bytes of the whole line, or
 * EBB_ELINE_TOO_LONG if it did not fit into the buffer or into LINE_BYTES_MAX. */
int line_end(struct line_writer *w);

/* Decodes %XX in place-free fashion: out holds n_bytes at most. EBB_EINVAL with the offset in err
 * for a bad escape. */
int percent_decode(const char *text, size_t n_bytes, char *out, size_t *n_out, struct error *err);

/* Bytes of the well-formed UTF-8 character (RFC 3629) at `bytes`, 1 to 4; 0 if there is none or it
 * is cut off. */
size_t utf8_sequence(const char *bytes, size_t n_bytes);
