/* stages/link_wire.h - the inside of a link, for the sources that make links of it: link_greet.c (finding and proving each other),
 * link_wire.c (the ring of tile buffers, and its traffic over a stream socket), link_ipc.c (a ring that both ends map) and the drivers.
 *
 * One `struct link` is one end. It is born LINK_LISTENING or LINK_CONNECTING; greet_service() brings it to LINK_UP; from then on
 * the wire_ functions move tiles. The ring is n_used buffers long from `first`, oldest first.
 */
#pragma once
#include <sys/types.h>
#include "stages/link.h"
#include "vmm/region.h"

#define LINK_FRAME_MAGIC 0x4c424245u /* "EBBL" */

struct hello {
    char greeting[8];
    char key[32];
    uint64_t row_values;
};

/* What a listener says of the ring whose descriptor it sends along. */
struct ring_offer {
    char kind[8]; /* of the driver: memory of another kind of card is not even tried */
    uint64_t bytes, tile_bytes, n_tiles;
};

struct answer {
    char greeting[8];
    struct ring_offer offer; /* only behind the greeting that announces it */
};

struct frame_header {
    uint32_t magic, kind, epoch, row_first, n_rows, payload_bytes;
    uint64_t step;
};

/* SENT: in a shared ring, its header is out and its credit has not come back. */
enum tile_state { TILE_FREE, TILE_COPYING, TILE_READY, TILE_SENT };

struct tile_buffer {
    enum tile_state
        state; /* sending: COPYING until the stream copied the rows in; receiving: until it copied them out */
    struct frame_header header;
    unsigned char *payload;    /* owned by the ring */
    struct exec_event *copied; /* owned */
};

enum link_state { LINK_LISTENING, LINK_CONNECTING, LINK_GREETING, LINK_OFFERED, LINK_UP };

struct link {
    struct link_settings settings;
    enum link_state state;
    bool is_listener;
    int fd_listen, fd;
    char key[LINK_KEY_MAX];
    struct hello hello;   /* being received (listener) or sent (connector) */
    size_t hello_bytes;   /* of it done */
    struct answer answer; /* being received (connector) */
    size_t answer_bytes;
    struct tile_buffer
        *tiles; /* owned, settings.tiles: a ring from first, n_used long, oldest first */
    size_t first, n_used;
    size_t payload_max;
    size_t wire_bytes; /* of the frame on the wire now: header, then payload */
    bool receiving;    /* the newest tile of the ring is being received */

    bool is_shared; /* both ends map the receiver's ring: only headers and credits travel */
    int fd_ring;    /* came with an answer, -1 */
    struct fixed_block mapped; /* the receiver's ring, at the sender */
    size_t n_owed;             /* tiles freed whose credits have not been sent */
    char why[160];             /* what hindered sharing; "" */
};

/* link_greet.c: listen() and connect() of the driver table, and its poll_fds() and service() until LINK_UP. */
int greet_listen(struct link **l, const struct link_settings *settings, const char *host,
                 char address[LINK_ADDRESS_MAX], char key[LINK_KEY_MAX], struct error *err);
int greet_connect(struct link **l, const struct link_settings *settings, const char *address,
                  const char *key, struct error *err);
size_t greet_poll_fds(struct link *l, struct pollfd *fds);
int greet_service(struct link *l, struct error *err);

/* link_wire.c. A link without descriptors, its ring in settings->memory. EBB_EINVAL, EBB_ENOMEM, an event's failure. */
int wire_open(struct link **l, const struct link_settings *settings, struct error *err);
void wire_close(struct link *l); /* NULL is fine */
/* Moves up to n bytes over l->fd; how many, 0 for would-block, or EBB_EPEER. */
ssize_t wire_pull(struct link *l, void *to, size_t n, struct error *err);
ssize_t wire_push(struct link *l, const void *from, size_t n, struct error *err);
/* Frees the oldest tile of the ring. */
void wire_oldest_drop(struct link *l);
/* EBB_EPEER, with words. */
int wire_gone(struct error *err, const char *doing);
/* The rest of the driver table, once the link is LINK_UP (send: EBB_EAGAIN before). */
size_t wire_poll_fds(struct link *l, struct pollfd *fds);
int wire_service(struct link *l, struct error *err);
bool wire_is_copying(const struct link *l);
int wire_send(struct link *l, const struct link_tile *tile, struct exec_stream *s,
              struct error *err);
int wire_peek(struct link *l, struct link_tile *tile);
int wire_take(struct link *l, void *to, struct exec_stream *s, struct error *err);

/* link_ipc.c, for the greeting: answers with the offer and the descriptor; checks and maps an offer (settings.vmm is there),
 * 0 or why not; makes the ring that is mapped the link's. */
int ring_offer(struct link *l, const char greeting[8], struct error *err);
int ring_map(struct link *l, const struct ring_offer *offer, struct error *err);
void ring_use(struct link *l, void *base);
/* For the traffic: the sender takes credits in, the receiver pays what it owes. */
int ring_credits_take(struct link *l, struct error *err);
int ring_credits_pay(struct link *l, struct error *err);
