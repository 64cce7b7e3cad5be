/* runtime/steps.c - orders out, results in.
 *
 * Every order goes to every stage in the same sequence, so FORK, DROP and steps have one order
 * everywhere. Lines are built in one preallocated buffer; the token path allocates nothing. Results
 * carry epoch and step: those of an old epoch are dropped, anything else that does not match what
 * is in flight breaks the stage that said it.
 */
#include "runtime/steps.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/connection.h"
#include "runtime/recovery.h"
#include "runtime/request.h"
#include "runtime/sampling.h"

#define IDS_PER_LINE 4000u
#define KV_QUIET_US  UINT64_C(1000000) /* KV that nobody needs for so long goes back */
#define OWED_MAX     16u /* FORKs and DROPs that a stage has not confirmed; its queue is short */

static void line_out(struct engine *e, struct line_writer *w)
{
    int n = line_end(w);
    if (n > 0)
        peers_send(e, e->line, (size_t)n);
}

static void rows_write(struct engine *e, const struct sched_step *step, const struct sched_run *run,
                       uint32_t from, uint32_t n)
{
    const struct request *r = run->owner;
    struct line_writer w;
    char text[48];
    line_begin(&w, e->line, LINE_BYTES_MAX, "ROWS");
    line_u64(&w, "epoch", e->epoch);
    line_u64(&w, "step", step->id);
    line_u64(&w, "seq", run->slot);
    line_u64(&w, "pos", run->pos + from);
    if (run->is_reference) {
        (void)snprintf(text, sizeof text, "@%" PRIu64 ".%" PRIu32, run->ref_step, run->ref_row);
        line_key(&w, "ids", text);
    } else {
        line_ids(&w, "ids", run->seq->tokens + run->pos + from, n);
    }
    if (run->seq->top > 0) {
        (void)snprintf(text, sizeof text, "top:%" PRIu32, run->seq->top);
        line_key(&w, "want", text);
    } else {
        line_key(&w, "want", run->wants_token ? "last" : "none");
        if (run->wants_token)
            sampling_write(&w, &r->sampling, r->n_prompt);
    }
    line_out(e, &w);
}

static void step_send(struct engine *e, const struct sched_step *step)
{
    struct line_writer w;
    for (uint32_t i = 0; i < step->n_runs; i++) {
        const struct sched_run *run = &step->runs[i];
        for (uint32_t from = 0; from < run->n_rows; from += IDS_PER_LINE)
            rows_write(e, step, run, from,
                       run->n_rows - from < IDS_PER_LINE ? run->n_rows - from : IDS_PER_LINE);
    }
    line_begin(&w, e->line, LINE_BYTES_MAX, "STEP");
    line_u64(&w, "epoch", e->epoch);
    line_u64(&w, "step", step->id);
    line_u64(&w, "rows", step->n_rows);
    line_out(e, &w);
}

static void order_out(struct engine *e, struct line_writer *w)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        e->peers[i].n_owed++;
    line_out(e, w);
}

static bool orders_flow(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].n_owed >= OWED_MAX)
            return false;
    return true;
}

static void fork_send(struct engine *e, const struct sched_order *o)
{
    struct line_writer w;
    line_begin(&w, e->line, LINE_BYTES_MAX, "FORK");
    line_bare_i64(&w, o->new_slot);
    line_bare_i64(&w, o->slot);
    line_bare_i64(&w, o->n);
    order_out(e, &w);
}

static void drop_send(struct engine *e, uint32_t slot)
{
    struct line_writer w;
    line_begin(&w, e->line, LINE_BYTES_MAX, "DROP");
    line_bare_i64(&w, slot);
    order_out(e, &w);
}

static void chunk_send(struct engine *e, uint32_t n_rows)
{
    struct line_writer w;
    for (uint32_t i = 0; i < e->n_peers; i++)
        e->peers[i].chunk_owed = true;
    line_begin(&w, e->line, LINE_BYTES_MAX, "CHUNK");
    line_bare_i64(&w, n_rows);
    order_out(e, &w);
}

static void credit_send(struct engine *e, uint32_t n_blocks)
{
    struct line_writer w;
    for (uint32_t i = 0; i < e->n_peers; i++)
        e->peers[i].credit_owed = true;
    line_begin(&w, e->line, LINE_BYTES_MAX, "CREDIT");
    line_bare_i64(&w, n_blocks);
    order_out(e, &w);
}

