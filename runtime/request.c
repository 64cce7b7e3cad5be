/* runtime/request.c - a tag's life and its events.
 *
 * A request belongs to its connection and is freed by its DONE, or with the connection. From GEN to
 * its end the scheduler holds a sequence for it. At the last token the sequence ends at once
 * (nothing more is run for it), but DONE waits a moment until every stage has reported that step,
 * so that hits= and lookups= are whole. After a replay nothing is said twice: prompt progress,
 * scored positions and tokens go on where they were.
 */
#include "runtime/request.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/connection.h"

struct request *request_find(struct connection *c, const char *tag)
{
    for (struct request *r = c->requests; r != NULL; r = r->next)
        if (strcmp(r->tag, tag) == 0)
            return r;
    return NULL;
}

struct request *request_add(struct connection *c, const char *tag)
{
    struct request *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    (void)snprintf(r->tag, sizeof r->tag, "%s", tag);
    r->connection = c;
    r->next = c->requests;
    c->requests = r;
    return r;
}

static void sequence_end(struct engine *e, struct request *r, uint64_t last_step)
{
    if (r->seq != NULL)
        scheduler_end(e->scheduler, r->seq, last_step);
    r->seq = NULL;
}

void request_free(struct engine *e, struct request *r)
{
    struct request **at = &r->connection->requests;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    sequence_end(e, r, 0);
    scheduler_forget(e->scheduler, r);
    stop_match_close(&r->stops);
    free(r->ids);
    free(r->prob);
    free(r);
}

static void event_out(struct engine *e, struct request *r, struct line_writer *w)
{
    int n = line_end(w);
    if (n > 0)
        connection_event(r->connection, e->line, (size_t)n);
}

static void event_begin(struct engine *e, const struct request *r, struct line_writer *w,
                        const char *verb)
{
    line_begin(w, e->line, LINE_BYTES_MAX, verb);
    line_bare(w, r->tag);
}

void request_started(struct engine *e, struct request *r)
{
    struct line_writer w;
    if (r->state != REQUEST_WAITING)
        return;
    r->state = REQUEST_RUNNING;
    r->start_us = now_us();
    r->n_reused = r->seq->n_reused;
    if (r->is_score)
        return;
    event_begin(e, r, &w, "RESUME");
    line_u64(&w, "reused", r->n_reused);
    event_out(e, r, &w);
}

void request_prompt_done(struct engine *e, struct request *r, uint32_t n_done)
{
    struct line_writer w;
    if (n_done > r->n_prompt)
        n_done = r->n_prompt;
    if (r->is_score || n_done <= r->n_pp)
        return;
    r->n_pp = n_done;
    event_begin(e, r, &w, "PP");
    line_bare_i64(&w, n_done);
    line_bare_i64(&w, r->n_prompt);
    line_bare_i64(&w, (int64_t)((now_us() - r->start_us) / 1000));
    event_out(e, r, &w);
}

bool request_has_prob(const struct request *r)
{
    return !r->sampling.has_logprobs || r->has_prob;
}

int request_prob(struct request *r, const char *logprob, const char *top, struct error *err)
{
    int n = snprintf(r->prob, PROB_BYTES, "%s%s%s", logprob, top != NULL ? " " : "",
                     top != NULL ? top : "");
    r->has_prob = n > 0 && n < PROB_BYTES;
    return r->has_prob ? 0 : error_set(err, EBB_EPEER, "PROB with a list of %d bytes", n);
}

static void prob_write(struct line_writer *w, struct request *r)
{
    if (!r->has_prob)
        return;
    char *top = strchr(r->prob, ' ');
    if (top != NULL)
        *top++ = '\0';
    line_key(w, "logprob", r->prob);
    if (top != NULL)
        line_key(w, "top", top);
    r->has_prob = false;
}

/* Nothing more is run for it; DONE follows when the step is closed. */
static void finish(struct engine *e, struct request *r, const char *reason, uint64_t step)
{
    r->state = REQUEST_ENDING;
    r->reason = reason;
    r->last_step = step;
    sequence_end(e, r, step);
}

