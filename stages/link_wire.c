/* stages/link_wire.c - the ring of tile buffers of a link, and its traffic over a stream socket (see link_wire.h).
 *
 * The wire is frames: struct frame_header, then the payload. Both ends are little-endian machines. Nothing of a frame is believed before
 * it is checked. The ring is the credit: the receiver stops reading when its ring is full, the kernel's buffers fill, the sender's ring
 * fills, send() says EBB_EAGAIN. Where rows travel beside the socket (link_ipc.c, link_nccl.c) frames are headers only, and credits come
 * back as bytes. Threads: the stage's control thread only. Refuses: frames larger than a tile.
 */
#include "stages/link_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void wire_close(struct link *l)
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
    if (l->fd_ring >= 0)
        (void)close(l->fd_ring);
    fixed_block_close(&l->mapped);
    free(l->tiles);
    free(l);
}

int wire_open(struct link **out, const struct link_settings *settings, struct error *err)
{
    if (settings->tiles < 2 || settings->row_values > (1u << 24) || settings->tile_rows == 0 ||
        settings->tile_rows > LINK_TILE_ROWS)
        return error_set(err, EBB_EINVAL, "link: %zu tiles of %zu rows of %zu values",
                         settings->tiles, settings->tile_rows, settings->row_values);
    struct link *l = calloc(1, sizeof *l);
    if (l == NULL)
        return error_set(err, EBB_ENOMEM, "link: no memory");
    l->settings = *settings;
    l->fd = l->fd_listen = l->fd_ring = -1;
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
    wire_close(l);
    return rc;
}

static struct tile_buffer *ring_at(struct link *l, size_t i)
{
    return &l->tiles[(l->first + i) % l->settings.tiles];
}

/* The tile whose turn it is on the wire, if it is ready: those before it wait for their credits. */
static struct tile_buffer *next_to_send(struct link *l)
{
    size_t i = 0;
    while (i < l->n_used && ring_at(l, i)->state == TILE_SENT)
        i++;
    return i < l->n_used && ring_at(l, i)->state == TILE_READY ? ring_at(l, i) : NULL;
}

static size_t bytes_on_wire(const struct link *l, const struct tile_buffer *t)
{
    return sizeof t->header + (l->is_beside ? 0 : t->header.payload_bytes);
}

void wire_oldest_drop(struct link *l)
{
    ring_at(l, 0)->state = TILE_FREE;
    l->first = (l->first + 1) % l->settings.tiles;
    l->n_used--;
}

int wire_gone(struct error *err, const char *doing)
{
    return error_set(err, EBB_EPEER, "link: the other stage is gone (%s)", doing);
}

ssize_t wire_pull(struct link *l, void *to, size_t n, struct error *err)
{
    ssize_t got = recv(l->fd, to, n, MSG_DONTWAIT);
    if (got > 0)
        return got;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return wire_gone(err, "reading");
}

ssize_t wire_push(struct link *l, const void *from, size_t n, struct error *err)
{
    ssize_t sent = send(l->fd, from, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0)
        return sent;
    if (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)
        return 0;
    return wire_gone(err, "writing");
}

static size_t unit_bytes(const struct link *l, uint32_t kind)
{
    return kind == LINK_ROWS ? l->settings.row_values * sizeof(float) : sizeof(struct link_id);
}

static int frame_check(const struct link *l, const struct frame_header *h, struct error *err)
{
    uint64_t unit = unit_bytes(l, h->kind);
    bool ok = h->magic == LINK_FRAME_MAGIC && (h->kind == LINK_ROWS || h->kind == LINK_IDS) &&
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
        ssize_t got =
            l->wire_bytes < head
                ? wire_pull(l, (char *)&t->header + l->wire_bytes, head - l->wire_bytes, err)
                : wire_pull(l, t->payload + (l->wire_bytes - head),
                            head + t->header.payload_bytes - l->wire_bytes, err);
        if (got <= 0)
            return (int)got;
        l->wire_bytes += (size_t)got;
        int rc = l->wire_bytes == head ? frame_check(l, &t->header, err) : 0;
        if (rc != 0)
            return rc;
        if (l->wire_bytes >= head && l->wire_bytes == bytes_on_wire(l, t)) {
            t->state = wire_is_by_nccl(l) ? TILE_ANNOUNCED : TILE_READY;
            l->receiving = false;
        }
    }
}

