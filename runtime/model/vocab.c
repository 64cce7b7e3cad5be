/* runtime/model/vocab.c - the tokens of a vocabulary, from the metadata of a GGUF file.
 *
 * Owns its tables; texts stay in the mapping. Opening is linear in the vocabulary's bytes (and
 * sorts the few marks). Refused: no tokens, arrays of types or scores of another length, types that
 * there are not, a byte that can stand in text and has no token while there is no token for what is
 * unknown: so every text has an encoding. Threads: read-only after open.
 *
 * The alphabet is GPT-2's: printable Latin-1 bytes stand for themselves, the other 68 are U+0100,
 * U+0101, ... in order.
 */
#include "runtime/model/vocab.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/show.h"
#include "runtime/model/utf8.h"

static bool byte_is_printable(unsigned c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || c >= 0xae;
}

/* How many of the bytes below c are not printable: 0x00-0x20, then 0x7f-0xa0, then 0xad. */
static unsigned unprintable_below(unsigned c)
{
    return c <= 0x20 ? c : c <= 0xa0 ? 33 + (c - 0x7f) : 67;
}

size_t byte_alphabet(unsigned char byte, char out[2])
{
    unsigned c = byte_is_printable(byte) ? byte : 256 + unprintable_below(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* The byte that the character at s stands for, or -1; *length is the character's. */
static int alphabet_byte(const unsigned char *s, size_t n, size_t *length)
{
    unsigned c = s[0];
    *length = 1;
    if (c >= 0x80) {
        if (n < 2 || c < 0xc2 || c > 0xc5 || (s[1] & 0xc0) != 0x80)
            return -1;
        *length = 2;
        c = (c & 0x1f) << 6 | (s[1] & 0x3f);
    }
    if (c < 256)
        return byte_is_printable(c) ? (int)c : -1;
    c -= 256;
    return c <= 0x20 ? (int)c : c < 67 ? (int)(c - 33 + 0x7f) : c == 67 ? 0xad : -1;
}

static uint64_t hash_more(uint64_t h, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return h;
}

static size_t hash_slot(const struct vocab *v, struct gguf_string head, struct gguf_string tail)
{
    uint64_t h = hash_more(0xcbf29ce484222325u, head.bytes, head.n_bytes);
    h = hash_more(h, tail.bytes, tail.n_bytes);
    return (size_t)(h ^ h >> 32) & (v->n_slots - 1);
}

static bool is_spelled(struct gguf_string s, struct gguf_string head, struct gguf_string tail)
{
    return s.n_bytes == head.n_bytes + tail.n_bytes &&
           memcmp(s.bytes, head.bytes, head.n_bytes) == 0 &&
           memcmp(s.bytes + head.n_bytes, tail.bytes, tail.n_bytes) == 0;
}

/* The slot where the text is, or the free one where it belongs. */
static int32_t *slot_of(const struct vocab *v, struct gguf_string head, struct gguf_string tail)
{
    size_t i = hash_slot(v, head, tail);
    while (v->slots[i] >= 0 && !is_spelled(v->texts[v->slots[i]], head, tail))
        i = (i + 1) & (v->n_slots - 1);
    return &v->slots[i];
}

int32_t vocab_find(const struct vocab *v, struct gguf_string head, struct gguf_string tail)
{
    return *slot_of(v, head, tail);
}

int32_t vocab_find_bytes(const struct vocab *v, const unsigned char *bytes, size_t n)
{
    char text[512];
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (at + 2 > sizeof text)
            return -1; /* longer than any token */
        at += byte_alphabet(bytes[i], text + at);
    }
    return vocab_find(v, (struct gguf_string){text, at}, (struct gguf_string){"", 0});
}

bool vocab_is_control(const struct vocab *v, int32_t id)
{
    return v->types[id] == TOKEN_CONTROL || v->types[id] == TOKEN_UNKNOWN;
}

/* The byte that a token spelled "<0x0A>" stands for, or -1. */
static int byte_of_spelling(struct gguf_string s)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;
    if (s.n_bytes != 6 || memcmp(s.bytes, "<0x", 3) != 0 || s.bytes[5] != '>')
        return -1;
    high = memchr(digits, s.bytes[3], 16);
    low = memchr(digits, s.bytes[4], 16);
    return high != NULL && low != NULL ? (int)(high - digits) << 4 | (int)(low - digits) : -1;
}

