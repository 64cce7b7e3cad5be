/* tools/make-model/vocabulary.c - the entries tokenizer.* of a file that is made.
 *
 * The made one is byte-level without merges: a token for each byte, one that ends a text, and unused ones up to the size.
 * A copied one keeps the bytes of the other file's entries. Which merges a cut takes away is decided by
 * looking all three of their tokens up in the tokens that stay. Whether the whole is a vocabulary is for the reader of the
 * finished file to say (output.c asks it).
 */
#include "tools/make-model/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/model/vocab.h"

#define MERGES       "tokenizer.ggml.merges"
#define END_OF_TEXT  256
#define UNUSED_SCORE (-1e6f) /* no merge of SentencePiece ever prefers it */

/* What files in use say of their vocabulary. */
static const char *const keys[] = {
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    MERGES,
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.chat_template",
};

static void unused_add(struct bytes *b, uint32_t id)
{
    char text[32];
    int n = snprintf(text, sizeof text, "<unused_%u>", id);
    bytes_add_text(b, text, (size_t)n);
}

int vocabulary_made(struct bytes *b, uint32_t n_vocab, size_t *n_entries, struct error *err)
{
    static const char end[] = "<|endoftext|>";
    if (n_vocab <= END_OF_TEXT)
        return error_set(err, EBB_EINVAL,
                         "a vocabulary of bytes: wants at least 257 tokens, got %u", n_vocab);
    entry_text(b, "tokenizer.ggml.model", "gpt2");
    entry_text(b, "tokenizer.ggml.pre", "gpt-2");
    entry_array(b, "tokenizer.ggml.tokens", GGUF_STRING, n_vocab);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[2];
        bytes_add_text(b, text, byte_alphabet((unsigned char)byte, text));
    }
    bytes_add_text(b, end, sizeof end - 1);
    for (uint32_t id = END_OF_TEXT + 1; id < n_vocab; id++)
        unused_add(b, id);
    entry_array(b, "tokenizer.ggml.token_type", GGUF_I32, n_vocab);
    for (uint32_t id = 0; id < n_vocab; id++)
        bytes_add_u32(b, id < END_OF_TEXT    ? TOKEN_NORMAL
                         : id == END_OF_TEXT ? TOKEN_CONTROL
                                             : TOKEN_UNUSED);
    entry_array(b, MERGES, GGUF_STRING, 0);
    entry_u32(b, "tokenizer.ggml.bos_token_id", END_OF_TEXT);
    entry_u32(b, "tokenizer.ggml.eos_token_id", END_OF_TEXT);
    entry_bool(b, "tokenizer.ggml.add_bos_token", false);
    *n_entries = 8;
    return 0;
}

/* The bytes of a value, or of all elements of an array. */
static size_t value_bytes(const struct gguf_value *v)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    size_t cursor = 0;
    if (v->element_type != GGUF_STRING)
        return sizes[v->element_type] * (size_t)v->n_elements;
    for (uint64_t i = 0; i < v->n_elements; i++)
        (void)gguf_array_string(v, &cursor);
    return cursor;
}

