/* runtime/model/tokenizer.c - text to ids and back: puts the vocabulary, the pre-tokeniser and the
 * merging together.
 *
 * Owns all three. Encoding goes from coarse to fine: marks (special tokens, where asked for) cut
 * the text; what is between is cut into runs of valid UTF-8 and runs of other bytes; valid runs
 * into words by the pattern; words into tokens. Bytes that are no character make words of their
 * own, so nothing is lost or replaced. Control tokens come from marks alone, never from merging.
 * Threads: one at a time; tokenizer_piece() only reads.
 */
#include "runtime/model/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/model/bpe.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/show.h"
#include "runtime/model/utf8.h"

#define ENDS_MAX 8

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct pretokenizer pretokenizer;
    int32_t bos, eos;
    int32_t ends[ENDS_MAX]; /* of a turn or a text, eos among them */
    size_t n_ends;
    bool adds_bos;
};

/* Control tokens that end an answer, by the spelling that models in use give them. */
static const char *const end_texts[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",
                                        "<|end_of_text|>", "<|end|>"};

static void end_add(struct tokenizer *t, int32_t id)
{
    if (id >= 0 && t->n_ends < ENDS_MAX && !tokenizer_is_end(t, id))
        t->ends[t->n_ends++] = id;
}

static int read_model(const struct gguf *g, struct error *err)
{
    struct gguf_string name;
    char shown[SHOWN_BYTES];
    int rc = gguf_text(g, "tokenizer.ggml.model", &name, err);
    if (rc == EBB_ENOENT)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata key tokenizer.ggml.model: wants a name, got none",
                         show_path(gguf_path(g)));
    if (rc == 0 && (name.n_bytes != 4 || memcmp(name.bytes, "gpt2", 4) != 0))
        rc = error_set(
            err, EBB_EUNSUPPORTED,
            "%s: metadata key tokenizer.ggml.model: wants \"gpt2\" (byte-level BPE), got \"%s\"",
            show_path(gguf_path(g)), show_name(name, shown));
    return rc;
}

/* An id from a key, -1 where there is none. */
static int read_id(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t *id,
                   struct error *err)
{
    uint32_t value = 0;
    int rc = gguf_u32(g, key, 0, (uint32_t)t->vocab.n - 1, &value, err);
    *id = rc == 0 ? (int32_t)value : -1;
    return rc == EBB_ENOENT ? 0 : rc;
}

static int read_ids(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    int32_t eot = -1;
    int rc = read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err);
    if (rc == 0)
        rc = read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, err);
    if (rc == 0)
        rc = read_id(t, g, "tokenizer.ggml.eot_token_id", &eot, err);
    if (rc != 0)
        return rc;
    end_add(t, t->eos);
    end_add(t, eot);
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++)
        end_add(t, tokenizer_special(t, end_texts[i]));
    t->adds_bos = t->pretokenizer.adds_bos;
    rc = gguf_bool(g, "tokenizer.ggml.add_bos_token", &t->adds_bos, err);
    if (t->bos < 0)
        t->adds_bos = false;
    return rc == EBB_ENOENT ? 0 : rc;
}

int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct error *err)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory for a tokenizer", show_path(gguf_path(g)));
    int rc = read_model(g, err);
    if (rc == 0)
        rc = pretokenizer_open(&t->pretokenizer, g, err);
    if (rc == 0)
        rc = vocab_open(&t->vocab, g, err);
    if (rc == 0)
        rc = bpe_open(&t->bpe, &t->vocab, g, err);
    if (rc == 0)
        rc = read_ids(t, g, err);
    if (rc != 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL)
        return;
    bpe_close(&t->bpe);
    vocab_close(&t->vocab);
    pretokenizer_close(&t->pretokenizer);
    free(t);
}

size_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->vocab.n;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->adds_bos;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}

int32_t tokenizer_special(const struct tokenizer *t, const char *text)
{
    int32_t id = vocab_find(&t->vocab, (struct gguf_string){text, strlen(text)},
                            (struct gguf_string){"", 0});
    return id >= 0 && vocab_is_control(&t->vocab, id) ? id : -1;
}

