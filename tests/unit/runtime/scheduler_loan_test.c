/* Loans of workspace: asked for by long prompts, as much as every card can lend, waited for without holding decode up, given back
 * behind the last chunk that could use them.
 */
#include <criterion/criterion.h>

#include "runtime/scheduler.h"

#define CHUNK 512
#define LEAST 64

static struct scheduler *s;
static struct error err;
static int32_t text[4096];

static void open_with(uint32_t n_lendable, uint32_t n_held)
{
    struct sched_shape shape = {.n_stages = 1,
                                .parallel = 4,
                                .n_slots = 12,
                                .chunk = CHUNK,
                                .chunk_min = LEAST,
                                .context = 4096,
                                .n_blocks = 1000,
                                .block_tokens = 16,
                                .run_ahead = true};
    cr_assert_eq(scheduler_open(&s, &shape, &err), 0, "%s", err.text);
    scheduler_lendable(s, n_lendable);
    scheduler_chunked(s, n_held);
}

/* Its first token is its own, so that none has another's prefix. */
static struct sched_seq *submit(uint32_t n_prompt)
{
    static int32_t first;
    struct sched_seq *q;
    text[0] = ++first;
    cr_assert_eq(scheduler_submit(s, text, text, n_prompt, n_prompt + 100, 0, &q, &err), 0, "%s",
                 err.text);
    return q;
}

static struct sched_order expect(enum sched_order_kind kind)
{
    struct sched_order o;
    cr_assert(scheduler_next(s, &o), "nothing to do, kind %d wanted", (int)kind);
    cr_assert_eq(o.kind, kind, "kind %d, wanted %d", (int)o.kind, (int)kind);
    return o;
}

static void expect_nothing(void)
{
    struct sched_order o;
    cr_assert(!scheduler_next(s, &o), "kind %d, nothing wanted", (int)o.kind);
}

/* The step has run, and what it samples is known. */
static void run(struct sched_step *step)
{
    struct sched_seq *owner;
    for (uint32_t i = 0; i < step->n_runs; i++)
        if (step->runs[i].wants_token)
            cr_assert_eq(scheduler_token(s, step,
                                         step->runs[i].row_first + step->runs[i].n_rows - 1, 5,
                                         &owner, &err),
                         0);
    step->tokens_came = true;
    cr_assert(scheduler_ran(s, step, 0));
    scheduler_retire(s, step);
}

static void expect_chunk(uint32_t n_rows)
{
    struct sched_step *step = expect(ORDER_STEP).step;
    cr_assert(step->is_prompt);
    cr_assert_eq(step->n_rows, n_rows, "%u rows, wanted %u", step->n_rows, n_rows);
    run(step);
}

Test(scheduler_loan, a_long_prompt_asks_and_gives_back_behind_its_last_long_chunk)
{
    open_with(CHUNK, LEAST);
    (void)submit(2 * CHUNK + 10);
    (void)expect(ORDER_START);
    cr_assert_eq(expect(ORDER_CHUNK).n, CHUNK);
    expect_nothing();
    scheduler_chunked(s, CHUNK);
    expect_chunk(CHUNK);
    expect_chunk(CHUNK);
    cr_assert_eq(expect(ORDER_CHUNK).n, LEAST, "ten rows need no loan");
    expect_nothing();
    scheduler_chunked(s, LEAST);
    expect_chunk(10);
    scheduler_close(s);
}

Test(scheduler_loan, as_many_rows_are_asked_for_as_the_prompt_has)
{
    open_with(CHUNK, LEAST);
    (void)submit(200);
    (void)expect(ORDER_START);
    cr_assert_eq(expect(ORDER_CHUNK).n, 256);
    scheduler_chunked(s, 256);
    expect_chunk(200);
    cr_assert_eq(expect(ORDER_CHUNK).n, LEAST);
    scheduler_close(s);
}

Test(scheduler_loan, a_prompt_of_few_chunks_asks_for_nothing)
{
    open_with(CHUNK, LEAST);
    (void)submit(LOAN_CHUNKS * LEAST);
    (void)expect(ORDER_START);
    for (uint32_t i = 0; i < LOAN_CHUNKS; i++)
        expect_chunk(LEAST);
    scheduler_close(s);
}

Test(scheduler_loan, where_every_stage_has_the_workspace_nothing_is_asked_for_or_given_back)
{
    open_with(CHUNK, CHUNK);
    (void)submit(CHUNK + 10);
    (void)expect(ORDER_START);
    expect_chunk(CHUNK);
    expect_chunk(10);
    scheduler_close(s);
}

