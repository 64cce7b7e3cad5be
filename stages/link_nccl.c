/* stages/link_nccl.c - the link between CUDA cards, also of two hosts: NCCL moves rows from card to card, a communicator of two a link.
 *
 * Headers, step numbers and credits go over the socket of the greeting, as in a ring (link_ipc.c). The sender's tile is copied into its
 * ring on the stage's stream, and ncclSend stands behind that copy on a stream that is NCCL's own; the header goes out once NCCL has
 * launched it. The receiver posts its ncclRecv only when the header is here, so what it waits for is on its way; the tile counts as
 * come when the control thread sees its event. So no stream of a stage's own ever waits for another process, whatever becomes of it.
 * The communicator never blocks the caller: a call is under way until NCCL's asynchronous result says so, one at a time.
 *
 * It is made while the link is, when both ends have greeted each other, and rows of the largest tile go over it once, so that NCCL takes
 * all its memory then. Where it cannot be made, the link becomes a socket and says why. Ended is it by ncclCommAbort, always: the peer may
 * be gone, with a kernel waiting for it; that call takes its time, so it has a thread. Threads: that one; all else is the stage's control
 * thread's.
 */
#include "stages/link_wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define JOIN_LIMIT_S  60
#define RANK_SENDER   0
#define RANK_RECEIVER 1
#define JOINED        'Y'
#define NOT_JOINED    'N'

enum join_step { JOIN_BEGIN, JOIN_MAKING, JOIN_POSTING, JOIN_RUNNING };

struct nccl_end {
    const struct nccl *api;
    struct exec_stream *stream; /* owned, NCCL's */
    struct nccl_comm *comm;     /* NULL: there never was one */
    struct nccl_id id;
    enum join_step step;
    time_t limit_s;
    char own, others; /* verdicts, 0: not yet */
    struct tile_buffer *posting;
    pthread_t ender;
    bool is_ending, has_thread;
    atomic_bool ended;
};