/* Of a SentencePiece vocabulary. */
static size_t plain_write(const struct vocab *v, size_t id, char *out)
{
    struct gguf_string s = v->texts[id];
    size_t n_out = 0;
    if (v->types[id] == TOKEN_BYTE && byte_of_spelling(s) >= 0) {
        out[0] = (char)byte_of_spelling(s);
        return 1;
    }
    for (size_t i = 0; i < s.n_bytes; i++) {
        bool is_space = v->types[id] != TOKEN_USER && s.n_bytes - i >= SPM_SPACE_BYTES &&
                        memcmp(s.bytes + i, SPM_SPACE, SPM_SPACE_BYTES) == 0;
        out[n_out++] = is_space ? ' ' : s.bytes[i];
        i += is_space ? SPM_SPACE_BYTES - 1 : 0;
    }
    return n_out;
}

/* Writes the token's bytes; its text is never shorter. */
static size_t piece_write(const struct vocab *v, size_t id, char *out)
{
    const unsigned char *s = (const unsigned char *)v->texts[id].bytes;
    size_t n = v->texts[id].n_bytes, n_out = 0, length;
    if (vocab_is_control(v, (int32_t)id))
        return 0;
    if (v->kind == VOCAB_SENTENCEPIECE)
        return plain_write(v, id, out);
    for (size_t i = 0; v->types[id] != TOKEN_USER && i < n; i += length) {
        int byte = alphabet_byte(s + i, n - i, &length);
        if (byte < 0) {
            n_out = 0;
            break;
        }
        out[n_out++] = (char)byte;
    }
    if (n_out == 0) { /* user-defined, or not in the alphabet: written plainly */
        memcpy(out, s, n);
        n_out = n;
    }
    return n_out;
}

static int refuse(const struct gguf *g, struct error *err, const char *key, const char *what)
{
    return error_set(err, EBB_EFORMAT, "%s: metadata key tokenizer.ggml.%s: wants %s",
                     show_path(gguf_path(g)), key, what);
}

static int no_memory(const struct gguf *g, struct error *err)
{
    return error_set(err, EBB_ENOMEM, "%s: no memory for the vocabulary", show_path(gguf_path(g)));
}

/* The texts, and the sum of their lengths. */
static int read_texts(struct vocab *v, const struct gguf *g, size_t *total, struct error *err)
{
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    size_t cursor = 0;
    if (tokens == NULL || tokens->type != GGUF_ARRAY || tokens->element_type != GGUF_STRING)
        return refuse(g, err, "tokens", "an array of strings, got none");
    if (tokens->n_elements == 0 || tokens->n_elements > INT32_MAX / 4)
        return refuse(g, err, "tokens", "between 1 and 2^29 tokens");
    v->n = (size_t)tokens->n_elements;
    for (v->n_slots = 16; v->n_slots < 2 * v->n;)
        v->n_slots *= 2;
    v->texts = calloc(v->n, sizeof *v->texts);
    v->types = calloc(v->n, 1);
    v->slots = malloc(v->n_slots * sizeof *v->slots);
    v->piece_at = calloc(v->n + 1, sizeof *v->piece_at);
    if (v->texts == NULL || v->types == NULL || v->slots == NULL || v->piece_at == NULL)
        return no_memory(g, err);
    memset(v->slots, 0xff, v->n_slots * sizeof *v->slots);
    *total = 0;
    for (size_t i = 0; i < v->n; i++) {
        v->texts[i] = gguf_array_string(tokens, &cursor);
        *total += v->texts[i].n_bytes;
        if (v->texts[i].n_bytes > v->text_bytes_max)
            v->text_bytes_max = v->texts[i].n_bytes;
        int32_t *slot = slot_of(v, v->texts[i], (struct gguf_string){"", 0});
        if (*slot < 0)
            *slot = (int32_t)i;
    }
    return 0;
}

