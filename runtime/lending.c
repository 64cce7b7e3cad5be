/* runtime/lending.c - leases in the engine.
 *
 * Owns the pidfds of leases: one that has no process to wait for any more is closed where its lease leaves the table.
 * Whatever ends a lease calls ended(), which tells the watchers and marks the engine as unsettled; the stages hear of it in
 * lending_turn(), as a VRAM command of the engine's own that takes its turn behind those that wait. Only cards that run are
 * told: one that is being restarted is loaded with the reserve in force.
 */
#include "runtime/lending.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/cards.h"
#include "runtime/connection.h"

#define LEASE_LINE_MAX 256

int lending_handle_open(int32_t pid, int *handle, struct error *err)
{
    struct pollfd end = {.events = POLLIN};
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0u);
    if (fd < 0 && errno == EINVAL)
        return error_set(err, EBB_EINVAL, "VRAM: pid=%" PRId32 " is a thread, no process", pid);
    if (fd < 0 && errno != ESRCH)
        return error_set(err, EBB_EIO, "VRAM: pid=%" PRId32 " cannot be watched: %s", pid,
                         strerror(errno));
    end.fd = fd;
    if (fd < 0 || poll(&end, 1, 0) != 0) {
        lending_handle_close(&fd);
        return error_set(err, EBB_ENOENT,
                         "VRAM: there is no process %" PRId32 " on the engine's host", pid);
    }
    *handle = fd;
    return 0;
}

void lending_handle_close(int *handle)
{
    if (*handle >= 0)
        (void)close(*handle);
    *handle = -1;
}

uint64_t lending_cards(const struct engine *e, bool every_card, uint32_t device)
{
    uint64_t all = e->n_peers < 64 ? (UINT64_C(1) << e->n_peers) - 1 : UINT64_MAX;
    return every_card ? all : UINT64_C(1) << device;
}

static void watchers_tell(struct engine *e, const struct connection *but, const char *line,
                          size_t n_bytes)
{
    for (struct connection *c = e->connections; c != NULL; c = c->next)
        if (c->watches && c != but)
            connection_event(c, line, n_bytes);
}

/* The keys that say what a lease is; of one on all cards for each card's start, the largest of them. */
static void lease_describe(const struct engine *e, const struct lease *l, uint64_t now,
                           struct line_writer *w)
{
    uint64_t mib = 0;
    for (uint32_t i = 0; i < e->n_peers; i++) {
        uint64_t here = lease_reserve(&e->leases, l, i);
        mib = here > mib ? here : mib;
    }
    line_key(w, "lease", l->name);
    line_u64(w, "reserve_mib", mib);
    if (!l->every_card)
        line_u64(w, "device", l->device);
    if (l->term == LEASE_TIME)
        line_u64(w, "for", l->until_us > now ? (l->until_us - now + 999999) / 1000000 : 0);
    else if (l->term == LEASE_PROCESS)
        line_u64(w, "pid", (uint64_t)l->pid);
    else
        line_u64(w, "conn", 1);
}

static void lease_tell(struct engine *e, const struct lease *l, const char *state, const char *why)
{
    char line[LEASE_LINE_MAX];
    struct line_writer w;
    line_begin(&w, line, sizeof line, "EVENT");
    line_bare(&w, "lease");
    line_key(&w, "state", state);
    lease_describe(e, l, now_us(), &w);
    if (why != NULL)
        line_key(&w, "why", why);
    int n = line_end(&w);
    if (n > 0)
        watchers_tell(e, NULL, line, (size_t)n);
}

static void ended(struct engine *e, struct lease *gone, const char *why)
{
    lending_handle_close(&gone->handle);
    e->unsettled = true;
    engine_log(e, "info", "lease %s has ended: %s", gone->name, why);
    lease_tell(e, gone, "ended", why);
}

static void apply_lease(struct engine *e, struct card_command *k)
{
    const struct vram_request *r = &k->request;
    struct lease before, wanted = {.to_start = r->to_start,
                                   .reserve_mib = r->reserve_mib,
                                   .every_card = r->every_card,
                                   .device = r->device,
                                   .term = r->term,
                                   .pid = r->pid,
                                   .handle = k->pidfd};
    const struct lease *taken;
    bool is_orphan = k->connection == NULL || k->connection->lost;
    if (r->term == LEASE_CONNECTION && is_orphan)
        return;
    memcpy(wanted.name, r->lease, sizeof wanted.name);
    wanted.until_us = now_us() + (uint64_t)r->seconds * 1000000;
    wanted.connection = r->term == LEASE_CONNECTION ? k->connection->number : 0;
    if (leases_take(&e->leases, &wanted, &taken, &before, &k->refused) != 0)
        return;
    k->pidfd = -1; /* the table's now */
    k->was_taken = true;
    memcpy(k->request.lease, taken->name, sizeof taken->name);
    k->cards = lending_cards(e, taken->every_card, taken->device);
    if (before.name[0] != '\0')
        k->cards |= lending_cards(e, before.every_card, before.device);
    lending_handle_close(&before.handle);
    lease_tell(e, taken, before.name[0] != '\0' ? "renewed" : "made", NULL);
}