static time_t now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static int refused(const struct nccl_end *n, const char *doing, int result, struct error *err)
{
    const char *more = n->api->last_words(n->comm);
    return error_set(err, EBB_EPEER, "NCCL, %s: %s%s%.100s", doing, n->api->words(result),
                     more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

static bool is_accepted(int result)
{
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
}

/* NCCL's last call: 1 = done, 0 = under way, < 0: it failed. */
static int settled(const struct nccl_end *n, const char *doing, struct error *err)
{
    int state = NCCL_SUCCESS;
    int result = n->api->async_error(n->comm, &state);
    if (result != NCCL_SUCCESS || !is_accepted(state))
        return refused(n, doing, result != NCCL_SUCCESS ? result : state, err);
    return state == NCCL_SUCCESS;
}

static void *ender_run(void *arg)
{
    struct link *l = arg;
    struct nccl_end *n = l->nccl;
    if (l->settings.exec->thread_enter(l->settings.card) == 0)
        (void)n->api->abort(n->comm);
    atomic_store(&n->ended, true);
    return NULL;
}

/* What is on NCCL's stream ends, whoever it waits for, and then nothing touches the tiles. */
static void end_begin(struct link *l)
{
    struct nccl_end *n = l->nccl;
    if (n->is_ending)
        return;
    n->is_ending = true;
    n->posting = NULL;
    if (n->comm == NULL)
        atomic_store(&n->ended, true);
    else if (pthread_create(&n->ender, NULL, ender_run, l) == 0)
        n->has_thread = true;
    else
        (void)ender_run(l);
}

static bool nccl_end(struct link *l)
{
    if (l->nccl == NULL)
        return true;
    end_begin(l);
    return atomic_load(&l->nccl->ended);
}

static void nccl_close(struct link *l)
{
    struct nccl_end *n = l != NULL ? l->nccl : NULL;
    if (n != NULL) {
        end_begin(l);
        if (n->has_thread)
            (void)pthread_join(n->ender, NULL);
        if (n->stream != NULL)
            l->settings.exec->stream_close(n->stream);
        free(n);
    }
    wire_close(l);
}

int nccl_offer(struct link *l, const char greeting[8], struct error *err)
{
    struct {
        char greeting[8];
        struct nccl_offer offer;
    } answer = {.offer = {.tile_bytes = l->payload_max, .n_tiles = l->settings.tiles}};
    int result = l->nccl->api->get_id(&l->nccl->id);
    if (result != NCCL_SUCCESS) {
        struct error why;
        (void)refused(l->nccl, "making an id", result, &why);
        (void)snprintf(l->why, sizeof l->why, "%.150s", why.text);
        return EBB_EAGAIN;
    }
    memcpy(answer.greeting, greeting, sizeof answer.greeting);
    (void)snprintf(answer.offer.card_uuid, sizeof answer.offer.card_uuid, "%s",
                   l->settings.card_uuid);
    answer.offer.id = l->nccl->id;
    return send(l->fd, &answer, sizeof answer, MSG_NOSIGNAL) == (ssize_t)sizeof answer
               ? 0
               : wire_gone(err, "offering NCCL");
}

int nccl_check(struct link *l, const struct nccl_offer *offer, struct error *err)
{
    if (strncmp(offer->card_uuid, l->settings.card_uuid, sizeof offer->card_uuid) == 0)
        return error_set(err, EBB_EUNSUPPORTED, "both stages are on one card, %s: NCCL links two",
                         l->settings.card_uuid);
    if (offer->tile_bytes != l->payload_max || offer->n_tiles != l->settings.tiles)
        return error_set(err, EBB_EMISMATCH, "%zu tiles of %zu bytes wanted, it has %llu of %llu",
                         l->settings.tiles, l->payload_max, (unsigned long long)offer->n_tiles,
                         (unsigned long long)offer->tile_bytes);
    l->nccl->id = offer->id;
    return 0;
}

void nccl_join_begin(struct link *l)
{
    l->nccl->limit_s = now_s() + JOIN_LIMIT_S;
    l->state = LINK_JOINING;
}

/* NCCL's result of a call that moves a tile's bytes. */
static int tile_post(const struct link *l, void *payload, size_t bytes)
{
    const struct nccl_end *n = l->nccl;
    void *stream = l->settings.exec->stream_handle(n->stream);
    return l->is_listener
               ? n->api->recv(payload, bytes, NCCL_UINT8, RANK_SENDER, n->comm, stream)
               : n->api->send(payload, bytes, NCCL_UINT8, RANK_RECEIVER, n->comm, stream);
}

static int join_make(struct link *l, struct error *err)
{
    struct nccl_end *n = l->nccl;
    int rc = l->settings.exec->stream_open(l->settings.card, &n->stream, err);
    if (rc != 0)
        return rc;
    int result =
        nccl_pair_begin(n->api, &n->comm, &n->id, l->is_listener ? RANK_RECEIVER : RANK_SENDER);
    n->step = JOIN_MAKING;
    return is_accepted(result) ? 0 : refused(n, "making a communicator", result, err);
}

/* This end's part. 1 = the largest of tiles has gone over; 0 = not yet; < 0: NCCL cannot. */
static int join_advance(struct link *l, struct error *err)
{
    const struct exec_driver *exec = l->settings.exec;
    struct nccl_end *n = l->nccl;
    struct exec_event *event = l->tiles[0].copied;
    int rc = n->step == JOIN_BEGIN ? join_make(l, err) : 0;
    if (rc == 0 && n->step < JOIN_RUNNING)
        rc = settled(n, "making a communicator", err);
    if (rc == 1 && n->step == JOIN_MAKING) {
        int result = tile_post(l, l->settings.ring->base, l->payload_max);
        n->step = JOIN_POSTING;
        rc = is_accepted(result) ? settled(n, "the first rows", err)
                                 : refused(n, "the first rows", result, err);
    }
    if (rc == 1 && n->step == JOIN_POSTING) {
        rc = exec->event_record(event, n->stream);
        if (rc != 0)
            return error_set(err, rc, "NCCL's stream failed");
        n->step = JOIN_RUNNING;
    }
    if (n->step == JOIN_RUNNING && (rc = exec->event_query(event)) < 0)
        return error_set(err, EBB_EDRIVER, "NCCL's first rows failed on the card");
    if (rc == 0 && now_s() >= n->limit_s)
        return error_set(err, EBB_EPEER, "NCCL: no communicator after %d s", JOIN_LIMIT_S);
    return rc;
}

int nccl_join(struct link *l, struct error *err)
{
    struct nccl_end *n = l->nccl;
    struct error why = {0};
    if (n->others == 0) {
        ssize_t got = wire_pull(l, &n->others, 1, err);
        if (got < 0)
            return (int)got;
    }
    if (n->own == 0) {
        int rc = n->others != 0 && n->others != JOINED
                     ? error_set(&why, EBB_EPEER, "NCCL did not start at the other stage")
                     : join_advance(l, &why);
        if (rc == 0)
            return 0;
        n->own = rc > 0 ? JOINED : NOT_JOINED;
        if (send(l->fd, &n->own, 1, MSG_NOSIGNAL) != 1)
            return wire_gone(err, "joining");
    }
    if (n->own == NOT_JOINED || (n->others != 0 && n->others != JOINED)) {
        if (why.code == 0 && l->why[0] == '\0')
            error_set(&why, EBB_EPEER, "NCCL did not start at the other stage");
        if (why.code != 0)
            (void)snprintf(l->why, sizeof l->why, "%.150s", why.text);
        end_begin(l);
    }
    if (n->others == 0)
        return 0;
    if (n->own == JOINED && n->others == JOINED)
        ring_use(l, l->settings.ring->base);
    l->state = LINK_UP;
    return 0;
}

static struct tile_buffer *tile_at(struct link *l, size_t i)
{
    return &l->tiles[(l->first + i) % l->settings.tiles];
}

/* NCCL failed though the peer is there: it is to see the end too. */
static int gone(struct link *l)
{
    (void)shutdown(l->fd, SHUT_RDWR);
    return EBB_EPEER;
}

/* 1 = nothing is under way, the next call may be made. */
static int post_settle(struct link *l, struct error *err)
{
    struct nccl_end *n = l->nccl;
    int rc = settled(n, l->is_listener ? "receiving" : "sending", err);
    if (rc != 1 || n->posting == NULL)
        return rc;
    if (l->is_listener && l->settings.exec->event_record(n->posting->copied, n->stream) != 0)
        return error_set(err, EBB_EDRIVER, "link: NCCL's stream failed");
    n->posting->state = l->is_listener ? TILE_ARRIVING : TILE_READY;
    n->posting = NULL;
    return 1;
}

/* In order: a later tile is not looked at before the ones ahead of it have come. */
static int arrivals_settle(struct link *l, struct error *err)
{
    for (size_t i = 0; i < l->n_used; i++) {
        struct tile_buffer *t = tile_at(l, i);
        if (t->state != TILE_ARRIVING)
            continue;
        int done = l->settings.exec->event_query(t->copied);
        if (done < 0)
            return error_set(err, EBB_EDRIVER, "link: receiving a tile failed");
        if (done == 0)
            break;
        t->state = TILE_READY;
    }
    return 0;
}

static struct tile_buffer *next_to_post(struct link *l)
{
    enum tile_state wanted = l->is_listener ? TILE_ANNOUNCED : TILE_COPYING;
    for (size_t i = 0; i < l->n_used; i++)
        if (tile_at(l, i)->state == wanted)
            return tile_at(l, i);
    return NULL;
}

/* Tiles that wait go on NCCL's stream; those that came are ready. */
static int carry(struct link *l, struct error *err)
{
    struct nccl_end *n = l->nccl;
    if (!wire_is_by_nccl(l))
        return 0;
    for (;;) {
        int rc = post_settle(l, err);
        if (rc >= 0 && l->is_listener && arrivals_settle(l, err) != 0)
            return gone(l);
        struct tile_buffer *t = rc == 1 ? next_to_post(l) : NULL;
        if (rc < 0)
            return gone(l);
        if (t == NULL)
            return 0;
        if (!l->is_listener && l->settings.exec->stream_wait(n->stream, t->copied) != 0) {
            error_set(err, EBB_EDRIVER, "link: NCCL's stream failed");
            return gone(l);
        }
        int result = tile_post(l, t->payload, t->header.payload_bytes);
        if (!is_accepted(result)) {
            (void)refused(n, l->is_listener ? "receiving" : "sending", result, err);
            return gone(l);
        }
        n->posting = t;
    }
}

static int end_make(struct link *l, struct error *err)
{
    if (l->settings.card_uuid == NULL || l->settings.ring == NULL)
        return 0;
    struct nccl_end *n = calloc(1, sizeof *n);
    if (n == NULL)
        return error_set(err, EBB_ENOMEM, "link: no memory");
    l->nccl = n;
    return nccl_open(&n->api, err);
}

static int nccl_listen(struct link **l, const struct link_settings *settings, const char *host,
                       char address[LINK_ADDRESS_MAX], char key[LINK_KEY_MAX], struct error *err)
{
    int rc = greet_listen(l, settings, host, address, key, err);
    if (rc != 0)
        return rc;
    (*l)->settings.ring = settings->ring; /* nothing of it is sent to another host */
    rc = end_make(*l, err);
    if (rc != 0) {
        nccl_close(*l);
        *l = NULL;
    }
    return rc;
}

static int nccl_connect(struct link **l, const struct link_settings *settings, const char *address,
                        const char *key, struct error *err)
{
    int rc = greet_connect(l, settings, address, key, err);
    if (rc != 0)
        return rc;
    rc = end_make(*l, err);
    if (rc != 0) {
        nccl_close(*l);
        *l = NULL;
    }
    return rc;
}

static size_t nccl_poll_fds(struct link *l, struct pollfd *fds)
{
    return l->state == LINK_UP ? wire_poll_fds(l, fds) : greet_poll_fds(l, fds);
}

static bool nccl_is_up(const struct link *l)
{
    return l->state == LINK_UP;
}

static const char *nccl_became(const struct link *l, const char **why)
{
    if (why != NULL)
        *why = l->why;
    return wire_is_by_nccl(l) ? "nccl" : "socket";
}

static int nccl_service(struct link *l, struct error *err)
{
    int rc = l->state == LINK_UP ? 0 : greet_service(l, err);
    if (rc == 0 && l->state == LINK_UP)
        rc = carry(l, err);
    if (rc == 0 && l->state == LINK_UP)
        rc = wire_service(l, err);
    return rc == 0 && l->state == LINK_UP && l->is_listener ? carry(l, err) : rc;
}

static int nccl_due_ms(const struct link *l)
{
    const struct nccl_end *n = l->nccl;
    if (n == NULL)
        return -1;
    if (n->is_ending)
        return atomic_load(&n->ended) ? -1 : 1;
    if (l->state == LINK_JOINING)
        return n->own == 0 ? 1 : -1;
    return n->posting != NULL ? 0 : -1;
}

static int nccl_send(struct link *l, const struct link_tile *tile, struct exec_stream *s,
                     struct error *err)
{
    int rc = wire_send(l, tile, s, err);
    return rc == 0 ? carry(l, err) : rc;
}

const struct link_driver link_nccl = {
    .name = "nccl",
    .listen = nccl_listen,
    .connect = nccl_connect,
    .close = nccl_close,
    .end = nccl_end,
    .poll_fds = nccl_poll_fds,
    .service = nccl_service,
    .is_up = nccl_is_up,
    .became = nccl_became,
    .is_copying = wire_is_copying,
    .due_ms = nccl_due_ms,
    .send = nccl_send,
    .peek = wire_peek,
    .take = wire_take,
};
