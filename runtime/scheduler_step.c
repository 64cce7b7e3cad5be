/* runtime/scheduler_step.c - what goes into the next step.
 *
 * A step is either one prompt chunk of one sequence or one row each of several decoding sequences.
 * A prompt of many rows may ask for workspace first (scheduler.h), which keeps prompts waiting, not
 * decode. How many may be in flight: 2 * S with run-ahead (each of S groups has one step running and one
 * queued at the first stage), S + 1 without; prompt steps S + 1.
 *
 * Decode groups. With n decoding sequences and G groups a group has ceil(n / G) rows. Sequences
 * whose token is in flight form a group with those of the same step: run-ahead keeps them together,
 * because a step that waits for two others could run only when both are through the whole pipeline,
 * and the stages would stand idle between. Sequences with nothing in flight ("fresh") start a group
 * of their own while there are fewer than G; then they join the group that was served longest ago.
 * Prompts end one by one, each a group of its own: while there are more than G, none runs ahead, so
 * that the next to answer are fresh and join.
 */
#include "runtime/scheduler_internal.h"
#include <assert.h>

static struct sched_step *step_take(struct scheduler *s, bool is_prompt)
{
    for (uint32_t i = 0; i < s->n_steps_max; i++) {
        struct sched_step *step = &s->steps[i];
        if (step->id != 0)
            continue;
        struct sched_run *runs = step->runs;
        *step = (struct sched_step){.id = s->next_step++, .is_prompt = is_prompt, .runs = runs};
        s->n_steps++;
        s->n_prompt_steps += is_prompt;
        s->last_was_prompt = is_prompt;
        return step;
    }
    return NULL;
}

static struct sched_run *run_add(struct sched_step *step, struct sched_seq *seq, uint32_t n_rows)
{
    struct sched_run *run = &step->runs[step->n_runs++];
    *run = (struct sched_run){.seq = seq,
                              .owner = seq->owner,
                              .slot = seq->slot,
                              .pos = seq->n_fed,
                              .n_rows = n_rows,
                              .row_first = step->n_rows,
                              .is_prompt = step->is_prompt};
    step->n_rows += n_rows;
    return run;
}

/* After the run its sequence has one more unknown token, sampled in this step. */
static void run_samples(struct scheduler *s, struct sched_step *step, struct sched_run *run)
{
    struct sched_seq *seq = run->seq;
    run->wants_token = true;
    seq->n_sampling++;
    seq->last_step = step;
    seq->last_row = run->row_first + run->n_rows - 1;
    seq->turn = ++s->turn;
}

static bool chunk_order(struct scheduler *s, struct sched_order *out, uint32_t n_rows)
{
    s->chunk_asked = n_rows;
    s->has_loan = n_rows > s->shape.chunk_min;
    *out = (struct sched_order){.kind = ORDER_CHUNK, .n = n_rows};
    return true;
}

/* A prompt with n_left rows to run is worth a larger chunk than the stages have workspace for. */
static bool loan_build(struct scheduler *s, struct sched_order *out, uint32_t n_left)
{
    uint32_t rows = s->shape.chunk_min;
    if (n_left <= LOAN_CHUNKS * rows)
        return false;
    while (rows < n_left && rows < s->chunk_lendable)
        rows = rows < s->chunk_lendable / 2 ? 2 * rows : s->chunk_lendable;
    return rows > s->chunk_held && chunk_order(s, out, rows);
}

/* What was lent goes back behind the last chunk that could use it. */
static bool return_build(struct scheduler *s, struct sched_order *out)
{
    if (!s->has_loan || s->chunk_asked != 0)
        return false;
    for (const struct sched_seq *q = s->live.first; q != NULL; q = q->next)
        if (q->n_prefill > q->n_fed && q->n_prefill - q->n_fed > s->shape.chunk_min)
            return false;
    return chunk_order(s, out, s->shape.chunk_min);
}

