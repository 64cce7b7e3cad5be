/* runtime/model/pretokenizer.h - cuts text into the words that merging never crosses, by patterns
 * named in the file.
 *
 * A pre-tokeniser is one pattern or several: the first cuts the text into what it matches and what
 * is between, each later one cuts those pieces again. Words come lazily, from the front. Threads:
 * one at a time (the match's memory is kept).
 */
#pragma once
#include "runtime/model/gguf.h"

#define PRETOKENIZER_STAGES_MAX 6

struct pretokenizer_row;

struct pretokenizer {
    const struct pretokenizer_row *row; /* static */
    size_t n_stages;
    struct {
        void *code, *match; /* owned: PCRE2's */
        size_t end;         /* of the piece that this stage is in */
    } stages[PRETOKENIZER_STAGES_MAX];
    void *context, *stack; /* owned: PCRE2's */
    const char *text;      /* borrowed: being cut */
    size_t n, at;
    bool adds_bos;    /* what the vocabulary does where the file does not say */
    bool whole_words; /* a word that is a token stays whole, whatever its merges */
};

/* By tokenizer.ggml.pre; a file without it is cut as "default", as such files were made before the
 * key was. EBB_EFORMAT, EBB_EUNSUPPORTED (no such pattern), EBB_ENOMEM; closed on failure. */
int pretokenizer_open(struct pretokenizer *p, const struct gguf *g, struct error *err);
void pretokenizer_close(struct pretokenizer *p);

/* Starts on a text, which is valid UTF-8 and stays until the last word was taken. */
void pretokenizer_begin(struct pretokenizer *p, const char *text, size_t n);

/* The next word is text[*start..*end); *start == *end at the end of the text. Words cover the text
 * without gaps. EBB_ENOMEM: PCRE2 gave up. */
int pretokenizer_next(struct pretokenizer *p, size_t *start, size_t *end);
