/* protocol/channel.c - lines over two descriptors: what arrives goes to the line reader, what
 * leaves goes through a queue.
 *
 * The queue is one buffer with a moving start. It begins small, doubles, and never takes more than
 * queue_max bytes that wait; its buffer may be twice that, so that moving the rest to the front
 * stays rare (a move is paid for by as many bytes written). read() and write() only, so pipes,
 * terminals and sockets are the same here. A write to a peer that is gone must not kill the process
 * and must not depend on what main() did to SIGPIPE, so the signal is held back around it.
 * Lifetimes: an owned channel closes its descriptors; every channel puts their flags back, for
 * O_NONBLOCK belongs to the open file, which a shell may share. Threads: one owner. Refuses: to
 * interpret lines, to wait.
 */
#include "protocol/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QUEUE_BYTES_FIRST 4096

/* Notes the descriptor's flags and makes it non-blocking. */
static int make_nonblocking(int fd, int *flags, struct error *err)
{
    *flags = -1;
    if (fd < 0)
        return 0;
    *flags = fcntl(fd, F_GETFL);
    if (*flags < 0 || fcntl(fd, F_SETFL, *flags | O_NONBLOCK) < 0)
        return error_set(err, EBB_EIO, "descriptor %d: cannot be made non-blocking: %s", fd,
                         strerror(errno));
    return 0;
}

static void restore_flags(int fd, int flags)
{
    if (fd >= 0 && flags >= 0 && (flags & O_NONBLOCK) == 0)
        (void)fcntl(fd, F_SETFL, flags);
}

int channel_open(struct channel *c, int fd_in, int fd_out, bool borrowed, size_t queue_max,
                 struct error *err)
{
    struct channel fresh = {.fd_in = fd_in, .fd_out = fd_out, .borrowed = borrowed};
    int rc = line_reader_open(&fresh.reader, err);

    fresh.queue_max = queue_max > 0 ? queue_max : CHANNEL_QUEUE_BYTES_DEFAULT;
    fresh.flags_in = fresh.flags_out = -1;
    if (rc == 0)
        rc = make_nonblocking(fd_in, &fresh.flags_in, err);
    if (rc == 0 && fd_out != fd_in)
        rc = make_nonblocking(fd_out, &fresh.flags_out, err);
    if (rc < 0) {
        restore_flags(fd_in, fresh.flags_in);
        line_reader_close(&fresh.reader);
        fresh.fd_in = fresh.fd_out = -1;
    }
    *c = fresh;
    return rc;
}

void channel_close(struct channel *c)
{
    restore_flags(c->fd_out, c->flags_out);
    restore_flags(c->fd_in, c->flags_in);
    if (!c->borrowed && c->fd_in >= 0)
        (void)close(c->fd_in);
    if (!c->borrowed && c->fd_out >= 0 && c->fd_out != c->fd_in)
        (void)close(c->fd_out);
    line_reader_close(&c->reader);
    free(c->queue);
    memset(c, 0, sizeof *c);
    c->fd_in = c->fd_out = c->flags_in = c->flags_out = -1;
    c->at_end = true;
}

int channel_read(struct channel *c, struct error *err)
{
    char *where;
    size_t n_room;
    ssize_t n;

    if (c->at_end || c->fd_in < 0)
        return error_set(err, EBB_EGONE, "the peer has closed the connection");
    n_room = line_reader_room(&c->reader, &where);
    if (n_room == 0)
        return error_set(err, EBB_EAGAIN, "lines wait to be taken");
    do
        n = read(c->fd_in, where, n_room);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        line_reader_fed(&c->reader, (size_t)n);
        return 0;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return error_set(err, EBB_EAGAIN, "nothing to read yet");
    if (n < 0 && errno != ECONNRESET)
        return error_set(err, EBB_EIO, "descriptor %d: reading failed: %s", c->fd_in,
                         strerror(errno));
    c->at_end = true;
    return error_set(err, EBB_EGONE, "the peer has closed the connection");
}

enum line_status channel_next(struct channel *c, char **line, size_t *n_bytes)
{
    enum line_status status;

    if (c->reader.buffer == NULL)
        return LINE_NEED_MORE;
    status = line_reader_next(&c->reader, line, n_bytes);
    if (status == LINE_NEED_MORE && c->at_end)
        status = line_reader_finish(&c->reader, line, n_bytes);
    return status;
}

