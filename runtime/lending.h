/* runtime/lending.h - leases in the engine: how they begin and end, and who is told.
 *
 * The table (leases.h) changes when a VRAM or UNLEASE has its turn (cards.c), and between turns when a time has come, a process has
 * ended or a connection is lost. Ends are only marked; once a turn the cards concerned are told the new reserve in force. Whoever sent
 * WATCH gets EVENT lines: a lease made, renewed, ended and why; the receipts that were not its own.
 */
#pragma once
#include <poll.h>
#include "runtime/engine_state.h"

/* What a VRAM command whose turn has come does to base and leases; fills the cards concerned and, of a lease, its name. Where it is
 * refused, k->refused says why and no card is concerned. */
void lending_apply(struct engine *e, struct card_command *k);
/* Before it is answered: a lease that a card refused ends. */
void lending_finish(struct engine *e, struct card_command *k);
void lending_receipt(struct engine *e, const struct card_command *k, const char *line);
uint64_t lending_cards(const struct engine *e, bool every_card, uint32_t device); /* as bits */
/* What LOAD asks for: the reserve in force; of a stage that is started again no more than leaves it the cache it had, since a reserve
 * that cannot be met is refused by LOAD: the card may have had too little for it, or the borrower may use it by now. */
uint64_t lending_reserve_to_load(const struct engine *e, const struct peer *p);

/* A pidfd. EBB_ENOENT: no such process, or it has ended; EBB_EINVAL: a thread; EBB_EIO. */
int lending_handle_open(int32_t pid, int *handle, struct error *err);
void lending_handle_close(int *handle);

void lending_watch(struct engine *e, struct connection *c);
void lending_connection_gone(struct engine *e, const struct connection *c);
char *lending_list(const struct engine *e,
                   uint64_t now); /* LEASES lines; caller frees; NULL: no memory */

/* Every turn: what ends by time, and what the cards have to be told. */
void lending_turn(struct engine *e);
int lending_timeout(const struct engine *e,
                    int timeout_ms); /* poll's, no later than the next end */
/* The processes to wait for, at most one a lease; what poll() said of them. */
size_t lending_poll(const struct engine *e, struct pollfd *fds);
void lending_polled(struct engine *e, const struct pollfd *fds, size_t n_fds);
void lending_close(struct engine *e);
