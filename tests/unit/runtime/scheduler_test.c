/* The scheduler alone: a pipeline of stages is played by hand. */
#include "runtime/scheduler.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_IN_TEST 16

static struct scheduler *s;
static struct error err;

static struct sched_shape shape = {.n_stages = 1,
                                   .parallel = 4,
                                   .n_slots = 12,
                                   .chunk = 64,
                                   .context = 512,
                                   .n_blocks = 200,
                                   .block_tokens = 16,
                                   .run_ahead = true};

static struct sched_seq *submit(int32_t first, uint32_t n_prompt, uint32_t n_max)
{
    static int32_t prompt[512];
    struct sched_seq *q;
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = first + (int32_t)i;
    cr_assert_eq(scheduler_submit(s, prompt, prompt, n_prompt, n_max, 0, &q, &err), 0, "%s",
                 err.text);
    return q;
}

/* Orders until a step or nothing. */
static struct sched_step *next_step(void)
{
    struct sched_order o;
    while (scheduler_next(s, &o))
        if (o.kind == ORDER_STEP)
            return o.step;
    return NULL;
}

static struct sched_order next_of(enum sched_order_kind kind)
{
    struct sched_order o;
    while (scheduler_next(s, &o))
        if (o.kind == kind)
            return o;
    cr_assert_fail("no order of kind %d", (int)kind);
    return o;
}

/* Every stage runs it; each sampled token is `id`. Sequences that are full end. */
static void run(struct sched_step *step, int32_t id)
{
    struct sched_seq *full[64];
    size_t n_full = 0;
    step->tokens_came = true;
    for (uint32_t i = 0; i < step->n_runs; i++) {
        struct sched_run *r = &step->runs[i];
        struct sched_seq *q = NULL;
        if (r->wants_token)
            cr_assert_eq(scheduler_token(s, step, r->row_first + r->n_rows - 1, id, &q, &err), 0,
                         "%s", err.text);
        if (q != NULL && q->n_tokens == q->n_max)
            full[n_full++] = q;
    }
    for (size_t i = 0; i < n_full; i++)
        scheduler_end(s, full[i], step->id);
    for (uint32_t i = 0; i < shape.n_stages; i++)
        cr_assert_eq(scheduler_ran(s, step, i), i + 1 == shape.n_stages);
    scheduler_retire(s, step);
}

static void open_with(uint32_t n_stages, uint32_t parallel, bool run_ahead)
{
    shape.n_stages = n_stages;
    shape.parallel = parallel;
    shape.n_slots = parallel + 8;
    shape.run_ahead = run_ahead;
    cr_assert_eq(scheduler_open(&s, &shape, &err), 0, "%s", err.text);
}

Test(scheduler, a_long_prompt_flows_in_chunks_without_waiting_for_answers)
{
    open_with(2, 4, true);
    (void)submit(0, 150, 160);
    struct sched_step *a = next_step(), *b = next_step(), *c = next_step();
    cr_assert_eq(a->n_rows, 64);
    cr_assert_eq(b->n_rows, 64);
    cr_assert_eq(b->runs[0].pos, 64);
    cr_assert_eq(c->n_rows, 22);
    cr_assert(!a->runs[0].wants_token && !b->runs[0].wants_token && c->runs[0].wants_token);
    struct sched_step *d = next_step(); /* the first decode row, not yet known here */
    cr_assert(d->runs[0].is_reference);
    cr_assert_eq(d->runs[0].ref_step, c->id);
    cr_assert_eq(d->runs[0].ref_row, 21);
    scheduler_close(s);
}

Test(scheduler, without_run_ahead_every_row_is_known_when_it_is_sent)
{
    open_with(2, 4, false);
    (void)submit(0, 4, 8);
    for (int i = 0; i < 4; i++) {
        struct sched_step *step = next_step();
        cr_assert_not_null(step);
        cr_assert(!step->runs[0].is_reference);
        cr_assert_null(next_step());
        run(step, 7);
    }
    cr_assert_null(next_step());
    scheduler_close(s);
}

Test(scheduler, with_s_stages_s_groups_are_in_flight)
{
    open_with(2, 4, true);
    for (int i = 0; i < 4; i++)
        (void)submit(100 * i, 2, 400);
    struct sched_step *steps[8] = {0};
    for (int turn = 0; turn < 40; turn++) { /* past the prompts it settles */
        while ((steps[0] = next_step()) != NULL)
            ;
        for (uint64_t id = 1, done = 0; done < 1; id++) {
            struct sched_step *step = scheduler_step(s, id);
            if (step != NULL) {
                run(step, 5);
                done++;
            }
        }
    }
    (void)next_step();
    uint32_t n_groups = 0;
    for (uint64_t id = 1; id < 200; id++) {
        struct sched_step *step = scheduler_step(s, id);
        if (step == NULL)
            continue;
        n_groups++;
        cr_assert(!step->is_prompt);
        cr_assert_eq(step->n_runs, 2);
        for (uint32_t i = 1; i < step->n_runs; i++)
            cr_assert_eq(step->runs[i].ref_step, step->runs[0].ref_step,
                         "a step waits for one other only");
    }
    cr_assert_eq(n_groups, 4); /* two running, two queued behind them */
    scheduler_close(s);
}

