/* tools/top/feed.h - the conversation with an engine: one round of questions at a time, never a wait for an answer.
 *
 * feed_ask() sends a round (STAT, LEDGER, LEASES; PLAN in a connection's first), feed_read() takes what has come and says when
 * a round is whole. A verb that the engine does not know counts as answered. When the connection ends the feed is closed and
 * says so; feed_ask() then tries to connect again, to the engine it knew. Owns the connection. Threads: one owner.
 */
#pragma once
#include "protocol/client.h"
#include "tools/top/snapshot.h"

enum feed_state {
    FEED_CLOSED,  /* no engine: feed_ask() tries */
    FEED_IDLE,    /* connected, the last round is answered */
    FEED_WAITING, /* a round is under way */
};

struct feed {
    enum feed_state state;
    const char *control, *name; /* borrowed: which engine */
    char path[4096];            /* the socket that was found; "" before that */
    struct channel channel;     /* open unless closed */
    bool asked_places, knows_leases;
    size_t n_asked, n_answered; /* verbs of the round */
    double asked_at, answered_at;
    struct snapshot coming,
        last; /* last: the round that was whole; its n_cards 0 before the first */
};

void feed_init(struct feed *f, const char *control, const char *name);
void feed_close(struct feed *f);
/* Begins a round at the time `now` (seconds), connecting first where it must. Does nothing while one is under way.
 * EBB_ENOENT, EBB_EBUSY: no engine, several; EBB_EGONE, EBB_EIO: it could not be reached. The feed is closed then. */
int feed_ask(struct feed *f, double now, struct error *err);
/* Takes what has come. 1: a round is whole, in `last`, with rates since the one before; 0: not yet; < 0: the connection has
 * ended (EBB_EGONE) or failed, and the feed is closed. */
int feed_read(struct feed *f, double now, struct error *err);
/* Waits for a whole round up to `seconds`: 0, EBB_EAGAIN (none in that time), or feed_read()'s errors. */
int feed_wait(struct feed *f, double seconds, struct error *err);
double feed_now(void); /* seconds of a clock that only goes on */
