/* runtime/model/vocab.h - the tokens of a vocabulary: text to id, id to bytes, and which are
 * special.
 *
 * Two ways of writing a token. Byte-level vocabularies have a printable alphabet (byte_alphabet):
 * each byte of text is one character. SentencePiece's write text as it is, with U+2581 for a space
 * and <0x0A> for a single byte. A piece is the bytes of text again. Control tokens have no piece, so that nothing prints
 * them; tokens that the model's author added by hand (user-defined) are written plainly and are
 * their own piece. Threads: read-only after open. Lifetime: the gguf's mapping must outlive it
 * (texts stay there).
 */
#pragma once
#include "runtime/model/gguf.h"

#define SPM_SPACE       "\342\226\201" /* U+2581 */
#define SPM_SPACE_BYTES 3

enum vocab_kind { VOCAB_BYTE_LEVEL, VOCAB_SENTENCEPIECE };

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

/* Tokens that are found in running text by their exact spelling, before any merging. */
struct marks {
    int32_t *ids; /* owned [n], by text, ascending */
    size_t n;
    bool begins[256]; /* some mark begins with this byte */
};

struct vocab {
    enum vocab_kind kind;
    size_t n;
    struct gguf_string *texts; /* owned [n]; the bytes are the mapping's */
    unsigned char *types;      /* owned [n], enum token_type */
    float *scores;             /* owned [n], of SentencePiece's; else NULL */
    size_t text_bytes_max;     /* of the longest */
    char *pieces;              /* owned: the pieces of all ids behind one another */
    size_t *piece_at;          /* owned [n + 1] */
    int32_t *slots; /* owned, open addressing by text, -1 = free; the first of equal texts counts */
    size_t n_slots; /* a power of two */
    int32_t unknown;       /* what stands for text that has no token; -1: none */
    bool has_bytes;        /* every byte has a token; always true of byte-level ones */
    int32_t byte_ids[256]; /* those */
    struct marks written;  /* control, unknown and user-defined tokens */
    struct marks user;     /* user-defined ones that are not spelled like marks of a turn */
};

/* EBB_EFORMAT, EBB_EUNSUPPORTED, EBB_ENOMEM; on failure the vocab is closed. */
int vocab_open(struct vocab *v, const struct gguf *g, enum vocab_kind kind, struct error *err);
void vocab_close(struct vocab *v); /* also of a zeroed one */

/* The id of the token spelled head + tail, -1: none. */
int32_t vocab_find(const struct vocab *v, struct gguf_string head, struct gguf_string tail);

/* The id of the single-byte tokens' alphabet applied to a word: -1 if no token is exactly those
 * bytes. */
int32_t vocab_find_bytes(const struct vocab *v, const unsigned char *bytes, size_t n);

bool vocab_is_control(const struct vocab *v, int32_t id);

/* The longest mark that begins at text[0], -1: none; *length is its bytes. */
int32_t marks_match(const struct marks *m, const struct vocab *v, const char *text, size_t n,
                    size_t *length);

/* The character that stands for a byte, 1 or 2 bytes of UTF-8 in out. Returns its length. */
size_t byte_alphabet(unsigned char byte, char out[2]);
