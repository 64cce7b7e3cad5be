/* runtime/kv_credit.h - the coordinator's own count of KV blocks: what may be promised to a
 * sequence.
 *
 * Every stage pages the KV of its layers in blocks of the same number of positions, so one count
 * serves all stages: the smallest kv_blocks any of them grants now (the limit), of all that they
 * may grow to (n_blocks). The count is kept as blocks with
 * reference counts, the way a stage keeps them: a fork shares whole blocks and gets its own copy of
 * a partial one. So the sum can never promise what a stage has not. Pure; one owner.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/error.h"

struct kv_credit {
    uint32_t n_blocks, n_free;
    uint32_t n_limit; /* blocks that may be used; n_blocks after open */
    uint16_t *users;  /* owned [n_blocks]: how many holdings name this block */
    uint32_t *free;   /* owned [n_blocks]: a stack of unused blocks */
};

/* What one sequence holds. The array is the caller's to free, through kv_holding_close(). */
struct kv_holding {
    uint32_t *blocks; /* [n_max] */
    uint32_t n, n_max;
};

int kv_credit_open(struct kv_credit *c, uint32_t n_blocks, struct error *err);
void kv_credit_close(struct kv_credit *c);

static inline uint32_t kv_credit_used(const struct kv_credit *c)
{
    return c->n_blocks - c->n_free;
}
/* What may still be taken. */
static inline uint32_t kv_credit_left(const struct kv_credit *c)
{
    return c->n_limit > kv_credit_used(c) ? c->n_limit - kv_credit_used(c) : 0;
}

int kv_holding_open(struct kv_holding *h, uint32_t n_max, struct error *err);
void kv_holding_close(
    struct kv_holding *h); /* holds nothing any more: kv_trim(c, h, 0) came first */

/* Adds n blocks of its own. false: not that many are left, nothing changed. */
bool kv_take(struct kv_credit *c, struct kv_holding *h, uint32_t n);
/* An empty holding joins the first n blocks of another. */
void kv_share(struct kv_credit *c, const struct kv_holding *from, struct kv_holding *to,
              uint32_t n);
/* Keeps the first n blocks, lets go of the rest. */
void kv_trim(struct kv_credit *c, struct kv_holding *h, uint32_t n);
/* How many blocks would become free if only the first n stayed. */
uint32_t kv_private(const struct kv_credit *c, const struct kv_holding *h, uint32_t n);
