/* runtime/vacancy.h - the cards before anything is loaded: what is free on each, who holds the rest, and whether to wait.
 *
 * Once every stage has said HELLO, those whose card is not wholly free are asked for its HOLDERS; what they answer names the holders
 * in later refusals. With vram.min_free_mib every card must have that much free: a busy one is asked again until it has, for
 * vram.wait_s at most. Also here: the sum of what the stages of one host bind of its memory.
 */
#pragma once
#include "runtime/peer.h"

/* True: the cards are as they should be. False: an answer is owed, or it waits, or the engine has failed. At the start only. */
bool vacancy_settled(struct engine *e);
/* Milliseconds until it wants to look again, or -1. */
int vacancy_timeout(const struct engine *e);

/* A stage's HOLDER and HOLDERS-DONE lines. */
void vacancy_holder(struct engine *e, struct peer *p, const struct message *m);
void vacancy_holders_done(struct engine *e, struct peer *p, const struct message *m);

/* "python3 (pid 4121) holds 22410 MiB, Xorg (pid 812) 64", or "" where nobody is known. */
void vacancy_words(const struct peer *p, char *text, size_t capacity);

/* All are HELD: the stages of every host together stay within host.budget_mib. EBB_EINVAL. */
int vacancy_host_budget(const struct engine *e, struct error *err);