Test(scheduler, stages_that_take_turns_serve_all_sequences_in_one_group)
{
    shape.n_groups = 1;
    open_with(2, 4, true);
    for (int i = 0; i < 4; i++)
        (void)submit(100 * i, 2 + 3 * (uint32_t)i, 400);
    for (int turn = 0; turn < 40; turn++) {
        struct sched_step *step = NULL;
        while (next_step() != NULL)
            ;
        for (uint64_t id = 1; step == NULL; id++)
            step = scheduler_step(s, id);
        if (turn > 20)
            cr_assert(!step->is_prompt && step->n_runs == 4, "%u of 4 sequences", step->n_runs);
        run(step, 5);
    }
    scheduler_close(s);
    shape.n_groups = 0;
}

Test(scheduler, one_stage_serves_all_sequences_in_one_step)
{
    open_with(1, 4, true);
    for (int i = 0; i < 4; i++)
        (void)submit(100 * i, 2, 400);
    uint32_t widest = 0;
    for (int turn = 0; turn < 60; turn++) {
        while (next_step() != NULL)
            ;
        for (uint64_t id = 1;; id++)
            if (scheduler_step(s, id) != NULL) {
                widest = scheduler_step(s, id)->n_runs;
                run(scheduler_step(s, id), 5);
                break;
            }
    }
    cr_assert_eq(widest, 4);
    scheduler_close(s);
}

Test(scheduler, prompts_and_decodes_take_turns)
{
    open_with(1, 4, true);
    (void)submit(0, 2, 400);
    run(next_step(), 5);
    (void)submit(1000, 400, 401);
    uint32_t n_prompt = 0, n_decode = 0;
    struct sched_step *queue[4];
    uint32_t n = 0;
    for (int turn = 0; turn < 10; turn++) {
        for (struct sched_step *step; (step = next_step()) != NULL;)
            queue[n++] = step;
        *(queue[0]->is_prompt ? &n_prompt : &n_decode) += 1;
        run(queue[0], 5);
        memmove(queue, queue + 1, --n * sizeof *queue);
    }
    cr_assert_geq(n_prompt, 4u);
    cr_assert_geq(n_decode, 4u);
    scheduler_close(s);
}

Test(scheduler, a_token_for_an_ended_sequence_belongs_to_nobody)
{
    open_with(2, 4, true);
    struct sched_seq *q = submit(0, 4, 100), *got = q;
    struct sched_step *a = next_step(), *b = next_step();
    cr_assert_eq(scheduler_token(s, a, 3, 9, &got, &err), 0);
    cr_assert_eq(got, q);
    scheduler_end(s, q, a->id);
    cr_assert_not_null(a->runs[0].owner, "its last step still counts");
    cr_assert_null(b->runs[0].owner);
    cr_assert_eq(scheduler_token(s, b, 0, 9, &got, &err), 0);
    cr_assert_null(got);
    cr_assert_eq(scheduler_token(s, b, 0, 9, &got, &err), EBB_EPEER, "once only");
    scheduler_close(s);
}

Test(scheduler, what_an_earlier_stage_has_yet_to_report_still_counts_when_the_last_token_is_there)
{
    open_with(2, 4, true);
    struct sched_seq *q = submit(0, 150, 160);
    struct sched_step *a = next_step(), *b = next_step(), *last = next_step(), *over = next_step();
    scheduler_end(s, q, last->id);
    cr_assert_not_null(a->runs[0].owner);
    cr_assert_not_null(b->runs[0].owner);
    cr_assert_not_null(last->runs[0].owner);
    cr_assert_null(over->runs[0].owner, "it overran the end");
    scheduler_close(s);
}

Test(scheduler, admission_is_first_come_first_served_and_bounded_by_credit)
{
    shape.n_blocks = 40; /* 640 positions */
    open_with(1, 4, true);
    struct sched_seq *a = submit(0, 10, 300), *b = submit(100, 10, 300), *c = submit(200, 10, 100);
    (void)next_step();
    cr_assert_eq(scheduler_counts(s).n_live, 2);
    cr_assert_eq(c->state, SEQ_WAITING);
    scheduler_end(s, a, 0);
    (void)next_step();
    cr_assert_eq(c->state, SEQ_LIVE);
    cr_assert_eq(b->state, SEQ_LIVE);
    scheduler_close(s);
}

