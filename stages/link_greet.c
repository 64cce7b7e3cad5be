/* stages/link_greet.c - how two stages find and prove each other before rows flow (see link_wire.h).
 *
 * The connector sends "EBBLINK1", the 32 hex digits of the key and its row size; the listener checks them (and, on a unix socket, that
 * the peer runs as the same user), answers "EBBLINK1" and stops listening. "EBBLINKR" in its place asks for a ring that both map; a
 * listener that has one answers with the same word, what the ring is (struct ring_offer) and its descriptor, and waits for a byte: mapped,
 * or refused, and then rows go over the socket. "EBBLINKN" asks for NCCL in the same way; the answer brings what a communicator is made
 * with (struct nccl_offer), both make it, each says with such a byte whether it could, and both did or rows go over the socket. A stranger is turned away and the wait goes on. Abstract
 * names vanish with the process, so nothing is left behind whatever ends it.
 * Threads: the stage's control thread only. Refuses: a second peer, rows of another width.
 */
#include "stages/link_address.h"
#include "stages/link_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The second is for a ring that both map, the third for NCCL: who connects asks for it, who listens offers it. */
static const char greeting[8] = {'E', 'B', 'B', 'L', 'I', 'N', 'K', '1'},
                  greeting_ring[8] = {'E', 'B', 'B', 'L', 'I', 'N', 'K', 'R'},
                  greeting_nccl[8] = {'E', 'B', 'B', 'L', 'I', 'N', 'K', 'N'};
#define OFFER_TAKEN   'Y'
#define OFFER_REFUSED 'N'

static bool is_greeting(const char got[8], const char wanted[8])
{
    return memcmp(got, wanted, 8) == 0;
}

/* The greeting by which an end asks for what it wants of the other. */
static const char *greeting_wanted(const struct link *l)
{
    return l->nccl != NULL ? greeting_nccl : l->settings.vmm != NULL ? greeting_ring : greeting;
}

int greet_listen(struct link **out, const struct link_settings *settings, const char *host,
                 char address[LINK_ADDRESS_MAX], char key[LINK_KEY_MAX], struct error *err)
{
    struct link *l;
    int rc = wire_open(&l, settings, err);
    if (rc != 0)
        return rc;
    l->is_listener = true;
    l->state = LINK_LISTENING;
    rc = link_key_make(l->key, err);
    if (rc == 0)
        rc = link_address_listen(host, address, &l->fd_listen, err);
    if (rc != 0) {
        wire_close(l);
        return rc;
    }
    if (host != NULL)
        l->settings.ring = NULL; /* a descriptor does not travel */
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

int greet_connect(struct link **out, const struct link_settings *settings, const char *address,
                  const char *key, struct error *err)
{
    if (strlen(key) != 32)
        return error_set(err, EBB_EINVAL, "link: key wants 32 hex digits, got %zu characters",
                         strlen(key));
    struct link *l;
    int rc = wire_open(&l, settings, err);
    if (rc != 0)
        return rc;
    rc = link_address_dial(address, &l->fd, err);
    if (rc != 0) {
        wire_close(l);
        return rc;
    }
    fd_tune(l->fd);
    l->state = LINK_CONNECTING;
    if (settings->vmm != NULL && strncmp(address, "unix:", 5) != 0) {
        l->settings.vmm = NULL;
        (void)snprintf(l->why, sizeof l->why, "the stage after is on another host");
    }
    memcpy(l->hello.key, key, sizeof l->hello.key);
    l->hello.row_values = settings->row_values;
    *out = l;
    return 0;
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

static void stranger_leave(struct link *l)
{
    (void)close(l->fd);
    l->fd = -1;
    l->state = LINK_LISTENING;
}

/* Offers what the peer asked for. EBB_EAGAIN: this end has no such thing. */
static int offer_send(struct link *l, struct error *err)
{
    if (is_greeting(l->hello.greeting, greeting_nccl) && l->nccl != NULL)
        return nccl_offer(l, greeting_nccl, err);
    bool rings = is_greeting(l->hello.greeting, greeting_ring) && l->nccl == NULL;
    return rings && l->settings.ring != NULL ? ring_offer(l, greeting_ring, err) : EBB_EAGAIN;
}

/* The peer knows the key: it gets the answer it can have, and nobody else is waited for. */
static int peer_answer(struct link *l, struct error *err)
{
    if (l->hello.row_values != l->settings.row_values)
        return error_set(err, EBB_EMISMATCH,
                         "link: rows of %zu values wanted, the other stage sends %llu",
                         l->settings.row_values, (unsigned long long)l->hello.row_values);
    int rc = offer_send(l, err);
    bool offers = rc == 0;
    if (rc != 0 && rc != EBB_EAGAIN)
        return rc;
    if (!offers && send(l->fd, greeting, sizeof greeting, MSG_NOSIGNAL) != (ssize_t)sizeof greeting)
        return wire_gone(err, "greeting");
    (void)close(l->fd_listen);
    l->fd_listen = -1;
    l->state = offers ? LINK_OFFERED : LINK_UP;
    return 0;
}

/* Listener: a stranger that does not know the key is turned away and the wait goes on. */
static int greet_listener(struct link *l, struct error *err)
{
    struct error ignored;
    ssize_t got = wire_pull(l, (char *)&l->hello + l->hello_bytes, sizeof l->hello - l->hello_bytes,
                            &ignored);
    if (got >= 0)
        l->hello_bytes += (size_t)got;
    if (got >= 0 && l->hello_bytes < sizeof l->hello)
        return 0;
    bool known = got >= 0 &&
                 (is_greeting(l->hello.greeting, greeting) ||
                  is_greeting(l->hello.greeting, greeting_ring) ||
                  is_greeting(l->hello.greeting, greeting_nccl)) &&
                 memcmp(l->hello.key, l->key, sizeof l->hello.key) == 0;
    if (known)
        return peer_answer(l, err);
    stranger_leave(l);
    return 0;
}

/* Listener: whether the peer takes what was offered. */
static int verdict_read(struct link *l, struct error *err)
{
    char verdict;
    ssize_t got = wire_pull(l, &verdict, 1, err);
    if (got <= 0)
        return (int)got;
    if (verdict != OFFER_TAKEN && verdict != OFFER_REFUSED)
        return error_set(err, EBB_EPEER, "link: the other side is not an ebbtide stage");
    l->state = LINK_UP;
    if (verdict == OFFER_TAKEN && l->nccl != NULL)
        nccl_join_begin(l);
    else if (verdict == OFFER_TAKEN)
        ring_use(l, l->settings.ring->base);
    return 0;
}

/* As wire_pull, of the answer, whose first byte may bring a descriptor. Never takes more than the answer's next part. */
static ssize_t answer_pull(struct link *l, struct error *err)
{
    size_t end = l->answer_bytes < sizeof greeting ? sizeof greeting : sizeof l->answer;
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec part = {.iov_base = (char *)&l->answer + l->answer_bytes,
                         .iov_len = end - l->answer_bytes};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control};
    ssize_t got = recvmsg(l->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    for (struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL; c != NULL;
         c = CMSG_NXTHDR(&m, c)) {
        size_t n = c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS
                       ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int)
                       : 0;
        for (size_t i = 0; i < n; i++) { /* of several, all but the last are closed */
            if (l->fd_ring >= 0)
                (void)close(l->fd_ring);
            memcpy(&l->fd_ring, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        }
    }
    return got > 0 ? got : wire_gone(err, "reading");
}

/* Connector: takes what was offered, or says that rows go over the socket. */
static int offer_take(struct link *l, struct error *err)
{
    struct error why = {0};
    bool taken = (l->nccl != NULL ? nccl_check(l, &l->nccl_offer, &why)
                                  : ring_map(l, &l->answer.offer, &why)) == 0;
    char verdict = taken ? OFFER_TAKEN : OFFER_REFUSED;
    if (l->fd_ring >= 0)
        (void)close(l->fd_ring);
    l->fd_ring = -1;
    (void)snprintf(l->why, sizeof l->why, "%.150s", why.text);
    if (send(l->fd, &verdict, 1, MSG_NOSIGNAL) != 1)
        return wire_gone(err, "greeting");
    l->state = LINK_UP;
    if (taken && l->nccl != NULL)
        nccl_join_begin(l);
    else if (taken)
        ring_use(l, l->mapped.base);
    return 0;
}

static int hello_send(struct link *l, struct error *err)
{
    memcpy(l->hello.greeting, greeting_wanted(l), sizeof l->hello.greeting);
    int failure = 0;
    socklen_t n = sizeof failure;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &failure, &n) == 0 && failure != 0)
        return error_set(err, EBB_EPEER, "link: cannot connect: %s", strerror(failure));
    ssize_t sent =
        wire_push(l, (char *)&l->hello + l->hello_bytes, sizeof l->hello - l->hello_bytes, err);
    if (sent < 0)
        return (int)sent;
    l->hello_bytes += (size_t)sent;
    if (l->hello_bytes == sizeof l->hello)
        l->state = LINK_GREETING;
    return 0;
}

