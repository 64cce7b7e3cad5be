/* stages/trace.c - lines of spans into a buffer, and from there into a file (trace.h).
 *
 * Owns the buffer and the descriptor. A file that cannot be written (any more) costs spans, which are counted, and nothing else.
 */
#include "stages/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPAN_BYTES_MAX 512

static const char *const track_names[] = {"control", "compute", "upload", "link", "vram"};

static size_t lines_in(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += text[i] == '\n';
    return count;
}

void trace_flush(struct trace *t)
{
    size_t at = 0;
    while (trace_is_on(t) && at < t->n_used) {
        ssize_t n = write(t->fd, t->buffer + at, t->n_used - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            t->n_lost += lines_in(t->buffer + at, t->n_used - at);
            break;
        }
        at += (size_t)n;
    }
    t->file_bytes += at;
    t->n_used = 0;
}

int trace_open(struct trace *t, const char *path, const char *head, struct error *err)
{
    size_t n_head = strlen(head);
    *t = (struct trace){.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
    if (t->fd < 0)
        return error_set(err, EBB_EIO, "trace: %s: %s", path, strerror(errno));
    off_t end = lseek(t->fd, 0, SEEK_END);
    t->buffer = malloc(TRACE_BUFFER_BYTES);
    if (t->buffer == NULL) {
        (void)close(t->fd);
        *t = (struct trace){0};
        return error_set(err, EBB_ENOMEM, "trace: no memory for its buffer");
    }
    memset(t->buffer, 0, TRACE_BUFFER_BYTES); /* its pages are there before the first token */
    t->file_bytes = end > 0 ? (uint64_t)end : 0;
    memcpy(t->buffer, head, n_head);
    t->n_used = n_head;
    trace_flush(t);
    return 0;
}

void trace_span(struct trace *t, enum trace_track track, uint64_t begin_us, uint64_t end_us,
                const char *format, ...)
{
    if (!trace_is_on(t))
        return;
    if (TRACE_BUFFER_BYTES - t->n_used < SPAN_BYTES_MAX)
        trace_flush(t);
    if (t->file_bytes + t->n_used + SPAN_BYTES_MAX > TRACE_FILE_MAX) {
        t->n_lost++;
        return;
    }
    char *line = t->buffer + t->n_used;
    int n = snprintf(line, SPAN_BYTES_MAX, "SPAN track=%s at=%" PRIu64 " us=%" PRIu64 " ",
                     track_names[track], begin_us, end_us - begin_us);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + n, SPAN_BYTES_MAX - (size_t)n - 1, format, args);
    va_end(args);
    if (more < 0 || (size_t)more >= SPAN_BYTES_MAX - (size_t)n - 1) {
        t->n_lost++;
        return;
    }
    n += more;
    line[n++] = '\n';
    t->n_used += (size_t)n;
}

void trace_close(struct trace *t)
{
    char line[64];
    if (!trace_is_on(t))
        return;
    trace_flush(t);
    int n = snprintf(line, sizeof line, "LOST spans=%" PRIu64 "\n", t->n_lost);
    ssize_t written = write(t->fd, line, (size_t)n);
    (void)written; /* a file without this line says that its stage did not end as it should */
    (void)close(t->fd);
    free(t->buffer);
    *t = (struct trace){0};
}
