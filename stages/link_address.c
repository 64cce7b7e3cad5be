/* stages/link_address.c - where a socket link listens and how it is dialled (see link_address.h).
 *
 * Owns no state. A listening unix address is abstract with a random name, so it leaves no file and vanishes with its process.
 */
#include "stages/link_address.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int random_hex(char *out, size_t n_digits, struct error *err)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return error_set(err, EBB_EIO, "link: no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < n_digits; i++)
        out[i] = "0123456789abcdef"[bytes[i / 2] >> (i % 2 * 4) & 15];
    out[n_digits] = '\0';
    return 0;
}

static socklen_t unix_address(struct sockaddr_un *sa, const char *name)
{
    memset(sa, 0, sizeof *sa);
    sa->sun_family = AF_UNIX;
    size_t n = strnlen(name, sizeof sa->sun_path - 2);
    memcpy(sa->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static int listen_unix(char address[LINK_ADDRESS_MAX], int *fd, struct error *err)
{
    char name[64] = "ebbtide-link-";
    struct sockaddr_un sa;
    int rc = random_hex(name + strlen(name), 32, err);
    if (rc != 0)
        return rc;
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t n = unix_address(&sa, name);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&sa, n) != 0 || listen(*fd, 4) != 0)
        return error_set(err, EBB_EIO, "link: cannot listen: %s", strerror(errno));
    (void)snprintf(address, LINK_ADDRESS_MAX, "unix:%s", name);
    return 0;
}

static int listen_tcp(const char *host, char address[LINK_ADDRESS_MAX], int *fd, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(host, "0", &hints, &list);
    if (rc != 0)
        return error_set(err, EBB_ENOENT, "link: host %s: %s", host, gai_strerror(rc));
    *fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = *fd >= 0 && bind(*fd, list->ai_addr, list->ai_addrlen) == 0 && listen(*fd, 4) == 0;
    freeaddrinfo(list);
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    char port[16];
    if (!ok || getsockname(*fd, (struct sockaddr *)&sa, &n) != 0 ||
        getnameinfo((struct sockaddr *)&sa, n, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0)
        return error_set(err, EBB_EIO, "link: cannot listen on %s: %s", host, strerror(errno));
    if (snprintf(address, LINK_ADDRESS_MAX, "tcp:%s:%s", host, port) >= LINK_ADDRESS_MAX)
        return error_set(err, EBB_ERANGE, "link: host name too long");
    return 0;
}

static int connect_tcp(const char *address, struct error *err)
{
    char host[LINK_ADDRESS_MAX];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host)
        return error_set(err, EBB_EINVAL, "link: address %s: wants tcp:host:port", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &list);
    if (rc != 0)
        return error_set(err, EBB_ENOENT, "link: %s: %s", address, gai_strerror(rc));
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS) {
        (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd >= 0 ? fd
                   : error_set(err, EBB_EPEER, "link: cannot connect to %s: %s", address,
                               strerror(errno));
}

static int connect_unix(const char *name, struct error *err)
{
    struct sockaddr_un sa;
    socklen_t n = unix_address(&sa, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, n) == 0)
        return fd;
    int saved = errno;
    if (fd >= 0)
        (void)close(fd);
    return error_set(err, EBB_EPEER, "link: cannot connect to %s: %s", name, strerror(saved));
}

int link_key_make(char key[LINK_KEY_MAX], struct error *err)
{
    return random_hex(key, LINK_KEY_MAX - 1, err);
}

int link_address_listen(const char *host, char address[LINK_ADDRESS_MAX], int *fd,
                        struct error *err)
{
    return host == NULL ? listen_unix(address, fd, err) : listen_tcp(host, address, fd, err);
}

int link_address_dial(const char *address, int *fd, struct error *err)
{
    int rc;
    if (strncmp(address, "unix:", 5) == 0)
        rc = connect_unix(address + 5, err);
    else if (strncmp(address, "tcp:", 4) == 0)
        rc = connect_tcp(address + 4, err);
    else
        rc = error_set(err, EBB_EINVAL, "link: address %s: wants unix:NAME or tcp:HOST:PORT",
                       address);
    if (rc >= 0)
        *fd = rc;
    return rc < 0 ? rc : 0;
}