/* The card that grants the least. */
static const struct peer *tightest(const struct engine *e)
{
    const struct peer *least = &e->peers[0];
    for (uint32_t i = 1; i < e->n_peers; i++)
        if (e->peers[i].grant.kv_blocks < least->grant.kv_blocks)
            least = &e->peers[i];
    return least;
}

/* A request whose positions no card's floor leaves room for, though nobody else runs. */
static void request_refuse(struct engine *e, const struct sched_order *o)
{
    const struct peer *p = tightest(e);
    const struct kv_grant *g = &p->grant;
    uint32_t block = (uint32_t)p->held.block_tokens;
    struct error err;
    (void)error_set(&err, EBB_ENOMEM,
                    "card %s: KV for %" PRIu32 " positions wanted, %" PRIu64
                    " can be had: the expert cache is at %" PRIu64 " MiB, its floor at %" PRIu64
                    ", %" PRIu64 " MiB are free and %" PRIu64 " reserved",
                    p->label, o->n * block, g->kv_blocks * block, g->cache_mib, g->cache_floor_mib,
                    g->free_mib, g->reserve_mib);
    engine_log(e, "warn", "%s", err.text);
    request_end(e, o->seq->owner, "error", &err);
}

void steps_credits_known(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].credit_owed)
            return;
    scheduler_credited(e->scheduler, (uint32_t)tightest(e)->grant.kv_blocks);
}

void steps_credited(struct engine *e, struct peer *p, const struct message *m)
{
    struct kv_grant g = {0};
    struct error err = {0};
    const struct {
        const char *key;
        uint64_t *value;
    } keys[] = {{"free_mib", &g.free_mib},
                {"reserve_mib", &g.reserve_mib},
                {"cache_mib", &g.cache_mib},
                {"cache_floor_mib", &g.cache_floor_mib}};
    int code = message_u64(m, "kv_blocks", p->held.kv_blocks, UINT32_MAX / 2, &g.kv_blocks, &err);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && code == 0; i++) {
        code = message_u64(m, keys[i].key, 0, UINT64_MAX, keys[i].value, &err);
        code = code == EBB_ENOENT ? 0 : code;
    }
    if (code != 0) {
        peer_break(p, EBB_EPEER, "CREDITED: %s", err.code != 0 ? err.text : "wants kv_blocks=");
        return;
    }
    uint64_t lendable = 0;
    (void)message_u64(m, "prompt_chunk", 1, UINT32_MAX, &lendable, NULL);
    p->grant = g;
    p->n_owed -= p->n_owed > 0;
    if (!p->credit_owed || e->phase != PHASE_SERVING)
        return;
    steps_chunk_redecide(e, p, lendable);
    p->credit_owed = false;
    steps_credits_known(e);
}

void steps_chunks_known(struct engine *e)
{
    uint32_t held = UINT32_MAX;
    for (uint32_t i = 0; i < e->n_peers; i++) {
        if (e->peers[i].chunk_owed)
            return;
        held = e->peers[i].chunk.held < held ? e->peers[i].chunk.held : held;
    }
    scheduler_chunked(e->scheduler, held);
}

uint32_t steps_prompt_chunk(const struct engine *e)
{
    uint32_t rows = e->sizes.chunk;
    for (uint32_t i = 0; i < e->n_peers; i++)
        rows = e->peers[i].chunk.lendable < rows ? e->peers[i].chunk.lendable : rows;
    return rows;
}

static void chunk_tell(struct engine *e, uint32_t n_rows)
{
    char line[64];
    int n = snprintf(line, sizeof line, "EVENT chunk prompt_chunk=%" PRIu32 "\n", n_rows);
    engine_log(e, "info", "prompt chunks of %" PRIu32 " rows at most", n_rows);
    for (struct connection *c = e->connections; c != NULL; c = c->next)
        if (c->watches)
            connection_event(c, line, (size_t)n);
}

void steps_chunk_redecide(struct engine *e, struct peer *p, uint64_t n_rows)
{
    uint32_t before = steps_prompt_chunk(e);
    if (n_rows > 0)
        p->chunk.lendable = n_rows < e->sizes.chunk ? (uint32_t)n_rows : e->sizes.chunk;
    uint32_t now = steps_prompt_chunk(e);
    scheduler_lendable(e->scheduler, now);
    if (now != before)
        chunk_tell(e, now);
}

