/* runtime/model/chat.h - turns of a conversation to token ids, by the model's chat template (ChatML so far).
 *
 * The marks of a turn (<|im_start|> …) become special tokens; what was written inside a role never does.
 */
#pragma once
#include "runtime/model/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

int chat_role_find(const char *name, size_t n_bytes, enum chat_role *role); /* EBB_ENOENT */

/* Appends one turn ("<|im_start|>user\n…<|im_end|>\n"), and the opening of the assistant's answer. */
int chat_turn(struct tokenizer *t, enum chat_role role, const char *text, size_t n_bytes, int32_t *ids, size_t ids_max,
              size_t *n_ids, struct error *err);
int chat_answer_begin(struct tokenizer *t, int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err);
