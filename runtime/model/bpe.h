/* runtime/model/bpe.h - byte-pair merging of one word: neighbours join by the rank of their merge,
 * lowest first.
 *
 * Merges are kept as pairs of ids. A word of n bytes costs n log n whatever it holds. Threads: one
 * at a time (the work space of a word is kept). Lifetime: the vocab must outlive it.
 */
#pragma once
#include "runtime/model/merge_heap.h"
#include "runtime/model/vocab.h"

struct bpe_merge;
struct bpe_symbol;

struct bpe {
    const struct vocab *vocab;  /* borrowed */
    struct bpe_merge *merges;   /* owned, open addressing by pair of ids */
    size_t n_slots;             /* a power of two */
    struct bpe_symbol *symbols; /* owned work space [n_symbols_max] */
    struct merge_heap heap;     /* owned work space [2 * n_symbols_max] */
    size_t n_symbols_max;
};

/* EBB_EFORMAT, EBB_ENOMEM; on failure it is closed. */
int bpe_open(struct bpe *b, const struct vocab *v, const struct gguf *g, struct error *err);
void bpe_close(struct bpe *b);

/* Appends the ids of a word of n bytes. EBB_ERANGE (more than ids_max: *n_ids is then without
 * meaning), EBB_ENOMEM. */
int bpe_word(struct bpe *b, const unsigned char *word, size_t n, int32_t *ids, size_t ids_max,
             size_t *n_ids);