void steps_event(struct engine *e, struct peer *p, const struct message *m)
{
    const char *what = message_bare(m, 0);
    uint64_t n_rows = 0;
    if (what == NULL || strcmp(what, "chunk") != 0 || e->phase != PHASE_SERVING)
        return;
    if (message_u64(m, "prompt_chunk", 1, UINT32_MAX, &n_rows, NULL) == 0)
        steps_chunk_redecide(e, p, n_rows);
}

void steps_chunked(struct engine *e, struct peer *p, const struct message *m)
{
    uint64_t held = 0, lendable = 0;
    struct error err = {0};
    int code = message_u64(m, "workspace_rows", 1, UINT32_MAX, &held, &err);
    if (code == 0)
        code = message_u64(m, "prompt_chunk", 1, UINT32_MAX, &lendable, &err);
    if (code != 0) {
        peer_break(p, EBB_EPEER, "CHUNKED: %s",
                   err.code != 0 ? err.text : "wants workspace_rows= and prompt_chunk=");
        return;
    }
    p->n_owed -= p->n_owed > 0;
    p->chunk.held = (uint32_t)held;
    if (!p->chunk_owed || e->phase != PHASE_SERVING)
        return;
    p->chunk_owed = false;
    uint32_t before = steps_prompt_chunk(e);
    p->chunk.lendable = lendable < e->sizes.chunk ? (uint32_t)lendable : e->sizes.chunk;
    if (steps_prompt_chunk(e) != before)
        chunk_tell(e, steps_prompt_chunk(e));
    steps_chunks_known(e);
}

/* KV that nobody needs goes back after a quiet while, so that it does not go to and fro. */
static void surplus_watch(struct engine *e)
{
    if (!scheduler_has_surplus(e->scheduler)) {
        e->surplus_us = 0;
        return;
    }
    if (e->surplus_us == 0)
        e->surplus_us = now_us();
    if (now_us() - e->surplus_us < KV_QUIET_US)
        return;
    scheduler_give_back(e->scheduler);
    e->surplus_us = 0;
}

int steps_timeout(const struct engine *e)
{
    uint64_t passed = e->surplus_us != 0 ? now_us() - e->surplus_us : 0;
    if (e->surplus_us == 0)
        return -1;
    return passed < KV_QUIET_US ? (int)((KV_QUIET_US - passed) / 1000 + 1) : 0;
}

void steps_pump(struct engine *e)
{
    struct sched_order o;
    surplus_watch(e);
    while (e->phase == PHASE_SERVING && orders_flow(e) && scheduler_next(e->scheduler, &o)) {
        switch (o.kind) {
        case ORDER_START: request_started(e, o.seq->owner); break;
        case ORDER_FORK: fork_send(e, &o); break;
        case ORDER_DROP: drop_send(e, o.slot); break;
        case ORDER_STEP: step_send(e, o.step); break;
        case ORDER_CREDIT: credit_send(e, o.n); break;
        case ORDER_CHUNK: chunk_send(e, o.n); break;
        case ORDER_REFUSE: request_refuse(e, &o); break;
        }
    }
}

