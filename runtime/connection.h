/* runtime/connection.h - a controller or client: its lines, its requests, its answers in order.
 *
 * Answers to commands go out in command order; those that may pass a VRAM (PING, STAT, STOP) do.
 * Events of requests are not part of that order. A connection whose reader does not read is marked
 * lost when its queue is full, and closed at the end of the turn; its requests are cancelled then.
 */
#pragma once
#include "runtime/engine_state.h"

int connection_add(struct engine *e, int fd_in, int fd_out, bool is_controller,
                   struct connection **out, struct error *err);
void connection_greet(struct engine *e, struct connection *c); /* INFO, CARD, READY */
void connection_readable(struct engine *e, struct connection *c);
void connections_reap(struct engine *e); /* lost ones, and those that have said all they had to */
void connection_free(struct engine *e, struct connection *c);

/* Nothing goes in or out any more; it is closed at the end of the turn. The first reason wins. */
void connection_lose(struct connection *c, int why);

void connection_event(struct connection *c, const char *line, size_t n_bytes);

/* A new answer at the end of the order. NULL: no memory (the connection is lost then). */
struct card_command *reply_add(struct engine *e, struct connection *c, enum reply_kind kind,
                               bool bypass);
void reply_line(struct engine *e, struct connection *c, bool bypass, const char *line,
                size_t n_bytes);
void reply_error(struct engine *e, struct connection *c, bool bypass, const char *tag,
                 const struct error *err);
void replies_flush(struct engine *e, struct connection *c);
