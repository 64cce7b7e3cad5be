/* stages/link_socket.c - the link over a stream socket: an abstract unix socket on one machine, TCP between machines.
 *
 * A peer proves itself first: it sends "EBBLINK1", the 32 hex digits of the key and its row size; the listener checks them (and, on a
 * unix socket, that the peer runs as the same user), answers "EBBLINK1" and stops listening. After that the wire is frames:
 * struct frame_header, then the payload. Both ends are little-endian machines. Nothing of a frame is believed before it is checked.
 *
 * The ring of tile buffers is the credit: the receiver stops reading when its ring is full, the kernel's buffers fill, the sender's
 * ring fills, send() says EBB_EAGAIN. Abstract names vanish with the process, so nothing is left behind whatever ends it.
 * Threads: the stage's control thread only. Refuses: a second peer, frames larger than a tile.
 */
#include "stages/link.h"
#include "stages/link_address.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_MAGIC 0x4c424245u /* "EBBL" */
static const char greeting[8] = {'E', 'B', 'B', 'L', 'I', 'N', 'K', '1'};

struct hello {
    char greeting[8];
    char key[32];
    uint64_t row_values;
};

struct frame_header {
    uint32_t magic, kind, epoch, row_first, n_rows, payload_bytes;
    uint64_t step;
};

enum tile_state { TILE_FREE, TILE_COPYING, TILE_READY };

struct tile_buffer {
    enum tile_state
        state; /* sending: COPYING until the stream copied the rows in; receiving: until it copied them out */
    struct frame_header header;
    unsigned char *payload;    /* owned by the ring */
    struct exec_event *copied; /* owned */
};

enum link_state { LINK_LISTENING, LINK_CONNECTING, LINK_GREETING, LINK_UP };

struct link {
    struct link_settings settings;
    enum link_state state;
    bool is_listener;
    int fd_listen, fd;
    char key[LINK_KEY_MAX];
    struct hello hello; /* being received (listener) or sent (connector) */
    size_t hello_bytes; /* of it done */
    char answer[8];
    size_t answer_bytes;
    struct tile_buffer
        *tiles; /* owned, settings.tiles: a ring from first, n_used long, oldest first */
    size_t first, n_used;
    size_t payload_max;
    size_t wire_bytes; /* of the frame on the wire now: header, then payload */
    bool receiving;    /* the newest tile of the ring is being received */
};

static void socket_close(struct link *l)
{
    if (l == NULL)
        return;
    for (size_t i = 0; l->tiles != NULL && i < l->settings.tiles; i++)
        if (l->tiles[i].copied != NULL)
            l->settings.exec->event_close(l->tiles[i].copied);
    if (l->fd >= 0)
        (void)close(l->fd);
    if (l->fd_listen >= 0)
        (void)close(l->fd_listen);
    free(l->tiles);
    free(l);
}

static int link_new(struct link **out, const struct link_settings *settings, struct error *err)
{
    if (settings->tiles < 2 || settings->row_values > (1u << 24) || settings->tile_rows == 0 ||
        settings->tile_rows > LINK_TILE_ROWS)
        return error_set(err, EBB_EINVAL, "link: %zu tiles of %zu rows of %zu values",
                         settings->tiles, settings->tile_rows, settings->row_values);
    struct link *l = calloc(1, sizeof *l);
    if (l == NULL)
        return error_set(err, EBB_ENOMEM, "link: no memory");
    l->settings = *settings;
    l->fd = l->fd_listen = -1;
    l->payload_max = link_payload_bytes(settings);
    l->tiles = calloc(settings->tiles, sizeof *l->tiles);
    int rc = EBB_ENOMEM;
    if (l->tiles == NULL) {
        error_set(err, rc, "link: no memory for %zu tiles", settings->tiles);
        goto fail;
    }
    for (size_t i = 0; i < settings->tiles; i++) {
        l->tiles[i].payload = (unsigned char *)settings->memory + i * l->payload_max;
        rc = settings->exec->event_open(settings->card, &l->tiles[i].copied, err);
        if (rc != 0)
            goto fail;
    }
    *out = l;
    return 0;
fail:
    socket_close(l);
    return rc;
}

static int socket_listen(struct link **out, const struct link_settings *settings, const char *host,
                         char address[LINK_ADDRESS_MAX], char key[LINK_KEY_MAX], struct error *err)
{
    struct link *l;
    int rc = link_new(&l, settings, err);
    if (rc != 0)
        return rc;
    l->is_listener = true;
    l->state = LINK_LISTENING;
    rc = link_key_make(l->key, err);
    if (rc == 0)
        rc = link_address_listen(host, address, &l->fd_listen, err);
    if (rc != 0) {
        socket_close(l);
        return rc;
    }
    memcpy(key, l->key, LINK_KEY_MAX);
    *out = l;
    return 0;
}

