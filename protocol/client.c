/* protocol/client.c - how a tool meets an engine: the runtime directory, the control socket in it,
 * a conversation.
 *
 * The directory is trusted only if nobody else can have put a socket there: ours, a real directory,
 * writable by us alone. A socket file outlives an engine that was killed, so a socket counts as an
 * engine only if somebody accepts a connection. Lifetimes: client_connect() opens an owned channel,
 * channel_close() ends it. Threads: one per channel; nothing is shared. Refuses: to remove stale
 * sockets (that is for the engine that wants the name), to guess between several engines.
 */
#include "protocol/client.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CONNECT_SECONDS 5 /* a full backlog is waited for no longer */

static const char suffix[] = ".sock";

__attribute__((format(printf, 4, 5))) static int
path_write(char *path, size_t capacity, struct error *err, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(path, capacity, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= capacity)
        return error_set(err, EBB_ERANGE, "a path of %d bytes is too long: %zu fit", n, capacity);
    return 0;
}

int runtime_directory(char *path, size_t capacity, bool create, struct error *err)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    int rc;

    if (base != NULL && base[0] == '/')
        rc = path_write(path, capacity, err, "%s/ebbtide", base);
    else
        rc = path_write(path, capacity, err, "/tmp/ebbtide-%lu", (unsigned long)geteuid());
    if (rc < 0)
        return rc;
    if (create && mkdir(path, 0700) < 0 && errno != EEXIST)
        return error_set(err, EBB_EIO, "%s: the directory of control sockets cannot be made: %s",
                         path, strerror(errno));
    if (lstat(path, &st) < 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return error_set(err, EBB_ENOENT, "%s: no such directory", path);
        return error_set(err, EBB_EIO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode))
        return error_set(err, EBB_EINVAL,
                         "%s: wanted a directory for control sockets, it is something else", path);
    if (st.st_uid != geteuid())
        return error_set(err, EBB_EINVAL,
                         "%s: belongs to user %lu, wanted %lu: not used for control sockets", path,
                         (unsigned long)st.st_uid, (unsigned long)geteuid());
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return error_set(
            err, EBB_EINVAL,
            "%s: others may write there (mode %03o, wanted 700): not used for control sockets",
            path, (unsigned)st.st_mode & 0777);
    return 0;
}

/* Connects a blocking socket. The descriptor; or -1 with errno. */
static int connect_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = CONNECT_SECONDS};
    size_t n_path = strlen(path);
    int fd, rc, why;

    if (n_path >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, n_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    do
        rc = connect(fd, (const struct sockaddr *)&address, sizeof address);
    while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return fd;
    why = errno;
    (void)close(fd);
    errno = why;
    return -1;
}

bool client_socket_is_live(const char *path)
{
    int fd = connect_socket(path);

    if (fd >= 0)
        (void)close(fd);
    return fd >= 0 || errno == EAGAIN; /* a full backlog is a busy engine */
}

static bool has_suffix(const char *name)
{
    size_t n = strlen(name);

    return n > sizeof suffix - 1 && strcmp(name + n - (sizeof suffix - 1), suffix) == 0;
}

/* The live sockets of the directory: how many, the path of one, and the names of all of them as far
 * as they fit. */
static int find_live(const char *directory, char *path, size_t capacity, char *names,
                     size_t n_names_max, size_t *n_live, struct error *err)
{
    DIR *dir = opendir(directory);
    struct dirent *entry;
    size_t n_names = 0;
    int rc = 0;

    *n_live = 0;
    if (dir == NULL)
        return error_set(err, EBB_EIO, "%s: %s", directory, strerror(errno));
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        char candidate[4096];
        if (!has_suffix(entry->d_name))
            continue;
        rc = path_write(candidate, sizeof candidate, err, "%s/%s", directory, entry->d_name);
        if (rc < 0 || !client_socket_is_live(candidate))
            continue;
        if ((*n_live)++ == 0)
            rc = path_write(path, capacity, err, "%s", candidate);
        int n_name = (int)(strlen(entry->d_name) - (sizeof suffix - 1));
        int n = snprintf(names + n_names, n_names_max - n_names, "%s%.*s", n_names > 0 ? ", " : "",
                         n_name, entry->d_name);
        if (n > 0 && (size_t)n < n_names_max - n_names)
            n_names += (size_t)n;
        else
            names[n_names] = '\0';
    }
    (void)closedir(dir);
    return rc;
}

static int find_by_name(const char *directory, const char *name, char *path, size_t capacity,
                        struct error *err)
{
    int rc;