static bool prompt_build(struct scheduler *s, struct sched_order *out)
{
    struct sched_seq *seq = NULL;
    if (s->n_prompt_steps > s->shape.n_stages || s->chunk_asked != 0)
        return false;
    for (struct sched_seq *q = s->live.first; q != NULL; q = q->next)
        if (q->n_fed < q->n_prefill && (seq == NULL || q->turn < seq->turn))
            seq = q;
    if (seq == NULL)
        return false;
    uint32_t n_rows = seq->n_prefill - seq->n_fed;
    if (loan_build(s, out, n_rows))
        return true;
    if (n_rows > s->chunk_held)
        n_rows = s->chunk_held;
    struct sched_step *step = step_take(s, true);
    assert(step != NULL);
    struct sched_run *run = run_add(step, seq, n_rows);
    seq->n_fed += n_rows;
    seq->turn = ++s->turn;
    if (seq->top == 0 && seq->n_fed == seq->n_prefill && seq->n_tokens < seq->n_max)
        run_samples(s, step, run);
    *out = (struct sched_order){.kind = ORDER_STEP, .step = step};
    return true;
}

/* Past its prompt, and one more token fits behind the row it would run. */
static bool is_decoding(const struct sched_seq *seq)
{
    return seq->top == 0 && seq->n_fed >= seq->n_prefill && seq->n_fed + 1 < seq->n_max;
}

struct decode_view {
    uint32_t n_decoding, n_fresh, n_groups;
    struct sched_step *oldest; /* the group that can run ahead and was served longest ago */
};

static bool may_run_ahead(const struct scheduler *s, const struct sched_seq *seq)
{
    return s->shape.run_ahead && seq->n_sampling == 1;
}

/* Whether all that decode with this step can: one left behind would go on alone from then on. */
static bool group_may_run_ahead(const struct scheduler *s, const struct sched_step *step)
{
    bool may = true;
    for (const struct sched_seq *q = s->live.first; q != NULL && may; q = q->next)
        if (is_decoding(q) && q->n_sampling > 0 && q->last_step == step)
            may = may_run_ahead(s, q);
    return may;
}

static struct decode_view decode_look(struct scheduler *s)
{
    struct decode_view v = {0};
    s->mark++;
    for (struct sched_seq *q = s->live.first; q != NULL; q = q->next) {
        if (!is_decoding(q))
            continue;
        v.n_decoding++;
        if (q->n_sampling == 0) {
            v.n_fresh++;
            continue;
        }
        if (q->last_step->mark == s->mark)
            continue;
        q->last_step->mark = s->mark;
        v.n_groups++;
        if ((v.oldest == NULL || q->last_step->id < v.oldest->id) &&
            group_may_run_ahead(s, q->last_step))
            v.oldest = q->last_step;
    }
    return v;
}

static void decode_add(struct scheduler *s, struct sched_step *step, struct sched_seq *seq)
{
    struct sched_run *run = run_add(step, seq, 1);
    if (seq->n_fed >= seq->n_tokens) {
        run->is_reference = true;
        run->ref_step = seq->last_step->id;
        run->ref_row = seq->last_row;
    }
    seq->n_fed++;
    run_samples(s, step, run);
}

static bool decode_build(struct scheduler *s, struct sched_order *out)
{
    struct decode_view v = decode_look(s);
    bool fresh_alone = v.n_fresh > 0 && v.n_groups < s->shape.n_groups;
    if (!fresh_alone && (v.oldest == NULL || v.n_groups > s->shape.n_groups))
        return false;
    uint32_t limit = (v.n_decoding + s->shape.n_groups - 1) / s->shape.n_groups;
    if (limit > s->shape.chunk)
        limit = s->shape.chunk;
    struct sched_step *step = step_take(s, false);
    assert(step != NULL);
    if (!fresh_alone)
        for (struct sched_seq *q = s->live.first; q != NULL && step->n_runs < limit; q = q->next)
            if (is_decoding(q) && may_run_ahead(s, q) && q->last_step == v.oldest)
                decode_add(s, step, q);
    for (struct sched_seq *q = s->live.first; q != NULL && step->n_runs < limit; q = q->next)
        if (is_decoding(q) && q->n_sampling == 0)
            decode_add(s, step, q);
    *out = (struct sched_order){.kind = ORDER_STEP, .step = step};
    return true;
}

bool scheduler_build(struct scheduler *s, struct sched_order *out)
{
    if (return_build(s, out))
        return true;
    if (s->n_steps == s->n_steps_max)
        return false;
    if (s->last_was_prompt)
        return decode_build(s, out) || prompt_build(s, out);
    return prompt_build(s, out) || decode_build(s, out);
}
