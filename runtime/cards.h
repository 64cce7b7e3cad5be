/* runtime/cards.h - VRAM, STAT and LEDGER over the cards: who is asked, who has answered, what the
 * answer is.
 *
 * VRAM commands are served one at a time in arrival order over all connections; the cards of one
 * work in parallel. STAT and LEDGER are asked at once. A card whose stage is being restarted
 * answers STAT through the coordinator (state=restarting); a VRAM waits for it.
 */
#pragma once
#include "runtime/peer.h"

void cards_vram(struct engine *e, struct connection *c, const struct message *m);
void cards_unlease(struct engine *e, struct connection *c, const struct message *m);
void cards_leases(struct engine *e, struct connection *c);
/* Leases have ended: at its turn, every card whose reserve in force is another than it was told is told. EBB_ENOMEM. */
int cards_settle(struct engine *e);
void cards_ask(struct engine *e, struct connection *c, const struct message *m,
               enum reply_kind kind);
void cards_plan(struct engine *e, struct connection *c);
void cards_start(struct engine *e,
                 struct card_command *k); /* a STAT, LEDGER or PLAN whose turn has come */

/* Answers of a stage. `line` is the whole line, as it came. */
void cards_receipt(struct engine *e, struct peer *p, const struct message *m);
void cards_refused(struct engine *e, struct peer *p, const struct error *said);
void cards_answer(struct engine *e, struct peer *p, const char *line, enum reply_kind kind);

void cards_peer_ready(struct engine *e, struct peer *p); /* what waited for it goes on */
void cards_peer_down(struct engine *e,
                     struct peer *p); /* what it owed is answered without it, or waits */
void cards_give_up(
    struct engine *e,
    const struct error *why); /* restarts fail again and again: the VRAM that waits gets an ERR */
void cards_close(struct engine *e); /* VRAM commands that are still owed; no connection is left */
void card_command_free(struct engine *e, struct card_command *k);
