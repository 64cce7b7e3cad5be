/* runtime/model/bpe.c - the merges of a vocabulary, and merging a word by them.
 *
 * A word is a doubly linked list of symbols, one per byte at first; a heap (merge_heap.h) holds the
 * merges that its neighbours could make, ordered by rank, then by place. Joining two symbols leaves
 * old candidates in it: they are recognised when they come up, because their pair is no longer there.
 * Refused at open: merges that name unknown tokens. The work space is kept from word to word,
 * except that of an unusually long one.
 */
#include "runtime/model/bpe.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/model/show.h"

#define NO_SYMBOL    UINT32_MAX
#define KEPT_SYMBOLS 4096 /* words longer than this give their work space back */

struct bpe_merge {
    int32_t left, right; /* left < 0: a free slot */
    int32_t merged;
    uint32_t rank;
};

struct bpe_symbol {
    int32_t id; /* -1: joined to the one before it */
    uint32_t previous, next;
};

static struct bpe_merge *slot_of(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h ^ h >> 32) & (b->n_slots - 1);
    while (b->merges[i].left >= 0 && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & (b->n_slots - 1);
    return &b->merges[i];
}

/* "left right" -> ids. A merge into a control token is left out: ordinary text never becomes
 * one. */
static int merge_add(struct bpe *b, struct gguf_string text, size_t rank, const struct gguf *g,
                     struct error *err)
{
    const struct gguf_string none = {"", 0};
    char shown[SHOWN_BYTES];
    const char *space = text.n_bytes > 1 ? memchr(text.bytes + 1, ' ', text.n_bytes - 1) : NULL;
    int32_t left_id = -1, right_id = -1, merged = -1;
    if (space != NULL) {
        struct gguf_string left = {text.bytes, (size_t)(space - text.bytes)};
        struct gguf_string right = {space + 1, text.n_bytes - left.n_bytes - 1};
        left_id = vocab_find(b->vocab, left, none);
        right_id = vocab_find(b->vocab, right, none);
        merged = vocab_find(b->vocab, left, right);
    }
    if (left_id < 0 || right_id < 0 || merged < 0)
        return error_set(
            err, EBB_EFORMAT,
            "%s: metadata key tokenizer.ggml.merges: merge %zu wants two tokens that make a "
            "third, got \"%s\"",
            show_path(gguf_path(g)), rank, show_name(text, shown));
    struct bpe_merge *m = slot_of(b, left_id, right_id);
    if (m->left < 0 && !vocab_is_control(b->vocab, merged))
        *m = (struct bpe_merge){left_id, right_id, merged, (uint32_t)rank};
    return 0;
}

int bpe_open(struct bpe *b, const struct vocab *v, const struct gguf *g, struct error *err)
{
    const struct gguf_value *merges = gguf_find(g, "tokenizer.ggml.merges");
    size_t cursor = 0;
    int rc = 0;
    memset(b, 0, sizeof *b);
    b->vocab = v;
    if (merges == NULL || merges->type != GGUF_ARRAY || merges->element_type != GGUF_STRING)
        return error_set(
            err, EBB_EFORMAT,
            "%s: metadata key tokenizer.ggml.merges: wants an array of strings, got none",
            show_path(gguf_path(g)));
    if (merges->n_elements > INT32_MAX / 4)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata key tokenizer.ggml.merges: wants at most 2^29, got %llu",
                         show_path(gguf_path(g)), (unsigned long long)merges->n_elements);
    for (b->n_slots = 16; b->n_slots < 2 * merges->n_elements;)
        b->n_slots *= 2;
    b->merges = malloc(b->n_slots * sizeof *b->merges);
    if (b->merges == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory for the merges", show_path(gguf_path(g)));
    memset(b->merges, 0xff, b->n_slots * sizeof *b->merges);
    for (size_t rank = 0; rc == 0 && rank < merges->n_elements; rank++)
        rc = merge_add(b, gguf_array_string(merges, &cursor), rank, g, err);
    if (rc != 0)
        bpe_close(b);
    return rc;
}

static void work_space_free(struct bpe *b)
{
    free(b->symbols);
    free(b->heap.items);
    b->symbols = NULL;
    b->heap.items = NULL;
    b->n_symbols_max = 0;
}

void bpe_close(struct bpe *b)
{
    free(b->merges);
    work_space_free(b);
    memset(b, 0, sizeof *b);
}

static int work_space(struct bpe *b, size_t n)
{
    if (n <= b->n_symbols_max)
        return 0;
    if (n > INT32_MAX / 4)
        return EBB_ENOMEM;
    work_space_free(b);
    n = n < KEPT_SYMBOLS ? KEPT_SYMBOLS : n;
    b->symbols = malloc(n * sizeof *b->symbols);
    b->heap.items = malloc(2 * n * sizeof *b->heap.items);
    if (b->symbols == NULL || b->heap.items == NULL) {
        work_space_free(b);
        return EBB_ENOMEM;
    }
    b->n_symbols_max = n;
    return 0;
}

/* The merge of symbol `at` and the one after it, if there is one. */
static void consider(struct bpe *b, uint32_t at)
{
    if (at == NO_SYMBOL || b->symbols[at].next == NO_SYMBOL)
        return;
    int32_t left = b->symbols[at].id, right = b->symbols[b->symbols[at].next].id;
    const struct bpe_merge *m = slot_of(b, left, right);
    if (m->left >= 0)
        merge_heap_push(&b->heap, (struct merge_candidate){m->rank, at, left, right});
}

static void join(struct bpe *b, const struct merge_candidate *c)
{
    struct bpe_symbol *left = &b->symbols[c->at];
    if (left->id != c->left || left->next == NO_SYMBOL || b->symbols[left->next].id != c->right)
        return;
    struct bpe_symbol *right = &b->symbols[left->next];
    left->id = slot_of(b, c->left, c->right)->merged;
    left->next = right->next;
    right->id = -1;
    if (left->next != NO_SYMBOL)
        b->symbols[left->next].previous = c->at;
    consider(b, left->previous);
    consider(b, c->at);
}

/* The word's bytes as a list of symbols, joined until no merge applies. */
static void merge_word(struct bpe *b, const unsigned char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        b->symbols[i] = (struct bpe_symbol){
            .id = b->vocab->byte_ids[word[i]],
            .previous = i > 0 ? (uint32_t)i - 1 : NO_SYMBOL,
            .next = i + 1 < n ? (uint32_t)i + 1 : NO_SYMBOL,
        };
    b->heap.n = 0;
    for (size_t i = 0; i < n; i++)
        consider(b, (uint32_t)i);
    while (b->heap.n > 0) {
        struct merge_candidate c = merge_heap_pop(&b->heap);
        join(b, &c);
    }
}

int bpe_word(struct bpe *b, const unsigned char *word, size_t n, int32_t *ids, size_t ids_max,
             size_t *n_ids)
{
    int rc = 0;
    if (n == 0)
        return 0;
    if (work_space(b, n) != 0)
        return EBB_ENOMEM;
    merge_word(b, word, n);
    for (uint32_t i = 0; rc == 0 && i != NO_SYMBOL; i = b->symbols[i].next) {
        if (*n_ids < ids_max)
            ids[(*n_ids)++] = b->symbols[i].id;
        else
            rc = EBB_ERANGE;
    }
    if (b->n_symbols_max > KEPT_SYMBOLS)
        work_space_free(b);
    return rc;
}
