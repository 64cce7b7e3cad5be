/* KV credits of the scheduler: asked for before anybody waits, refused only to one who runs alone, given back without a to and fro. */
#include <criterion/criterion.h>

#include "runtime/scheduler.h"

#define BLOCK 16

static struct scheduler *s;
static struct error err;

static void open_with(uint32_t n_granted)
{
    struct sched_shape shape = {.n_stages = 1,
                                .parallel = 4,
                                .n_slots = 12,
                                .chunk = 512,
                                .context = 512,
                                .n_blocks = 100,
                                .n_granted = n_granted,
                                .block_tokens = BLOCK,
                                .run_ahead = true};
    cr_assert_eq(scheduler_open(&s, &shape, &err), 0, "%s", err.text);
}

/* A sequence of n_blocks blocks, all but its last position prompt. */
static struct sched_seq *submit(int32_t first, uint32_t n_blocks)
{
    static int32_t prompt[512];
    struct sched_seq *q;
    uint32_t n = n_blocks * BLOCK - 1;
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = first + (int32_t)i;
    cr_assert_eq(scheduler_submit(s, prompt, prompt, n, n + 1, 0, &q, &err), 0, "%s", err.text);
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

/* Its prompt runs, its one token comes, it ends. */
static void run_to_its_end(struct sched_seq *q)
{
    struct sched_step *step = expect(ORDER_STEP).step;
    struct sched_seq *owner;
    cr_assert_eq(step->runs[0].seq, q);
    cr_assert_eq(scheduler_token(s, step, step->n_rows - 1, 5, &owner, &err), 0);
    step->tokens_came = true;
    scheduler_end(s, q, step->id);
    cr_assert(scheduler_ran(s, step, 0));
    scheduler_retire(s, step);
}

Test(scheduler_credit, what_is_lacking_is_asked_for_and_waited_for)
{
    open_with(4);
    struct sched_seq *small = submit(0, 4);
    cr_assert_eq(expect(ORDER_START).seq, small);
    struct sched_seq *big = submit(1000, 10);
    cr_assert_eq(expect(ORDER_CREDIT).n, 14, "what runs keeps its own");
    run_to_its_end(small);
    expect_nothing();
    cr_assert_eq(scheduler_counts(s).n_credit_asked, 14);
    scheduler_credited(s, 16);
    cr_assert_eq(expect(ORDER_START).seq, big);
    cr_assert_eq(scheduler_counts(s).n_blocks_free, 16 - 14);
    scheduler_close(s);
}

Test(scheduler_credit,
     ended_sequences_are_given_up_before_more_is_asked_for_but_not_a_shared_beginning)
{
    open_with(10);
    struct sched_seq *a = submit(0, 10);
    (void)expect(ORDER_START);
    run_to_its_end(a);
    struct sched_seq *b = submit(1000, 10);
    (void)expect(ORDER_DROP);
    (void)expect(ORDER_START);
    run_to_its_end(b);
    struct sched_seq *c = submit(1000, 20);
    cr_assert_eq(expect(ORDER_CREDIT).n, 21, "ten are there; of twenty, nine are shared");
    scheduler_credited(s, 21);
    cr_assert_eq(expect(ORDER_FORK).n, 10 * BLOCK - 1);
    cr_assert_eq(expect(ORDER_START).seq, c);
    scheduler_close(s);
}

Test(scheduler_credit, only_one_who_would_run_alone_is_refused)
{
    open_with(4);
    struct sched_seq *small = submit(0, 4);
    (void)expect(ORDER_START);
    struct sched_seq *big = submit(1000, 10);
    (void)expect(ORDER_CREDIT);
    scheduler_credited(s, 8);
    run_to_its_end(small);
    (void)expect(ORDER_DROP);
    cr_assert_eq(expect(ORDER_CREDIT).n, 10, "it may be enough now");
    scheduler_credited(s, 8);
    struct sched_order refused = expect(ORDER_REFUSE);
    cr_assert(refused.seq == big && refused.n == 10);
    scheduler_end(s, big, 0);
    expect_nothing();
    struct sched_seq *fits = submit(2000, 8);
    cr_assert_eq(expect(ORDER_START).seq, fits);
    scheduler_close(s);
}

Test(scheduler_credit, what_was_refused_is_asked_for_again_when_memory_came_back)
{
    open_with(4);
    (void)submit(0, 4);
    (void)expect(ORDER_START);
    (void)expect(ORDER_STEP);
    struct sched_seq *big = submit(1000, 10);
    (void)expect(ORDER_CREDIT);
    scheduler_credited(s, 8);
    expect_nothing();
    scheduler_credit_retry(s);
    cr_assert_eq(expect(ORDER_CREDIT).n, 14);
    scheduler_credited(s, 14);
    cr_assert_eq(expect(ORDER_START).seq, big);
    scheduler_close(s);
}

Test(scheduler_credit, what_nobody_needs_is_given_back_once)
{
    open_with(4);
    struct sched_seq *big = submit(0, 10);
    (void)expect(ORDER_CREDIT);
    scheduler_credited(s, 12);
    (void)expect(ORDER_START);
    cr_assert(scheduler_has_surplus(s), "two more than it needs");
    run_to_its_end(big);
    cr_assert(scheduler_has_surplus(s));
    scheduler_give_back(s);
    (void)expect(ORDER_DROP);
    cr_assert_eq(expect(ORDER_CREDIT).n, 4);
    cr_assert(!scheduler_has_surplus(s), "it is on its way");
    scheduler_credited(s, 6); /* whole segments */
    cr_assert(!scheduler_has_surplus(s), "asking again would bring nothing");
    struct sched_seq *fits = submit(1000, 6);
    cr_assert_eq(expect(ORDER_START).seq, fits, "what stayed is used");
    scheduler_close(s);
}

Test(scheduler_credit, nothing_is_given_back_while_somebody_waits)
{
    open_with(4);
    (void)submit(0, 6);
    (void)expect(ORDER_CREDIT);
    scheduler_credited(s, 12);
    (void)expect(ORDER_START);
    (void)submit(1000, 8);
    cr_assert(!scheduler_has_surplus(s));
    scheduler_give_back(s);
    cr_assert_eq(expect(ORDER_CREDIT).n, 14);
    scheduler_close(s);
}

Test(scheduler_credit, after_a_reset_nothing_is_owed_and_what_a_restarted_stage_grants_counts)
{
    open_with(4);
    struct sched_seq *big = submit(0, 10);
    (void)expect(ORDER_CREDIT);
    scheduler_credited(s, 10);
    (void)expect(ORDER_START);
    (void)submit(1000, 10);
    (void)expect(ORDER_CREDIT);
    scheduler_reset(s);
    cr_assert_eq(scheduler_counts(s).n_credit_asked, 0);
    scheduler_credited(s, 4);
    cr_assert_eq(expect(ORDER_CREDIT).n, 10);
    scheduler_credited(s, 10);
    cr_assert_eq(expect(ORDER_START).seq, big);
    scheduler_close(s);
}