static void fd_tune(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one,
                     sizeof one); /* fails on unix sockets: nothing to tune there */
}

static int socket_connect(struct link **out, const struct link_settings *settings,
                          const char *address, const char *key, struct error *err)
{
    if (strlen(key) != 32)
        return error_set(err, EBB_EINVAL, "link: key wants 32 hex digits, got %zu characters",
                         strlen(key));
    struct link *l;
    int rc = link_new(&l, settings, err);
    if (rc != 0)
        return rc;
    rc = link_address_dial(address, &l->fd, err);
    if (rc != 0) {
        socket_close(l);
        return rc;
    }
    fd_tune(l->fd);
    l->state = LINK_CONNECTING;
    memcpy(l->hello.greeting, greeting, sizeof greeting);
    memcpy(l->hello.key, key, sizeof l->hello.key);
    l->hello.row_values = settings->row_values;
    *out = l;
    return 0;
}

static struct tile_buffer *ring_at(struct link *l, size_t i)
{
    return &l->tiles[(l->first + i) % l->settings.tiles];
}

static bool has_bytes_to_send(const struct link *l)
{
    return !l->is_listener && l->n_used > 0 && l->tiles[l->first].state == TILE_READY;
}

static size_t socket_poll_fds(struct link *l, struct pollfd *fds)
{
    if (l->state == LINK_LISTENING) {
        fds[0] = (struct pollfd){.fd = l->fd_listen, .events = POLLIN};
        return 1;
    }
    short events = 0;
    if (l->state == LINK_CONNECTING)
        events = POLLOUT;
    else if (l->state == LINK_GREETING)
        events = POLLIN;
    else if (!l->is_listener)
        events = (short)(POLLIN | (has_bytes_to_send(l) ? POLLOUT : 0)); /* POLLIN: sees the end */
    else if (l->receiving || l->n_used < l->settings.tiles)
        events = POLLIN;
    if (events == 0)
        return 0;
    fds[0] = (struct pollfd){.fd = l->fd, .events = events};
    return 1;
}

static bool socket_is_up(const struct link *l)
{
    return l->state == LINK_UP;
}

static int peer_gone(struct error *err, const char *doing)
{
    return error_set(err, EBB_EPEER, "link: the other stage is gone (%s)", doing);
}

/* Moves up to n bytes; how many, 0 for would-block, or EBB_EPEER. */
static ssize_t pull(struct link *l, void *to, size_t n, struct error *err)
{
    ssize_t got = recv(l->fd, to, n, MSG_DONTWAIT);
    if (got > 0)
        return got;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return peer_gone(err, "reading");
}

static ssize_t push(struct link *l, const void *from, size_t n, struct error *err)
{
    ssize_t sent = send(l->fd, from, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0)
        return sent;
    if (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)
        return 0;
    return peer_gone(err, "writing");
}

static int accept_one(struct link *l, struct error *err)
{
    int fd = accept4(l->fd_listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                   ? 0
                   : error_set(err, EBB_EIO, "link: accept: %s", strerror(errno));
    struct ucred who;
    socklen_t n = sizeof who;
    struct sockaddr_storage sa;
    socklen_t sa_n = sizeof sa;
    bool is_unix = getsockname(fd, (struct sockaddr *)&sa, &sa_n) == 0 && sa.ss_family == AF_UNIX;
    if (is_unix &&
        (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid())) {
        (void)close(fd);
        return 0;
    }
    fd_tune(fd);
    l->fd = fd;
    l->hello_bytes = 0;
    l->state = LINK_GREETING;
    return 0;
}

/* Listener: a stranger that does not know the key is turned away and the wait goes on. */
static int greet_listener(struct link *l, struct error *err)
{
    struct error ignored;
    ssize_t got =
        pull(l, (char *)&l->hello + l->hello_bytes, sizeof l->hello - l->hello_bytes, &ignored);
    if (got >= 0)
        l->hello_bytes += (size_t)got;
    if (got >= 0 && l->hello_bytes < sizeof l->hello)
        return 0;
    bool known = got >= 0 && memcmp(l->hello.greeting, greeting, sizeof greeting) == 0 &&
                 memcmp(l->hello.key, l->key, sizeof l->hello.key) == 0;
    if (!known) {
        (void)close(l->fd);
        l->fd = -1;
        l->state = LINK_LISTENING;
        return 0;
    }
    if (l->hello.row_values != l->settings.row_values)
        return error_set(err, EBB_EMISMATCH,
                         "link: rows of %zu values wanted, the other stage sends %llu",
                         l->settings.row_values, (unsigned long long)l->hello.row_values);
    if (send(l->fd, greeting, sizeof greeting, MSG_NOSIGNAL) != (ssize_t)sizeof greeting)
        return peer_gone(err, "greeting");
    (void)close(l->fd_listen);
    l->fd_listen = -1;
    l->state = LINK_UP;
    return 0;
}

static int greet_connector(struct link *l, struct error *err)
{
    if (l->state == LINK_CONNECTING) {
        int failure = 0;
        socklen_t n = sizeof failure;
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &failure, &n) == 0 && failure != 0)
            return error_set(err, EBB_EPEER, "link: cannot connect: %s", strerror(failure));
        ssize_t sent =
            push(l, (char *)&l->hello + l->hello_bytes, sizeof l->hello - l->hello_bytes, err);
        if (sent < 0)
            return (int)sent;
        l->hello_bytes += (size_t)sent;
        if (l->hello_bytes == sizeof l->hello)
            l->state = LINK_GREETING;
        return 0;
    }
    ssize_t got = pull(l, l->answer + l->answer_bytes, sizeof l->answer - l->answer_bytes, err);
    if (got < 0)
        return (int)got;
    l->answer_bytes += (size_t)got;
    if (l->answer_bytes < sizeof l->answer)
        return 0;
    if (memcmp(l->answer, greeting, sizeof greeting) != 0)
        return error_set(err, EBB_EPEER, "link: the other side is not an ebbtide stage");
    l->state = LINK_UP;
    return 0;
}