/* write() whose SIGPIPE reaches nobody: it is blocked for this thread and taken away again. */
static ssize_t write_without_signal(int fd, const char *bytes, size_t n_bytes)
{
    sigset_t broken_pipe, before;
    ssize_t n;
    int why;

    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
    n = write(fd, bytes, n_bytes);
    why = errno;
    if (n < 0 && why == EPIPE && !sigismember(&before, SIGPIPE))
        (void)sigtimedwait(&broken_pipe, NULL, &(struct timespec){0});
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return n;
}

int channel_flush(struct channel *c)
{
    while (c->queue_end > c->queue_start) {
        ssize_t n = -1;
        if (c->fd_out >= 0)
            n = write_without_signal(c->fd_out, c->queue + c->queue_start,
                                     c->queue_end - c->queue_start);
        else
            errno = EPIPE;
        if (n > 0) {
            c->queue_start += (size_t)n;
        } else if (n == 0 || errno == EAGAIN || errno == EWOULDBLOCK) {
            return 0;
        } else if (errno != EINTR) {
            c->queue_start = c->queue_end = 0;
            return errno == EPIPE || errno == ECONNRESET ? EBB_EGONE : EBB_EIO;
        }
    }
    c->queue_start = c->queue_end = 0;
    return 0;
}

/* Room for n_bytes at the queue's end. What waits and n_bytes together are at most queue_max. */
static int queue_room(struct channel *c, size_t n_bytes)
{
    size_t n_waiting = c->queue_end - c->queue_start, capacity = c->queue_capacity;
    char *queue = c->queue;

    if (n_bytes <= capacity - c->queue_end)
        return 0;
    if (c->queue_start < capacity / 2 || n_waiting + n_bytes > capacity) {
        if (capacity == 0)
            capacity = QUEUE_BYTES_FIRST / 2;
        do
            capacity *= 2;
        while (n_waiting + n_bytes > capacity);
        if (capacity > 2 * c->queue_max)
            capacity = 2 * c->queue_max;
        queue = malloc(capacity);
        if (queue == NULL)
            return EBB_ENOMEM;
    }
    if (n_waiting > 0)
        memmove(queue, c->queue + c->queue_start, n_waiting);
    if (queue != c->queue)
        free(c->queue);
    c->queue = queue;
    c->queue_capacity = capacity;
    c->queue_start = 0;
    c->queue_end = n_waiting;
    return 0;
}

int channel_send(struct channel *c, const char *line, size_t n_bytes)
{
    int rc;

    if (n_bytes > LINE_BYTES_MAX)
        return EBB_ELINE_TOO_LONG;
    if (n_bytes == 0 || line[n_bytes - 1] != '\n')
        return EBB_EINVAL;
    if (c->queue_end - c->queue_start + n_bytes > c->queue_max) {
        rc = channel_flush(c);
        if (rc < 0)
            return rc;
        if (c->queue_end - c->queue_start + n_bytes > c->queue_max)
            return EBB_EGONE;
    }
    rc = queue_room(c, n_bytes);
    if (rc < 0)
        return rc;
    memcpy(c->queue + c->queue_end, line, n_bytes);
    c->queue_end += n_bytes;
    return channel_flush(c);
}

int channel_send_error(struct channel *c, const char *tag, const struct error *err)
{
    char line[sizeof err->text + MESSAGE_TAG_MAX + 64], text[sizeof err->text];
    size_t n_text = strnlen(err->text, sizeof err->text - 1), at = 0;
    struct line_writer w;
    int n_bytes;

    /* The text is free, but a line is clean UTF-8: an error's text may have been cut inside a
     * character. */
    while (at < n_text) {
        unsigned char first = (unsigned char)err->text[at];
        size_t width =
            first < 0x20 || first == 0x7F ? 0 : utf8_sequence(err->text + at, n_text - at);
        if (width == 0)
            text[at] = first < 0x20 ? ' ' : '?';
        else
            memcpy(text + at, err->text + at, width);
        at += width > 0 ? width : 1;
    }
    text[at] = '\0';
    line_begin(&w, line, sizeof line, "ERR");
    line_bare(&w, tag != NULL && tag_is_valid(tag) ? tag : "-");
    line_bare(&w, error_code_name(err->code));
    if (at > 0)
        line_bare(&w, text);
    n_bytes = line_end(&w);
    return n_bytes < 0 ? n_bytes : channel_send(c, line, (size_t)n_bytes);
}
