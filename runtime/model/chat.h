/* runtime/model/chat.h - turns of a conversation to token ids, by the model's chat template.
 *
 * A file carries its template as a program in a language of its own; here its text is only recognised, as one of the known
 * ones of a table (chat_table.h), which says what stands before and after a turn. The marks of a turn (<|im_start|> …) become
 * special tokens; what was written inside a role never does. Threads: as the tokenizer, one at a time.
 */
#pragma once
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };
#define CHAT_ROLES 4

struct chat;
struct chat_template;

/* Where a conversation stands: zeroed before its first turn, kept by the caller from turn to turn. */
struct chat_state {
    bool begun;    /* the beginning of a text and a default system prompt were put */
    bool in_user;  /* a system prompt was put that is part of the user's turn, which goes on */
    bool mid_text; /* no mark was the last */
};

int chat_role_find(const char *name, size_t n_bytes, enum chat_role *role); /* EBB_ENOENT */

/* By tokenizer.chat_template; borrows the tokenizer. EBB_EFORMAT (the key is no text), EBB_ENOMEM. */
int chat_open(struct chat **c, const struct gguf *g, struct tokenizer *t, struct error *err);
void chat_close(struct chat *c);                /* NULL is fine */
const char *chat_name(const struct chat *c);    /* of the template used: "chatml", "llama-3" */
const char *chat_warning(const struct chat *c); /* a sentence where it is only a guess, else NULL */

/* Recognises a template's text alone; NULL: not a known one. A row's name by chat_template_name(). */
const struct chat_template *chat_template_find(const char *text, size_t n_bytes);
const char *chat_template_name(const struct chat_template *row);

/* Appends one turn ("<|im_start|>user\n…<|im_end|>\n"), with what a conversation begins with before its first one, and the
 * opening of the assistant's answer. The content is text, or ids that are taken as they are. EBB_ERANGE: more than ids_max;
 * on failure nothing is appended and *s is as it was. */
int chat_turn(const struct chat *c, struct chat_state *s, enum chat_role role, const char *text,
              size_t n_bytes, int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err);
int chat_turn_ids(const struct chat *c, struct chat_state *s, enum chat_role role,
                  const int32_t *content, size_t n_content, int32_t *ids, size_t ids_max,
                  size_t *n_ids, struct error *err);
int chat_answer_begin(const struct chat *c, struct chat_state *s, int32_t *ids, size_t ids_max,
                      size_t *n_ids, struct error *err);
