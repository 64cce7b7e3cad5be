/* protocol/line.c - the reader that cuts bytes into lines, the writer of one line, percent coding.
 *
 * The reader owns a buffer of twice the longest line: one that is being taken and one that arrives.
 * Every byte is looked at once and moved at most once, however finely the peer cuts its writes. A
 * line that is too long is told when that is certain, once, and its bytes are dropped as they come;
 * the lines around it are not touched.
 *
 * The writer owns nothing. It never writes past its buffer: what does not fit sets `overflow`, and
 * line_end() tells. Numbers are formatted and read in the C locale: no program here calls
 * setlocale(). Threads: a reader or writer belongs to one thread. Refuses: nothing is interpreted
 * here, any bytes make lines.
 */
#include "protocol/line.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define READER_BYTES (2 * (size_t)LINE_BYTES_MAX)

int line_reader_open(struct line_reader *r, struct error *err)
{
    memset(r, 0, sizeof *r);
    r->buffer = malloc(READER_BYTES + 1); /* a last line without LF still gets its NUL */
    if (r->buffer == NULL)
        return error_set(err, EBB_ENOMEM, "a line reader wants %zu bytes", READER_BYTES);
    return 0;
}

void line_reader_close(struct line_reader *r)
{
    free(r->buffer);
    memset(r, 0, sizeof *r);
}

size_t line_reader_room(struct line_reader *r, char **where)
{
    /* Moving only when less than a line's room is left makes each byte move at most once. */
    if (r->start > 0 && READER_BYTES - r->end < LINE_BYTES_MAX) {
        memmove(r->buffer, r->buffer + r->start, r->end - r->start);
        r->end -= r->start;
        r->scanned -= r->start;
        r->start = 0;
    }
    *where = r->buffer + r->end;
    return READER_BYTES - r->end;
}

void line_reader_fed(struct line_reader *r, size_t n_bytes)
{
    assert(n_bytes <= READER_BYTES - r->end);
    r->end += n_bytes;
}

/* Forgets everything before buffer[to]. */
static void reader_consume(struct line_reader *r, size_t to)
{
    r->stream_offset += to - r->start;
    r->start = r->scanned = to;
    if (r->start == r->end)
        r->start = r->end = r->scanned = 0;
}

/* buffer[start..stop) is the line without its LF; the bytes stay where they are although the reader
 * goes on to `next`. */
static enum line_status reader_take(struct line_reader *r, size_t stop, size_t next, char **line,
                                    size_t *n_bytes)
{
    if (stop > r->start && r->buffer[stop - 1] == '\r')
        stop--;
    *line = r->buffer + r->start;
    *n_bytes = stop - r->start;
    r->buffer[stop] = '\0';
    reader_consume(r, next);
    return LINE_READY;
}

enum line_status line_reader_next(struct line_reader *r, char **line, size_t *n_bytes)
{
    for (;;) {
        char *lf =
            r->scanned < r->end ? memchr(r->buffer + r->scanned, '\n', r->end - r->scanned) : NULL;
        size_t stop = lf != NULL ? (size_t)(lf - r->buffer) : r->end;
        bool too_long = stop - r->start >= LINE_BYTES_MAX;

        if (lf != NULL && !r->discarding && !too_long)
            return reader_take(r, stop, stop + 1, line, n_bytes);
        if (lf == NULL && !r->discarding && !too_long) {
            r->scanned = r->end;
            return LINE_NEED_MORE;
        }
        bool told = r->discarding;
        r->discarding = lf == NULL;
        reader_consume(r, lf != NULL ? stop + 1 : stop);
        if (!told)
            return LINE_TOO_LONG;
        if (lf == NULL)
            return LINE_NEED_MORE;
    }
}

enum line_status line_reader_finish(struct line_reader *r, char **line, size_t *n_bytes)
{
    if (r->discarding || r->start == r->end)
        return LINE_NEED_MORE;
    return reader_take(r, r->end, r->end, line, n_bytes);
}

static void put(struct line_writer *w, const char *bytes, size_t n_bytes)
{
    size_t limit = w->capacity < LINE_BYTES_MAX ? w->capacity : LINE_BYTES_MAX;

    if (w->overflow || n_bytes > limit - w->n_bytes) {
        w->overflow = true;
        return;
    }
    memcpy(w->buffer + w->n_bytes, bytes, n_bytes);
    w->n_bytes += n_bytes;
}

static void put_key(struct line_writer *w, const char *key)
{
    put(w, " ", 1);
    if (key != NULL) {
        put(w, key, strlen(key));
        put(w, "=", 1);
    }
}

void line_begin(struct line_writer *w, char *buffer, size_t capacity, const char *verb)
{
    *w = (struct line_writer){.buffer = buffer, .capacity = capacity};
    put(w, verb, strlen(verb));
}