Test(scheduler, a_new_sequence_forks_the_longest_common_prefix)
{
    open_with(1, 4, true);
    struct sched_seq *a = submit(0, 100, 101);
    while (a != NULL && a->n_tokens < 101) {
        struct sched_step *step = next_step();
        bool last = step->runs[0].wants_token;
        run(step, 5);
        if (last)
            break;
    }
    cr_assert_eq(scheduler_counts(s).n_donors, 1);
    struct sched_seq *b = submit(0, 60, 70);
    struct sched_order o = next_of(ORDER_FORK);
    cr_assert_eq(o.n, 59, "one token at least is computed");
    o = next_of(ORDER_START);
    cr_assert_eq(o.seq, b);
    cr_assert_eq(b->n_reused, 59);
    struct sched_step *step = next_step();
    cr_assert_eq(step->runs[0].pos, 59);
    cr_assert_eq(step->n_rows, 1);
    /* a holds 7 blocks, b shares 3 of them and has 2 of its own. */
    cr_assert_eq(scheduler_counts(s).n_blocks_free, shape.n_blocks - 7 - 2);
    scheduler_close(s);
}

Test(scheduler, donors_give_way_when_blocks_are_needed)
{
    shape.n_blocks = 32; /* one context */
    open_with(1, 4, true);
    struct sched_seq *a = submit(0, 60, 61);
    run(next_step(), 5);
    (void)a;
    cr_assert_eq(scheduler_counts(s).n_donors, 1);
    (void)submit(1000, 10, 512);
    struct sched_order o = next_of(ORDER_DROP);
    (void)o;
    (void)next_of(ORDER_START);
    cr_assert_eq(scheduler_counts(s).n_donors, 0);
    cr_assert_eq(scheduler_counts(s).n_blocks_free, 0);
    scheduler_close(s);
}

Test(scheduler, a_donor_whose_own_blocks_are_needed_shares_whole_blocks_and_goes)
{
    shape.n_blocks = 32;
    open_with(1, 4, true);
    (void)submit(0, 60, 61);
    run(next_step(), 5);
    (void)submit(0, 60, 512);
    struct sched_order o = next_of(ORDER_FORK);
    cr_assert_eq(o.n, 48);
    (void)next_of(ORDER_DROP);
    (void)next_of(ORDER_START);
    cr_assert_eq(scheduler_counts(s).n_blocks_free, 0);
    scheduler_close(s);
}

Test(scheduler, after_a_reset_every_live_sequence_is_run_again_over_all_its_tokens)
{
    open_with(2, 4, true);
    struct sched_seq *a = submit(0, 10, 100), *b = submit(50, 10, 100);
    struct sched_step *x = next_step(), *y = next_step();
    run(x, 5);
    run(y, 6);
    struct sched_step *z = next_step();
    run(z, 7);
    uint32_t known = a->n_tokens;
    (void)next_step();
    scheduler_reset(s);
    cr_assert_eq(scheduler_counts(s).n_steps, 0);
    cr_assert_eq(scheduler_counts(s).n_blocks_free, shape.n_blocks);
    struct sched_order o = next_of(ORDER_START);
    cr_assert_eq(o.seq, a, "in the order they came");
    x = next_step();
    cr_assert_eq(x->runs[0].pos, 0);
    cr_assert_eq(x->n_rows, known);
    cr_assert(x->runs[0].wants_token);
    cr_assert_eq(b->state, SEQ_LIVE);
    scheduler_close(s);
}

/* Random submissions, ends and answers: the count always adds up, nothing is starved, every
 * sequence reaches its length. */
Test(scheduler, random_lives_never_break_the_count)
{
    static struct sched_seq *live[400];
    unsigned seed = 12345;
    shape.n_blocks = 60;
    open_with(3, 5, true);
    uint32_t n_submitted = 0, n_idle = 0;
    struct sched_step *queue[STEPS_IN_TEST];
    uint32_t n = 0;
    while (n_idle < 3) {
        if (n_submitted < 300 && rand_r(&seed) % 3 == 0) {
            uint32_t n_prompt = 1 + (uint32_t)rand_r(&seed) % 200;
            live[n_submitted++] = submit((int32_t)(rand_r(&seed) % 4) * 10, n_prompt,
                                         n_prompt + 1 + (uint32_t)rand_r(&seed) % 40);
        }
        for (struct sched_step *step; (step = next_step()) != NULL;) {
            cr_assert_lt(n, STEPS_IN_TEST);
            queue[n++] = step;
        }
        if (n > 0) {
            run(queue[0], (int32_t)(rand_r(&seed) % 3));
            memmove(queue, queue + 1, --n * sizeof *queue);
        }
        struct sched_counts counts = scheduler_counts(s);
        n_idle = n_submitted == 300 && n == 0 && counts.n_live == 0 && counts.n_waiting == 0
                     ? n_idle + 1
                     : 0;
        cr_assert_leq(counts.n_live, 5u);
        cr_assert(n > 0 || counts.n_live == 0, "sequences live and nothing is in flight");
    }
    (void)live;
    cr_assert_eq(scheduler_counts(s).n_steps, 0);
    scheduler_close(s);
}
