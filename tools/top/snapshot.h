/* tools/top/snapshot.h - what a running engine said of itself in one round of questions, as values.
 *
 * A snapshot is filled line by line from the answers to STAT, LEDGER, PLAN and LEASES, in any order, and makes no system call.
 * What an engine does not tell stays unknown, what it tells beyond this is ignored: an older or a newer engine can be looked
 * at too. Rates come from two snapshots and the time between them. Plain values throughout: copying it is assignment.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/message.h"

#define SNAPSHOT_CARDS_MAX  64 /* more are counted in n_left_out */
#define SNAPSHOT_LEASES_MAX 64
#define SNAPSHOT_TEXT_BYTES 64
#define SNAPSHOT_LAYERS_MAX 256 /* of a card, that have experts */

/* The numbers of a card: MiB of STAT first, then its counts, then the bytes of LEDGER (snapshot_keys[]). */
enum snapshot_number {
    STAT_TOTAL_MIB,
    STAT_FREE_MIB,
    STAT_FOREIGN_MIB,
    STAT_RESERVE_MIB,
    STAT_BASE_MIB,
    STAT_SEGMENT_MIB,
    STAT_CACHE_MIB,
    STAT_CACHE_FULL_MIB,
    STAT_CACHE_FLOOR_MIB,
    STAT_SLOTS,
    STAT_SLOTS_FULL,
    STAT_SLOTS_FLOOR,
    STAT_RESIDENT,
    STAT_KV_BLOCKS,
    STAT_KV_BLOCKS_FREE,
    STAT_KV_BLOCKS_MAX,
    STAT_KV_MIB,
    STAT_SEQUENCES,
    STAT_PROMPT_CHUNK,
    STAT_STEPS,
    STAT_TOKENS,
    STAT_HITS,
    STAT_LOOKUPS,
    STAT_PROMOTIONS,
    STAT_HEAT_RESIDENT,
    LEDGER_TOTAL,
    LEDGER_FREE,
    LEDGER_FOREIGN,
    LEDGER_UNEXPLAINED,
    LEDGER_WEIGHTS,
    LEDGER_KV,
    LEDGER_CACHE,
    LEDGER_WORKSPACE,
    LEDGER_STREAM,
    LEDGER_LINK,
    LEDGER_BLAS,
    LEDGER_CONTEXT,
    LEDGER_HOST_REGISTERED, /* of the host, not of the card */
    SNAPSHOT_NUMBERS,
};

struct snapshot_key {
    const char *verb, *key;
};
extern const struct snapshot_key snapshot_keys[SNAPSHOT_NUMBERS];

struct snapshot_card {
    uint32_t device;
    char place[SNAPSHOT_TEXT_BYTES], name[SNAPSHOT_TEXT_BYTES],
        kind[SNAPSHOT_TEXT_BYTES]; /* "": unknown */
    char uuid[SNAPSHOT_TEXT_BYTES], state[SNAPSHOT_TEXT_BYTES], layers[SNAPSHOT_TEXT_BYTES];
    bool is_known[SNAPSHOT_NUMBERS];
    int64_t numbers[SNAPSHOT_NUMBERS];
    size_t n_heats; /* 0: not told, or no layer has experts */
    uint16_t
        heat[SNAPSHOT_LAYERS_MAX]; /* resident part of each such layer's heat, in thousandths */
    double hit_rate, steps_per_s, tokens_per_s; /* snapshot_rates(); below 0: unknown */
};

struct snapshot_lease {
    char name[SNAPSHOT_TEXT_BYTES];
    int64_t device;                     /* below 0: every card, or not told */
    int64_t reserve_mib;                /* below 0: not told */
    char rest[2 * SNAPSHOT_TEXT_BYTES]; /* the other keys as they stand in the line */
};

struct snapshot {
    char engine[SNAPSHOT_TEXT_BYTES];
    size_t n_cards, n_leases, n_left_out;
    bool leases_known;   /* the engine answered LEASES */
    double tokens_per_s; /* of the run: every card has a part in each token; below 0: unknown */
    struct snapshot_card cards[SNAPSHOT_CARDS_MAX]; /* in the order in which they were told */
    struct snapshot_lease leases[SNAPSHOT_LEASES_MAX];
};

/* Takes one line of an answer. Lines of other verbs, without a device, or beyond the bounds change nothing. */
void snapshot_take(struct snapshot *s, const struct message *m);
/* Rates of every card since `before`, `seconds` ago. Those of a card that was not there or whose counters went back (its
 * stage was started again), and all of them where seconds <= 0 or before is NULL, are unknown. */
void snapshot_rates(struct snapshot *s, const struct snapshot *before, double seconds);
/* -1: not known */
int64_t snapshot_number(const struct snapshot_card *card, enum snapshot_number which);
