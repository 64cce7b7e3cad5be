/* runtime/control.c - the control socket: mode 0600, a stale one replaced, a live one respected;
 * and its guard.
 *
 * A killed coordinator cannot remove its socket, so a small child process does: it holds nothing
 * but the read end of a pipe and removes the file (if it is still the same one) when the pipe ends.
 * Between look and bind two engines of one name could meet; a lock file in the runtime directory
 * keeps them apart there, and stays.
 */
#include "runtime/control.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/client.h"
#include "runtime/connection.h"

/* The whole life of the guard. Async-signal-safe calls only: it is a fork of a process that may
 * have threads. */
__attribute__((noreturn)) static void guard_run(const char *path, dev_t dev, ino_t ino, int fd)
{
    char byte;
    struct stat st;
    ssize_t n;
    (void)setsid();
    (void)prctl(PR_SET_NAME, "ebbtide-guard");
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    if (fd != 3)
        (void)dup2(fd, 3);
    (void)close(0);
    (void)close(1);
    (void)close(2);
    (void)syscall(SYS_close_range, 4u, ~0u, 0u);
    do
        n = read(3, &byte, 1);
    while (n > 0 || (n < 0 && errno == EINTR));
    if (stat(path, &st) == 0 && st.st_dev == dev && st.st_ino == ino)
        (void)unlink(path);
    _exit(0);
}

static int guard_start(struct engine *e, struct error *err)
{
    struct stat st;
    int pair[2];
    if (stat(e->control_path, &st) != 0 || pipe2(pair, O_CLOEXEC) != 0)
        return error_set(err, EBB_EIO, "%s: %s", e->control_path, strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        guard_run(e->control_path, st.st_dev, st.st_ino, pair[0]);
    (void)close(pair[0]);
    if (pid < 0) {
        (void)close(pair[1]);
        return error_set(err, EBB_EIO, "no process to guard %s: %s", e->control_path,
                         strerror(errno));
    }
    e->guard = pid;
    e->fd_guard = pair[1];
    return 0;
}

/* *lock: a descriptor that holds the directory's lock, -1 where there is none. */
static int path_choose(struct engine *e, int *lock, struct error *err)
{
    const struct settings *s = e->settings;
    char directory[400], path[420], name[80];
    int n, code;
    *lock = -1;
    if (s->control != NULL) {
        n = snprintf(e->control_path, sizeof e->control_path, "%s", s->control);
    } else {
        code = runtime_directory(directory, sizeof directory, true, err);
        if (code != 0)
            return code;
        (void)snprintf(path, sizeof path, "%s/lock", directory);
        *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (*lock >= 0)
            (void)flock(*lock, LOCK_EX);
        (void)snprintf(name, sizeof name, "ebbtide-%ld", (long)getpid());
        n = snprintf(e->control_path, sizeof e->control_path, "%s/%s.sock", directory,
                     s->name != NULL ? s->name : name);
    }
    if (n < 0 || (size_t)n >= sizeof((struct sockaddr_un *)0)->sun_path)
        return error_set(err, EBB_ERANGE,
                         "control socket: a path of at most %zu bytes is wanted, got %d",
                         sizeof((struct sockaddr_un *)0)->sun_path - 1, n);
    return 0;
}

static int socket_bind(struct engine *e, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    if (lstat(e->control_path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return error_set(err, EBB_EINVAL, "%s: is there already and no socket",
                             e->control_path);
        if (client_socket_is_live(e->control_path))
            return error_set(
                err, EBB_EBUSY,
                "%s: another engine answers there; give this one another --name or --control",
                e->control_path);
        (void)unlink(e->control_path);
    }
    memcpy(address.sun_path, e->control_path, strlen(e->control_path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0177);
    int bound = fd >= 0 ? bind(fd, (struct sockaddr *)&address, sizeof address) : -1;
    int why = errno;
    (void)umask(before);
    if (bound != 0 || listen(fd, 64) != 0) {
        if (bound == 0)
            (void)unlink(e->control_path);
        if (fd >= 0)
            (void)close(fd);
        return error_set(err, EBB_EIO, "%s: cannot listen: %s", e->control_path,
                         strerror(bound != 0 ? why : errno));
    }
    e->fd_listen = fd;
    return 0;
}

int control_open(struct engine *e, struct error *err)
{
    int lock;
    if (e->settings->control != NULL && strcmp(e->settings->control, "none") == 0)
        return 0;
    int code = path_choose(e, &lock, err);
    if (code == 0)
        code = socket_bind(e, err);
    if (lock >= 0)
        (void)close(lock);
    return code == 0 ? guard_start(e, err) : code;
}

void control_close(struct engine *e)
{
    if (e->fd_listen >= 0) {
        (void)close(e->fd_listen);
        (void)unlink(e->control_path);
    }
    e->fd_listen = -1;
    if (e->guard > 0) {
        (void)close(e->fd_guard);
        while (waitpid(e->guard, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    e->guard = 0;
}

void control_accept(struct engine *e)
{
    struct connection *c;
    struct error err = {0};
    int fd = accept4(e->fd_listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
            return;
        if (e->accept_us == 0)
            engine_log(e, "warn", "control socket: a client has to wait: %s", strerror(errno));
        e->accept_us = now_us() + CONTROL_PAUSE_US;
        return;
    }
    e->accept_us = 0;
    if (connection_add(e, fd, fd, false, &c, &err) != 0) {
        engine_log(e, "warn", "%s", err.text);
        (void)close(fd);
    }
}
