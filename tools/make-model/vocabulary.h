/* tools/make-model/vocabulary.h - the tokenizer's metadata: a byte vocabulary made here, or another file's.
 *
 * Both are brought to n_vocab tokens: padded with unused ones, or cut. What a cut leaves pointing nowhere (merges into
 * tokens that are gone, ids beyond the end) is left out.
 */
#pragma once
#include "tools/make-model/bytes.h"

/* Appends the entries; returns how many in *n_entries. EBB_EFORMAT (the file has no vocabulary), EBB_ENOMEM. */
int vocabulary_made(struct bytes *b, uint32_t n_vocab, size_t *n_entries, struct error *err);
int vocabulary_copied(struct bytes *b, const char *path, uint32_t n_vocab, size_t *n_entries,
                      struct error *err);
