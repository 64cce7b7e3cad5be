/* Stages that die, talk nonsense or refuse: no token changes, and what cannot go on says why. */
#include "bench.h"
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

static struct bench b;
static int32_t prompts[8][2100];

static void survives(uint32_t n_cards, const char *options)
{
    char once[100], all[300];
    temp_path(once, sizeof once, "once");
    (void)snprintf(all, sizeof all, "--once %s %s", once, options);
    bench_init(&b, n_cards, all);
    b.s.chunk = 16;
    bench_start(&b);
    for (int i = 0; i < 3; i++) {
        char tag[8];
        (void)snprintf(tag, sizeof tag, "t%d", i);
        bench_generate(&b, tag, 60, 100 + 200 * i, 20 + 30 * (size_t)i, prompts[i], "");
    }
    for (int i = 0; i < 3; i++) {
        char tag[8];
        (void)snprintf(tag, sizeof tag, "t%d", i);
        size_t at = bench_wait(&b, 0, "DONE %s ", tag);
        cr_assert_not_null(strstr(b.lines[at], " length generated=60 "), "%s", b.lines[at]);
        bench_expect(&b, tag, prompts[i], 20 + 30 * (size_t)i, 60);
    }
    cr_assert_eq(access(once, F_OK), 0, "it did misbehave");
    cr_assert(bench_logged(&b, "replay"));
    (void)unlink(once);
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, a_death_in_the_prompt_costs_no_token)
{
    survives(1, "--die-after 3");
}

Test(failure, a_death_of_the_first_of_two_stages_costs_no_token)
{
    survives(2, "--only cpu:0 --die-after 25");
}

Test(failure, a_death_of_the_last_of_three_stages_costs_no_token)
{
    survives(3, "--only cpu:2 --die-after 40");
}

Test(failure, a_stage_that_writes_garbage_is_replaced)
{
    survives(2, "--only cpu:1 --garbage-after 30");
}

Test(failure, nothing_is_told_twice_after_a_replay)
{
    char once[100], all[300];
    temp_path(once, sizeof once, "once");
    (void)snprintf(all, sizeof all, "--once %s --die-after 12", once);
    bench_init(&b, 1, all);
    b.s.chunk = 16;
    bench_start(&b);
    bench_send(&b, "PART s ids=1,2,3");
    bench_generate(&b, "x", 20, 100, 100, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE x ");
    size_t n_resume = 0, n_pp = 0;
    for (size_t i = 0; i < b.n_lines; i++) {
        n_resume += strncmp(b.lines[i], "RESUME x", 8) == 0;
        n_pp += strncmp(b.lines[i], "PP x", 4) == 0;
    }
    cr_assert_eq(n_resume, 1);
    cr_assert_eq(n_pp, 7);
    cr_assert_eq(access(once, F_OK), 0);
    (void)unlink(once);
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, a_request_that_always_kills_its_stage_fails_with_its_last_words)
{
    bench_init(&b, 2, "--only cpu:1 --die-after 5");
    bench_start(&b);
    bench_generate(&b, "x", 100, 100, 10, prompts[0], "");
    size_t at = bench_wait(&b, 0, "DONE x error ");
    cr_assert_not_null(strstr(b.lines[at], "cpu:1"), "%s", b.lines[at]);
    cr_assert_not_null(strstr(b.lines[at], "dying%20as%20told"), "%s", b.lines[at]);
    int32_t got[200];
    cr_assert_gt(bench_tokens(&b, "x", got, 200), 4u, "each life of the stage brings it on");
    bench_send(&b, "PING still");
    (void)bench_wait(&b, 0, "PONG still");
    bench_generate(&b, "y", 2, 300, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE y length ");
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, the_reserve_in_force_and_a_waiting_vram_survive_a_restart)
{
    char once[100], all[300];
    temp_path(once, sizeof once, "once");
    (void)snprintf(all, sizeof all, "--once %s --only cpu:1 --die-after 20 --slow-us 500", once);
    bench_init(&b, 2, all);
    bench_start(&b);
    bench_send(&b, "VRAM 123 1");
    (void)bench_wait(&b, 0, "VRAM-DONE");
    bench_generate(&b, "x", 60, 100, 10, prompts[0], "");
    for (int i = 0; i < 40; i++) {
        bench_send(&b, "VRAM %d 0", i + 1);
        bench_send(&b, "PING %d", i);
        (void)bench_wait(&b, 0, "PONG %d", i);
        (void)usleep(2000);
    }
    (void)bench_wait(&b, 0, "DONE x length ");
    bench_expect(&b, "x", prompts[0], 10, 60);
    (void)bench_wait(&b, 0, "VRAM device=0 reserve_mib=40 ");
    cr_assert_eq(access(once, F_OK), 0);
    bench_send(&b, "STAT");
    size_t at = bench_wait(&b, 0, "STAT device=1 ");
    cr_assert_eq(bench_number(b.lines[at], "reserve_mib"), 123);
    (void)unlink(once);
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, a_silent_stage_holds_up_nobody_else)
{
    bench_init(&b, 2, "--only cpu:1 --mute-after 8");
    bench_start(&b);
    bench_generate(&b, "x", 100, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "T x ");
    bench_send(&b, "PING a");
    (void)bench_wait(&b, 0, "PONG a");
    bench_send(&b, "STOP x");
    (void)bench_wait(&b, 0, "DONE x cancel ");
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, a_stage_that_tells_no_probability_where_one_was_wanted_is_broken)
{
    bench_init(&b, 2, "");
    bench_start(&b);
    bench_generate(&b, "x", 5, 100, 10, prompts[0], "logprobs=2");
    size_t at = bench_wait(&b, 0, "DONE x error ");
    cr_assert_not_null(strstr(b.lines[at], "PROB"), "%s", b.lines[at]);
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, a_plan_that_does_not_fit_is_made_again_smaller)
{
    bench_init(&b, 2, "--only cpu:1 --refuse-loads 2");
    bench_start(&b);
    cr_assert(bench_logged(&b, "trying with"));
    bench_generate(&b, "x", 5, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE x length ");
    cr_assert_eq(bench_end(&b), 0);
}

Test(failure, a_plan_that_never_fits_is_an_error_that_names_the_card)
{
    bench_init(&b, 2, "--only cpu:1 --refuse-loads 9");
    bench_launch(&b);
    cr_assert_eq(bench_join(&b), EBB_ENOMEM);
    cr_assert_not_null(strstr(b.err.text, "card cpu:1: it does not fit"), "%s", b.err.text);
}

Test(failure, a_program_that_cannot_be_run_is_an_error)
{
    bench_init(&b, 1, "");
    free(b.s.launch);
    b.s.launch = strdup("/nonexistent/stage");
    bench_launch(&b);
    cr_assert_neq(bench_join(&b), 0);
    cr_assert_not_null(strstr(b.err.text, "cpu:0"), "%s", b.err.text);
    cr_assert_not_null(strstr(b.err.text, "not found"), "%s", b.err.text);
}