    if (!tag_is_valid(name) || name[0] == '.')
        return error_set(
            err, EBB_EINVAL,
            "an engine's name has 1 to %d characters A-Z a-z 0-9 . _ : - and no dot in front",
            MESSAGE_TAG_MAX);
    rc = path_write(path, capacity, err, "%s/%s%s", directory, name, suffix);
    if (rc == 0 && !client_socket_is_live(path))
        rc = error_set(err, EBB_ENOENT, "no engine named %s runs (nobody answers at %s)", name,
                       path);
    return rc;
}

int client_find(const char *control, const char *name, char *path, size_t capacity,
                struct error *err)
{
    char directory[4096], names[256] = "";
    size_t n_live = 0;
    int rc;

    if (control != NULL)
        return path_write(path, capacity, err, "%s", control);
    rc = runtime_directory(directory, sizeof directory, false, err);
    if (rc == 0 && name != NULL)
        return find_by_name(directory, name, path, capacity, err);
    if (rc == 0)
        rc = find_live(directory, path, capacity, names, sizeof names, &n_live, err);
    if (rc == EBB_ENOENT || (rc == 0 && n_live == 0))
        return error_set(err, EBB_ENOENT,
                         "no engine runs: start one with ebbtide serve (looked in %.200s)",
                         directory);
    if (rc == 0 && n_live > 1)
        return error_set(err, EBB_EBUSY, "%zu engines run: %s; say which one with --name", n_live,
                         names);
    return rc;
}

int client_connect(struct channel *c, const char *path, struct error *err)
{
    int fd = connect_socket(path), rc;

    if (fd < 0) {
        switch (errno) {
        case ENOENT:
            return error_set(err, EBB_ENOENT, "%s: no such control socket: is the engine running?",
                             path);
        case ECONNREFUSED:
            return error_set(err, EBB_ENOENT,
                             "%s: nobody answers; the engine that made this socket has ended",
                             path);
        case EAGAIN:
            return error_set(err, EBB_EBUSY, "%s: the engine takes no connection for %d s", path,
                             CONNECT_SECONDS);
        case ENAMETOOLONG:
            return error_set(err, EBB_ERANGE, "%s: a socket's path may have %zu bytes, got %zu",
                             path, sizeof((struct sockaddr_un *)NULL)->sun_path - 1, strlen(path));
        default: return error_set(err, EBB_EIO, "%s: cannot connect: %s", path, strerror(errno));
        }
    }
    rc = channel_open(c, fd, fd, false, CHANNEL_QUEUE_BYTES_DEFAULT, err);
    if (rc < 0)
        (void)close(fd);
    return rc;
}

int client_ask(struct channel *c, const char *line, struct error *err)
{
    char whole[LINE_BYTES_MAX];
    size_t n = strlen(line);
    int rc = EBB_ELINE_TOO_LONG;

    if (n > 0 && line[n - 1] == '\n')
        n--;
    if (n < sizeof whole) {
        memcpy(whole, line, n);
        whole[n] = '\n';
        rc = channel_send(c, whole, n + 1);
    }
    if (rc == EBB_ELINE_TOO_LONG)
        return error_set(err, rc, "a line may have %d bytes, got %zu", LINE_BYTES_MAX, n + 1);
    if (rc < 0)
        return error_set(err, rc, "the engine no longer takes lines");
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until something can be read (or the queue written), at most until `deadline` (< 0: for
 * ever). 0, EBB_EAGAIN, EBB_EIO. */
static int wait_ready(struct channel *c, int64_t deadline, struct error *err)
{
    struct pollfd fds[2] = {{.fd = c->fd_in, .events = POLLIN},
                            {.fd = channel_wants_write(c) ? c->fd_out : -1, .events = POLLOUT}};
    int64_t left = deadline < 0 ? -1 : deadline - now_ms();
    int n;

    if (deadline >= 0 && left < 0)
        left = 0;
    n = poll(fds, 2, (int)left);
    if (n < 0 && errno != EINTR)
        return error_set(err, EBB_EIO, "waiting for the engine failed: %s", strerror(errno));
    if (n == 0)
        return error_set(err, EBB_EAGAIN, "the engine has not answered in time");
    return 0;
}

int client_wait_line(struct channel *c, int timeout_ms, char **line, size_t *n_bytes,
                     struct error *err)
{
    int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;

    for (;;) {
        enum line_status status = channel_next(c, line, n_bytes);
        int rc;
        if (status == LINE_READY)
            return 0;
        if (status == LINE_TOO_LONG)
            return error_set(err, EBB_ELINE_TOO_LONG,
                             "the engine sent a line of more than %d bytes", LINE_BYTES_MAX);
        if (c->at_end)
            return error_set(err, EBB_EGONE, "the engine has closed the connection");
        rc = wait_ready(c, deadline, err);
        if (rc < 0)
            return rc;
        (void)channel_flush(c); /* a peer that is gone is seen when reading, after its last lines */
        rc = channel_read(c, err);
        if (rc == EBB_EIO)
            return rc;
    }
}
