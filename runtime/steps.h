/* runtime/steps.h - the scheduler's orders as lines to the stages, and their answers as tokens of
 * requests. */
#pragma once
#include "runtime/peer.h"

void steps_pump(struct engine *e); /* sends every order there is */
void steps_ran(struct engine *e, struct peer *p, const struct message *m);
void steps_tokens(struct engine *e, struct peer *p, const struct message *m);
void steps_logits(struct engine *e, struct peer *p, const struct message *m);
void steps_prob(struct engine *e, struct peer *p, const struct message *m);
void steps_ordered(struct engine *e, struct peer *p, const struct message *m); /* FORKED, DROPPED */
/* CREDITED: what the card grants now. */
void steps_credited(struct engine *e, struct peer *p, const struct message *m);
/* Every stage's grant is known: the smallest counts. */
void steps_credits_known(struct engine *e);
/* When the turn must come at which granted KV is given back: in so many ms, -1 never. */
int steps_timeout(const struct engine *e);
/* `ERR step:<epoch>.<step> …`: the step cannot run there; or `ERR fork:<seq> …`, `ERR drop:<seq>
 * …`. */
void steps_refused(struct engine *e, struct peer *p, const char *tag, const struct error *said);
