/* What bring-up decides, from a model's geometry and the cards' sizes; and how a stage is
 * launched. */
#include "runtime/sizing.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/launch.h"

static struct error err;
static struct settings s;
static struct model *m;
static struct plan plan;

static void two_cards(void)
{
    settings_default(&s);
    s.n_cards = 2;
    s.cards[1] = (struct card_setting){.kind = CARD_CPU, .ordinal = 1};
    cr_assert_eq(model_open(&m, EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf", &err), 0, "%s",
                 err.text);
    cr_assert_eq(plan_make(&plan, "auto", 2, m->geometry.n_layers, &err), 0);
}

static void done(void)
{
    model_close(m);
    settings_free(&s);
}

Test(sizing, roomy_cards_get_the_defaults, .init = two_cards, .fini = done)
{
    const uint64_t total[] = {8192, 8192};
    struct sizes z;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
    cr_assert_eq(z.segment_mib, 512);
    cr_assert_eq(z.kv_tokens, z.context * s.parallel);
    cr_assert_leq(z.context, 8192u);
    cr_assert_eq(z.chunk, 64);
}

Test(sizing, a_chunk_that_was_not_given_is_long_where_all_cards_are_cuda, .init = two_cards,
     .fini = done)
{
    const uint64_t total[] = {8192, 8192};
    struct sizes z;
    s.cards[1].kind = CARD_CUDA;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
    cr_expect_eq(z.chunk, 64, "a CPU card is among them");
    s.cards[0].kind = CARD_CUDA;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
    cr_expect_eq(z.chunk, 1024);
    cr_expect_eq(z.chunk_min, 64, "workspace for more is lent");
    struct sizes less[2];
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_eq(sizing_choose(&less[i], &s, m, &plan, total, i + 1, &err), 0, "%s", err.text);
    cr_expect_eq(less[0].chunk, 256, "rows of a chunk go before KV does");
    cr_expect_eq(less[1].chunk, 64);
    cr_expect_geq(less[1].kv_tokens, z.kv_tokens);
    s.chunk = 48;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
    cr_expect_eq(z.chunk, 48, "given");
    cr_expect_eq(z.chunk_min, 48);
    s.parallel = 100;
    s.chunk = 1024;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
    cr_expect_eq(z.chunk_min, 108, "a row of every sequence");
}

Test(sizing, a_small_card_gets_smaller_segments_and_less_kv_but_one_context, .init = two_cards,
     .fini = done)
{
    const uint64_t total[] = {8192, 24};
    struct sizes z;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
    cr_assert_leq(z.segment_mib, 2u);
    cr_assert_geq(z.kv_tokens, z.context);
    cr_assert_lt(z.kv_tokens, z.context * s.parallel);
}

Test(sizing, what_was_given_is_taken, .init = two_cards, .fini = done)
{
    const uint64_t total[] = {24, 24};
    struct sizes z;
    s.segment_mib = 3;
    s.context = 100;
    s.kv_tokens = 300;
    s.chunk = 512;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0);
    cr_assert_eq(z.segment_mib, 3);
    cr_assert_eq(z.context, 100);
    cr_assert_eq(z.kv_tokens, 300);
    cr_assert_eq(z.chunk, 100, "no chunk is longer than a context");
    s.context = 400;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), EBB_ERANGE);
    s.context = m->geometry.context_max + 1;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), EBB_ERANGE);
}

Test(sizing, kv_of_another_type_is_counted_in_its_bytes, .init = two_cards, .fini = done)
{
    static const char *const names[] = {"f32", "f16", "q8_0"};
    static const uint64_t bytes[] = {256, 128, 68};
    const uint64_t total[] = {24, 24};
    uint32_t fits[3];
    for (size_t i = 0; i < 3; i++) {
        struct sizes z;
        free(s.kv);
        s.kv = strdup(names[i]);
        cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), 0, "%s", err.text);
        cr_expect_str_eq(z.kv, names[i]);
        cr_expect_eq(sizing_kv_bytes(&z, 64), bytes[i]);
        fits[i] = z.kv_tokens;
        cr_expect(i == 0 || fits[i] >= fits[i - 1], "%s holds fewer positions", names[i]);
    }
    struct sizes z;
    m->geometry.head_dim = 16;
    cr_assert_eq(sizing_choose(&z, &s, m, &plan, total, 0, &err), EBB_EUNSUPPORTED);
    cr_expect(strstr(err.text, "--kv q8_0") != NULL && strstr(err.text, "16") != NULL, "%s",
              err.text);
}

Test(sizing, each_attempt_asks_for_less, .init = two_cards, .fini = done)
{
    const uint64_t total[] = {8192, 8192};
    struct sizes z[4];
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(sizing_choose(&z[i], &s, m, &plan, total, i, &err), 0);
    cr_assert_lt(z[1].kv_tokens, z[0].kv_tokens);
    cr_assert_lt(z[2].kv_tokens, z[1].kv_tokens);
    cr_assert_eq(z[2].kv_tokens, z[2].context);
    cr_assert_lt(z[3].chunk, z[2].chunk);
}

Test(sizing, cpu_cards_of_one_machine_share_its_memory, .init = two_cards, .fini = done)
{
    cr_assert_eq(sizing_vram_mib(&s, &s.cards[0], 1000), 400);
    s.cards[0].vram_mib = 24;
    cr_assert_eq(sizing_vram_mib(&s, &s.cards[0], 1000), 24);
    s.n_cards = 1;
    s.cards[0].vram_mib = 0;
    cr_assert_eq(sizing_vram_mib(&s, &s.cards[0], 1000), 0, "one alone: the stage's own default");
}

static char *launched(const char *template, struct launch *l)
{
    free(s.launch);
    s.launch = strdup(template);
    cr_assert_eq(launch_open(l, &s, &s.cards[1], 24, &err), 0, "%s", err.text);
    return l->argv[2];
}

Test(launch, a_template_becomes_a_shell_command, .init = two_cards, .fini = done)
{
    struct launch l;
    strcpy(s.cards[1].host, "box.local");
    char *text = launched("ssh {host} nice {stage}", &l);
    cr_assert_str_eq(l.argv[0], "/bin/sh");
    cr_assert_eq(strncmp(text, "exec ssh box.local nice '", 25), 0, "%s", text);
    cr_assert_not_null(
        strstr(text,
               "/ebbtide-stage-cpu' '--device' '1' '--vram-mib' '24' '--namespace' 'default'"),
        "%s", text);
    launch_close(&l);
    text = launched("/opt/other-stage {card} ${HOME}", &l);
    cr_assert_str_eq(text, "exec /opt/other-stage cpu:1 ${HOME}");
    launch_close(&l);
}

Test(launch, what_cannot_be_is_refused, .init = two_cards, .fini = done)
{
    struct launch l;
    free(s.launch);
    s.launch = strdup("  ");
    cr_assert_eq(launch_open(&l, &s, &s.cards[1], 0, &err), EBB_EINVAL);
    free(s.launch);
    s.launch = strdup("ssh {host} x");
    cr_assert_eq(launch_open(&l, &s, &s.cards[1], 0, &err), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "cpu:1"), "%s", err.text);
}
