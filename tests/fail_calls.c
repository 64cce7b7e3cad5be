/* tests/fail_calls.c - for tests alone: preloaded into a program, it refuses the Nth call of a kind to the C library.
 *
 * EBBTIDE_FAIL_CALL is `<program> <kind> <nth>`: only the process that was started as <program> is failed, not those it starts;
 * kind is memory (malloc, calloc, realloc together), socket, bind, listen, accept4, socketpair, pipe2, fork, poll, read or write;
 * nth counts from 1 from the start of the process, 0 refuses nothing. EBBTIDE_FAIL_LOG names a file: `refused` is written there
 * when it happens, `calls <n>` when the program ends by itself. Calls that the C library makes inside itself are not seen.
 * Threads: any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

static char kind_failed[16];
static unsigned long nth_failed;
static pid_t process; /* 0: not this one */
static atomic_ulong n_calls;

static void log_line(const char *line)
{
    const char *path = getenv("EBBTIDE_FAIL_LOG");
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    (void)syscall(SYS_write, fd, line, strlen(line));
    (void)close(fd);
}

__attribute__((constructor)) static void order_read(void)
{
    char program[64];
    const char *order = getenv("EBBTIDE_FAIL_CALL");
    if (order != NULL && sscanf(order, "%63s %15s %lu", program, kind_failed, &nth_failed) == 3 &&
        strcmp(program, program_invocation_short_name) == 0)
        process = getpid();
}

__attribute__((destructor)) static void calls_tell(void)
{
    char line[40];
    if (process == 0 || process != getpid())
        return;
    (void)snprintf(line, sizeof line, "calls %lu\n", atomic_load(&n_calls));
    log_line(line);
}

/* Whether this call is the one. */
static bool is_refused(const char *kind, int why)
{
    if (process == 0 || strcmp(kind, kind_failed) != 0 || process != getpid() ||
        atomic_fetch_add(&n_calls, 1) + 1 != nth_failed)
        return false;
    log_line("refused\n");
    errno = why;
    return true;
}

/* The C library's own, looked up once per call site. */
#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (real == NULL)                                                                              \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void *malloc(size_t bytes)
{
    return is_refused("memory", ENOMEM) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return is_refused("memory", ENOMEM) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return is_refused("memory", ENOMEM) ? NULL : __libc_realloc(old, bytes);
}

int socket(int domain, int type, int protocol)
{
    REAL(socket);
    return is_refused("socket", EMFILE) ? -1 : real(domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    REAL(bind);
    return is_refused("bind", EACCES) ? -1 : real(fd, address, bytes);
}

int listen(int fd, int backlog)
{
    REAL(listen);
    return is_refused("listen", EADDRINUSE) ? -1 : real(fd, backlog);
}

int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict bytes, int flags)
{
    REAL(accept4);
    return is_refused("accept4", EMFILE) ? -1 : real(fd, address, bytes, flags);
}

int socketpair(int domain, int type, int protocol, int pair[2])
{
    REAL(socketpair);
    return is_refused("socketpair", EMFILE) ? -1 : real(domain, type, protocol, pair);
}

int pipe2(int pair[2], int flags)
{
    REAL(pipe2);
    return is_refused("pipe2", EMFILE) ? -1 : real(pair, flags);
}

pid_t fork(void)
{
    REAL(fork);
    return is_refused("fork", EAGAIN) ? -1 : real();
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
    REAL(poll);
    return is_refused("poll", ENOMEM) ? -1 : real(fds, n, timeout);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    REAL(read);
    return is_refused("read", EIO) ? -1 : real(fd, bytes, n);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    REAL(write);
    return is_refused("write", EIO) ? -1 : real(fd, bytes, n);
}
