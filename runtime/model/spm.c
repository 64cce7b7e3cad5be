/* runtime/model/spm.c - merging a text by the scores of a SentencePiece vocabulary.
 *
 * A text is a doubly linked list of symbols, one per character at first (one per byte where the
 * bytes are no character), each a range of the text. Two neighbours may join where their text
 * together is a token; the heap (merge_heap.h) brings the highest score first, then the leftmost.
 * Control tokens and byte tokens are never made by joining. In the end a symbol that is no token
 * gives the tokens of its bytes, or the unknown token in a vocabulary without those. Source: Kudo
 * and Richardson, arXiv 1808.06226, and the library's BPE model. The work space is kept from text
 * to text, except that of an unusually long one.
 */
#include "runtime/model/spm.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/error.h"
#include "runtime/model/utf8.h"

#define NO_SYMBOL    UINT32_MAX
#define KEPT_SYMBOLS 4096 /* texts longer than this give their work space back */

struct spm_symbol {
    const char *text;
    uint32_t n_bytes; /* 0: joined to the one before it */
    uint32_t previous, next;
};

void spm_open(struct spm *s, const struct vocab *v)
{
    memset(s, 0, sizeof *s);
    s->vocab = v;
}

static void work_space_free(struct spm *s)
{
    free(s->symbols);
    free(s->heap.items);
    s->symbols = NULL;
    s->heap.items = NULL;
    s->n_symbols_max = 0;
}

void spm_close(struct spm *s)
{
    work_space_free(s);
    memset(s, 0, sizeof *s);
}

static int work_space(struct spm *s, size_t n)
{
    if (n <= s->n_symbols_max)
        return 0;
    if (n > INT32_MAX / 4)
        return EBB_ENOMEM;
    work_space_free(s);
    n = n < KEPT_SYMBOLS ? KEPT_SYMBOLS : n;
    s->symbols = malloc(n * sizeof *s->symbols);
    s->heap.items = malloc(2 * n * sizeof *s->heap.items);
    if (s->symbols == NULL || s->heap.items == NULL) {
        work_space_free(s);
        return EBB_ENOMEM;
    }
    s->n_symbols_max = n;
    return 0;
}

/* The token that is exactly this text and may stand for text; -1: none. */
static int32_t token_of(const struct vocab *v, const char *text, size_t n)
{
    if (n > v->text_bytes_max)
        return -1;
    int32_t id = vocab_find(v, (struct gguf_string){text, n}, (struct gguf_string){"", 0});
    return id >= 0 && !vocab_is_control(v, id) && v->types[id] != TOKEN_BYTE ? id : -1;
}

/* Floats in the order of unsigned integers, upside down: the highest score has the lowest rank. */
static uint32_t rank_of(float score)
{
    uint32_t bits;
    score += 0.0f; /* one zero only */
    memcpy(&bits, &score, sizeof bits);
    return ~((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u);
}

/* The joining of symbol `at` and the one after it, if there is a token for it. */
static void consider(struct spm *s, uint32_t at)
{
    if (at == NO_SYMBOL || s->symbols[at].next == NO_SYMBOL)
        return;
    uint32_t left = s->symbols[at].n_bytes, right = s->symbols[s->symbols[at].next].n_bytes;
    int32_t id = token_of(s->vocab, s->symbols[at].text, (size_t)left + right);
    if (id >= 0)
        merge_heap_push(&s->heap, (struct merge_candidate){rank_of(s->vocab->scores[id]), at,
                                                           (int32_t)left, (int32_t)right});
}

static void join(struct spm *s, const struct merge_candidate *c)
{
    struct spm_symbol *left = &s->symbols[c->at];
    if (left->n_bytes != (uint32_t)c->left || left->next == NO_SYMBOL ||
        s->symbols[left->next].n_bytes != (uint32_t)c->right)
        return;
    struct spm_symbol *right = &s->symbols[left->next];
    left->n_bytes += right->n_bytes;
    left->next = right->next;
    right->n_bytes = 0;
    if (left->next != NO_SYMBOL)
        s->symbols[left->next].previous = c->at;
    consider(s, left->previous);
    consider(s, c->at);
}

/* The text as symbols, joined until no token covers two neighbours. */
static void merge(struct spm *s, const char *text, size_t n)
{
    uint32_t count = 0;
    for (size_t at = 0, length; at < n; at += length) {
        length = utf8_character((const unsigned char *)text + at, n - at);
        length = length != 0 ? length : 1;
        s->symbols[count] = (struct spm_symbol){.text = text + at,
                                                .n_bytes = (uint32_t)length,
                                                .previous = count > 0 ? count - 1 : NO_SYMBOL,
                                                .next = at + length < n ? count + 1 : NO_SYMBOL};
        count++;
    }
    s->heap.n = 0;
    for (uint32_t i = 0; i < count; i++)
        consider(s, i);
    while (s->heap.n > 0) {
        struct merge_candidate c = merge_heap_pop(&s->heap);
        join(s, &c);
    }
}

static int put(int32_t id, int32_t *ids, size_t ids_max, size_t *n_ids)
{
    if (*n_ids >= ids_max)
        return EBB_ERANGE;
    ids[(*n_ids)++] = id;
    return 0;
}

static int put_symbol(const struct vocab *v, const struct spm_symbol *symbol, int32_t *ids,
                      size_t ids_max, size_t *n_ids)
{
    int32_t id = token_of(v, symbol->text, symbol->n_bytes);
    int rc = 0;
    if (id >= 0)
        return put(id, ids, ids_max, n_ids);
    if (!v->has_bytes)
        return put(v->unknown, ids, ids_max, n_ids);
    for (uint32_t b = 0; rc == 0 && b < symbol->n_bytes; b++)
        rc = put(v->byte_ids[(unsigned char)symbol->text[b]], ids, ids_max, n_ids);
    return rc;
}

int spm_text(struct spm *s, const char *text, size_t n, int32_t *ids, size_t ids_max, size_t *n_ids)
{
    int rc = 0;
    if (n == 0)
        return 0;
    if (work_space(s, n) != 0)
        return EBB_ENOMEM;
    merge(s, text, n);
    for (uint32_t i = 0; rc == 0 && i != NO_SYMBOL; i = s->symbols[i].next)
        rc = put_symbol(s->vocab, &s->symbols[i], ids, ids_max, n_ids);
    if (s->n_symbols_max > KEPT_SYMBOLS)
        work_space_free(s);
    return rc;
}
