/* runtime/model/tokenizer.c - text to ids and back: puts the vocabulary, the pre-tokeniser and the
 * merging together.
 *
 * Owns them all. Encoding goes from coarse to fine: marks (special tokens, where asked for) cut the
 * text. Byte-level vocabularies: what is between is cut into runs of valid UTF-8 and runs of other
 * bytes; valid runs into words by the pattern; words into tokens. Bytes that are no character make
 * words of their own, so nothing is lost or replaced. SentencePiece's: what is between is one text,
 * with its spaces written as U+2581 and, where the file says so, one more at its beginning. Control
 * tokens come from marks alone, never from merging. Threads: one at a time; tokenizer_piece() only
 * reads.
 */
#include "runtime/model/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/model/bpe.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/show.h"
#include "runtime/model/spm.h"
#include "runtime/model/utf8.h"

#define ENDS_MAX 16

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;                   /* of a byte-level vocabulary */
    struct pretokenizer pretokenizer; /* of a byte-level vocabulary */
    struct spm spm;                   /* of a SentencePiece vocabulary */
    bool adds_space; /* of a SentencePiece vocabulary: at the beginning of a text */
    int32_t bos, eos;
    int32_t ends[ENDS_MAX]; /* of a turn or a text, eos among them */
    size_t n_ends;
    bool adds_bos, adds_eos;
};

/* Control tokens that end an answer, by the spelling that models in use give them. */
static const char *const end_texts[] = {
    "<|im_end|>",      "<|endoftext|>",
    "<|eot_id|>",      "<|eom_id|>",
    "<|end_of_text|>", "<|end|>",
    "<|return|>",      "<end_of_turn>",
    "<|EOT|>",         "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};

static void end_add(struct tokenizer *t, int32_t id)
{
    if (id >= 0 && t->n_ends < ENDS_MAX && !tokenizer_is_end(t, id))
        t->ends[t->n_ends++] = id;
}

static int read_kind(const struct gguf *g, enum vocab_kind *kind, struct error *err)
{
    struct gguf_string name;
    char shown[SHOWN_BYTES];
    int rc = gguf_text(g, "tokenizer.ggml.model", &name, err);
    if (rc == EBB_ENOENT)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata key tokenizer.ggml.model: wants a name, got none",
                         show_path(gguf_path(g)));
    if (rc != 0)
        return rc;
    *kind = VOCAB_BYTE_LEVEL;
    if (name.n_bytes == 4 && memcmp(name.bytes, "gpt2", 4) == 0)
        return 0;
    *kind = VOCAB_SENTENCEPIECE;
    if (name.n_bytes == 5 && memcmp(name.bytes, "llama", 5) == 0)
        return 0;
    return error_set(err, EBB_EUNSUPPORTED,
                     "%s: metadata key tokenizer.ggml.model: wants \"gpt2\" (byte-level BPE) or "
                     "\"llama\" (SentencePiece), got \"%s\"",
                     show_path(gguf_path(g)), show_name(name, shown));
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
    int32_t eot = -1, eom = -1;
    int rc = read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err);
    if (rc == 0)
        rc = read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, err);
    if (rc == 0)
        rc = read_id(t, g, "tokenizer.ggml.eot_token_id", &eot, err);
    if (rc == 0)
        rc = read_id(t, g, "tokenizer.ggml.eom_token_id", &eom, err);
    if (rc != 0)
        return rc;
    end_add(t, t->eos);
    end_add(t, eot);
    end_add(t, eom);
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++)
        end_add(t, tokenizer_special(t, end_texts[i]));
    return 0;
}

static int optional(int rc)
{
    return rc == EBB_ENOENT ? 0 : rc;
}

static int read_habits(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    bool is_spm = t->vocab.kind == VOCAB_SENTENCEPIECE;
    t->adds_bos = is_spm || t->pretokenizer.adds_bos;
    t->adds_space = is_spm;
    int rc = optional(gguf_bool(g, "tokenizer.ggml.add_bos_token", &t->adds_bos, err));
    if (rc == 0)
        rc = optional(gguf_bool(g, "tokenizer.ggml.add_eos_token", &t->adds_eos, err));
    if (rc == 0 && is_spm)
        rc = optional(gguf_bool(g, "tokenizer.ggml.add_space_prefix", &t->adds_space, err));
    t->adds_bos = t->adds_bos && t->bos >= 0;
    t->adds_eos = t->adds_eos && t->eos >= 0;
    return rc;
}

