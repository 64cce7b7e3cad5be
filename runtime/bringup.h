/* runtime/bringup.h - from no process to every stage LOADED and linked; the same machine serves the
 * start and a restart.
 *
 *   launch -> HELLO -> (all) LOAD -> HELD -> (all) LINK … -> GO -> LOADED -> serving
 *
 * At the start a refused LOAD makes every stage release and the plan is made again, smaller, at
 * most three times. On a restart only the stages that are down go through launch and LOAD, with the
 * decisions of the start; all LINKs are made anew with the new epoch.
 */
#pragma once
#include "runtime/peer.h"

/* Does what can be done now; called after anything a stage said. */
void bringup_advance(struct engine *e);

/* A stage's lines that belong here; m is parsed. They break the peer where it is wrong. */
void bringup_hello(struct engine *e, struct peer *p, const struct message *m);
void bringup_held(struct engine *e, struct peer *p, const struct message *m);
void bringup_linked(struct engine *e, struct peer *p, const struct message *m);
void bringup_progress(struct engine *e, struct peer *p, const struct message *m);
void bringup_loaded(struct engine *e, struct peer *p);

/* links.c: begins the exchange of LINK lines of this epoch; true: all are made. */
bool links_made(struct engine *e);
