/* runtime/peer.h - one stage as the coordinator sees it: its process, its channel, its state.
 *
 * What a stage says is not trusted: numbers are checked, and a line that breaks the grammar breaks
 * the stage (peer_break). A broken peer is only marked; the engine's turn closes it and recovers.
 * Unknown well-formed lines are ignored, as readers of replies do.
 */
#pragma once
#include "runtime/engine_state.h"

/* Launches the stage's process and opens its channel. After a failure there is no process. */
int peer_start(struct engine *e, struct peer *p, struct error *err);
/* Kills and reaps the process, closes its descriptors: PEER_DOWN. Fine on a peer that is down. */
void peer_close(struct engine *e, struct peer *p);

void peer_send(struct peer *p, const char *line, size_t n_bytes);
void peers_send(struct engine *e, const char *line, size_t n_bytes);
__attribute__((format(printf, 3, 4))) void peer_break(struct peer *p, int code, const char *format,
                                                      ...);

/* Reads and handles what stands in its pipes. */
void peer_readable(struct engine *e, struct peer *p);
bool peer_stderr_readable(struct engine *e, struct peer *p); /* whether there was anything */
void peer_stderr_drain(struct engine *e, struct peer *p);    /* the last words of one that ended */
/* Its process ended or its pipes did: what it still wrote is read first, then it is broken. */
void peer_exited(struct engine *e, struct peer *p);
/* Every turn: one that could not be written to is looked at; one that owes something and is silent
 * gets a PING, and is broken if it does not answer. */
void peer_watch(struct engine *e, struct peer *p, uint64_t now);
const char *peer_state_name(enum peer_state state);