static int send_frames(struct link *l, struct error *err)
{
    struct tile_buffer *t;
    while ((t = next_to_send(l)) != NULL) {
        size_t head = sizeof t->header, total = bytes_on_wire(l, t);
        ssize_t sent =
            l->wire_bytes < head
                ? wire_push(l, (char *)&t->header + l->wire_bytes, head - l->wire_bytes, err)
                : wire_push(l, t->payload + (l->wire_bytes - head), total - l->wire_bytes, err);
        if (sent <= 0)
            return (int)sent;
        l->wire_bytes += (size_t)sent;
        if (l->wire_bytes < total)
            continue;
        l->wire_bytes = 0;
        if (l->is_beside)
            t->state = TILE_SENT;
        else
            wire_oldest_drop(l);
    }
    return 0;
}

/* Tiles whose stream copy is done: ready for the wire when sending, free when receiving. What NCCL sends is ready before. */
static int settle_copies(struct link *l, struct error *err)
{
    bool by_nccl = wire_is_by_nccl(l) && !l->is_listener;
    for (size_t i = 0; i < l->n_used && !by_nccl; i++) {
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
        wire_oldest_drop(l);
        l->n_owed++;
    }
    return l->is_listener && l->is_beside ? ring_credits_pay(l, err) : 0;
}

bool wire_is_copying(const struct link *l)
{
    for (size_t i = 0; i < l->n_used; i++) {
        enum tile_state state = l->tiles[(l->first + i) % l->settings.tiles].state;
        if (state == TILE_COPYING || state == TILE_ARRIVING)
            return true;
    }
    return false;
}

bool wire_end(struct link *l)
{
    (void)l;
    return true;
}

int wire_due_ms(const struct link *l)
{
    (void)l;
    return -1;
}

/* Where rows go over the socket the sending side reads nothing after the greeting; an end of stream is how it learns that the peer died. */
static int watch_end(struct link *l, struct error *err)
{
    char byte;
    ssize_t got = recv(l->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ? wire_gone(err, "waiting")
                                                                      : 0;
}

size_t wire_poll_fds(struct link *l, struct pollfd *fds)
{
    short events = 0;
    if (!l->is_listener)
        events =
            (short)(POLLIN | (next_to_send(l) != NULL ? POLLOUT : 0)); /* POLLIN: sees the end */
    else if (l->receiving || l->n_used < l->settings.tiles)
        events = POLLIN;
    if (events == 0)
        return 0;
    fds[0] = (struct pollfd){.fd = l->fd, .events = events};
    return 1;
}

int wire_service(struct link *l, struct error *err)
{
    int rc = settle_copies(l, err);
    if (rc != 0 || l->is_listener)
        return rc != 0 ? rc : receive_frames(l, err);
    rc = l->is_beside ? ring_credits_take(l, err) : watch_end(l, err);
    return rc != 0 ? rc : send_frames(l, err);
}

int wire_send(struct link *l, const struct link_tile *tile, struct exec_stream *s,
              struct error *err)
{
    size_t unit = unit_bytes(l, tile->kind);
    if (tile->n_rows == 0 || tile->n_rows > l->settings.tile_rows || unit == 0)
        return error_set(err, EBB_EINVAL, "link: %u rows in a tile, at most %zu", tile->n_rows,
                         l->settings.tile_rows);
    if (l->state != LINK_UP || l->n_used == l->settings.tiles)
        return EBB_EAGAIN;
    struct tile_buffer *t = ring_at(l, l->n_used);
    t->header = (struct frame_header){.magic = LINK_FRAME_MAGIC,
                                      .kind = tile->kind,
                                      .epoch = tile->epoch,
                                      .row_first = tile->row_first,
                                      .n_rows = tile->n_rows,
                                      .payload_bytes = (uint32_t)(unit * tile->n_rows),
                                      .step = tile->step};
    if (s == NULL) {
        memcpy(t->payload, tile->data, t->header.payload_bytes);
        t->state = wire_is_by_nccl(l) ? TILE_COPYING : TILE_READY;
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

int wire_peek(struct link *l, struct link_tile *tile)
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

int wire_take(struct link *l, void *to, struct exec_stream *s, struct error *err)
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
