/* runtime/kv_credit.c - reference-counted block credits.
 *
 * Owns two arrays per credit and one per holding, all sized at open; taking, sharing and letting go
 * allocate nothing. Block numbers mean nothing outside: a stage numbers its own. Callers keep n
 * within n_max (asserted: it is our own arithmetic, never a peer's number).
 */
#include "runtime/kv_credit.h"
#include <assert.h>
#include <stdlib.h>

int kv_credit_open(struct kv_credit *c, uint32_t n_blocks, struct error *err)
{
    *c = (struct kv_credit){.n_blocks = n_blocks, .n_free = n_blocks, .n_limit = n_blocks};
    c->users = calloc(n_blocks + 1u, sizeof *c->users);
    c->free = calloc(n_blocks + 1u, sizeof *c->free);
    if (c->users == NULL || c->free == NULL) {
        kv_credit_close(c);
        return error_set(err, EBB_ENOMEM, "no memory to count %u KV blocks", n_blocks);
    }
    for (uint32_t i = 0; i < n_blocks; i++)
        c->free[i] = n_blocks - 1 - i;
    return 0;
}

void kv_credit_close(struct kv_credit *c)
{
    free(c->users);
    free(c->free);
    *c = (struct kv_credit){0};
}

int kv_holding_open(struct kv_holding *h, uint32_t n_max, struct error *err)
{
    *h = (struct kv_holding){.n_max = n_max, .blocks = calloc(n_max + 1u, sizeof *h->blocks)};
    return h->blocks != NULL ? 0 : error_set(err, EBB_ENOMEM, "no memory for %u KV blocks", n_max);
}

void kv_holding_close(struct kv_holding *h)
{
    assert(h->n == 0);
    free(h->blocks);
    *h = (struct kv_holding){0};
}

bool kv_take(struct kv_credit *c, struct kv_holding *h, uint32_t n)
{
    assert(h->n + n <= h->n_max);
    if (n > kv_credit_left(c))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = c->free[--c->n_free];
        c->users[block] = 1;
        h->blocks[h->n++] = block;
    }
    return true;
}

void kv_share(struct kv_credit *c, const struct kv_holding *from, struct kv_holding *to, uint32_t n)
{
    assert(to->n == 0 && n <= from->n && n <= to->n_max);
    for (uint32_t i = 0; i < n; i++) {
        c->users[from->blocks[i]]++;
        to->blocks[i] = from->blocks[i];
    }
    to->n = n;
}

void kv_trim(struct kv_credit *c, struct kv_holding *h, uint32_t n)
{
    while (h->n > n) {
        uint32_t block = h->blocks[--h->n];
        if (--c->users[block] == 0)
            c->free[c->n_free++] = block;
    }
}

uint32_t kv_private(const struct kv_credit *c, const struct kv_holding *h, uint32_t n)
{
    uint32_t n_private = 0;
    for (uint32_t i = n; i < h->n; i++)
        n_private += c->users[h->blocks[i]] == 1;
    return n_private;
}