static int by_text(const void *a, const void *b)
{
    const struct gguf_string *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes);
    return order != 0 ? order : (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* What a cut needs to know. */
struct kept {
    const struct gguf_value *tokens;
    uint32_t n_vocab;
    struct gguf_string *sorted; /* owned: the tokens that stay */
    size_t n_sorted;
};

static bool is_kept(const struct kept *k, const char *bytes, size_t n)
{
    struct gguf_string key = {bytes, n};
    return bsearch(&key, k->sorted, k->n_sorted, sizeof key, by_text) != NULL;
}

static bool merge_is_kept(const struct kept *k, struct gguf_string merge)
{
    char joined[1024];
    const char *space = merge.n_bytes > 1 ? memchr(merge.bytes + 1, ' ', merge.n_bytes - 1) : NULL;
    if (space == NULL || merge.n_bytes > sizeof joined)
        return false;
    size_t n_left = (size_t)(space - merge.bytes), n_right = merge.n_bytes - n_left - 1;
    memcpy(joined, merge.bytes, n_left);
    memcpy(joined + n_left, space + 1, n_right);
    return is_kept(k, merge.bytes, n_left) && is_kept(k, space + 1, n_right) &&
           is_kept(k, joined, n_left + n_right);
}

static void merges_copy(struct bytes *b, const struct gguf_value *v, const struct kept *k)
{
    size_t cursor = 0, count_at;
    uint64_t n = 0;
    entry_array(b, MERGES, GGUF_STRING, 0);
    count_at = b->n - sizeof n;
    for (uint64_t i = 0; i < v->n_elements; i++) {
        struct gguf_string merge = gguf_array_string(v, &cursor);
        if (merge_is_kept(k, merge)) {
            bytes_add_text(b, merge.bytes, merge.n_bytes);
            n++;
        }
    }
    if (!b->failed)
        memcpy(b->data + count_at, &n, sizeof n);
}

/* An array of one element a token: the first n_vocab, then what stands for unused ones. */
static void per_token_copy(struct bytes *b, const char *key, const struct gguf_value *v,
                           const struct kept *k)
{
    const float score = UNUSED_SCORE;
    uint64_t n = v->n_elements < k->n_vocab ? v->n_elements : k->n_vocab;
    size_t cursor = 0;
    entry_array(b, key, v->element_type, k->n_vocab);
    if (v->element_type != GGUF_STRING)
        bytes_add(b, v->data, 4 * (size_t)n);
    for (uint64_t i = 0; i < n && v->element_type == GGUF_STRING; i++) {
        struct gguf_string text = gguf_array_string(v, &cursor);
        bytes_add_text(b, text.bytes, text.n_bytes);
    }
    for (uint32_t id = (uint32_t)n; id < k->n_vocab; id++) {
        if (v->element_type == GGUF_STRING)
            unused_add(b, id);
        else if (v->element_type == GGUF_F32)
            bytes_add(b, &score, sizeof score);
        else
            bytes_add_u32(b, TOKEN_UNUSED);
    }
}

/* Whether it is an id of a token that a cut took away. */
static bool is_lost_id(const struct gguf *g, const struct gguf_value *v, const char *key,
                       uint32_t n_vocab)
{
    uint32_t id;
    size_t n = strlen(key);
    if (n < 3 || strcmp(key + n - 3, "_id") != 0 || v->type == GGUF_ARRAY)
        return false;
    return gguf_u32(g, key, 0, n_vocab - 1, &id, NULL) != 0;
}

static bool has_4_bytes(const struct gguf_value *v)
{
    return v->element_type == GGUF_F32 || v->element_type == GGUF_I32 ||
           v->element_type == GGUF_U32;
}

/* Returns whether an entry was written. */
static bool entry_copy(struct bytes *b, const struct gguf *g, const char *key, const struct kept *k)
{
    const struct gguf_value *v = gguf_find(g, key);
    bool is_merges = strcmp(key, MERGES) == 0;
    if (v == NULL || (v->type == GGUF_ARRAY && v->element_type == GGUF_ARRAY) ||
        is_lost_id(g, v, key, k->n_vocab))
        return false;
    if (is_merges && v->element_type == GGUF_STRING) {
        merges_copy(b, v, k);
    } else if (v->type == GGUF_ARRAY && !is_merges && v->n_elements == k->tokens->n_elements &&
               (v == k->tokens || has_4_bytes(v))) {
        per_token_copy(b, key, v, k);
    } else {
        if (v->type == GGUF_ARRAY)
            entry_array(b, key, v->element_type, v->n_elements);
        else
            entry_begin(b, key, v->type);
        bytes_add(b, v->data, value_bytes(v));
    }
    return true;
}

static int kept_open(struct kept *k, const struct gguf *g, const char *path, uint32_t n_vocab,
                     struct error *err)
{
    size_t cursor = 0;
    k->n_vocab = n_vocab;
    k->tokens = gguf_find(g, "tokenizer.ggml.tokens");
    if (k->tokens == NULL || k->tokens->type != GGUF_ARRAY ||
        k->tokens->element_type != GGUF_STRING)
        return error_set(
            err, EBB_EFORMAT,
            "%s: metadata key tokenizer.ggml.tokens: wants an array of strings, got none", path);
    k->n_sorted = k->tokens->n_elements < n_vocab ? (size_t)k->tokens->n_elements : n_vocab;
    k->sorted = calloc(k->n_sorted + 1, sizeof *k->sorted);
    if (k->sorted == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for %zu tokens", k->n_sorted);
    for (size_t i = 0; i < k->n_sorted; i++)
        k->sorted[i] = gguf_array_string(k->tokens, &cursor);
    qsort(k->sorted, k->n_sorted, sizeof *k->sorted, by_text);
    return 0;
}

int vocabulary_copied(struct bytes *b, const char *path, uint32_t n_vocab, size_t *n_entries,
                      struct error *err)
{
    struct gguf *g = NULL;
    struct kept kept = {0};
    int code = gguf_open(&g, path, err);
    if (code == 0)
        code = kept_open(&kept, g, path, n_vocab, err);
    *n_entries = 0;
    for (size_t i = 0; code == 0 && i < sizeof keys / sizeof keys[0]; i++)
        *n_entries += entry_copy(b, g, keys[i], &kept);
    free(kept.sorted);
    gguf_close(g);
    return code;
}
