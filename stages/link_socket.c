/* stages/link_socket.c - the link over a stream socket: an abstract unix socket on one machine, TCP between machines. The greeting is
 * link_greet.c's, the traffic link_wire.c's.
 */
#include "stages/link_wire.h"

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
    .listen = greet_listen,
    .connect = greet_connect,
    .close = wire_close,
    .poll_fds = socket_poll_fds,
    .service = socket_service,
    .is_up = socket_is_up,
    .is_copying = wire_is_copying,
    .send = wire_send,
    .peek = wire_peek,
    .take = wire_take,
};