/* The step that a result names; NULL: of an old epoch, or the peer is broken now. */
static struct sched_step *step_named(struct engine *e, struct peer *p, const struct message *m)
{
    struct error err = {0};
    uint64_t epoch, id;
    if (message_u64(m, "epoch", 0, e->epoch, &epoch, &err) != 0 ||
        message_u64(m, "step", 1, UINT64_MAX, &id, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return NULL;
    }
    if (epoch != e->epoch || e->phase != PHASE_SERVING)
        return NULL;
    struct sched_step *step = scheduler_step(e->scheduler, id);
    if (step == NULL || (step->ran >> p->index & 1) != 0)
        peer_break(p, EBB_EPEER, "%s of step %" PRIu64 ", which it does not owe", m->verb, id);
    return p->broken ? NULL : step;
}

static void step_close(struct engine *e, struct sched_step *step)
{
    uint64_t id = step->id;
    for (uint32_t i = 0; i < step->n_runs; i++)
        if (step->runs[i].owner != NULL)
            request_step_ended(e, step->runs[i].owner, id);
    scheduler_retire(e->scheduler, step);
}

static void prompts_advance(struct engine *e, struct sched_step *step)
{
    if (step->tokens_came)
        return;
    step->tokens_came = true;
    for (uint32_t i = 0; i < step->n_runs; i++) {
        const struct sched_run *run = &step->runs[i];
        if (run->is_prompt && run->seq != NULL)
            request_prompt_done(e, run->seq->owner, run->pos + run->n_rows);
    }
}

static bool owes_tokens(const struct sched_step *step)
{
    for (uint32_t i = 0; i < step->n_runs; i++)
        if (step->runs[i].wants_token)
            return true;
    return false;
}

/* Adds a per-run list of counts to the runs' owners. */
static int counts_add(const struct sched_step *step, const char *list, bool is_hits,
                      struct error *err)
{
    int32_t n;
    for (uint32_t i = 0; i < step->n_runs; i++) {
        struct request *r = step->runs[i].owner;
        int got = ids_next(&list, INT32_MAX, &n, err);
        if (got <= 0)
            return got < 0 ? got
                           : error_set(err, EBB_EPEER,
                                       "RAN names fewer runs than the %" PRIu32 " of its step",
                                       step->n_runs);
        if (r != NULL)
            *(is_hits ? &r->hits : &r->lookups) += (uint64_t)n;
    }
    return *list == '\0'
               ? 0
               : error_set(err, EBB_EPEER, "RAN names more runs than the %" PRIu32 " of its step",
                           step->n_runs);
}

void steps_ran(struct engine *e, struct peer *p, const struct message *m)
{
    struct sched_step *step = step_named(e, p, m);
    const char *hits = message_key(m, "hits"), *lookups = message_key(m, "lookups");
    struct error err = {0};
    if (step == NULL)
        return;
    if ((hits != NULL && counts_add(step, hits, true, &err) != 0) ||
        (lookups != NULL && counts_add(step, lookups, false, &err) != 0)) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return;
    }
    if (p->index + 1 == e->n_peers) {
        if (owes_tokens(step)) {
            peer_break(p, EBB_EPEER, "RAN of step %" PRIu64 " without the tokens it owes",
                       step->id);
            return;
        }
        prompts_advance(e, step);
    }
    if (scheduler_ran(e->scheduler, step, p->index))
        step_close(e, step);
}

static bool is_last(struct engine *e, struct peer *p, const struct message *m)
{
    if (p->index + 1 != e->n_peers)
        peer_break(p, EBB_EPEER, "%s from a stage that is not the last", m->verb);
    return !p->broken;
}

/* The run whose last row, `row`, is still to be sampled. */
static struct sched_run *run_sampling(struct sched_step *step, uint64_t row)
{
    for (uint32_t i = 0; i < step->n_runs; i++)
        if (step->runs[i].wants_token && step->runs[i].row_first + step->runs[i].n_rows - 1 == row)
            return &step->runs[i];
    return NULL;
}

static void token_take(struct engine *e, struct peer *p, struct sched_step *step, uint32_t row,
                       int32_t id)
{
    struct sched_seq *seq = NULL;
    struct error err = {0};
    uint64_t step_id = step->id;
    const struct sched_run *run = run_sampling(step, row);
    if (run != NULL && run->seq != NULL && !request_has_prob(run->seq->owner))
        peer_break(p, EBB_EPEER, "TOK of step %" PRIu64 " without the PROB it owes", step_id);
    else if (scheduler_token(e->scheduler, step, row, id, &seq, &err) != 0)
        peer_break(p, EBB_EPEER, "%s", err.text);
    else if (seq != NULL)
        request_token(e, seq->owner, id, step_id);
}

void steps_tokens(struct engine *e, struct peer *p, const struct message *m)
{
    struct sched_step *step = is_last(e, p, m) ? step_named(e, p, m) : NULL;
    const char *rows = message_key(m, "rows"), *ids = message_key(m, "ids");
    struct error err = {0};
    int32_t row, id, n_vocab = (int32_t)e->model->geometry.n_vocab;
    if (step == NULL)
        return;
    prompts_advance(e, step);
    while (!p->broken && rows != NULL && ids != NULL) {
        int got_row = ids_next(&rows, INT32_MAX, &row, &err);
        int got_id = got_row < 0 ? got_row : ids_next(&ids, n_vocab - 1, &id, &err);
        if (got_row < 0 || got_id < 0)
            peer_break(p, EBB_EPEER, "TOK: %s", err.text);
        else if (got_row != got_id)
            peer_break(p, EBB_EPEER, "TOK: as many rows as ids were wanted");
        else if (got_row == 0)
            break;
        else
            token_take(e, p, step, (uint32_t)row, id);
    }
    if (!p->broken && owes_tokens(step))
        peer_break(p, EBB_EPEER, "TOK of step %" PRIu64 " lacks a row that was asked for",
                   step->id);
}

