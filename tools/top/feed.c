/* tools/top/feed.c - rounds of questions on the control socket, answered whenever the engine gets to it.
 *
 * The snapshot under way and the last whole one are kept apart, so that a frame never mixes two rounds. Lines and their
 * numbers are bounded by the channel and by the snapshot.
 */
#include "tools/top/feed.h"

#include <poll.h>
#include <string.h>
#include <time.h>

double feed_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void feed_init(struct feed *f, const char *control, const char *name)
{
    memset(f, 0, sizeof *f);
    f->control = control;
    f->name = name;
}

void feed_close(struct feed *f)
{
    if (f->state != FEED_CLOSED)
        channel_close(&f->channel);
    f->state = FEED_CLOSED;
}

/* "/run/…/demo.sock" -> "demo" */
static void engine_name(const char *path, char name[static SNAPSHOT_TEXT_BYTES])
{
    const char *slash = strrchr(path, '/'), *from = slash != NULL ? slash + 1 : path;
    size_t n = strlen(from);
    if (n > 5 && strcmp(from + n - 5, ".sock") == 0)
        n -= 5;
    n = n < SNAPSHOT_TEXT_BYTES - 1 ? n : SNAPSHOT_TEXT_BYTES - 1;
    for (size_t i = 0; i < n; i++)
        name[i] = (unsigned char)from[i] < 0x20 || (unsigned char)from[i] >= 0x7F ? '?' : from[i];
    name[n] = '\0';
}

static int feed_open(struct feed *f, struct error *err)
{
    int code = 0;
    if (f->path[0] == '\0')
        code = client_find(f->control, f->name, f->path, sizeof f->path, err);
    if (code == 0)
        code = client_connect(&f->channel, f->path, err);
    if (code != 0) {
        if (f->last.n_cards == 0)
            f->path[0] = '\0'; /* never seen: look for it again */
        return code;
    }
    f->state = FEED_IDLE;
    f->asked_places = false;
    f->knows_leases = true;
    return 0;
}

int feed_ask(struct feed *f, double now, struct error *err)
{
    int code = f->state == FEED_CLOSED ? feed_open(f, err) : 0;
    if (code != 0 || f->state == FEED_WAITING)
        return code;
    memset(&f->coming, 0, sizeof f->coming);
    engine_name(f->path, f->coming.engine);
    f->n_asked = f->n_answered = 0;
    const char *const verbs[] = {"STAT", "LEDGER", f->knows_leases ? "LEASES" : NULL,
                                 f->asked_places ? NULL : "PLAN"};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0] && code == 0; i++) {
        if (verbs[i] == NULL)
            continue;
        code = client_ask(&f->channel, verbs[i], err);
        f->n_asked++;
    }
    if (code != 0) {
        feed_close(f);
        return code;
    }
    f->state = FEED_WAITING;
    f->asked_at = now;
    return 0;
}

/* Where a card is does not change, and is asked once a connection. */
static void places_keep(struct feed *f)
{
    for (size_t i = 0; f->asked_places && i < f->coming.n_cards; i++)
        for (size_t k = 0; k < f->last.n_cards; k++)
            if (f->last.cards[k].device == f->coming.cards[i].device)
                memcpy(f->coming.cards[i].place, f->last.cards[k].place,
                       sizeof f->coming.cards[i].place);
    f->asked_places = true;
}

static void round_end(struct feed *f, double now)
{
    places_keep(f);
    snapshot_rates(&f->coming, f->last.n_cards > 0 ? &f->last : NULL, now - f->answered_at);
    f->last = f->coming;
    f->answered_at = now;
    f->state = FEED_IDLE;
}

static void line_take(struct feed *f, char *line, size_t n_bytes)
{
    struct message m;
    const char *done, *tag;
    struct error said = {0};
    if (message_parse(&m, line, n_bytes, NULL) != 0 || f->state != FEED_WAITING)
        return;
    snapshot_take(&f->coming, &m);
    done = strstr(m.verb, "-DONE");
    f->n_answered += done != NULL && done[5] == '\0';
    if (message_error(&m, &tag, &said)) {
        f->n_answered++;
        if (said.code == EBB_EUNSUPPORTED || said.code == EBB_EUNKNOWN_VERB)
            f->knows_leases = false; /* the one of these verbs that not every engine has */
    }
}

int feed_read(struct feed *f, double now, struct error *err)
{
    char *line;
    size_t n_bytes;
    int code;
    if (f->state == FEED_CLOSED)
        return error_set(err, EBB_EGONE, "the engine is gone");
    (void)channel_flush(&f->channel);
    code = channel_read(&f->channel, err);
    for (;;) {
        enum line_status status = channel_next(&f->channel, &line, &n_bytes);
        if (status == LINE_NEED_MORE)
            break;
        if (status == LINE_READY)
            line_take(f, line, n_bytes);
    }
    if (f->state == FEED_WAITING && f->n_answered >= f->n_asked) {
        round_end(f, now);
        return 1;
    }
    if (code == EBB_EIO || f->channel.at_end) {
        feed_close(f);
        return code == EBB_EIO ? code : error_set(err, EBB_EGONE, "the engine is gone");
    }
    return 0;
}

int feed_wait(struct feed *f, double seconds, struct error *err)
{
    double until = feed_now() + seconds;
    for (;;) {
        double left = until - feed_now();
        struct pollfd p = {.fd = f->channel.fd_in, .events = POLLIN};
        int code;
        if (left <= 0)
            return error_set(err, EBB_EAGAIN, "the engine did not answer within %g s", seconds);
        if (channel_wants_write(&f->channel))
            p.events |= POLLOUT;
        (void)poll(&p, 1, (int)(left * 1000) + 1);
        code = feed_read(f, feed_now(), err);
        if (code != 0)
            return code > 0 ? 0 : code;
    }
}
