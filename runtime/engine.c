/* runtime/engine.c - the coordinator's life and its one event loop.
 *
 * engine_open() leaves either a serving engine or nothing: every failure goes through
 * engine_close(), which ends and reaps whatever was started. A turn of the loop first settles what
 * broke (recovery, bring-up), then sends what the scheduler wants, then polls once and reads
 * whatever is ready. Nothing is polled busily; timeouts exist only while something is owed or being
 * ended. engine_stop() writes to an eventfd, which is all that a signal handler or another thread
 * may touch.
 */
#include "runtime/engine.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "runtime/bringup.h"
#include "runtime/cards.h"
#include "runtime/connection.h"
#include "runtime/control.h"
#include "runtime/launch.h"
#include "runtime/lending.h"
#include "runtime/recovery.h"
#include "runtime/request.h"
#include "runtime/steps.h"
#include "runtime/trace.h"
#include "runtime/vacancy.h"

#define POLLS_PER_PEER       4
#define POLLS_PER_CONNECTION 2
#define ENDING_US            UINT64_C(300000)
#define QUIT_WAIT_MS         400
#define TERM_WAIT_MS         200

uint64_t now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void engine_log(struct engine *e, const char *level, const char *format, ...)
{
    char text[700];
    va_list args;
    if (e->events.log == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    e->events.log(e->events.ctx, level, text);
}

void engine_fail(struct engine *e, const struct error *err)
{
    if (!e->failed)
        e->failure = *err;
    e->failed = true;
}

static int polls_reserve(struct engine *e, size_t n)
{
    if (n <= e->n_polls_max)
        return 0;
    struct pollfd *polls = realloc(e->polls, 2 * n * sizeof *polls);
    if (polls == NULL)
        return EBB_ENOMEM;
    e->polls = polls;
    e->n_polls_max = 2 * n;
    return 0;
}

static void poll_peer(const struct peer *p, struct pollfd *fd)
{
    int out = p->channel_open && channel_wants_write(&p->channel) ? p->channel.fd_out : -1;
    fd[0] = (struct pollfd){.fd = p->channel_open ? p->channel.fd_in : -1, .events = POLLIN};
    fd[1] = (struct pollfd){.fd = out, .events = POLLOUT};
    fd[2] = (struct pollfd){.fd = p->process.pid > 0 ? p->process.fd_err : -1, .events = POLLIN};
    fd[3] = (struct pollfd){.fd = p->process.pid > 0 ? p->process.pidfd : -1, .events = POLLIN};
}

static void poll_connection(const struct connection *c, struct pollfd *fd)
{
    const struct channel *ch = &c->channel;
    bool one = ch->fd_in == ch->fd_out, reads = !ch->at_end && !c->quitting && !c->held_back;
    short out = channel_wants_write(ch) ? POLLOUT : 0;
    fd[0] = (struct pollfd){.fd = reads || one ? ch->fd_in : -1, .events = reads ? POLLIN : 0};
    fd[1] = (struct pollfd){.fd = one ? -1 : ch->fd_out, .events = out};
    if (one)
        fd[0].events = (short)(fd[0].events | out);
}

static void serve_peer(struct engine *e, struct peer *p, const struct pollfd *fd)
{
    if ((fd[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
        peer_stderr_readable(e, p);
    if (!p->broken && (fd[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
        peer_readable(e, p);
    if (!p->broken && (fd[1].revents & (POLLOUT | POLLERR | POLLHUP)) != 0 &&
        channel_flush(&p->channel) != 0)
        peer_exited(e, p);
    if (!p->broken && (fd[3].revents & POLLIN) != 0)
        peer_exited(e, p);
}

static void serve_connection(struct engine *e, struct connection *c, const struct pollfd *fd)
{
    bool one = c->channel.fd_in == c->channel.fd_out;
    short out = one ? fd[0].revents : fd[1].revents;
    bool reads = (fd[0].events & POLLIN) != 0;
    if (reads && (fd[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
        connection_readable(e, c);
    int code = (out & POLLOUT) != 0 ? channel_flush(&c->channel) : 0;
    if (code != 0)
        connection_lose(c, code);
    if ((out & POLLERR) != 0 || (one && (out & POLLHUP) != 0 && (c->channel.at_end || !reads)))
        connection_lose(c, EBB_EGONE);
}

static int poll_timeout(const struct engine *e)
{
    uint64_t now = now_us();
    if (e->retry_us != 0 && e->phase == PHASE_RECOVERING)
        return e->retry_us > now ? (int)((e->retry_us - now) / 1000 + 1) : 0;
    if (e->cancelled)
        return 10;
    if (vacancy_timeout(e) >= 0)
        return vacancy_timeout(e);
    if (e->phase != PHASE_SERVING)
        return 1000;
    struct sched_counts counts = scheduler_counts(e->scheduler);
    int quiet = steps_timeout(e);
    if (quiet >= 0 && quiet < 1000)
        return quiet;
    if (counts.n_steps > 0 || counts.n_credit_asked > 0)
        return 1000;
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].vram != NULL || e->peers[i].stat.first != NULL ||
            e->peers[i].ledger.first != NULL)
            return 1000;
    return quiet;
}

static void wait_and_serve(struct engine *e, int timeout)
{
    size_t n = 2 + e->leases.n, at = 2, n_handles;
    struct connection *first = e->connections;
    for (uint32_t i = 0; i < e->n_peers; i++)
        n += POLLS_PER_PEER;
    for (struct connection *c = first; c != NULL; c = c->next)
        n += POLLS_PER_CONNECTION;
    if (polls_reserve(e, n) != 0)
        return;
    e->polls[0] = (struct pollfd){.fd = e->fd_wake, .events = POLLIN};
    bool pausing = e->accept_us > now_us(),
         listening = e->phase != PHASE_BRINGUP && !e->ending && !pausing;
    if (pausing && (timeout < 0 || timeout > CONTROL_PAUSE_US / 1000))
        timeout = CONTROL_PAUSE_US / 1000;
    e->polls[1] = (struct pollfd){.fd = listening ? e->fd_listen : -1, .events = POLLIN};
    n_handles = lending_poll(e, e->polls + at);
    at += n_handles;
    for (uint32_t i = 0; i < e->n_peers; i++, at += POLLS_PER_PEER)
        poll_peer(&e->peers[i], e->polls + at);
    for (struct connection *c = first; c != NULL; c = c->next, at += POLLS_PER_CONNECTION)
        poll_connection(c, e->polls + at);
    if (poll(e->polls, at, timeout) <= 0)
        return;
    if ((e->polls[0].revents & POLLIN) != 0) {
        uint64_t count;
        ssize_t got = read(e->fd_wake, &count, sizeof count);
        (void)got;
    }
    lending_polled(e, e->polls + 2, n_handles);
    at = 2 + n_handles;
    for (uint32_t i = 0; i < e->n_peers; i++, at += POLLS_PER_PEER)
        serve_peer(e, &e->peers[i], e->polls + at);
    for (struct connection *c = first; c != NULL; c = c->next, at += POLLS_PER_CONNECTION)
        serve_connection(e, c, e->polls + at);
    if ((e->polls[1].revents & POLLIN) != 0)
        control_accept(e);
}

static void engine_turn(struct engine *e)
{
    bool was_bringup = e->phase == PHASE_BRINGUP;
    for (uint32_t i = 0; i < e->n_peers; i++)
        peer_watch(e, &e->peers[i], now_us());
    recovery_check(e);
    bringup_advance(e);
    recovery_check(e);
    if (e->failed || (was_bringup && e->phase == PHASE_SERVING))
        return; /* nobody is connected yet: nothing to wait for */
    if (e->phase == PHASE_SERVING)
        steps_pump(e);
    connections_reap(e);
    lending_turn(e);
    wait_and_serve(e, lending_timeout(e, poll_timeout(e)));
}

static bool answers_pending(const struct engine *e)
{
    for (const struct connection *c = e->connections; c != NULL; c = c->next)
        if (c->first != NULL || channel_wants_write(&c->channel))
            return true;
    return false;
}

/* Asked to end: running requests end (or are cancelled), what was answered goes out, for a while at
 * most if it was an order. */
static bool has_ended(struct engine *e)
{
    if (atomic_load(&e->stop))
        e->ending = e->cancelled = true;
    if (!e->ending)
        return false;
    if (!e->cancelled)
        return !requests_active(e) && !answers_pending(e);
    if (e->ending_us == 0) {
        e->ending_us = now_us();
        requests_cancel(e);
    }
    return !answers_pending(e) || now_us() - e->ending_us > ENDING_US;
}

int engine_loop(struct engine *e, struct error *err)
{
    while (!e->failed && !has_ended(e))
        engine_turn(e);
    connections_reap(e); /* the last lines may have been the ones that could not be written */
    if (e->failed && err != NULL)
        *err = e->failure;
    return e->failed ? e->failure.code : 0;
}

void engine_stop(struct engine *e)
{
    uint64_t one = 1;
    int saved = errno;
    atomic_store(&e->stop, true);
    ssize_t n = write(e->fd_wake, &one, sizeof one);
    (void)n;
    errno = saved;
}

int engine_attach(struct engine *e, int fd_in, int fd_out, bool is_controller, struct error *err)
{
    struct connection *c;
    int code = connection_add(e, fd_in, fd_out, is_controller, &c, err);
    (void)fcntl(fd_in, F_SETFD, FD_CLOEXEC);
    (void)fcntl(fd_out, F_SETFD, FD_CLOEXEC);
    if (code != 0) {
        (void)close(fd_in);
        if (fd_out != fd_in)
            (void)close(fd_out);
        return code;
    }
    if (is_controller)
        connection_greet(e, c);
    return 0;
}

static int memory_open(struct engine *e, struct error *err)
{
    e->n_peers = (uint32_t)e->settings->n_cards;
    e->peers = calloc(e->n_peers, sizeof *e->peers);
    e->line = malloc(LINE_BYTES_MAX);
    e->scratch = malloc(LINE_BYTES_MAX);
    uint64_t start_mib[CARDS_MAX];
    if (e->peers == NULL || e->line == NULL || e->scratch == NULL || polls_reserve(e, 64) != 0)
        return error_set(err, EBB_ENOMEM, "no memory for the engine");
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        p->index = i;
        p->card = &e->settings->cards[i];
        start_mib[i] = p->card->reserve_mib;
        p->process = (struct process){.pidfd = -1, .fd_in = -1, .fd_out = -1, .fd_err = -1};
        card_label(p->card, p->label, sizeof p->label);
    }
    leases_init(&e->leases, start_mib, e->n_peers);
    return 0;
}

/* Absolute: a stage may be started in another directory. Only the directory is resolved: a split model's parts are found
 * by the name that was given, which the target of a link may not have. */
static bool path_make_absolute(const char *path, char *absolute, size_t room)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    char folder[PATH_MAX];
    int n = snprintf(folder, sizeof folder, "%.*s.", (int)(name - path), path);
    char *whole = n >= 0 && (size_t)n < sizeof folder ? realpath(folder, NULL) : NULL;
    if (whole == NULL)
        return false;
    n = snprintf(absolute, room, "%s%s%s", whole, whole[1] != '\0' ? "/" : "", name);
    free(whole);
    return n >= 0 && (size_t)n < room;
}

static int model_and_plan(struct engine *e, struct error *err)
{
    const struct settings *s = e->settings;
    int code = model_open(&e->model, s->model, err);
    if (code == 0)
        code = tokenizer_open(&e->tokenizer, e->model->gguf, err);
    if (code == 0)
        code = chat_open(&e->chat, e->model->gguf, e->tokenizer, err);
    if (code == 0)
        code = plan_make(&e->plan, s->split, s->n_cards, e->model->geometry.n_layers, err);
    if (code != 0)
        return code;
    if (!path_make_absolute(s->model, e->model_path, sizeof e->model_path))
        return error_set(err, EBB_EIO, "%s: its path cannot be made absolute", s->model);
    e->n_scratch_ids = (size_t)e->model->geometry.context_max + LINE_BYTES_MAX + 64;
    e->scratch_ids = malloc(e->n_scratch_ids * sizeof *e->scratch_ids);
    return e->scratch_ids != NULL ? 0 : error_set(err, EBB_ENOMEM, "no memory for a prompt");
}

static int trace_open(struct engine *e, struct error *err)
{
    const char *path = e->settings->trace;
    if (path == NULL)
        return 0;
    if (!path_make_absolute(path, e->trace_path, sizeof e->trace_path)) {
        e->trace_path[0] = '\0';
        return error_set(err, EBB_EIO, "--trace: %s: there is no such folder", path);
    }
    int code = trace_prepare(e->trace_path, e->n_peers, err);
    if (code != 0)
        e->trace_path[0] = '\0';
    return code;
}

/* When all stages have ended. */
static void trace_close(struct engine *e)
{
    struct error err = {0};
    uint64_t n_lost = 0;
    if (e->trace_path[0] == '\0')
        return;
    if (trace_merge(e->trace_path, e->n_peers, &n_lost, &err) != 0)
        engine_log(e, "warn", "%s", err.text);
    else if (n_lost > 0)
        engine_log(e, "warn", "--trace: %" PRIu64 " spans had no room in it", n_lost);
}

static int stages_bring_up(struct engine *e, struct error *err)
{
    while (!e->failed && e->phase == PHASE_BRINGUP && !atomic_load(&e->stop))
        engine_turn(e);
    if (e->failed && err != NULL)
        *err = e->failure;
    if (e->failed)
        return e->failure.code;
    return e->phase == PHASE_SERVING
               ? 0
               : error_set(err, EBB_ECANCEL, "stopped while the stages were starting");
}

int engine_open(struct engine **out, const struct settings *s, const struct engine_events *events,
                struct error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for the engine");
    e->settings = s;
    e->events = events != NULL ? *events : (struct engine_events){0};
    e->fd_listen = e->fd_guard = -1;
    e->epoch = 1;
    e->fd_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *out = e;
    int code = e->fd_wake >= 0 ? 0 : error_set(err, EBB_EIO, "eventfd: %s", strerror(errno));
    if (code == 0 &&
        (s->n_cards == 0 || s->n_cards > CARDS_MAX || s->parallel == 0 || s->model == NULL))
        code = error_set(err, EBB_EINVAL, "a model, a card and a sequence at least are wanted");
    if (code == 0)
        code = memory_open(e, err);
    if (code == 0)
        code = model_and_plan(e, err);
    if (code == 0)
        code = control_open(e, err);
    if (code == 0)
        code = trace_open(e, err);
    e->available_mib = sizing_available_mib();
    if (code == 0)
        code = stages_bring_up(e, err);
    if (code != 0) {
        *out = NULL;
        engine_close(e);
    }
    return code;
}

/* QUIT and end of input to all, then signals; all at once, so that ending eight stages takes no
 * longer than ending one. */
static void stages_end(struct engine *e)
{
    struct process *processes[CARDS_MAX];
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        peer_send(p, "QUIT\n", 5);
        if (p->channel_open)
            channel_close(&p->channel);
        p->channel_open = false;
        processes[i] = &p->process;
    }
    process_end_all(processes, e->n_peers, QUIT_WAIT_MS, TERM_WAIT_MS);
    for (uint32_t i = 0; i < e->n_peers; i++) {
        peer_stderr_drain(e, &e->peers[i]);
        peer_close(e, &e->peers[i]);
    }
}

void engine_close(struct engine *e)
{
    if (e == NULL)
        return;
    while (e->connections != NULL)
        connection_free(e, e->connections);
    if (e->peers != NULL)
        stages_end(e);
    trace_close(e);
    cards_close(e);
    lending_close(e);
    control_close(e);
    scheduler_close(e->scheduler);
    chat_close(e->chat);
    tokenizer_close(e->tokenizer);
    model_close(e->model);
    if (e->fd_wake >= 0)
        (void)close(e->fd_wake);
    free(e->peers);
    free(e->polls);
    free(e->line);
    free(e->scratch);
    free(e->scratch_ids);
    free(e);
}
