/* runtime/links.c - the exchange of LINK lines between neighbours, once per epoch.
 *
 * Who receives listens first and says where and by which key; then who sends is told. The addresses
 * and keys are the stages' own and pass through unread, except that they must be short. Stage i
 * feeds stage i+1; sampled ids go from the last to the first. A stage alone needs no link.
 */
#include <string.h>
#include <unistd.h>
#include "runtime/bringup.h"

/* The address under which `listener` can be reached from `other`; NULL: both are on one host. */
static const char *reachable_host(const struct peer *listener, const struct peer *other,
                                  char *buffer, size_t capacity)
{
    if (strcmp(listener->card->host, other->card->host) == 0)
        return NULL;
    if (listener->card->host[0] != '\0')
        return listener->card->host;
    if (gethostname(buffer, capacity) != 0)
        return NULL;
    buffer[capacity - 1] = '\0';
    return buffer;
}

static void link_send(struct engine *e, struct peer *p, const char *what, const char *address,
                      const char *key, const char *host)
{
    struct line_writer w;
    line_begin(&w, e->line, LINE_BYTES_MAX, "LINK");
    line_u64(&w, "epoch", e->epoch);
    line_text(&w, what, address, strlen(address));
    if (key != NULL)
        line_text(&w, "key", key, strlen(key));
    if (host != NULL)
        line_text(&w, "host", host, strlen(host));
    int n = line_end(&w);
    if (n > 0)
        peer_send(p, e->line, (size_t)n);
}

static void links_begin(struct engine *e)
{
    char name[256];
    uint32_t last = e->n_peers - 1;
    e->linking = true;
    for (uint32_t i = 0; i <= last; i++) {
        struct peer *p = &e->peers[i];
        p->link_done = 0;
        p->link_wanted = (i > 0 ? LINK_IN : LINK_BACK_IN) | (i < last ? LINK_OUT : LINK_BACK_OUT);
        if (last == 0)
            p->link_wanted = 0;
        else if (i == 0)
            link_send(e, p, "back-in", "listen", NULL,
                      reachable_host(p, &e->peers[last], name, sizeof name));
        else
            link_send(e, p, "in", "listen", NULL,
                      reachable_host(p, &e->peers[i - 1], name, sizeof name));
    }
}

bool links_made(struct engine *e)
{
    if (!e->linking)
        links_begin(e);
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].link_done != e->peers[i].link_wanted)
            return false;
    return true;
}

/* A listener's answer: where it listens and by which key; the sender is told at once. */
static void listener_said(struct engine *e, struct peer *p, const struct message *m, bool is_back)
{
    char address[512], key[64];
    size_t n_address = 0, n_key = 0;
    struct error err = {0};
    struct peer *sender = is_back        ? &e->peers[e->n_peers - 1]
                          : p->index > 0 ? &e->peers[p->index - 1]
                                         : NULL;
    uint32_t bit = is_back ? LINK_BACK_IN : LINK_IN;
    if ((p->link_wanted & bit) == 0 || (p->link_done & bit) != 0 || sender == NULL) {
        peer_break(p, EBB_EPEER, "LINKED for a link that was not asked for");
    } else if (message_text(m, is_back ? "back-in" : "in", address, sizeof address - 1, &n_address,
                            &err) != 0 ||
               message_text(m, "key", key, sizeof key - 1, &n_key, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
    } else {
        address[n_address] = key[n_key] = '\0';
        p->link_done |= bit;
        link_send(e, sender, is_back ? "back-out" : "out", address, key, NULL);
    }
}

/* Rows have a way: by what is for people to read. */
static void sender_said(struct engine *e, struct peer *p, const struct message *m)
{
    const char *by = message_key(m, "link");
    p->link_done |= LINK_OUT & p->link_wanted;
    engine_log(e, "info", "card %s: rows go on to the next card by %.16s", p->label,
               by != NULL ? by : "socket");
}

void bringup_linked(struct engine *e, struct peer *p, const struct message *m)
{
    struct error err = {0};
    uint64_t epoch;
    if (message_u64(m, "epoch", 0, UINT32_MAX, &epoch, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return;
    }
    if (epoch != e->epoch || !e->linking)
        return;
    if (message_key(m, "in") != NULL)
        listener_said(e, p, m, false);
    else if (message_key(m, "back-in") != NULL)
        listener_said(e, p, m, true);
    else if (message_key(m, "out") != NULL)
        sender_said(e, p, m);
    else if (message_key(m, "back-out") != NULL)
        p->link_done |= LINK_BACK_OUT & p->link_wanted;
}
