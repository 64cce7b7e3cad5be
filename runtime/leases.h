/* runtime/leases.h - who has borrowed what of which card, and what each card must leave free for all of them.
 *
 * A pure table: no clock, no process, no card is touched here; whoever drives it says what time it is and what has ended. The reserve
 * in force on a card is the largest of its base reserve and of the live leases on it; a lease is on one card or on all. Leases stand in
 * the order in which they were made, and a renewal keeps its place. The table is bounded and of fixed size: taking never allocates.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/vram.h"
#include "runtime/settings.h"

#define LEASES_MAX 256

struct lease {
    char name[LEASE_NAME_MAX + 1]; /* "" when taken: one is made up */
    bool to_start;                 /* the reserve of the start, of each card */
    uint64_t reserve_mib;          /* else this */
    bool every_card;
    uint32_t device; /* else this one */
    enum lease_term term;
    uint64_t until_us; /* LEASE_TIME: it has ended when this time has come */
    int32_t pid;       /* LEASE_PROCESS */
    int handle; /* LEASE_PROCESS: what tells its end, -1 else; whoever drives the table owns it */
    uint64_t connection; /* LEASE_CONNECTION: its number */
};

struct leases {
    struct lease rows[LEASES_MAX];
    size_t n;
    uint64_t start_mib[CARDS_MAX], base_mib[CARDS_MAX];
    uint32_t n_cards;
    uint64_t n_named; /* names made up so far */
};

/* No lease; start_mib [n_cards] is the base reserve of each card, too. */
void leases_init(struct leases *t, const uint64_t *start_mib, uint32_t n_cards);
/* A plain VRAM of these cards: the base changes, the leases stay. */
void leases_base(struct leases *t, const struct vram_request *r);
uint64_t leases_in_force(const struct leases *t, uint32_t device);
/* What this lease alone asks of a card; 0 where it is not on it. */
uint64_t lease_reserve(const struct leases *t, const struct lease *l, uint32_t device);

/* Makes a lease, or renews the one of that name: amount, cards and term are replaced. *before is the one replaced (its handle is the
 * caller's again), its name "" where there was none. *taken, in the table, is valid until the next change. EBB_EBUSY: the table is
 * full, nothing has changed. */
int leases_take(struct leases *t, const struct lease *wanted, const struct lease **taken,
                struct lease *before, struct error *err);
/* EBB_ENOENT: no such lease; err names the nearest. */
int leases_end(struct leases *t, const char *name, struct lease *gone, struct error *err);
const struct lease *leases_find(const struct leases *t, const char *name); /* NULL: none */

/* Each ends one lease and says which, until there is none: the earliest whose time has come; one of a connection; the one of a handle. */
bool leases_expire(struct leases *t, uint64_t now_us, struct lease *gone);
bool leases_end_connection(struct leases *t, uint64_t connection, struct lease *gone);
bool leases_end_handle(struct leases *t, int handle, struct lease *gone);
/* When the next lease ends by time. false: none does. */
bool leases_next(const struct leases *t, uint64_t *until_us);
