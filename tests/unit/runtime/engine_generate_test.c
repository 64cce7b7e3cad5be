/* Generation through the whole coordinator over fake stages: the tokens of a sequence depend on its
 * history and on nothing else. */
#include "bench.h"
#include <criterion/criterion.h>
#include <string.h>
#include "runtime/model/model.h"
#include "runtime/model/tokenizer.h"

static struct bench b;
static int32_t prompts[16][2100];

static void several_at_once(uint32_t n_cards, uint32_t chunk, uint32_t parallel)
{
    static const size_t lengths[] = {1, 5, 64, 65, 200, 17, 3, 700};
    char tag[8];
    bench_init(&b, n_cards, "");
    b.s.chunk = chunk;
    b.s.parallel = parallel;
    bench_start(&b);
    for (int i = 0; i < 8; i++) {
        (void)snprintf(tag, sizeof tag, "t%d", i);
        bench_generate(&b, tag, 40 + (uint32_t)i, 100 + 50 * i, lengths[i], prompts[i], "");
    }
    for (int i = 0; i < 8; i++) {
        (void)snprintf(tag, sizeof tag, "t%d", i);
        size_t at = bench_wait(&b, 0, "DONE %s ", tag);
        cr_assert(strstr(b.lines[at], " length ") != NULL, "%s", b.lines[at]);
        cr_assert_eq(bench_number(b.lines[at], "generated"), 40u + (unsigned)i);
        cr_assert_eq(bench_number(b.lines[at], "prompt"), lengths[i]);
        bench_expect(&b, tag, prompts[i], lengths[i], 40u + (unsigned)i);
    }
    cr_assert_eq(bench_end(&b), 0, "%s", b.err.text);
}

Test(generate, several_sequences_at_once_give_the_tokens_they_give_alone)
{
    several_at_once(1, 64, 4);
}

Test(generate, so_do_they_over_two_stages_with_small_chunks)
{
    several_at_once(2, 16, 8);
}

Test(generate, so_do_they_over_four_stages_one_row_at_a_time)
{
    several_at_once(4, 1, 3);
}

Test(generate, events_of_a_tag_come_in_their_order)
{
    bench_init(&b, 2, "");
    b.s.chunk = 16;
    bench_start(&b);
    bench_generate(&b, "x", 3, 100, 40, prompts[0], "");
    size_t done = bench_wait(&b, 0, "DONE x length generated=3 prompt=40 reused=0 "),
           at = bench_wait(&b, 0, "RESUME x reused=0");
    cr_assert_eq(bench_wait(&b, at + 1, "PP x 16 40 "), at + 1);
    cr_assert_eq(bench_wait(&b, at + 2, "PP x 32 40 "), at + 2);
    cr_assert_eq(bench_wait(&b, at + 3, "PP x 40 40 "), at + 3);
    cr_assert_eq(bench_wait(&b, at + 4, "T x "), at + 4);
    cr_assert_eq(done, at + 7);
    /* Both fake stages report a hit a row: 40 of the prompt, 2 of what was fed back. */
    cr_assert_eq(bench_number(b.lines[done], "hits"), 2 * 42);
    cr_assert_eq(bench_number(b.lines[done], "lookups"), 4 * 42);
    cr_assert_eq(bench_end(&b), 0);
}

