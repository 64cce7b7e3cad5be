/* stages/link.h - how rows of the residual stream go from a stage to the next, and sampled ids from the last to the first.
 *
 * A link is one-way and carries tiles: at most LINK_TILE_ROWS rows of one step, or a list of sampled ids. Each side owns a small
 * ring of tile buffers outside the segment pool; a full ring is the credit: send() says EBB_EAGAIN and the stage tries again later.
 * Everything is stream-ordered: send() copies the rows out when the stream gets there, take() copies them in; nobody waits.
 * The stage polls the descriptors of poll_fds() and calls service() whenever one is ready or the exec woke it.
 *
 * Drivers: socket (link_socket.c: any pair), ipc (link_ipc.c: cards of one kind on one host, rows go straight into the receiver's
 * ring; it becomes a socket where they cannot), nccl (link_nccl.c: CUDA cards, also of two hosts; likewise). Their common inside:
 * link_wire.h.
 * Failure: EBB_EPEER when the other side is gone or breaks the format; the link is then only good for end() and close().
 */
#pragma once
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/exec.h"
#include "vmm/driver.h"

#define LINK_TILE_ROWS    512
#define LINK_ADDRESS_MAX  160
#define LINK_KEY_MAX      33 /* 32 hex digits and NUL */
#define LINK_POLL_FDS_MAX 2

enum link_kind { LINK_ROWS = 1, LINK_IDS = 2 };

struct link_id {
    int32_t row, id;
};

struct link_tile {
    enum link_kind kind;
    uint32_t epoch, row_first, n_rows; /* LINK_IDS: n_rows entries of struct link_id */
    uint64_t step;
    const void *data; /* rows: [n_rows][row_values] fp32 of the card; ids: host memory */
};

/* A ring of tiles in the card's memory: link_memory_bytes(). ipc: an end which listens offers it to the stage before it, to put rows in
 * itself. nccl: each end has one, which NCCL reads or writes. */
struct link_ring {
    const char *kind; /* of the driver that made it: its name, at most 7 characters count */
    void *base;       /* of the card */
    size_t bytes;
    int fd; /* owned by the stage, names the memory to another process; nccl: -1 */
};

struct link_settings {
    const struct exec_driver *exec; /* borrowed, with its exec, for the copies */
    struct exec *card;
    uint32_t epoch;
    size_t
        row_values; /* fp32 values of a row, both sides must agree; 0 = the link carries ids only */
    size_t tile_rows; /* most rows of a tile, 1..LINK_TILE_ROWS */
    size_t tiles;     /* buffers in the ring, >= 2 */
    void *
        memory; /* borrowed: link_memory_bytes() of the card, made when the stage made all its memory */
    /* All borrowed; NULL: rows go over the socket. ipc: what to offer, and by what to map what is offered. nccl: its ring, and what the
     * card is known by. */
    const struct link_ring *ring;
    struct vmm_driver *vmm;
    const char *card_uuid;
};

static inline size_t link_payload_bytes(const struct link_settings *s)
{
    size_t unit = s->row_values * sizeof(float);
    return s->tile_rows * (unit > sizeof(struct link_id) ? unit : sizeof(struct link_id));
}
static inline size_t link_memory_bytes(const struct link_settings *s)
{
    return link_payload_bytes(s) * s->tiles;
}

struct link; /* opaque */

struct link_driver {
    const char *name; /* "socket" | "ipc" | "nccl" */
    /* Waits for one peer at an address of its own making, which only who knows the key may use. host: NULL = this machine only, else
     * the local address that other hosts reach. */
    int (*listen)(struct link **l, const struct link_settings *settings, const char *host,
                  char address[LINK_ADDRESS_MAX], char key[LINK_KEY_MAX], struct error *err);
    int (*connect)(struct link **l, const struct link_settings *settings, const char *address,
                   const char *key, struct error *err);
    /* NULL is fine; nothing on a stream of the stage's touches its tiles any more. May wait, unless end() said that it will not. */
    void (*close)(struct link *l);
    /* Begins to end a link that is of no use any more, if that has not begun; true: close() waits for nothing. */
    bool (*end)(struct link *l);

    size_t (*poll_fds)(struct link *l, struct pollfd *fds); /* fills at most LINK_POLL_FDS_MAX */
    int (*service)(struct link *l, struct error *err);
    bool (*is_up)(const struct link *l); /* the peer has proved itself */
    /* By what rows travel once it is up, "socket", "ipc" or "nccl"; *why (may be NULL): what hindered its own way, "" = nothing did. */
    const char *(*became)(const struct link *l, const char **why);
    bool (*is_copying)(
        const struct link *l); /* a tile's copy is on a stream: service() comes again */
    /* After how many ms service(), or end() once it was called, is due though no descriptor says so; -1: descriptors tell everything. */
    int (*due_ms)(const struct link *l);

    /* Sends a copy of the tile, taken when s gets there (s NULL: now, from host memory). EBB_EAGAIN: no credit. */
    int (*send)(struct link *l, const struct link_tile *tile, struct exec_stream *s,
                struct error *err);
    /* The oldest tile that has arrived whole; EBB_EAGAIN: none. Valid until take(). */
    int (*peek)(struct link *l, struct link_tile *tile);
    /* Takes it: its rows are copied to `to` when s gets there (s NULL: now, to host memory), and then its buffer is free.
     * to NULL: dropped. */
    int (*take)(struct link *l, void *to, struct exec_stream *s, struct error *err);
};

extern const struct link_driver link_socket, link_ipc, link_nccl;