static size_t unit_bytes(const struct link *l, uint32_t kind)
{
    return kind == LINK_ROWS ? l->settings.row_values * sizeof(float) : sizeof(struct link_id);
}

static int frame_check(const struct link *l, const struct frame_header *h, struct error *err)
{
    uint64_t unit = unit_bytes(l, h->kind);
    bool ok = h->magic == FRAME_MAGIC && (h->kind == LINK_ROWS || h->kind == LINK_IDS) &&
              h->n_rows > 0 && h->n_rows <= l->settings.tile_rows && h->row_first <= INT32_MAX &&
              unit > 0 && h->payload_bytes == unit * h->n_rows &&
              h->payload_bytes <= l->payload_max;
    return ok ? 0
              : error_set(err, EBB_EPEER,
                          "link: a frame that cannot be: kind %u, rows %u, %u bytes", h->kind,
                          h->n_rows, h->payload_bytes);
}

/* Reads frames until the ring is full or the wire is dry. */
static int receive_frames(struct link *l, struct error *err)
{
    for (;;) {
        if (!l->receiving) {
            if (l->n_used == l->settings.tiles)
                return 0;
            ring_at(l, l->n_used++)->state = TILE_FREE;
            l->receiving = true;
            l->wire_bytes = 0;
        }
        struct tile_buffer *t = ring_at(l, l->n_used - 1);
        size_t head = sizeof t->header;
        ssize_t got = l->wire_bytes < head
                          ? pull(l, (char *)&t->header + l->wire_bytes, head - l->wire_bytes, err)
                          : pull(l, t->payload + (l->wire_bytes - head),
                                 head + t->header.payload_bytes - l->wire_bytes, err);
        if (got <= 0)
            return (int)got;
        l->wire_bytes += (size_t)got;
        if (l->wire_bytes == head) {
            int rc = frame_check(l, &t->header, err);
            if (rc != 0)
                return rc;
        } else if (l->wire_bytes > head && l->wire_bytes == head + t->header.payload_bytes) {
            t->state = TILE_READY;
            l->receiving = false;
        }
    }
}

static int send_frames(struct link *l, struct error *err)
{
    while (has_bytes_to_send(l)) {
        struct tile_buffer *t = ring_at(l, 0);
        size_t head = sizeof t->header, total = head + t->header.payload_bytes;
        ssize_t sent =
            l->wire_bytes < head
                ? push(l, (char *)&t->header + l->wire_bytes, head - l->wire_bytes, err)
                : push(l, t->payload + (l->wire_bytes - head), total - l->wire_bytes, err);
        if (sent <= 0)
            return (int)sent;
        l->wire_bytes += (size_t)sent;
        if (l->wire_bytes == total) {
            l->wire_bytes = 0;
            t->state = TILE_FREE;
            l->first = (l->first + 1) % l->settings.tiles;
            l->n_used--;
        }
    }
    return 0;
}

/* Tiles whose stream copy is done: ready for the wire when sending, free when receiving. */
static int settle_copies(struct link *l, struct error *err)
{
    for (size_t i = 0; i < l->n_used; i++) {
        struct tile_buffer *t = ring_at(l, i);
        if (t->state != TILE_COPYING)
            continue;
        int done = l->settings.exec->event_query(t->copied);
        if (done < 0)
            return error_set(err, EBB_EDRIVER, "link: the copy of a tile failed");
        if (done)
            t->state = l->is_listener ? TILE_FREE : TILE_READY;
    }
    while (l->is_listener && l->n_used > 0 && ring_at(l, 0)->state == TILE_FREE &&
           !(l->receiving && l->n_used == 1)) {
        l->first = (l->first + 1) % l->settings.tiles;
        l->n_used--;
    }
    return 0;
}