static void apply_end(struct engine *e, struct card_command *k)
{
    struct lease gone;
    if (leases_end(&e->leases, k->request.lease, &gone, &k->refused) != 0)
        return;
    k->cards = lending_cards(e, gone.every_card, gone.device);
    ended(e, &gone, "unlease");
}

static void apply_settle(struct engine *e, struct card_command *k)
{
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        if (p->state == PEER_READY && !p->broken && p->sent_mib != leases_in_force(&e->leases, i))
            k->cards |= UINT64_C(1) << i;
    }
}

void lending_apply(struct engine *e, struct card_command *k)
{
    switch (k->action) {
    case VRAM_BASE:
        leases_base(&e->leases, &k->request);
        k->cards = lending_cards(e, k->request.every_card, k->request.device);
        break;
    case VRAM_LEASE: apply_lease(e, k); break;
    case VRAM_UNLEASE: apply_end(e, k); break;
    case VRAM_SETTLE: apply_settle(e, k); break;
    }
}

void lending_finish(struct engine *e, struct card_command *k)
{
    struct lease gone;
    if (k->refused.code != 0 && k->action == VRAM_SETTLE)
        engine_log(e, "warn", "after the end of a lease: %s", k->refused.text);
    if (k->refused.code != 0 && k->was_taken &&
        leases_end(&e->leases, k->request.lease, &gone, NULL) == 0)
        ended(e, &gone, "refused");
}

void lending_receipt(struct engine *e, const struct card_command *k, const char *line)
{
    char event[1024];
    int n = snprintf(event, sizeof event, "EVENT vram%s", line + strlen("VRAM"));
    if (n > 0 && (size_t)n < sizeof event)
        watchers_tell(e, k->connection, event, (size_t)n);
}

uint64_t lending_reserve_to_load(const struct engine *e, const struct peer *p)
{
    const struct held *h = &p->held;
    uint64_t in_force = leases_in_force(&e->leases, p->index), bytes = p->free_mib << 20;
    uint64_t took = h->weights + h->kv + h->workspace + h->stream + h->link + h->blas + h->context +
                    (p->cache_mib << 20);
    took -= h->workspace_mib << 20; /* it does with what it can be lent */
    if (e->phase == PHASE_BRINGUP)
        return in_force;
    uint64_t left = bytes > took ? (bytes - took) >> 20 : 0;
    return left < in_force ? left : in_force;
}

void lending_watch(struct engine *e, struct connection *c)
{
    c->watches = true;
    reply_line(e, c, false, "WATCH-DONE\n", strlen("WATCH-DONE\n"));
}

void lending_connection_gone(struct engine *e, const struct connection *c)
{
    struct lease gone;
    while (leases_end_connection(&e->leases, c->number, &gone))
        ended(e, &gone, "connection");
}

char *lending_list(const struct engine *e, uint64_t now)
{
    size_t room = (e->leases.n + 1) * LEASE_LINE_MAX, at = 0;
    char *text = malloc(room);
    for (size_t i = 0; text != NULL && i < e->leases.n; i++) {
        struct line_writer w;
        line_begin(&w, text + at, LEASE_LINE_MAX, "LEASES");
        lease_describe(e, &e->leases.rows[i], now, &w);
        int n = line_end(&w);
        at += n > 0 ? (size_t)n : 0;
    }
    if (text != NULL)
        (void)snprintf(text + at, room - at, "LEASES-DONE count=%zu\n", e->leases.n);
    return text;
}

void lending_turn(struct engine *e)
{
    struct lease gone;
    uint64_t until;
    if (leases_next(&e->leases, &until)) {
        uint64_t now = now_us();
        while (leases_expire(&e->leases, now, &gone))
            ended(e, &gone, "time");
    }
    if (e->unsettled && e->phase != PHASE_BRINGUP)
        e->unsettled = cards_settle(e) != 0;
}

int lending_timeout(const struct engine *e, int timeout_ms)
{
    uint64_t until, now;
    if (!leases_next(&e->leases, &until))
        return timeout_ms;
    now = now_us();
    uint64_t left_ms = until > now ? (until - now + 999) / 1000 : 0;
    return timeout_ms < 0 || left_ms < (uint64_t)timeout_ms
               ? (int)(left_ms < INT32_MAX ? left_ms : INT32_MAX)
               : timeout_ms;
}

size_t lending_poll(const struct engine *e, struct pollfd *fds)
{
    size_t n = 0;
    for (size_t i = 0; i < e->leases.n; i++)
        if (e->leases.rows[i].term == LEASE_PROCESS)
            fds[n++] = (struct pollfd){.fd = e->leases.rows[i].handle, .events = POLLIN};
    return n;
}

void lending_polled(struct engine *e, const struct pollfd *fds, size_t n_fds)
{
    struct lease gone;
    for (size_t i = 0; i < n_fds; i++)
        if (fds[i].revents != 0 && leases_end_handle(&e->leases, fds[i].fd, &gone))
            ended(e, &gone, "process");
}

void lending_close(struct engine *e)
{
    for (size_t i = 0; i < e->leases.n; i++)
        lending_handle_close(&e->leases.rows[i].handle);
    e->leases.n = 0;
}