static int32_t end_id(void)
{
    struct model *m;
    struct tokenizer *t;
    struct error err;
    cr_assert_eq(model_open(&m, EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf", &err), 0, "%s",
                 err.text);
    cr_assert_eq(tokenizer_open(&t, m->gguf, &err), 0, "%s", err.text);
    int32_t id = tokenizer_eos(t);
    cr_assert_geq(id, 0);
    tokenizer_close(t);
    model_close(m);
    return id;
}

Test(generate, what_ran_ahead_past_an_end_is_discarded)
{
    char options[80];
    (void)snprintf(options, sizeof options, "--end-at 30 --end-id %d", (int)end_id());
    bench_init(&b, 2, options);
    bench_start(&b);
    for (int i = 0; i < 4; i++) {
        char tag[8];
        (void)snprintf(tag, sizeof tag, "e%d", i);
        bench_generate(&b, tag, 100, 100 + i, 20, prompts[i], "");
    }
    for (int i = 0; i < 4; i++) {
        char tag[8];
        (void)snprintf(tag, sizeof tag, "e%d", i);
        size_t at = bench_wait(&b, 0, "DONE %s stop ", tag);
        /* Positions 20 to 29; the end itself is not told. */
        cr_assert_eq(bench_number(b.lines[at], "generated"), 10);
        bench_expect(&b, tag, prompts[i], 20, 10);
    }
    cr_assert_eq(bench_end(&b), 0);
}

Test(generate, ignore_eos_goes_on_to_the_length)
{
    char options[80];
    (void)snprintf(options, sizeof options, "--end-at 30 --end-id %d", (int)end_id());
    bench_init(&b, 1, options);
    bench_start(&b);
    bench_generate(&b, "x", 20, 100, 20, prompts[0], "ignore_eos=1");
    size_t at = bench_wait(&b, 0, "DONE x length ");
    cr_assert_eq(bench_number(b.lines[at], "generated"), 20);
    cr_assert_eq(bench_end(&b), 0);
}

static void decode(const char *text, char *out)
{
    size_t n;
    cr_assert_eq(percent_decode(text, strlen(text), out, &n, NULL), 0);
    out[n] = '\0';
}

/* All text of a tag's T lines and of its DONE. */
static void text_of(const char *tag, char *out)
{
    char start[40], piece[1024];
    int n = snprintf(start, sizeof start, "T %s ", tag);
    out[0] = '\0';
    for (size_t i = 0; i < b.n_lines; i++)
        if (strncmp(b.lines[i], start, (size_t)n) == 0) {
            decode(strstr(b.lines[i], "text=") + 5, piece);
            strcat(out, piece);
        }
}

Test(generate, a_stop_string_ends_the_text_before_it_even_across_tokens)
{
    static char whole[8192], cut[8192];
    char stop[64] = "", hex[8];
    bench_init(&b, 2, "");
    bench_start(&b);
    bench_generate(&b, "a", 60, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE a ");
    text_of("a", whole);
    cr_assert_gt(strlen(whole), 100u);
    for (size_t i = 50; i < 60; i++) { /* ten bytes from the middle, across tokens */
        (void)snprintf(hex, sizeof hex, "%%%02X", (unsigned char)whole[i]);
        strcat(stop, hex);
    }
    char more[100];
    (void)snprintf(more, sizeof more, "stop=%s", stop);
    bench_generate(&b, "b", 60, 100, 10, prompts[0], more);
    size_t at = bench_wait(&b, 0, "DONE b stop ");
    text_of("b", cut);
    cr_assert_null(strstr(b.lines[at], "tail="), "%s", b.lines[at]);
    const char *first = memmem(whole, strlen(whole), whole + 50, 10);
    cr_assert_eq(strlen(cut), (size_t)(first - whole));
    cr_assert_eq(memcmp(cut, whole, strlen(cut)), 0);
    cr_assert_eq(bench_end(&b), 0);
}

Test(generate, a_repeated_prompt_reuses_what_was_computed)
{
    bench_init(&b, 2, "");
    bench_start(&b);
    bench_generate(&b, "a", 20, 100, 100, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE a ");
    bench_generate(&b, "b", 20, 100, 100, prompts[1], "");
    (void)bench_wait(&b, 0, "RESUME b reused=99");
    (void)bench_wait(&b, 0, "DONE b length generated=20 prompt=100 reused=99 ");
    bench_expect(&b, "b", prompts[1], 100, 20);
    /* A longer one: everything that the other knew, generated tokens included, up to where they
     * differ. */
    bench_generate(&b, "c", 20, 100, 140, prompts[2], "");
    (void)bench_wait(&b, 0, "RESUME c reused=100");
    (void)bench_wait(&b, 0, "DONE c ");
    bench_expect(&b, "c", prompts[2], 140, 20);
    cr_assert_eq(bench_end(&b), 0);
}

Test(generate, scarce_kv_makes_requests_wait_and_never_fails_a_step)
{
    /* 130 blocks of 16 positions: one context of 2048 and a little. A stage refuses a step for
     * which it lacks a block. */
    bench_init(&b, 2, "--kv-blocks 130");
    b.s.parallel = 8;
    bench_start(&b);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 8; i++) {
            char tag[8];
            (void)snprintf(tag, sizeof tag, "r%d%d", round, i);
            bench_generate(&b, tag, 100, 100 + 40 * (i % 3), 300 + (size_t)i * 50, prompts[i], "");
        }
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 8; i++) {
            char tag[8];
            (void)snprintf(tag, sizeof tag, "r%d%d", round, i);
            size_t at = bench_wait(&b, 0, "DONE %s ", tag);
            cr_assert_not_null(strstr(b.lines[at], " length "), "%s", b.lines[at]);
            bench_expect(&b, tag, prompts[i], 300 + (size_t)i * 50, 100);
        }
    cr_assert(!bench_logged(&b, "replay"));
    cr_assert_eq(bench_end(&b), 0);
}

Test(generate, a_prompt_at_the_edge_of_the_context_fits_and_one_beyond_is_refused_with_numbers)
{
    bench_init(&b, 1, "");
    b.s.context = 64;
    bench_start(&b);
    bench_generate(&b, "fits", 10, 100, 63, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE fits length generated=1 prompt=63 ");
    bench_generate(&b, "not", 10, 100, 64, prompts[0], "");
    size_t at = bench_wait(&b, 0, "ERR not out-of-range ");
    cr_assert_not_null(strstr(b.lines[at], "64"), "%s", b.lines[at]);
    bench_generate(&b, "clipped", 100, 200, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE clipped length generated=54 ");
    cr_assert_eq(bench_end(&b), 0);
}

Test(generate, parts_are_joined_and_a_busy_tag_is_refused)
{
    int32_t joined[6] = {5, 6, 7, 8, 9, 10};
    bench_init(&b, 1, "--slow-us 2000");
    bench_start(&b);
    bench_send(&b, "PART x ids=5,6,7");
    bench_send(&b, "PART x ids=8,9");
    bench_send(&b, "GEN x 8 ids=10");
    bench_send(&b, "GEN x 8 ids=1");
    bench_send(&b, "PART x ids=1");
    bench_send(&b, "GEN y 8");
    bench_send(&b, "GEN y 8 temperature=-1 ids=1");
    bench_send(&b, "GEN y 8 ids=99999999");
    bench_send(&b, "PART y role=pirate text=hello");
    (void)bench_wait(&b, 0, "ERR x busy ");
    (void)bench_wait(&b, 0, "ERR y bad-value y has no prompt");
    (void)bench_wait(&b, 0, "ERR y out-of-range GEN: temperature");
    (void)bench_wait(&b, 0, "ERR y out-of-range an id wants");
    (void)bench_wait(&b, 0, "ERR y bad-value role=");
    (void)bench_wait(&b, 0, "DONE x length generated=8 prompt=6 ");
    bench_expect(&b, "x", joined, 6, 8);
    cr_assert_eq(bench_end(&b), 0);
}

Test(generate, score_tells_every_position_once_and_in_order)
{
    bench_init(&b, 2, "");
    b.s.chunk = 16;
    bench_start(&b);
    bench_send(&b, "PART s ids=11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30");
    bench_send(&b, "SCORE s top=3");
    size_t done = bench_wait(&b, 0, "DONE s stop generated=0 prompt=20 "), at = 0;
    for (int pos = 0; pos < 20; pos++)
        at = bench_wait(&b, at, "LOGITS s %d %d top=", pos, 11 + pos);
    cr_assert_lt(at, done);
    cr_assert_eq(bench_end(&b), 0);
}
