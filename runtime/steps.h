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
/* CHUNKED: workspace that the card has now. */
void steps_chunked(struct engine *e, struct peer *p, const struct message *m);
/* EVENT chunk: it can lend more or less than before, by itself. */
void steps_event(struct engine *e, struct peer *p, const struct message *m);
/* Every stage's is known: the smallest counts. */
void steps_chunks_known(struct engine *e);
/* A card has changed: n_rows is what it can lend workspace for now, 0: it did not say. Whoever WATCHes hears of another prompt chunk. */
void steps_chunk_redecide(struct engine *e, struct peer *p, uint64_t n_rows);
uint32_t steps_prompt_chunk(const struct engine *e); /* the largest that every card can lend */
/* When the turn must come at which granted KV is given back: in so many ms, -1 never. */
int steps_timeout(const struct engine *e);
/* `ERR step:<epoch>.<step> …`: the step cannot run there; or `ERR fork:<seq> …`, `ERR drop:<seq>
 * …`. */
void steps_refused(struct engine *e, struct peer *p, const char *tag, const struct error *said);
