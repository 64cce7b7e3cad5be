/* vmm/heat.h - how hot each key is, and keys kept in the order of their heat.
 *
 * Heat: a touch first lets every key decay by one step (half-life in touches), then adds its weight
 * to one. Both in O(1): values are kept relative to a scale that grows instead of letting all
 * values shrink. Before the scale could overflow, everything is multiplied by one power of two
 * (heat_touch says so; once in 200 half-lives, O(keys)).
 *
 * Order: an indexed binary heap, so that the hottest or the coldest of a set is known at any time.
 * Entries carry the heat they were placed by, so comparing touches neighbours only. As heat
 * (relative to the scale) only ever rises, an order by coldest may lag: a touch costs nothing
 * there, and asking for the first brings up to date what has come to the top. In an order by
 * hottest a touch moves one key up. A linear scan after every step would read 65,536 keys (128
 * layers x 512 experts) where a token has a millisecond. A key is in at most one order at a time;
 * the orders of one set of keys share the table of positions. Ties: the lower key number is the
 * hotter.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

struct heat {
    double *value; /* owned [n_keys], times scale */
    double scale, growth;
    uint32_t n_keys;
};

/* EBB_EINVAL: a half-life that is neither 0 (never) nor at least one touch; EBB_ENOMEM. */
int heat_open(struct heat *h, uint32_t n_keys, double half_life_touches, struct error *err);
void heat_close(struct heat *h);
/* Weights that are not above zero change nothing. True: values were rescaled, so very cold ones may
 * now be ties and every order made from them must be rebuilt. */
bool heat_touch(struct heat *h, uint32_t key, double weight);
/* Adds heat as of now without letting any other decay: what is known from before. True: as heat_touch. */
bool heat_add(struct heat *h, uint32_t key, double weight);
double heat_now(const struct heat *h, uint32_t key);

static inline bool heat_is_hotter(const struct heat *h, uint32_t a, uint32_t b)
{
    return h->value[a] > h->value[b] || (h->value[a] == h->value[b] && a < b);
}

/* Brings the n_first hottest of keys[0..n) to the front, both parts in no particular order. O(n) on
 * average. */
void heat_select(const struct heat *h, uint32_t *keys, size_t n, size_t n_first);

#define HEAT_NO_POSITION UINT32_MAX

struct heat_entry {
    double value; /* of the key when it was placed: at most what it is now */
    uint32_t key;
};

struct heat_order {
    const struct heat *heat;    /* borrowed */
    struct heat_entry *entries; /* owned [heat->n_keys] */
    uint32_t *position; /* borrowed [heat->n_keys], of each key in its order, or HEAT_NO_POSITION */
    uint32_t n;
    bool hottest_first; /* else coldest first */
};

int heat_order_open(struct heat_order *o, const struct heat *heat, uint32_t *position,
                    bool hottest_first, struct error *err);
void heat_order_close(struct heat_order *o);
void heat_order_add(struct heat_order *o, uint32_t key);    /* a key of no order */
void heat_order_remove(struct heat_order *o, uint32_t key); /* a key of this one */
void heat_order_risen(struct heat_order *o, uint32_t key);  /* it was touched */
/* The hottest or coldest now; false when there is none. Const as seen from outside: entries that
 * lag are placed anew. */
bool heat_order_first(const struct heat_order *o, uint32_t *key);
/* Many changes at once: clear, append everything in any order, then rebuild: O(n). */
void heat_order_clear(struct heat_order *o); /* positions are left to the next append */
void heat_order_append(struct heat_order *o, uint32_t key);
void heat_order_rebuild(struct heat_order *o);
