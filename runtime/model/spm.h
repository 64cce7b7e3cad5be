/* runtime/model/spm.h - SentencePiece's merging of a text: neighbours join by the score of the
 * token that they make, highest first.
 *
 * Text comes as the vocabulary writes it (a space is U+2581); what has no token falls back to its
 * bytes. A text of n bytes costs n log n. Threads: one at a time (the work space is kept).
 * Lifetime: the vocab must outlive it.
 */
#pragma once
#include "runtime/model/merge_heap.h"
#include "runtime/model/vocab.h"

struct spm_symbol;

struct spm {
    const struct vocab *vocab;  /* borrowed */
    struct spm_symbol *symbols; /* owned work space [n_symbols_max] */
    struct merge_heap heap;     /* owned work space [2 * n_symbols_max] */
    size_t n_symbols_max;
};

void spm_open(struct spm *s, const struct vocab *v);
void spm_close(struct spm *s); /* also of a zeroed one */

/* Appends the ids of n bytes, any bytes. EBB_ERANGE (more than ids_max: *n_ids is then without
 * meaning), EBB_ENOMEM. */
int spm_text(struct spm *s, const char *text, size_t n, int32_t *ids, size_t ids_max,
             size_t *n_ids);