/* Where ids go while a text is encoded; the caller's count is set only when all of it fitted. */
struct sink {
    int32_t *ids;
    size_t ids_max, n_ids;
};

static int encode_word(struct tokenizer *t, const char *word, size_t n, struct sink *s)
{
    const unsigned char *bytes = (const unsigned char *)word;
    int32_t id = t->pretokenizer.whole_words ? vocab_find_bytes(&t->vocab, bytes, n) : -1;
    if (id < 0 || vocab_is_control(&t->vocab, id))
        return bpe_word(&t->bpe, bytes, n, s->ids, s->ids_max, &s->n_ids);
    if (s->n_ids >= s->ids_max)
        return EBB_ERANGE;
    s->ids[s->n_ids++] = id;
    return 0;
}

/* Length of the run at text[0] that is all characters, or all bytes that are none. */
static size_t run_length(const char *text, size_t n, bool *is_valid)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0, length = utf8_character(bytes, n);
    *is_valid = length != 0;
    while (at < n) {
        length = utf8_character(bytes + at, n - at);
        if ((length != 0) != *is_valid)
            break;
        at += length != 0 ? length : 1;
    }
    return at;
}

/* Text without marks. */
static int encode_plain(struct tokenizer *t, const char *text, size_t n, struct sink *s)
{
    int rc = 0;
    for (size_t start = 0; rc == 0 && start < n;) {
        bool is_valid;
        size_t run = run_length(text + start, n - start, &is_valid);
        if (!is_valid)
            rc = encode_word(t, text + start, run, s);
        for (size_t at = 0, end = 0; is_valid && rc == 0 && at < run; at = end) {
            rc = pretokenizer_next(&t->pretokenizer, text + start, run, at, &end);
            if (rc == 0)
                rc = encode_word(t, text + start + at, end - at, s);
        }
        start += run;
    }
    return rc;
}

static int encode(struct tokenizer *t, const char *text, size_t n, const struct marks *marks,
                  struct sink *s)
{
    size_t plain = 0, length = 0; /* where the text since the last mark began */
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < n;) {
        int32_t mark = marks_match(marks, &t->vocab, text + at, n - at, &length);
        if (mark < 0) {
            at++;
            continue;
        }
        rc = encode_plain(t, text + plain, at - plain, s);
        if (rc == 0 && s->n_ids >= s->ids_max)
            rc = EBB_ERANGE;
        if (rc == 0)
            s->ids[s->n_ids++] = mark;
        at = plain = at + length;
    }
    return rc == 0 ? encode_plain(t, text + plain, n - plain, s) : rc;
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes, bool parse_special,
                     int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err)
{
    struct sink s = {ids, ids_max, *n_ids};
    int rc = encode(t, text, n_bytes, parse_special ? &t->vocab.written : &t->vocab.user, &s);
    if (rc == EBB_ERANGE)
        return error_set(err, rc,
                         "text of %zu bytes wants more than the %zu tokens there is room for",
                         n_bytes, ids_max - *n_ids);
    if (rc != 0)
        return error_set(err, rc, "text of %zu bytes: no memory to tokenise it", n_bytes);
    *n_ids = s.n_ids;
    return 0;
}

int tokenizer_piece(const struct tokenizer *t, int32_t id, const char **bytes, size_t *n_bytes)
{
    if (id < 0 || (size_t)id >= t->vocab.n)
        return EBB_ERANGE;
    *bytes = t->vocab.pieces + t->vocab.piece_at[id];
    *n_bytes = t->vocab.piece_at[id + 1] - t->vocab.piece_at[id];
    return 0;
}

int tokenizer_text(const struct tokenizer *t, int32_t id, const char **bytes, size_t *n_bytes)
{
    int rc = tokenizer_piece(t, id, bytes, n_bytes);
    if (rc == 0 && vocab_is_control(&t->vocab, id)) {
        *bytes = t->vocab.texts[id].bytes;
        *n_bytes = t->vocab.texts[id].n_bytes;
    }
    return rc;
}
