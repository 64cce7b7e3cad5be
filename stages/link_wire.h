/* stages/link_wire.h - the inside of a link, for the sources that make links of it: link_greet.c (finding and proving each other),
 * link_wire.c (the ring of tile buffers, and its traffic over a stream socket), link_ipc.c (a ring that both ends map), link_nccl.c (a ring
 * at each end, and NCCL between them) and the drivers.
 *
 * One `struct link` is one end. It is born LINK_LISTENING or LINK_CONNECTING; greet_service() brings it to LINK_UP; from then on
 * the wire_ functions move tiles. The ring is n_used buffers long from `first`, oldest first.
 */
#pragma once
#include <sys/types.h>
#include "stages/link.h"
#include "stages/nccl.h"
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

/* What a listener says of its card and its tiles, and what a communicator is made with. */
struct nccl_offer {
    char card_uuid[64];
    uint64_t tile_bytes, n_tiles;
    struct nccl_id id;
};

struct answer {
    char greeting[8];
    struct ring_offer offer; /* only behind the greeting that announces it */
};

struct frame_header {
    uint32_t magic, kind, epoch, row_first, n_rows, payload_bytes;
    uint64_t step;
};

/* SENT: its header is out and its credit has not come back. ANNOUNCED, ARRIVING: its header is here, its rows are not; ARRIVING: what
 * brings them is on NCCL's stream. */
enum tile_state { TILE_FREE, TILE_COPYING, TILE_READY, TILE_SENT, TILE_ANNOUNCED, TILE_ARRIVING };

struct tile_buffer {
    /* sending: COPYING until the stream copied the rows in (nccl: until NCCL has them in order behind that copy); receiving: until it
     * copied them out */
    enum tile_state state;
    struct frame_header header;
    unsigned char *payload;    /* owned by the ring */
    struct exec_event *copied; /* owned */
};

enum link_state {
    LINK_LISTENING,
    LINK_CONNECTING,
    LINK_GREETING,
    LINK_OFFERED,
    LINK_JOINING, /* NCCL's communicator is being made */
    LINK_UP
};

struct nccl_end; /* link_nccl.c */

struct link {
    struct link_settings settings;
    enum link_state state;
    bool is_listener;
    int fd_listen, fd;
    char key[LINK_KEY_MAX];
    struct hello hello;           /* being received (listener) or sent (connector) */
    size_t hello_bytes;           /* of it done */
    struct answer answer;         /* being received (connector) */
    struct nccl_offer nccl_offer; /* being received in the place of answer.offer */
    size_t answer_bytes;
    struct tile_buffer
        *tiles; /* owned, settings.tiles: a ring from first, n_used long, oldest first */
    size_t first, n_used;
    size_t payload_max;
    size_t wire_bytes; /* of the frame on the wire now: header, then payload */
    bool receiving;    /* the newest tile of the ring is being received */

    bool is_beside;        /* rows travel beside the socket, which has headers and credits alone */
    struct nccl_end *nccl; /* owned; NULL: rows never go by NCCL */
    int fd_ring;           /* came with an answer, -1 */
    struct fixed_block mapped; /* the receiver's ring, at the sender */
    size_t n_owed;             /* tiles freed whose credits have not been sent */
    char why[160];             /* what hindered the link's own way; "" */
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
/* Rows go by NCCL: the link asked for it, and both ends could. */
static inline bool wire_is_by_nccl(const struct link *l)
{
    return l->nccl != NULL && l->is_beside;
}
/* EBB_EPEER, with words. */
int wire_gone(struct error *err, const char *doing);
/* The rest of the driver table, once the link is LINK_UP (send: EBB_EAGAIN before). */
size_t wire_poll_fds(struct link *l, struct pollfd *fds);
int wire_service(struct link *l, struct error *err);
bool wire_is_copying(const struct link *l);
bool wire_end(struct link *l);         /* true: a socket ends at once */
int wire_due_ms(const struct link *l); /* -1 */
int wire_send(struct link *l, const struct link_tile *tile, struct exec_stream *s,
              struct error *err);
int wire_peek(struct link *l, struct link_tile *tile);
int wire_take(struct link *l, void *to, struct exec_stream *s, struct error *err);

/* link_ipc.c, for the greeting: answers with the offer and the descriptor; checks and maps an offer (settings.vmm is there),
 * 0 or why not; makes the ring that is mapped the link's. */
int ring_offer(struct link *l, const char greeting[8], struct error *err);
int ring_map(struct link *l, const struct ring_offer *offer, struct error *err);
void ring_use(struct link *l, void *base);

/* link_nccl.c, for the greeting, with l->nccl: answers with the offer (EBB_EAGAIN: it has none, l->why says why); 0 or why an offer is not
 * taken; begins to join the other end, as LINK_JOINING; goes on until LINK_UP, by NCCL or not. */
int nccl_offer(struct link *l, const char greeting[8], struct error *err);
int nccl_check(struct link *l, const struct nccl_offer *offer, struct error *err);
void nccl_join_begin(struct link *l);
int nccl_join(struct link *l, struct error *err);
/* For the traffic: the sender takes credits in, the receiver pays what it owes. */
int ring_credits_take(struct link *l, struct error *err);
int ring_credits_pay(struct link *l, struct error *err);