static int read_types(struct vocab *v, const struct gguf *g, struct error *err)
{
    const struct gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
    memset(v->types, TOKEN_NORMAL, v->n);
    if (types == NULL)
        return 0;
    if (types->type != GGUF_ARRAY ||
        (types->element_type != GGUF_I32 && types->element_type != GGUF_U32))
        return refuse(g, err, "token_type", "an array of i32, got another type");
    if (types->n_elements != v->n)
        return refuse(g, err, "token_type", "as many types as there are tokens");
    for (size_t i = 0; i < v->n; i++) {
        uint32_t type;
        memcpy(&type, types->data + i * sizeof type, sizeof type);
        if (type > TOKEN_BYTE)
            return refuse(g, err, "token_type", "types 0..6");
        v->types[i] = type == 0 ? TOKEN_NORMAL : (unsigned char)type; /* 0: not said */
    }
    return 0;
}

/* SentencePiece's scores; its byte tokens by their spelling, which old writers did not mark. */
static int read_scores(struct vocab *v, const struct gguf *g, struct error *err)
{
    const struct gguf_value *scores = gguf_find(g, "tokenizer.ggml.scores");
    if (scores == NULL || scores->type != GGUF_ARRAY || scores->element_type != GGUF_F32)
        return refuse(g, err, "scores", "an array of f32, got none");
    if (scores->n_elements != v->n)
        return refuse(g, err, "scores", "as many scores as there are tokens");
    v->scores = calloc(v->n, sizeof *v->scores);
    if (v->scores == NULL)
        return no_memory(g, err);
    memcpy(v->scores, scores->data, v->n * sizeof *v->scores);
    for (size_t i = 0; i < v->n; i++) {
        if (isnan(v->scores[i]))
            return refuse(g, err, "scores", "numbers");
        if (v->types[i] == TOKEN_NORMAL && byte_of_spelling(v->texts[i]) >= 0)
            v->types[i] = TOKEN_BYTE;
    }
    return 0;
}

static int32_t byte_token(const struct vocab *v, unsigned char byte)
{
    char spelling[8];
    int32_t id;
    if (v->kind == VOCAB_BYTE_LEVEL) {
        id = vocab_find_bytes(v, &byte, 1);
        return id >= 0 && !vocab_is_control(v, id) ? id : -1;
    }
    (void)snprintf(spelling, sizeof spelling, "<0x%02X>", byte);
    id = vocab_find(v, (struct gguf_string){spelling, 6}, (struct gguf_string){"", 0});
    return id >= 0 && v->types[id] == TOKEN_BYTE ? id : -1;
}

/* Bytes that are part of no character need no token of their own: a question mark's stands for
 * them. */
static int find_bytes(struct vocab *v, const struct gguf *g, struct error *err)
{
    uint32_t unknown = 0;
    int rc = gguf_u32(g, "tokenizer.ggml.unknown_token_id", 0, (uint32_t)v->n - 1, &unknown, err);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    v->unknown = rc == 0 ? (int32_t)unknown : -1;
    v->has_bytes = true;
    for (unsigned b = 0; b < 256; b++) {
        bool in_text = b < 0xc0 || utf8_length((unsigned char)b) != 0;
        v->byte_ids[b] = byte_token(v, (unsigned char)b);
        if (v->byte_ids[b] < 0 && !in_text)
            v->byte_ids[b] = byte_token(v, '?');
        if (v->byte_ids[b] >= 0)
            continue;
        if (v->unknown < 0)
            return error_set(
                err, EBB_EFORMAT,
                "%s: metadata key tokenizer.ggml.tokens: wants a token for byte 0x%02x, got none",
                show_path(gguf_path(g)), b);
        v->byte_ids[b] = v->unknown;
        v->has_bytes = v->kind == VOCAB_BYTE_LEVEL;
    }
    return 0;
}

/* A user-defined token that could pass for a mark of a turn or of a text: what somebody wrote inside
 * a role must not become one. */
static bool is_spelled_like_a_mark(struct gguf_string s)
{
    static const char *const words[] = {"<s>",          "</s>", "<bos>", "<eos>", "<start_of_turn>",
                                        "<end_of_turn>"};
    const char *last = s.bytes + s.n_bytes - 1;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (s.n_bytes == strlen(words[i]) && memcmp(s.bytes, words[i], s.n_bytes) == 0)
            return true;
    if (s.n_bytes < 4)
        return false;
    return (s.bytes[0] == '<' && *last == '>' &&
            (s.bytes[1] == '|' || memcmp(s.bytes + 1, "\357\275\234", 3) == 0)) ||
           (s.bytes[0] == '[' && *last == ']');
}

