/* runtime/supervisor.c - fork, exec, watch, kill, reap.
 *
 * Between fork and exec only async-signal-safe calls are made, because the coordinator may have
 * another thread. Failure of exec comes back over a fourth pipe that closes by itself when exec
 * succeeds. Every descriptor here is close-on-exec, and the child marks all others so as well: no
 * stage may hold another's pipe open, or its end of input would never come.
 */
#include "runtime/supervisor.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1u << 2)
#endif

struct pipes {
    int in[2], out[2], err[2], status[2];
};

static void pair_close(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            (void)close(pair[i]);
}

static void pipes_close(struct pipes *p)
{
    pair_close(p->in);
    pair_close(p->out);
    pair_close(p->err);
    pair_close(p->status);
}

static int pipes_open(struct pipes *p, struct error *err)
{
    *p = (struct pipes){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (pipe2(p->in, O_CLOEXEC) != 0 || pipe2(p->out, O_CLOEXEC) != 0 ||
        pipe2(p->err, O_CLOEXEC) != 0 || pipe2(p->status, O_CLOEXEC) != 0) {
        int why = errno;
        pipes_close(p);
        return error_set(err, EBB_EIO, "no pipes for a stage: %s", strerror(why));
    }
    return 0;
}

/* Puts a descriptor at its place; one that stands in the way of 0..2 was moved up by the caller. */
static void place(int fd, int at)
{
    if (dup2(fd, at) < 0)
        _exit(127);
}

static int above_stderr(int fd)
{
    return fd > 2 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static void signals_default(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int s = 1; s < NSIG; s++)
        if (s != SIGKILL && s != SIGSTOP)
            (void)sigaction(s, &action, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

__attribute__((noreturn)) static void child_run(struct pipes *p, char *const argv[], pid_t parent)
{
    int in = above_stderr(p->in[0]), out = above_stderr(p->out[1]), err = above_stderr(p->err[1]);
    int status = above_stderr(p->status[1]), why;
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    place(in, STDIN_FILENO);
    place(out, STDOUT_FILENO);
    place(err, STDERR_FILENO);
    (void)syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
    signals_default();
    execv(argv[0], argv);
    why = errno;
    while (write(status, &why, sizeof why) < 0 && errno == EINTR)
        ;
    _exit(127);
}

int process_start(struct process *p, char *const argv[], struct error *err)
{
    struct pipes pipes;
    pid_t parent = getpid();
    int code = pipes_open(&pipes, err), why = 0;
    *p = (struct process){.pidfd = -1, .fd_in = -1, .fd_out = -1, .fd_err = -1};
    if (code != 0)
        return code;
    pid_t pid = fork();
    if (pid == 0)
        child_run(&pipes, argv, parent);
    if (pid < 0) {
        why = errno;
        pipes_close(&pipes);
        return error_set(err, EBB_EIO, "no process for a stage: %s", strerror(why));
    }
    (void)setpgid(pid, pid); /* both sides do, whoever comes first */
    (void)close(pipes.status[1]);
    pipes.status[1] = -1;
    ssize_t n;
    while ((n = read(pipes.status[0], &why, sizeof why)) < 0 && errno == EINTR)
        ;
    if (n > 0) {
        (void)waitpid(pid, NULL, 0);
        pipes_close(&pipes);
        return error_set(err, EBB_ENOENT, "%s: cannot be run: %s", argv[0], strerror(why));
    }
    p->pid = pid;
    p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0u);
    p->fd_in = pipes.in[1];
    p->fd_out = pipes.out[0];
    p->fd_err = pipes.err[0];
    (void)fcntl(p->fd_err, F_SETFL, O_NONBLOCK);
    pipes.in[1] = pipes.out[0] = pipes.err[0] = -1;
    pipes_close(&pipes);
    return 0;
}

bool process_is_dead(struct process *p, char *how, size_t capacity)
{
    int status;
    if (p->pid == 0)
        return true;
    if (waitpid(p->pid, &status, WNOHANG) != p->pid)
        return false;
    if (WIFSIGNALED(status))
        (void)snprintf(how, capacity, "killed by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        (void)snprintf(how, capacity, "exited with status %d", WEXITSTATUS(status));
    p->pid = 0;
    if (p->pidfd >= 0)
        (void)close(p->pidfd);
    p->pidfd = -1;
    return true;
}

void process_signal(const struct process *p, int signal)
{
    if (p->pid > 0) {
        (void)kill(-p->pid, signal);
        (void)kill(p->pid, signal);
    }
}

void process_close_fds(struct process *p)
{
    int *fds[] = {&p->fd_in, &p->fd_out, &p->fd_err};
    for (size_t i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            (void)close(*fds[i]);
        *fds[i] = -1;
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool wait_all(struct process **processes, size_t n, int wait_ms)
{
    char how[64];
    int64_t until = now_ms() + wait_ms;
    for (;;) {
        struct pollfd fd = {.fd = -1, .events = POLLIN};
        bool all_dead = true;
        for (size_t i = 0; i < n; i++)
            if (!process_is_dead(processes[i], how, sizeof how)) {
                all_dead = false;
                fd.fd = processes[i]->pidfd;
            }
        int64_t left = until - now_ms();
        if (all_dead || left <= 0)
            return all_dead;
        /* Without a pidfd the poll is a short sleep. */
        (void)poll(&fd, 1, fd.fd >= 0 ? (int)left : 2);
    }
}

void process_end_all(struct process **processes, size_t n, int wait_ms, int term_ms)
{
    if (wait_all(processes, n, wait_ms))
        return;
    for (size_t i = 0; i < n; i++)
        process_signal(processes[i], SIGTERM);
    if (wait_all(processes, n, term_ms))
        return;
    for (size_t i = 0; i < n; i++)
        process_signal(processes[i], SIGKILL);
    (void)wait_all(processes, n, 2000);
}