static bool socket_is_copying(const struct link *l)
{
    for (size_t i = 0; i < l->n_used; i++)
        if (l->tiles[(l->first + i) % l->settings.tiles].state == TILE_COPYING)
            return true;
    return false;
}

/* The sending side reads nothing after the greeting; an end of stream is how it learns that the peer died. */
static int watch_end(struct link *l, struct error *err)
{
    char byte;
    ssize_t got = recv(l->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ? peer_gone(err, "waiting")
                                                                      : 0;
}

static int socket_service(struct link *l, struct error *err)
{
    int rc = 0;
    if (l->state == LINK_LISTENING)
        rc = accept_one(l, err);
    if (rc == 0 && l->is_listener && l->state == LINK_GREETING)
        rc = greet_listener(l, err);
    if (rc == 0 && !l->is_listener && l->state != LINK_UP)
        rc = greet_connector(l, err);
    if (rc != 0 || l->state != LINK_UP)
        return rc;
    rc = settle_copies(l, err);
    if (rc == 0)
        rc = l->is_listener ? receive_frames(l, err) : watch_end(l, err);
    if (rc == 0 && !l->is_listener)
        rc = send_frames(l, err);
    return rc;
}

static int socket_send(struct link *l, const struct link_tile *tile, struct exec_stream *s,
                       struct error *err)
{
    size_t unit = unit_bytes(l, tile->kind);
    if (tile->n_rows == 0 || tile->n_rows > l->settings.tile_rows || unit == 0)
        return error_set(err, EBB_EINVAL, "link: %u rows in a tile, at most %zu", tile->n_rows,
                         l->settings.tile_rows);
    if (l->state != LINK_UP || l->n_used == l->settings.tiles)
        return EBB_EAGAIN;
    struct tile_buffer *t = ring_at(l, l->n_used);
    t->header = (struct frame_header){.magic = FRAME_MAGIC,
                                      .kind = tile->kind,
                                      .epoch = tile->epoch,
                                      .row_first = tile->row_first,
                                      .n_rows = tile->n_rows,
                                      .payload_bytes = (uint32_t)(unit * tile->n_rows),
                                      .step = tile->step};
    if (s == NULL) {
        memcpy(t->payload, tile->data, t->header.payload_bytes);
        t->state = TILE_READY;
    } else {
        int rc = l->settings.exec->copy(s, t->payload, tile->data, t->header.payload_bytes);
        if (rc == 0)
            rc = l->settings.exec->event_record(t->copied, s);
        if (rc != 0)
            return error_set(err, rc, "link: cannot copy a tile out");
        t->state = TILE_COPYING;
    }
    l->n_used++;
    return s == NULL ? send_frames(l, err) : 0;
}

/* The oldest tile not being copied out yet. */
static struct tile_buffer *oldest_ready(struct link *l)
{
    for (size_t i = 0; i < l->n_used; i++)
        if (ring_at(l, i)->state == TILE_READY)
            return ring_at(l, i);
    return NULL;
}

static int socket_peek(struct link *l, struct link_tile *tile)
{
    struct tile_buffer *t = oldest_ready(l);
    if (t == NULL)
        return EBB_EAGAIN;
    *tile = (struct link_tile){.kind = (enum link_kind)t->header.kind,
                               .epoch = t->header.epoch,
                               .row_first = t->header.row_first,
                               .n_rows = t->header.n_rows,
                               .step = t->header.step,
                               .data = t->payload};
    return 0;
}

static int socket_take(struct link *l, void *to, struct exec_stream *s, struct error *err)
{
    struct tile_buffer *t = oldest_ready(l);
    if (t == NULL)
        return error_set(err, EBB_EAGAIN, "link: no tile to take");
    if (to == NULL) {
        t->state = TILE_FREE;
        return settle_copies(l, err);
    }
    if (s == NULL) {
        memcpy(to, t->payload, t->header.payload_bytes);
        t->state = TILE_FREE;
        return settle_copies(l, err);
    }
    int rc = l->settings.exec->copy(s, to, t->payload, t->header.payload_bytes);
    if (rc == 0)
        rc = l->settings.exec->event_record(t->copied, s);
    if (rc != 0)
        return error_set(err, rc, "link: cannot copy a tile in");
    t->state = TILE_COPYING;
    return 0;
}

const struct link_driver link_socket = {
    .name = "socket",
    .listen = socket_listen,
    .connect = socket_connect,
    .close = socket_close,
    .poll_fds = socket_poll_fds,
    .service = socket_service,
    .is_up = socket_is_up,
    .is_copying = socket_is_copying,
    .send = socket_send,
    .peek = socket_peek,
    .take = socket_take,
};
