/* stages/link_greet.c - how two stages find and prove each other before rows flow (see link_wire.h).
 *
 * The connector sends "EBBLINK1", the 32 hex digits of the key and its row size; the listener checks them (and, on a unix socket, that
 * the peer runs as the same user), answers "EBBLINK1" and stops listening. A stranger is turned away and the wait goes on. Abstract
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

static const char greeting[8] = {'E', 'B', 'B', 'L', 'I', 'N', 'K', '1'};

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
    memcpy(l->hello.greeting, greeting, sizeof greeting);
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
        return wire_gone(err, "greeting");
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
            wire_push(l, (char *)&l->hello + l->hello_bytes, sizeof l->hello - l->hello_bytes, err);
        if (sent < 0)
            return (int)sent;
        l->hello_bytes += (size_t)sent;
        if (l->hello_bytes == sizeof l->hello)
            l->state = LINK_GREETING;
        return 0;
    }
    ssize_t got =
        wire_pull(l, l->answer + l->answer_bytes, sizeof l->answer - l->answer_bytes, err);
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
    if (rc == 0 && !l->is_listener && l->state != LINK_UP)
        rc = greet_connector(l, err);
    return rc;
}
