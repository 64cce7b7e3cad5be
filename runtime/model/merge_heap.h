/* runtime/model/merge_heap.h - the joins that neighbours in a text could make, cheapest first; for
 * bpe.c and spm.c.
 *
 * A binary heap in the caller's memory. A join takes one candidate and adds at most two, so 2 n
 * places are enough for n symbols. Candidates whose neighbours have changed stay in it: who takes
 * one out looks whether it still holds.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct merge_candidate {
    uint32_t rank;       /* lowest first */
    uint32_t at;         /* the left symbol; the leftmost first of equal ranks */
    int32_t left, right; /* what the two were: ids, or lengths */
};

struct merge_heap {
    struct merge_candidate *items; /* the caller's */
    size_t n;
};

static inline bool merge_comes_before(const struct merge_candidate *x,
                                      const struct merge_candidate *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->at < y->at;
}

static inline void merge_heap_push(struct merge_heap *h, struct merge_candidate c)
{
    size_t i = h->n++;
    while (i > 0 && merge_comes_before(&c, &h->items[(i - 1) / 2])) {
        h->items[i] = h->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->items[i] = c;
}

/* n > 0. */
static inline struct merge_candidate merge_heap_pop(struct merge_heap *h)
{
    struct merge_candidate first = h->items[0], last = h->items[--h->n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < h->n) {
        if (child + 1 < h->n && merge_comes_before(&h->items[child + 1], &h->items[child]))
            child++;
        if (!merge_comes_before(&h->items[child], &last))
            break;
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return first;
}
