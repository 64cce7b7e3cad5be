/* stages/link_ipc.c - the link between cards of one kind on one host: who sends puts rows where who receives reads them.
 *
 * The receiver offers its ring of tiles, memory of its card, by a descriptor over the unix socket of the greeting. The sender maps it and
 * copies a tile's rows on its own stream, from card to card, into the tile whose turn it is; when the copy's event is done, the
 * tile's header goes over the socket. The receiver reads the header into memory of its own, checks it, and gives a credit, a byte, when
 * the tile was taken. So no stream waits for another process, and what a stopped or broken neighbour writes is at worst wrong numbers in
 * rows: which tile is next, both sides count themselves.
 *
 * Where the ring cannot be had or mapped (another kind of card, another host) the link becomes a socket (link_wire.c) and says why.
 * The mapping ends with the link, or with the process. Threads: the stage's control thread only.
 */
#include "stages/link_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define RING_BEYOND_MAX                                                                            \
    ((uint64_t)256 << 20) /* of an offer, beyond the tiles: a driver's rounding */

int ring_offer(struct link *l, const char greeting[8], struct error *err)
{
    const struct link_ring *ring = l->settings.ring;
    struct answer answer = {.offer = {.bytes = ring->bytes,
                                      .tile_bytes = l->payload_max,
                                      .n_tiles = l->settings.tiles}};
    memcpy(answer.greeting, greeting, sizeof answer.greeting);
    (void)snprintf(answer.offer.kind, sizeof answer.offer.kind, "%s", ring->kind);
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {.iov_base = &answer, .iov_len = sizeof answer};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof ring->fd);
    memcpy(CMSG_DATA(c), &ring->fd, sizeof ring->fd);
    return sendmsg(l->fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof answer
               ? 0
               : wire_gone(err, "offering its ring");
}

int ring_map(struct link *l, const struct ring_offer *offer, struct error *err)
{
    struct vmm_driver *vmm = l->settings.vmm;
    uint64_t wanted = (uint64_t)l->payload_max * l->settings.tiles;
    if (vmm->import == NULL || strncmp(offer->kind, vmm->name, sizeof offer->kind) != 0)
        return error_set(err, EBB_EUNSUPPORTED, "a %s card cannot map memory of a %.8s card",
                         vmm->name, offer->kind);
    if (offer->tile_bytes != l->payload_max || offer->n_tiles != l->settings.tiles ||
        offer->bytes < wanted || offer->bytes - wanted > RING_BEYOND_MAX)
        return error_set(err, EBB_EMISMATCH,
                         "%zu tiles of %zu bytes wanted, its ring has %llu of %llu in %llu bytes",
                         l->settings.tiles, l->payload_max, (unsigned long long)offer->n_tiles,
                         (unsigned long long)offer->tile_bytes, (unsigned long long)offer->bytes);
    if (l->fd_ring < 0)
        return error_set(err, EBB_EPEER, "its ring came without a descriptor");
    return fixed_block_open_imported(&l->mapped, vmm, (size_t)offer->bytes, l->fd_ring, err);
}

void ring_use(struct link *l, void *base)
{
    for (size_t i = 0; i < l->settings.tiles; i++)
        l->tiles[i].payload = (unsigned char *)base + i * l->payload_max;
    l->is_beside = true;
}

int ring_credits_take(struct link *l, struct error *err)
{
    char credits[64];
    ssize_t got;
    while ((got = wire_pull(l, credits, sizeof credits, err)) > 0)
        for (ssize_t i = 0; i < got; i++) {
            if (l->n_used == 0 || l->tiles[l->first].state != TILE_SENT)
                return error_set(err, EBB_EPEER, "link: a credit for a tile that was not sent");
            wire_oldest_drop(l);
        }
    return (int)got;
}

/* Half a ring at a time: each payment wakes the other stage. */
int ring_credits_pay(struct link *l, struct error *err)
{
    static const char credits[64];
    while (l->n_owed > 0 && l->n_owed >= l->settings.tiles / 2) {
        ssize_t sent = wire_push(l, credits, l->n_owed < 64 ? l->n_owed : 64, err);
        if (sent <= 0)
            return (int)sent;
        l->n_owed -= (size_t)sent;
    }
    return 0;
}

static size_t ipc_poll_fds(struct link *l, struct pollfd *fds)
{
    return l->state == LINK_UP ? wire_poll_fds(l, fds) : greet_poll_fds(l, fds);
}

static bool ipc_is_up(const struct link *l)
{
    return l->state == LINK_UP;
}

static const char *ipc_became(const struct link *l, const char **why)
{
    if (why != NULL)
        *why = l->why;
    return l->is_beside ? "ipc" : "socket";
}

static int ipc_service(struct link *l, struct error *err)
{
    int rc = l->state == LINK_UP ? 0 : greet_service(l, err);
    return rc != 0 || l->state != LINK_UP ? rc : wire_service(l, err);
}

const struct link_driver link_ipc = {
    .name = "ipc",
    .listen = greet_listen,
    .connect = greet_connect,
    .close = wire_close,
    .end = wire_end,
    .poll_fds = ipc_poll_fds,
    .service = ipc_service,
    .is_up = ipc_is_up,
    .became = ipc_became,
    .is_copying = wire_is_copying,
    .due_ms = wire_due_ms,
    .send = wire_send,
    .peek = wire_peek,
    .take = wire_take,
};
