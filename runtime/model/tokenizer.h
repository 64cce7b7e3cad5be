/* runtime/model/tokenizer.h - text to token ids and back, from the vocabulary in a GGUF file's metadata.
 *
 * Byte-level BPE: text is cut by special tokens (where asked for), then by the pre-tokeniser's pattern (PCRE2), bytes are
 * mapped to the vocabulary's printable alphabet, pairs are merged by rank. SentencePiece: text between special tokens is
 * merged by the scores of its tokens, with a space put before it where the file says so. Decoding is byte-exact: the pieces
 * of the ids, one after another (tokenizer_decode() takes that space away again). Threads: a tokenizer is read-only after open and may be used by one thread at a time.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

struct gguf;
struct tokenizer;

int tokenizer_open(struct tokenizer **t, const struct gguf *g,
                   struct error *err); /* EBB_EFORMAT, EBB_EUNSUPPORTED (by name), EBB_ENOMEM */
void tokenizer_close(struct tokenizer *t);

size_t tokenizer_n_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t); /* -1: none */
bool tokenizer_adds_bos(const struct tokenizer *t);
bool tokenizer_adds_eos(
    const struct tokenizer
        *t); /* to a text that is complete; nothing here does it, as a prompt never is */
bool tokenizer_adds_space(
    const struct tokenizer *t); /* SentencePiece's, before a text and behind a special token */
bool tokenizer_is_end(const struct tokenizer *t,
                      int32_t id); /* eos, or an end-of-turn special such as <|im_end|> */
int32_t tokenizer_special(
    const struct tokenizer *t,
    const char *text); /* id of a control or user-defined token by its exact text, -1: none */

/* Appends the ids of n_bytes of text to ids[*n_ids ..ids_max). parse_special: control tokens written out in the text become
 * their ids; otherwise they are ordinary characters. (Tokens that the file calls user-defined, runs of spaces for example,
 * are ordinary text of the model and are always recognised, unless they are spelled like marks: <|…|>, […], <s>.) Any bytes are accepted, invalid UTF-8 and NUL included. EBB_ERANGE: more than ids_max (nothing
 * appended). */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes, bool parse_special,
                     int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err);

/* The same for what goes on from text that was encoded already: special tokens are ordinary characters, and no space is put
 * before it. */
int tokenizer_encode_on(struct tokenizer *t, const char *text, size_t n_bytes, int32_t *ids,
                        size_t ids_max, size_t *n_ids, struct error *err);

/* A whole text from its ids: their pieces, less the space that encoding put at its beginning. EBB_ERANGE: no such id, or more
 * than out_max bytes (out is then without meaning). */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, char *out,
                     size_t out_max, size_t *n_out, struct error *err);

/* The bytes of one id; control tokens give 0 bytes. EBB_ERANGE: no such id. */
int tokenizer_piece(const struct tokenizer *t, int32_t id, const char **bytes, size_t *n_bytes);

/* The same, but a control token gives the text by which tokenizer_encode() recognises it: for showing, not for output. */
int tokenizer_text(const struct tokenizer *t, int32_t id, const char **bytes, size_t *n_bytes);

/* Whole characters while streaming: add a piece, take what is complete UTF-8. Bytes that can never become a character pass
 * through at once. flush gives what is left. `out` must hold pending (<= 3) + piece bytes. Returns bytes written. */
struct utf8_stream {
    unsigned char pending[4];
    size_t n_pending;
};
size_t utf8_stream_add(struct utf8_stream *u, const char *bytes, size_t n_bytes, char *out);
size_t utf8_stream_flush(struct utf8_stream *u, char *out);
