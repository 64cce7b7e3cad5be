/* runtime/model/pretokenizer.h - cuts text into the words that merging never crosses, by a pattern
 * named in the file.
 *
 * Threads: one at a time (the match's memory is kept).
 */
#pragma once
#include "runtime/model/gguf.h"

struct pretokenizer_row;

struct pretokenizer {
    const struct pretokenizer_row *row;   /* static */
    void *code, *match, *context, *stack; /* owned: PCRE2's */
    bool adds_bos;                        /* what the vocabulary does where the file does not say */
    bool whole_words; /* a word that is a token stays whole, whatever its merges */
};

/* By tokenizer.ggml.pre. EBB_EFORMAT (no such key), EBB_EUNSUPPORTED (no such pattern),
 * EBB_ENOMEM; closed on failure. */
int pretokenizer_open(struct pretokenizer *p, const struct gguf *g, struct error *err);
void pretokenizer_close(struct pretokenizer *p);

/* The end of the word that begins at text[at], at < n; text is valid UTF-8. Words cover the text
 * without gaps. EBB_ENOMEM: PCRE2 gave up. */
int pretokenizer_next(struct pretokenizer *p, const char *text, size_t n, size_t at, size_t *end);
