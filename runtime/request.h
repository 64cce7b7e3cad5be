/* runtime/request.h - a tag's life: parts, waiting, running, its events, its end. */
#pragma once
#include "runtime/engine_state.h"

struct request *request_find(struct connection *c, const char *tag);
struct request *request_add(struct connection *c, const char *tag); /* NULL: no memory */
void request_free(struct engine *e,
                  struct request *r); /* no DONE is sent; takes it off its connection */

void request_started(struct engine *e,
                     struct request *r); /* admitted; again after a replay began */
void request_prompt_done(struct engine *e, struct request *r, uint32_t n_done);
void request_token(struct engine *e, struct request *r, int32_t id, uint64_t step);
/* `top` as the stage wrote it, already checked. EBB_EPEER: not the position that comes next. */
int request_logits(struct engine *e, struct request *r, uint32_t pos, const char *top,
                   uint64_t step, struct error *err);
/* What the next token's T says of its probability, already checked. EBB_EPEER: longer than can be. */
int request_prob(struct request *r, const char *logprob, const char *top, struct error *err);
bool request_has_prob(const struct request *r); /* or wants none */
void request_step_ended(struct engine *e, struct request *r, uint64_t step);
/* Ends it now: DONE <tag> <reason>, with error= if err is given; r is gone afterwards. */
void request_end(struct engine *e, struct request *r, const char *reason, const struct error *err);
void requests_cancel(struct engine *e); /* of all connections */
bool requests_active(const struct engine *e);
static inline bool request_is_active(const struct request *r)
{
    return r->state != REQUEST_PARTS;
}

/* prompt.c: what the requests say. Errors are for the caller to answer; the state is then
 * unchanged. */
int prompt_part(struct engine *e, struct connection *c, const struct message *m, struct error *err);
int prompt_generate(struct engine *e, struct connection *c, const struct message *m,
                    struct error *err);
int prompt_score(struct engine *e, struct connection *c, const struct message *m,
                 struct error *err);
