/* stages/link_socket.c - the link over a stream socket: an abstract unix socket on one machine, TCP between machines. The greeting is
 * link_greet.c's, the traffic link_wire.c's.
 */
#include "stages/link_wire.h"

static struct link_settings plain(const struct link_settings *settings)
{
    struct link_settings s = *settings;
    s.ring = NULL;
    s.vmm = NULL;
    s.card_uuid = NULL;
    return s;
}

static int socket_listen(struct link **l, const struct link_settings *settings, const char *host,
                         char address[LINK_ADDRESS_MAX], char key[LINK_KEY_MAX], struct error *err)
{
    struct link_settings s = plain(settings);
    return greet_listen(l, &s, host, address, key, err);
}

static int socket_connect(struct link **l, const struct link_settings *settings,
                          const char *address, const char *key, struct error *err)
{
    struct link_settings s = plain(settings);
    return greet_connect(l, &s, address, key, err);
}

static const char *socket_became(const struct link *l, const char **why)
{
    (void)l;
    if (why != NULL)
        *why = "";
    return "socket";
}

static size_t socket_poll_fds(struct link *l, struct pollfd *fds)
{
    return l->state == LINK_UP ? wire_poll_fds(l, fds) : greet_poll_fds(l, fds);
}

static bool socket_is_up(const struct link *l)
{
    return l->state == LINK_UP;
}

static int socket_service(struct link *l, struct error *err)
{
    int rc = l->state == LINK_UP ? 0 : greet_service(l, err);
    return rc != 0 || l->state != LINK_UP ? rc : wire_service(l, err);
}

const struct link_driver link_socket = {
    .name = "socket",
    .listen = socket_listen,
    .connect = socket_connect,
    .close = wire_close,
    .end = wire_end,
    .poll_fds = socket_poll_fds,
    .service = socket_service,
    .is_up = socket_is_up,
    .became = socket_became,
    .is_copying = wire_is_copying,
    .due_ms = wire_due_ms,
    .send = wire_send,
    .peek = wire_peek,
    .take = wire_take,
};