static int by_text(const void *a, const void *b, void *vocab)
{
    const struct vocab *v = vocab;
    struct gguf_string x = v->texts[*(const int32_t *)a], y = v->texts[*(const int32_t *)b];
    int order = memcmp(x.bytes, y.bytes, x.n_bytes < y.n_bytes ? x.n_bytes : y.n_bytes);
    if (order == 0)
        order = (x.n_bytes > y.n_bytes) - (x.n_bytes < y.n_bytes);
    /* equal texts: the first id comes first, as in vocab_find() */
    return order != 0 ? order : (*(const int32_t *)a > *(const int32_t *)b) ? 1 : -1;
}

static int marks_open(struct marks *m, struct vocab *v, bool with_control)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += v->types[i] >= TOKEN_UNKNOWN && v->types[i] <= TOKEN_USER;
    m->ids = calloc(n + 1, sizeof *m->ids);
    if (m->ids == NULL)
        return EBB_ENOMEM;
    for (size_t i = 0; i < v->n; i++) {
        bool is_control = vocab_is_control(v, (int32_t)i);
        if (v->texts[i].n_bytes == 0 ||
            !(v->types[i] == TOKEN_USER || (with_control && is_control)) ||
            (!with_control && is_spelled_like_a_mark(v->texts[i])))
            continue;
        m->ids[m->n++] = (int32_t)i;
        m->begins[(unsigned char)v->texts[i].bytes[0]] = true;
    }
    qsort_r(m->ids, m->n, sizeof *m->ids, by_text, v);
    return 0;
}

/* Byte i of mark number `at`, or -1 past its end: what the sorted list is narrowed by. */
static int mark_byte(const struct marks *m, const struct vocab *v, size_t at, size_t i)
{
    struct gguf_string s = v->texts[m->ids[at]];
    return i < s.n_bytes ? (unsigned char)s.bytes[i] : -1;
}

/* The first mark in [low, high) whose byte i is at least c. All agree on the bytes before i. */
static size_t mark_bound(const struct marks *m, const struct vocab *v, size_t i, int c, size_t low,
                         size_t high)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (mark_byte(m, v, middle, i) < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t marks_match(const struct marks *m, const struct vocab *v, const char *text, size_t n,
                    size_t *length)
{
    size_t low = 0, high = m->n;
    int32_t found = -1;
    if (n == 0 || !m->begins[(unsigned char)text[0]])
        return -1;
    for (size_t i = 0; i < n && low < high; i++) {
        int c = (unsigned char)text[i];
        low = mark_bound(m, v, i, c, low, high);
        high = mark_bound(m, v, i, c + 1, low, high);
        if (low < high && mark_byte(m, v, low, i + 1) < 0) {
            found = m->ids[low];
            *length = i + 1;
        }
    }
    return found;
}

int vocab_open(struct vocab *v, const struct gguf *g, enum vocab_kind kind, struct error *err)
{
    size_t total = 0;
    memset(v, 0, sizeof *v);
    v->kind = kind;
    int rc = read_texts(v, g, &total, err);
    if (rc == 0)
        rc = read_types(v, g, err);
    if (rc == 0 && kind == VOCAB_SENTENCEPIECE)
        rc = read_scores(v, g, err);
    if (rc == 0)
        rc = find_bytes(v, g, err);
    if (rc == 0 && (v->pieces = malloc(total + 1)) == NULL)
        rc = no_memory(g, err);
    for (size_t i = 0; rc == 0 && i < v->n; i++)
        v->piece_at[i + 1] = v->piece_at[i] + piece_write(v, i, v->pieces + v->piece_at[i]);
    if (rc == 0 && (marks_open(&v->written, v, true) != 0 || marks_open(&v->user, v, false) != 0))
        rc = no_memory(g, err);
    if (rc != 0)
        vocab_close(v);
    return rc;
}

void vocab_close(struct vocab *v)
{
    free(v->texts);
    free(v->types);
    free(v->scores);
    free(v->pieces);
    free(v->piece_at);
    free(v->slots);
    free(v->written.ids);
    free(v->user.ids);
    memset(v, 0, sizeof *v);
}
