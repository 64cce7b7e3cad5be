/* tools/vram/lend.c - takes a lease, runs a command, gives back.
 *
 * One thread, one poll: signals come through a signalfd, the connection is read so that the engine never waits for us. A signal that
 * the terminal sent has reached the command already and is not passed on a second time. An engine that ends meanwhile takes the
 * lease with it: that is said, and the command goes on. If this process is killed the command gets SIGTERM, since the memory under
 * it is going back.
 */
#include "tools/vram/lend.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/vram.h"

#define CANNOT_RUN 126
#define NOT_FOUND  127

struct lending {
    const struct lend *l;
    struct channel channel;
    bool is_open; /* the channel, and with it the lease */
    char name[LEASE_NAME_MAX + 1];
    int fd_signals;
    sigset_t before; /* the signal mask that the command gets */
    pid_t pid;
};

static void say(const char *text)
{
    fprintf(stderr, "ebbtide vram: %s\n", text);
}

/* A line for each card that has less than was asked for. */
static void shortfalls_say(const struct kit_reply *r)
{
    for (size_t i = 0; i < r->n_lines; i++) {
        struct vram_receipt receipt;
        if (vram_receipt_read(&r->messages[i], &receipt, NULL) == 0 && receipt.shortfall_mib > 0)
            fprintf(stderr,
                    "ebbtide vram: card %" PRIu32 ": %" PRIu64 " MiB are free, %" PRIu64
                    " fewer than wanted (%s)\n",
                    receipt.device, receipt.free_mib, receipt.shortfall_mib, receipt.reason);
    }
}

static int lease_take(struct lending *g)
{
    struct kit_reply reply = {0};
    struct error err = {0};
    struct message done;
    bool is_short = false;
    int status = kit_connect(g->l->flags, &g->channel, &err);
    if (status != STATUS_DONE) {
        say(err.text);
        return status;
    }
    g->is_open = true;
    status = kit_ask_over(&g->channel, g->l->line, &reply, &err);
    if (status != STATUS_DONE && reply.is_refused)
        status = STATUS_REFUSED;
    if (status == STATUS_DONE && kit_shortfall_find(&reply, &is_short, &err) != 0)
        status = STATUS_FAILED;
    if (is_short)
        shortfalls_say(&reply);
    if (is_short && !g->l->takes_partly) {
        status = STATUS_SHORTFALL;
        say("the command was not run (--partial runs it all the same)");
    }
    if (err.code != 0)
        fprintf(stderr, "ebbtide vram: %s; the command was not run\n", err.text);
    if (status == STATUS_DONE)
        kit_attach_warn(g->l->flags, &reply);
    if (status == STATUS_DONE && message_parse(&done, reply.done, strlen(reply.done), NULL) == 0 &&
        message_key(&done, "lease") != NULL)
        (void)snprintf(g->name, sizeof g->name, "%s", message_key(&done, "lease"));
    kit_reply_free(&reply);
    return status;
}

/* Whether the lease is still the one that this connection holds: somebody may have renewed it on other terms. */
static bool lease_is_ours(struct lending *g)
{
    struct kit_reply reply;
    bool is_ours = false;
    if (kit_ask_over(&g->channel, "LEASES", &reply, NULL) == STATUS_DONE)
        for (size_t i = 0; i < reply.n_lines; i++) {
            const char *name = message_key(&reply.messages[i], "lease");
            if (name != NULL && strcmp(name, g->name) == 0)
                is_ours = message_key(&reply.messages[i], "conn") != NULL;
        }
    kit_reply_free(&reply);
    return is_ours;
}

/* Waits until the memory is back with the engine, so that whoever comes next finds it so. */
static void lease_give_back(struct lending *g)
{
    char line[LEASE_NAME_MAX + 16];
    struct kit_reply reply = {0};
    if (!g->is_open)
        return;
    if (g->name[0] != '\0' && lease_is_ours(g)) {
        (void)snprintf(line, sizeof line, "UNLEASE %s", g->name);
        (void)kit_ask_over(&g->channel, line, &reply, NULL);
        kit_reply_free(&reply);
    }
    channel_close(&g->channel);
    g->is_open = false;
}

__attribute__((noreturn)) static void command_become(const struct lending *g, pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)sigprocmask(SIG_SETMASK, &g->before, NULL);
    if (getppid() != parent)
        _exit(STATUS_TERMINATED);
    (void)execvp(g->l->command[0], g->l->command);
    int why = errno;
    fprintf(stderr, "ebbtide vram: %s: %s\n", g->l->command[0], strerror(why));
    _exit(why == ENOENT ? NOT_FOUND : CANNOT_RUN);
}

static int command_start(struct lending *g)
{
    pid_t parent = getpid();
    g->pid = fork();
    if (g->pid == 0)
        command_become(g, parent);
    if (g->pid > 0)
        return STATUS_DONE;
    fprintf(stderr, "ebbtide vram: no process for the command: %s\n", strerror(errno));
    return STATUS_FAILED;
}

/* Has the command ended? Then *status is how. */
static bool command_ended(const struct lending *g, int *status)
{
    int how;
    if (waitpid(g->pid, &how, WNOHANG) != g->pid)
        return false;
    *status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    return true;
}

static void signals_take(const struct lending *g)
{
    struct signalfd_siginfo info;
    while (read(g->fd_signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL)
            (void)kill(g->pid, (int)info.ssi_signo);
}

static void channel_drain(struct lending *g)
{
    struct error err;
    char *line;
    size_t n_bytes;
    int code = channel_read(&g->channel, &err);
    while (channel_next(&g->channel, &line, &n_bytes) != LINE_NEED_MORE)
        ;
    if (code != EBB_EGONE && code != EBB_EIO)
        return;
    say("the engine has ended, and the lease with it; the command goes on");
    channel_close(&g->channel);
    g->is_open = false;
}

static int command_wait(struct lending *g)
{
    int status;
    while (!command_ended(g, &status)) {
        struct pollfd fds[2] = {
            {.fd = g->fd_signals, .events = POLLIN},
            {.fd = g->is_open ? g->channel.fd_in : -1, .events = POLLIN},
        };
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[0].revents != 0)
            signals_take(g);
        if (fds[1].revents != 0)
            channel_drain(g);
    }
    return status;
}

/* From here on no signal ends this process before it has given back. */
static int signals_hold(struct lending *g)
{
    sigset_t held;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    (void)sigemptyset(&held);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        (void)sigaddset(&held, signals[i]);
    (void)sigprocmask(SIG_BLOCK, &held, &g->before);
    (void)signal(SIGCHLD, SIG_DFL); /* ignored, there would be nothing to wait for */
    g->fd_signals = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
    if (g->fd_signals >= 0)
        return STATUS_DONE;
    fprintf(stderr, "ebbtide vram: signals cannot be waited for: %s\n", strerror(errno));
    return STATUS_FAILED;
}

int lend_run(const struct lend *l)
{
    struct lending g = {.l = l, .fd_signals = -1};
    int status = lease_take(&g);
    if (status == STATUS_DONE)
        status = signals_hold(&g);
    if (status == STATUS_DONE)
        status = command_start(&g);
    if (status == STATUS_DONE)
        status = command_wait(&g);
    lease_give_back(&g);
    if (g.fd_signals >= 0)
        (void)close(g.fd_signals);
    return status;
}