Test(scheduler_loan, no_more_is_asked_for_than_every_card_can_lend)
{
    open_with(128, LEAST);
    (void)submit(CHUNK);
    (void)expect(ORDER_START);
    cr_assert_eq(expect(ORDER_CHUNK).n, 128);
    scheduler_chunked(s, 128);
    expect_chunk(128);
    scheduler_lendable(s, LEAST);
    expect_chunk(LEAST);
    scheduler_lendable(s, CHUNK);
    cr_assert_eq(expect(ORDER_CHUNK).n, CHUNK, "320 rows are left, and a card has more again");
    scheduler_chunked(s, CHUNK);
    expect_chunk(CHUNK - 128 - LEAST);
    scheduler_close(s);
}

Test(scheduler_loan, cards_that_can_lend_nothing_are_not_asked)
{
    open_with(LEAST, LEAST);
    (void)submit(5 * LEAST);
    (void)expect(ORDER_START);
    for (int i = 0; i < 5; i++)
        expect_chunk(LEAST);
    scheduler_close(s);
}

Test(scheduler_loan, what_came_short_is_used_and_not_asked_for_again_until_a_card_changes)
{
    open_with(CHUNK, LEAST);
    (void)submit(4 * CHUNK);
    (void)expect(ORDER_START);
    (void)expect(ORDER_CHUNK);
    scheduler_chunked(s, 128);
    expect_chunk(128);
    expect_chunk(128);
    scheduler_lendable(s, 256);
    cr_assert_eq(expect(ORDER_CHUNK).n, 256);
    scheduler_chunked(s, 256);
    expect_chunk(256);
    scheduler_close(s);
}

Test(scheduler_loan, a_prompt_that_waits_for_the_answers_keeps_no_token_waiting)
{
    open_with(CHUNK, LEAST);
    (void)submit(10);
    (void)expect(ORDER_START);
    expect_chunk(10);
    (void)submit(CHUNK);
    (void)expect(ORDER_START);
    struct sched_step *decode = expect(ORDER_STEP).step;
    cr_assert(!decode->is_prompt);
    cr_assert_eq(expect(ORDER_CHUNK).n, CHUNK);
    for (int i = 0; i < 3; i++) {
        run(decode);
        decode = expect(ORDER_STEP).step;
        cr_assert(!decode->is_prompt);
    }
    scheduler_chunked(s, CHUNK);
    expect_chunk(CHUNK);
    scheduler_close(s);
}

Test(scheduler_loan, one_loan_serves_all_prompts_that_run)
{
    open_with(CHUNK, LEAST);
    (void)submit(CHUNK);
    (void)submit(CHUNK);
    (void)expect(ORDER_START);
    (void)expect(ORDER_START);
    (void)expect(ORDER_CHUNK);
    scheduler_chunked(s, CHUNK);
    expect_chunk(CHUNK);
    struct sched_step *decode = expect(ORDER_STEP).step;
    cr_assert(!decode->is_prompt);
    run(decode);
    expect_chunk(CHUNK);
    cr_assert_eq(expect(ORDER_CHUNK).n, LEAST);
    scheduler_close(s);
}

Test(scheduler_loan, a_cancelled_prompts_loan_goes_back)
{
    open_with(CHUNK, LEAST);
    struct sched_seq *q = submit(4 * CHUNK);
    (void)expect(ORDER_START);
    (void)expect(ORDER_CHUNK);
    scheduler_chunked(s, CHUNK);
    expect_chunk(CHUNK);
    scheduler_end(s, q, 0);
    cr_assert_eq(expect(ORDER_CHUNK).n, LEAST);
    scheduler_chunked(s, LEAST);
    expect_nothing();
    scheduler_close(s);
}

Test(scheduler_loan, after_a_reset_no_answer_is_owed_and_the_prompt_asks_again)
{
    open_with(CHUNK, LEAST);
    (void)submit(4 * CHUNK);
    (void)expect(ORDER_START);
    (void)expect(ORDER_CHUNK);
    scheduler_reset(s);
    cr_assert_eq(scheduler_counts(s).n_chunk_asked, 0);
    scheduler_lendable(s, CHUNK);
    scheduler_chunked(s, LEAST);
    (void)expect(ORDER_START);
    cr_assert_eq(expect(ORDER_CHUNK).n, CHUNK);
    scheduler_close(s);
}
