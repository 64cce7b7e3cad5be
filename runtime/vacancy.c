/* runtime/vacancy.c - looks at the cards before loading (see vacancy.h).
 *
 * No thread and no clock of its own: bringup_advance() asks at every turn, and the loop's timeout comes from here while it waits, so
 * that a signal ends the waiting at once. What a stage says is checked as everywhere; names are shown, so they are cleaned.
 */
#include "runtime/vacancy.h"

#include <inttypes.h>
#include <string.h>

#define MIB     (UINT64_C(1) << 20)
#define LOOK_US UINT64_C(250000)
#define TELL_US UINT64_C(5000000)

void vacancy_holder(struct engine *e, struct peer *p, const struct message *m)
{
    struct peer_holder h = {0};
    struct error err = {0};
    (void)e;
    if (!p->holders_owed || p->n_holders == PEER_HOLDERS_MAX)
        return;
    if (message_u64(m, "pid", 0, UINT32_MAX, &h.pid, &err) != 0 ||
        message_u64(m, "mib", 0, UINT64_MAX, &h.mib, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return;
    }
    message_text_take(m, "name", h.name, sizeof h.name);
    for (char *c = h.name; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    p->holders[p->n_holders++] = h;
}

void vacancy_holders_done(struct engine *e, struct peer *p, const struct message *m)
{
    struct error err = {0};
    (void)e;
    if (!p->holders_owed)
        return;
    p->holders_owed = false;
    if (message_u64(m, "free_mib", 0, UINT32_MAX, &p->free_mib, &err) != 0)
        peer_break(p, EBB_EPEER, "%s", err.text);
}

void vacancy_words(const struct peer *p, char *text, size_t capacity)
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < p->n_holders && n < capacity; i++) {
        const struct peer_holder *h = &p->holders[i];
        n += (size_t)snprintf(text + n, capacity - n, "%s%s%spid %" PRIu64 "%s", i > 0 ? ", " : "",
                              h->name, h->name[0] != '\0' ? " (" : "", h->pid,
                              h->name[0] != '\0' ? ")" : "");
        if (h->mib > 0 && n < capacity)
            n += (size_t)snprintf(text + n, capacity - n, "%s %" PRIu64 "%s",
                                  i == 0 ? " holds" : "", h->mib, i == 0 ? " MiB" : "");
        else if (n < capacity)
            n += (size_t)snprintf(text + n, capacity - n, " is on it");
    }
}

static void look(struct engine *e, bool everywhere)
{
    e->looked_us = now_us();
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        if (!everywhere && p->free_mib == p->total_mib)
            continue;
        p->holders_owed = true;
        p->n_holders = 0;
        peer_send(p, "HOLDERS\n", 8);
    }
}

static bool answers_owed(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].holders_owed)
            return true;
    return false;
}

/* Every busy card with what it has and who holds it; how many there are. */
static size_t busy_words(const struct engine *e, char *text, size_t capacity)
{
    size_t n_busy = 0, n = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        char holders[200];
        if (p->free_mib >= e->settings->min_free_mib)
            continue;
        vacancy_words(p, holders, sizeof holders);
        if (n < capacity)
            n +=
                (size_t)snprintf(text + n, capacity - n,
                                 "%scard %" PRIu32 " (%s): %" PRIu64 " of %" PRIu64 " MiB free%s%s",
                                 n_busy > 0 ? "; " : "", i, p->label, p->free_mib, p->total_mib,
                                 holders[0] != '\0' ? ", " : "", holders);
        n_busy++;
    }
    return n_busy;
}

/* A card that can never have as much is told before any waiting. */
static int possible(const struct engine *e, struct error *err)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->settings->min_free_mib > e->peers[i].total_mib)
            return error_set(err, EBB_ERANGE,
                             "vram.min_free_mib: %" PRIu64 " MiB are to be free; card %" PRIu32
                             " (%s) has %" PRIu64 " in all",
                             e->settings->min_free_mib, i, e->peers[i].label,
                             e->peers[i].total_mib);
    return 0;
}

static void wait_on(struct engine *e, const char *busy, uint64_t waited_us)
{
    uint64_t now = now_us();
    if (e->look_told_us == 0 || now - e->look_told_us >= TELL_US) {
        e->look_told_us = now;
        engine_log(e, "warn",
                   "waiting until %" PRIu64 " MiB are free (%" PRIu64 " of %" PRIu32 " s): %s",
                   e->settings->min_free_mib, waited_us / 1000000, e->settings->wait_s, busy);
    }
    if (now - e->looked_us >= LOOK_US)
        look(e, true);
}

bool vacancy_settled(struct engine *e)
{
    char busy[400];
    struct error err = {0};
    if (e->look_began_us == 0) {
        e->look_began_us = now_us();
        if (possible(e, &err) != 0) {
            engine_fail(e, &err);
            return false;
        }
        look(e, e->settings->min_free_mib > 0);
    }
    if (answers_owed(e))
        return false;
    if (busy_words(e, busy, sizeof busy) == 0)
        return true;
    uint64_t waited_us = now_us() - e->look_began_us;
    if (waited_us < (uint64_t)e->settings->wait_s * 1000000) {
        wait_on(e, busy, waited_us);
        return false;
    }
    (void)error_set(&err, EBB_EBUSY,
                    "vram.min_free_mib: %" PRIu64 " MiB are to be free on every card%s: %s - free "
                    "it, or wait for it (--wait-s)",
                    e->settings->min_free_mib,
                    e->settings->wait_s > 0 ? ", and were not in time" : "", busy);
    engine_fail(e, &err);
    return false;
}

int vacancy_timeout(const struct engine *e)
{
    return e->phase == PHASE_BRINGUP && e->look_began_us != 0 && !e->sized ? (int)(LOOK_US / 1000)
                                                                           : -1;
}

int vacancy_host_budget(const struct engine *e, struct error *err)
{
    for (uint32_t i = 0; e->settings->budget_mib > 0 && i < e->n_peers; i++) {
        uint64_t bytes = 0;
        uint32_t n_cards = 0;
        for (uint32_t k = 0; k < e->n_peers; k++)
            if (strcmp(e->peers[k].card->host, e->peers[i].card->host) == 0) {
                uint64_t more = e->peers[k].held.host_registered;
                bytes = bytes > UINT64_MAX - more ? UINT64_MAX : bytes + more;
                n_cards++;
            }
        if (bytes > e->settings->budget_mib * MIB)
            return error_set(err, EBB_EINVAL,
                             "host.budget_mib: %" PRIu64 " MiB; the %" PRIu32
                             " card(s) on %s would bind %" PRIu64
                             " MiB of its memory - set a larger budget, or fewer cards",
                             e->settings->budget_mib, n_cards,
                             e->peers[i].card->host[0] != '\0' ? e->peers[i].card->host
                                                               : "this host",
                             bytes / MIB + (bytes % MIB != 0));
    }
    return 0;
}
