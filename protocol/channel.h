/* protocol/channel.h - a connection that speaks lines: non-blocking descriptors, a reader, and a
 * bounded queue of what is still to be written. Works on pipes, terminals and sockets alike (read
 * and write only).
 *
 * The owner polls: POLLIN always (both ends keep reading while a write would block), POLLOUT while
 * channel_wants_write(). Lines never interleave: each is queued whole. A peer that stops reading
 * fills the queue; then channel_send() says EBB_EGONE and the owner drops the connection. A peer
 * that is gone never raises SIGPIPE here, whatever the process has set. Threads: one owner.
 */
#pragma once
#include "protocol/line.h"
#include "protocol/message.h"

#define CHANNEL_QUEUE_BYTES_DEFAULT (8u << 20)

struct channel {
    int fd_in, fd_out; /* owned unless borrowed; may be the same; -1 = closed */
    bool borrowed;
    bool at_end; /* the peer closed its side: no more lines will come */
    struct line_reader reader;
    char *queue; /* owned, grows up to queue_max */
    size_t queue_start, queue_end, queue_capacity, queue_max;
    int flags_in, flags_out; /* as before open; close puts them back: a shell may share them */
};

/* Makes them non-blocking; either may be -1. queue_max 0: the default. After a failure nothing is
 * owned: the caller still has both. */
int channel_open(struct channel *c, int fd_in, int fd_out, bool borrowed, size_t queue_max,
                 struct error *err);
void channel_close(struct channel *c);

/* Reads once what is there. 0; EBB_EAGAIN (also: take the buffered lines first); EBB_EGONE at end
 * of input (at_end is set, buffered lines remain); EBB_EIO. */
int channel_read(struct channel *c, struct error *err);
/* The next whole line, valid until the next call of read() or next(). An unterminated last line
 * before end of input counts as a line. LINE_TOO_LONG: one was discarded; go on. */
enum line_status channel_next(struct channel *c, char **line, size_t *n_bytes);
/* Queues a whole line (with its LF) and writes what goes at once. EBB_EGONE: queue full or the peer
 * is gone. EBB_EINVAL (no LF at its end) and EBB_ELINE_TOO_LONG queue nothing; EBB_ENOMEM. */
int channel_send(struct channel *c, const char *line, size_t n_bytes);
/* 0 (some may remain), EBB_EGONE or, where writing failed in another way, EBB_EIO (the queue is emptied) */
int channel_flush(struct channel *c);
static inline bool channel_wants_write(const struct channel *c)
{
    return c->queue_end > c->queue_start;
}

/* `ERR <tag|-> <code> <text>`: what every refused line is answered with. tag NULL: "-". */
int channel_send_error(struct channel *c, const char *tag, const struct error *err);
