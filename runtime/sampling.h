/* runtime/sampling.h - how a request's tokens are drawn: from its GEN line, and on to the ROWS lines.
 *
 * Settings that change nothing are not written, so a plain request's lines stay short. Pure.
 */
#pragma once
#include "runtime/engine_state.h"

#define LOGPROBS_MAX 20

/* EBB_EINVAL, EBB_ERANGE. */
int sampling_read(const struct message *m, uint32_t n_vocab, struct sampling *s, struct error *err);
/* The keys of a ROWS line that samples; the first n_prompt tokens were given, not generated. */
void sampling_write(struct line_writer *w, const struct sampling *s, uint32_t n_prompt);