static bool number_is_sound(const char *text, size_t n)
{
    return n > 0 && n <= 40 && strspn(text, "0123456789+-.einfa") >= n;
}

/* `id:logit,…`: ids in the vocabulary, decimals; at most n. */
static bool top_is_sound(const char *top, uint32_t n_vocab, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        char *end;
        if (*top < '0' || *top > '9')
            return false;
        unsigned long id = strtoul(top, &end, 10);
        if (id >= n_vocab || *end != ':')
            return false;
        top = end + 1;
        size_t n_number = strspn(top, "0123456789+-.einfa");
        if (!number_is_sound(top, n_number))
            return false;
        top += n_number;
        if (*top == '\0')
            return true;
        if (*top++ != ',')
            return false;
    }
    return false;
}

void steps_logits(struct engine *e, struct peer *p, const struct message *m)
{
    struct sched_step *step = is_last(e, p, m) ? step_named(e, p, m) : NULL;
    const char *top = message_key(m, "top");
    struct error err = {0};
    uint64_t row;
    if (step == NULL)
        return;
    if (message_u64(m, "row", 0, step->n_rows - 1, &row, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return;
    }
    /* A scored prompt is its step's only run. */
    struct sched_run *run = &step->runs[0];
    if (run->seq == NULL)
        return;
    if (run->seq->top == 0 || top == NULL ||
        !top_is_sound(top, e->model->geometry.n_vocab, run->seq->top)) {
        peer_break(p, EBB_EPEER, "LOGITS of step %" PRIu64 ": top= is not what was asked for",
                   step->id);
        return;
    }
    if (request_logits(e, run->seq->owner, run->pos + (uint32_t)row, top, step->id, &err) != 0)
        peer_break(p, EBB_EPEER, "%s", err.text);
}

void steps_prob(struct engine *e, struct peer *p, const struct message *m)
{
    struct sched_step *step = is_last(e, p, m) ? step_named(e, p, m) : NULL;
    const char *logprob = message_key(m, "logprob"), *top = message_key(m, "top");
    struct error err = {0};
    uint64_t row;
    if (step == NULL)
        return;
    if (message_u64(m, "row", 0, step->n_rows - 1, &row, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return;
    }
    struct sched_run *run = run_sampling(step, row);
    if (run != NULL && run->seq == NULL)
        return; /* it overran an end */
    struct request *r = run != NULL ? run->seq->owner : NULL;
    uint32_t n_vocab = e->model->geometry.n_vocab;
    bool is_sound = r != NULL && r->sampling.has_logprobs && logprob != NULL &&
                    number_is_sound(logprob, strlen(logprob)) &&
                    (top == NULL || top_is_sound(top, n_vocab, (uint32_t)r->sampling.n_logprobs));
    if (!is_sound)
        peer_break(p, EBB_EPEER, "PROB of step %" PRIu64 " is not what was asked for", step->id);
    else if (request_prob(r, logprob, top, &err) != 0)
        peer_break(p, EBB_EPEER, "%s", err.text);
}

void steps_ordered(struct engine *e, struct peer *p, const struct message *m)
{
    (void)e;
    (void)m;
    p->n_owed -= p->n_owed > 0;
}

/* What the stages do is no longer what the scheduler thinks: all begin anew. */
static void fall_out(struct engine *e, struct peer *p, const char *tag, const struct error *said)
{
    struct error why;
    if (e->n_peers == 1) { /* no link by which it could be told of a new epoch */
        peer_break(p, said->code, "%.60s: %.300s", tag, said->text);
        return;
    }
    (void)error_set(&why, said->code, "card %s: %.60s: %.300s", p->label, tag, said->text);
    recovery_begin(e, &why);
}

void steps_refused(struct engine *e, struct peer *p, const char *tag, const struct error *said)
{
    char *end;
    if (strncmp(tag, "step:", 5) != 0) {
        p->n_owed -= p->n_owed > 0;
        if (e->phase == PHASE_SERVING && strncmp(tag, "fork:", 5) == 0)
            fall_out(e, p, tag, said);
        else
            engine_log(e, "warn", "card %s: %s: %s", p->label, tag, said->text);
        return;
    }
    unsigned long epoch = strtoul(tag + 5, &end, 10);
    if (*end != '.' || epoch > e->epoch)
        peer_break(p, EBB_EPEER, "an ERR for %.60s, which is no step", tag);
    else if (epoch == e->epoch && e->phase == PHASE_SERVING)
        fall_out(e, p, tag, said);
}