void line_bare(struct line_writer *w, const char *field)
{
    line_key(w, NULL, field);
}

void line_bare_i64(struct line_writer *w, int64_t value)
{
    line_i64(w, NULL, value);
}

void line_key(struct line_writer *w, const char *key, const char *clean_value)
{
    put_key(w, key);
    put(w, clean_value, strlen(clean_value));
}

void line_u64(struct line_writer *w, const char *key, uint64_t value)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value);

    put_key(w, key);
    put(w, digits, (size_t)n);
}

void line_i64(struct line_writer *w, const char *key, int64_t value)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRId64, value);

    put_key(w, key);
    put(w, digits, (size_t)n);
}

void line_f64(struct line_writer *w, const char *key, double value)
{
    char digits[40];
    int n = 0;

    put_key(w, key);
    if (isfinite(value) && fabs(value) > (double)FLT_MAX) {
        n = snprintf(digits, sizeof digits, "%.17g", value);
    } else {
        /* Nine digits always read back the same float; the fewest that do are the ones people
         * expect (0.7, not 0.699999988). */
        for (int precision = 1; precision <= 9; precision++) {
            n = snprintf(digits, sizeof digits, "%.*g", precision, value);
            if (strtof(digits, NULL) == (float)value)
                break;
        }
    }
    put(w, digits, (size_t)n);
}

static bool stands_for_itself(unsigned char c)
{
    return c > 0x20 && c < 0x7F && c != '%' && c != '=' && c != ',';
}

void line_text(struct line_writer *w, const char *key, const char *bytes, size_t n_bytes)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t at = 0;

    put_key(w, key);
    while (at < n_bytes && !w->overflow) {
        size_t n = 0;
        while (at + n < n_bytes && stands_for_itself((unsigned char)bytes[at + n]))
            n++;
        if (n == 0 && (unsigned char)bytes[at] >= 0x80)
            n = utf8_sequence(bytes + at, n_bytes - at);
        if (n > 0) {
            put(w, bytes + at, n);
            at += n;
        } else {
            unsigned char c = (unsigned char)bytes[at++];
            put(w, (char[3]){'%', hex[c >> 4], hex[c & 15]}, 3);
        }
    }
}

void line_ids(struct line_writer *w, const char *key, const int32_t *ids, size_t n_ids)
{
    put_key(w, key);
    for (size_t i = 0; i < n_ids && !w->overflow; i++) {
        char digits[16];
        size_t at = sizeof digits;
        int64_t left = ids[i] < 0 ? -(int64_t)ids[i] : ids[i];

        do {
            digits[--at] = (char)('0' + left % 10);
            left /= 10;
        } while (left > 0);
        if (ids[i] < 0)
            digits[--at] = '-';
        if (i > 0)
            digits[--at] = ',';
        put(w, digits + at, sizeof digits - at);
    }
}

int line_end(struct line_writer *w)
{
    put(w, "\n", 1);
    if (w->overflow)
        return EBB_ELINE_TOO_LONG;
    if (w->n_bytes < w->capacity)
        w->buffer[w->n_bytes] = '\0';
    return (int)w->n_bytes;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int percent_decode(const char *text, size_t n_bytes, char *out, size_t *n_out, struct error *err)
{
    size_t n = 0;

    for (size_t at = 0; at < n_bytes; at++) {
        if (text[at] != '%') {
            out[n++] = text[at];
            continue;
        }
        int high = n_bytes - at > 2 ? hex_value(text[at + 1]) : -1;
        int low = high >= 0 ? hex_value(text[at + 2]) : -1;
        if (low < 0)
            return error_set(err, EBB_EINVAL,
                             "byte %zu: \"%%\" wants two hexadecimal digits behind it", at);
        out[n++] = (char)(high << 4 | low);
        at += 2;
    }
    *n_out = n;
    return 0;
}

size_t utf8_sequence(const char *bytes, size_t n_bytes)
{
    const unsigned char *b = (const unsigned char *)bytes;
    unsigned char low = 0x80, high = 0xBF; /* bounds of the second byte: no overlong form, no
                                              surrogate, no more than U+10FFFF */
    size_t n;

    if (n_bytes == 0)
        return 0;
    if (b[0] < 0x80)
        return 1;
    if (b[0] < 0xC2 || b[0] > 0xF4)
        return 0;
    n = b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    if (b[0] == 0xE0)
        low = 0xA0;
    if (b[0] == 0xED)
        high = 0x9F;
    if (b[0] == 0xF0)
        low = 0x90;
    if (b[0] == 0xF4)
        high = 0x8F;
    if (n_bytes < n || b[1] < low || b[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((b[i] & 0xC0) != 0x80)
            return 0;
    return n;
}