static int answer_read(struct link *l, struct error *err)
{
    size_t head = sizeof greeting;
    size_t whole = l->nccl != NULL ? head + sizeof l->nccl_offer : sizeof l->answer;
    ssize_t got = l->nccl != NULL && l->answer_bytes >= head
                      ? wire_pull(l, (char *)&l->nccl_offer + (l->answer_bytes - head),
                                  whole - l->answer_bytes, err)
                      : answer_pull(l, err);
    if (got <= 0)
        return (int)got;
    l->answer_bytes += (size_t)got;
    if (l->answer_bytes < head)
        return 0;
    const char *wanted = greeting_wanted(l);
    bool offered = wanted != greeting && is_greeting(l->answer.greeting, wanted);
    if (!offered && !is_greeting(l->answer.greeting, greeting))
        return error_set(err, EBB_EPEER, "link: the other side is not an ebbtide stage");
    if (offered)
        return l->answer_bytes == whole ? offer_take(l, err) : 0;
    if (wanted != greeting)
        (void)snprintf(l->why, sizeof l->why, "the stage after offers no %s",
                       l->nccl != NULL ? "NCCL" : "ring");
    l->state = LINK_UP;
    return 0;
}

size_t greet_poll_fds(struct link *l, struct pollfd *fds)
{
    if (l->state == LINK_LISTENING)
        fds[0] = (struct pollfd){.fd = l->fd_listen, .events = POLLIN};
    else
        fds[0] =
            (struct pollfd){.fd = l->fd, .events = l->state == LINK_CONNECTING ? POLLOUT : POLLIN};
    return 1;
}

int greet_service(struct link *l, struct error *err)
{
    int rc = 0;
    if (l->state == LINK_LISTENING)
        rc = accept_one(l, err);
    if (rc == 0 && l->is_listener && l->state == LINK_GREETING)
        rc = greet_listener(l, err);
    if (rc == 0 && l->state == LINK_OFFERED)
        rc = verdict_read(l, err);
    if (rc == 0 && !l->is_listener && l->state == LINK_CONNECTING)
        rc = hello_send(l, err);
    else if (rc == 0 && !l->is_listener && l->state == LINK_GREETING)
        rc = answer_read(l, err);
    if (rc == 0 && l->state == LINK_JOINING)
        rc = nccl_join(l, err);
    return rc;
}
