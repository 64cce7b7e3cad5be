/* runtime/recovery.h - a stage died or broke its word while serving: a new epoch, restarts,
 * replay. */
#pragma once
#include "runtime/peer.h"

/* Closes the peers that are marked broken. During the first bring-up that fails the engine; later
 * it begins a recovery. */
void recovery_check(struct engine *e);
/* Everything in flight is forgotten, live sequences will be replayed; requests that have seen too
 * many of these fail with `why`. */
void recovery_begin(struct engine *e, const struct error *why);
void recovery_done(struct engine *e);