void request_token(struct engine *e, struct request *r, int32_t id, uint64_t step)
{
    const char *piece = "", *out;
    size_t n_piece = 0, n_out, n_text;
    struct line_writer w;
    uint64_t now = now_us();
    bool is_full = r->seq->n_tokens == r->seq->n_max;
    if (r->first_us == 0)
        r->first_us = now;
    r->last_us = now;
    if (!r->ignore_eos && tokenizer_is_end(e->tokenizer, id)) {
        finish(e, r, "stop", step);
        return;
    }
    r->n_generated++;
    (void)tokenizer_piece(e->tokenizer, id, &piece, &n_piece);
    bool met = stop_match_feed(&r->stops, piece, n_piece, &out, &n_out);
    if (n_out > LINE_BYTES_MAX / 4)
        n_out = LINE_BYTES_MAX / 4; /* no vocabulary has such a piece */
    n_text = utf8_stream_add(&r->utf8, out, n_out, e->scratch);
    event_begin(e, r, &w, "T");
    line_bare_i64(&w, id);
    line_text(&w, "text", e->scratch, n_text);
    prob_write(&w, r);
    event_out(e, r, &w);
    if (met)
        finish(e, r, "stop", step);
    else if (is_full)
        finish(e, r, "length", step);
}

int request_logits(struct engine *e, struct request *r, uint32_t pos, const char *top,
                   uint64_t step, struct error *err)
{
    struct line_writer w;
    if (pos < r->n_scored)
        return 0; /* said before a replay */
    if (pos > r->n_scored || pos >= r->n_prompt)
        return error_set(err, EBB_EPEER, "LOGITS of position %u, the next is %u of %u", pos,
                         r->n_scored, r->n_prompt);
    event_begin(e, r, &w, "LOGITS");
    line_bare_i64(&w, pos);
    line_bare_i64(&w, r->seq->tokens[pos]);
    line_key(&w, "top", top);
    event_out(e, r, &w);
    if (++r->n_scored == r->n_prompt) {
        r->first_us = r->last_us = now_us();
        finish(e, r, "stop", step);
    }
    return 0;
}

void request_step_ended(struct engine *e, struct request *r, uint64_t step)
{
    if (r->state == REQUEST_ENDING && r->last_step == step)
        request_end(e, r, r->reason, NULL);
}

/* What was held back or was no whole character. */
static size_t tail_take(struct engine *e, struct request *r)
{
    const char *out;
    size_t n_out, n;
    stop_match_flush(&r->stops, &out, &n_out);
    n = utf8_stream_add(&r->utf8, out, n_out, e->scratch);
    return n + utf8_stream_flush(&r->utf8, e->scratch + n);
}

void request_end(struct engine *e, struct request *r, const char *reason, const struct error *err)
{
    struct line_writer w;
    uint64_t now = now_us();
    uint64_t prefill_us =
        r->start_us == 0 ? 0 : (r->first_us != 0 ? r->first_us : now) - r->start_us;
    size_t n_tail = tail_take(e, r);
    event_begin(e, r, &w, "DONE");
    line_bare(&w, reason);
    line_u64(&w, "generated", r->n_generated);
    line_u64(&w, "prompt", r->n_prompt);
    line_u64(&w, "reused", r->n_reused);
    line_u64(&w, "prefill_ms", prefill_us / 1000);
    line_u64(&w, "decode_ms", (r->last_us - r->first_us) / 1000);
    line_u64(&w, "hits", r->hits);
    line_u64(&w, "lookups", r->lookups);
    if (n_tail > 0)
        line_text(&w, "tail", e->scratch, n_tail);
    if (err != NULL)
        line_text(&w, "error", err->text, strlen(err->text));
    event_out(e, r, &w);
    request_free(e, r);
}

void requests_cancel(struct engine *e)
{
    for (struct connection *c = e->connections; c != NULL; c = c->next)
        for (struct request *r = c->requests, *next; r != NULL; r = next) {
            next = r->next;
            if (request_is_active(r))
                request_end(e, r, "cancel", NULL);
        }
}

bool requests_active(const struct engine *e)
{
    for (const struct connection *c = e->connections; c != NULL; c = c->next)
        for (const struct request *r = c->requests; r != NULL; r = r->next)
            if (request_is_active(r))
                return true;
    return false;
}