int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct error *err)
{
    enum vocab_kind kind = VOCAB_BYTE_LEVEL;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory for a tokenizer", show_path(gguf_path(g)));
    int rc = read_kind(g, &kind, err);
    if (rc == 0 && kind == VOCAB_BYTE_LEVEL)
        rc = pretokenizer_open(&t->pretokenizer, g, err);
    if (rc == 0)
        rc = vocab_open(&t->vocab, g, kind, err);
    if (rc == 0 && kind == VOCAB_BYTE_LEVEL)
        rc = bpe_open(&t->bpe, &t->vocab, g, err);
    if (rc == 0 && kind == VOCAB_SENTENCEPIECE)
        spm_open(&t->spm, &t->vocab);
    if (rc == 0)
        rc = read_ids(t, g, err);
    if (rc == 0)
        rc = read_habits(t, g, err);
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
    spm_close(&t->spm);
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

bool tokenizer_adds_eos(const struct tokenizer *t)
{
    return t->adds_eos;
}

bool tokenizer_adds_space(const struct tokenizer *t)
{
    return t->adds_space;
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
    return id >= 0 && (vocab_is_control(&t->vocab, id) || t->vocab.types[id] == TOKEN_USER) ? id
                                                                                            : -1;
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

/* Text without marks, of a byte-level vocabulary. */
static int encode_words(struct tokenizer *t, const char *text, size_t n, struct sink *s)
{
    int rc = 0;
    for (size_t start = 0; rc == 0 && start < n;) {
        bool is_valid;
        size_t run = run_length(text + start, n - start, &is_valid), word = 0, end = 0;
        if (is_valid)
            pretokenizer_begin(&t->pretokenizer, text + start, run);
        else
            rc = encode_word(t, text + start, run, s);
        while (is_valid && rc == 0 && end < run) {
            rc = pretokenizer_next(&t->pretokenizer, &word, &end);
            if (rc == 0)
                rc = encode_word(t, text + start + word, end - word, s);
        }
        start += run;
    }
    return rc;
}

/* Text without marks, of a SentencePiece vocabulary: spaces as U+2581. */
static int encode_spm(struct tokenizer *t, const char *text, size_t n, bool with_space,
                      struct sink *s)
{
    size_t room = n, at = 0;
    for (size_t i = 0; i < n; i++)
        room += text[i] == ' ' ? SPM_SPACE_BYTES - 1 : 0;
    char *written = malloc(room + SPM_SPACE_BYTES);
    if (written == NULL)
        return EBB_ENOMEM;
    for (size_t i = 0; i < n + with_space; i++) {
        char c = with_space ? (i == 0 ? ' ' : text[i - 1]) : text[i];
        if (c == ' ')
            memcpy(written + at, SPM_SPACE, SPM_SPACE_BYTES);
        else
            written[at] = c;
        at += c == ' ' ? SPM_SPACE_BYTES : 1;
    }
    int rc = spm_text(&t->spm, written, at, s->ids, s->ids_max, &s->n_ids);
    free(written);
    return rc;
}

/* `begins`: at the beginning of a text or behind a control token, where SentencePiece adds its space. */
static int encode_plain(struct tokenizer *t, const char *text, size_t n, bool begins,
                        struct sink *s)
{
    if (n == 0)
        return 0;
    return t->vocab.kind == VOCAB_BYTE_LEVEL ? encode_words(t, text, n, s)
                                             : encode_spm(t, text, n, begins && t->adds_space, s);
}

static int encode(struct tokenizer *t, const char *text, size_t n, const struct marks *marks,
                  bool begins, struct sink *s)
{
    size_t plain = 0, length = 0; /* where the text since the last mark began */
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < n;) {
        int32_t mark = marks_match(marks, &t->vocab, text + at, n - at, &length);
        if (mark < 0) {
            at++;
            continue;
        }
        rc = encode_plain(t, text + plain, at - plain, begins, s);
        begins = vocab_is_control(&t->vocab, mark); /* user-defined ones are text */
        if (rc == 0 && s->n_ids >= s->ids_max)
            rc = EBB_ERANGE;
        if (rc == 0)
            s->ids[s->n_ids++] = mark;
        at = plain = at + length;
    }
    return rc == 0 ? encode_plain(t, text + plain, n - plain, begins, s) : rc;
}

static int encode_into(struct tokenizer *t, const char *text, size_t n_bytes,
                       const struct marks *marks, bool begins, struct sink *s, struct error *err)
{
    size_t room = s->ids_max - s->n_ids;
    int rc = encode(t, text, n_bytes, marks, begins, s);
    if (rc == EBB_ERANGE)
        return error_set(err, rc,
                         "text of %zu bytes wants more than the %zu tokens there is room for",
                         n_bytes, room);
    if (rc != 0)
        return error_set(err, rc, "text of %zu bytes: no memory to tokenise it", n_bytes);
    return 0;
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes, bool parse_special,
                     int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err)
{
    struct sink s = {ids, ids_max, *n_ids};
    int rc = encode_into(t, text, n_bytes, parse_special ? &t->vocab.written : &t->vocab.user, true,
                         &s, err);
    if (rc == 0)
        *n_ids = s.n_ids;
    return rc;
}

int tokenizer_encode_on(struct tokenizer *t, const char *text, size_t n_bytes, int32_t *ids,
                        size_t ids_max, size_t *n_ids, struct error *err)
{
    struct sink s = {ids, ids_max, *n_ids};
    int rc = encode_into(t, text, n_bytes, &t->vocab.user, false, &s, err);
    if (rc == 0)
        *n_ids = s.n_ids;
    return rc;
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

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, char *out,
                     size_t out_max, size_t *n_out, struct error *err)
{
    size_t at = 0;
    bool has_begun = !t->adds_space;
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes;
        size_t n = 0;
        if (tokenizer_piece(t, ids[i], &bytes, &n) != 0)
            return error_set(err, EBB_ERANGE, "ids: wants 0..%zu, got %d", t->vocab.n - 1, ids[i]);
        if (!has_begun && n > 0) {
            bool is_added = *bytes == ' ';
            has_begun = true;
            bytes += is_added;
            n -= is_added;
        }
        if (n > out_max - at)
            return error_set(err, EBB_ERANGE, "text of %zu ids wants more than %zu bytes", n_ids,
                             out_max);
        memcpy(out + at, bytes, n);
        at += n;
    }
    *n_out = at;
    return 0;
}
