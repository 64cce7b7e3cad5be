/* Settings: what a flag says is what the engine gets, and what it may not say is refused by name. */
#include "runtime/settings.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS_MAX 16

static char *bare[ARGUMENTS_MAX];
static size_t n_bare;
static struct error err;

static int parse(struct settings *s, const char *const *arguments, size_t n)
{
    char *argv[ARGUMENTS_MAX];
    for (size_t i = 0; i < n; i++)
        argv[i] = (char *)arguments[i];
    memset(&err, 0, sizeof err);
    settings_default(s);
    return settings_parse(s, (int)n, argv, bare, &n_bare, &err);
}

#define PARSE(s, ...)                                                                              \
    parse(s, (const char *const[]){__VA_ARGS__},                                                   \
          sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#define REFUSES(code, words, ...)                                                                  \
    do {                                                                                           \
        struct settings refused_;                                                                  \
        cr_expect_eq(PARSE(&refused_, __VA_ARGS__), code, "%s", err.text);                         \
        cr_expect(strstr(err.text, words) != NULL, "\"%s\" does not say \"%s\"", err.text, words); \
        settings_free(&refused_);                                                                  \
    } while (0)

static bool text_is_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool settings_are_same(const struct settings *a, const struct settings *b)
{
    bool same = a->n_cards == b->n_cards;
    for (size_t i = 0; same && i < a->n_cards; i++)
        same = a->cards[i].kind == b->cards[i].kind && a->cards[i].ordinal == b->cards[i].ordinal &&
               strcmp(a->cards[i].host, b->cards[i].host) == 0 &&
               a->cards[i].vram_mib == b->cards[i].vram_mib &&
               a->cards[i].reserve_mib == b->cards[i].reserve_mib;
    return same && text_is_same(a->model, b->model) && text_is_same(a->split, b->split) &&
           a->segment_mib == b->segment_mib && a->context == b->context &&
           a->parallel == b->parallel && a->kv_tokens == b->kv_tokens &&
           a->kv_tokens_max == b->kv_tokens_max && a->chunk == b->chunk &&
           a->threads == b->threads && text_is_same(a->pin, b->pin) &&
           text_is_same(a->kernels, b->kernels) && text_is_same(a->kv, b->kv) &&
           text_is_same(a->launch, b->launch) && text_is_same(a->name, b->name) &&
           text_is_same(a->control, b->control) && text_is_same(a->trace, b->trace) &&
           text_is_same(a->name_space, b->name_space) && text_is_same(a->log_level, b->log_level) &&
           a->on_eof == b->on_eof && a->stage_attempts == b->stage_attempts &&
           a->max_new == b->max_new && a->temperature == b->temperature && a->top_p == b->top_p &&
           a->min_p == b->min_p && a->top_k == b->top_k && a->seed == b->seed &&
           a->repeat_penalty == b->repeat_penalty && a->repeat_last_n == b->repeat_last_n &&
           a->frequency_penalty == b->frequency_penalty &&
           a->presence_penalty == b->presence_penalty &&
           text_is_same(a->logit_bias, b->logit_bias) && text_is_same(a->logprobs, b->logprobs) &&
           a->ignore_eos == b->ignore_eos && text_is_same(a->output, b->output) &&
           text_is_same(a->prompt, b->prompt) && text_is_same(a->prompt_file, b->prompt_file) &&
           a->chat == b->chat && text_is_same(a->ids, b->ids) &&
           text_is_same(a->ids_file, b->ids_file) && a->score_top == b->score_top &&
           a->help == b->help;
}

/* A value per flag that is not its default, and where it has to arrive. */
enum kind { TEXT, U32, U64, F64, BOOL, EOF_KIND };
#define ROW(flag, value, kind, member)                                                             \
    {                                                                                              \
        flag, value, kind, offsetof(struct settings, member)                                       \
    }
static const struct round_trip {
    const char *flag, *value;
    enum kind kind;
    size_t offset;
} round_trips[] = {
    ROW("model", "a=b.gguf", TEXT, model),
    ROW("split", "0-3,4-7", TEXT, split),
    ROW("segment-mib", "65536", U64, segment_mib),
    ROW("context", "2048", U32, context),
    ROW("parallel", "1", U32, parallel),
    ROW("kv-tokens", "4096", U32, kv_tokens),
    ROW("kv-tokens-max", "65536", U32, kv_tokens_max),
    ROW("chunk", "512", U32, chunk),
    ROW("threads", "2", U32, threads),
    ROW("pin", "0-7,16", TEXT, pin),
    ROW("kernels", "reference", TEXT, kernels),
    ROW("kv", "f32", TEXT, kv),
    ROW("launch", "ssh {host} nice {stage} {card}", TEXT, launch),
    ROW("name", "big.model-1", TEXT, name),
    ROW("control", "none", TEXT, control),
    ROW("trace", "trace.json", TEXT, trace),
    ROW("namespace", "test_7", TEXT, name_space),
    ROW("log-level", "debug", TEXT, log_level),
    ROW("on-eof", "cancel", EOF_KIND, on_eof),
    ROW("stage-attempts", "0", U32, stage_attempts),
    ROW("max-new", "48", U32, max_new),
    ROW("temperature", "0.7", F64, temperature),
    ROW("top-p", "0.95", F64, top_p),
    ROW("min-p", "5e-2", F64, min_p),
    ROW("top-k", "40", U32, top_k),
    ROW("seed", "18446744073709551615", U64, seed),
    ROW("repeat-penalty", "1.1", F64, repeat_penalty),
    ROW("repeat-last-n", "256", U32, repeat_last_n),
    ROW("frequency-penalty", "-0.5", F64, frequency_penalty),
    ROW("presence-penalty", "1.5", F64, presence_penalty),
    ROW("logit-bias", "5:-100,7:1.5", TEXT, logit_bias),
    ROW("logprobs", "20", TEXT, logprobs),
    ROW("ignore-eos", "true", BOOL, ignore_eos),
    ROW("output", "jsonl", TEXT, output),
    ROW("file", "-", TEXT, prompt_file),
    ROW("chat", "true", BOOL, chat),
    ROW("text", "Call me", TEXT, prompt),
    ROW("ids", "1,2,151935", TEXT, ids),
    ROW("ids-file", "list.txt", TEXT, ids_file),
    ROW("top", "20", U32, score_top),
};

static void expect_arrived(const struct settings *s, const struct round_trip *r)
{
    const void *place = (const char *)s + r->offset;
    bool arrived = false;
    switch (r->kind) {
    case TEXT: arrived = text_is_same(*(char *const *)place, r->value); break;
    case U32: arrived = *(const uint32_t *)place == strtoull(r->value, NULL, 10); break;
    case U64: arrived = *(const uint64_t *)place == strtoull(r->value, NULL, 10); break;
    case F64: arrived = *(const double *)place == strtod(r->value, NULL); break;
    case BOOL: arrived = *(const bool *)place; break;
    case EOF_KIND: arrived = *(const enum on_eof *)place == ON_EOF_CANCEL; break;
    }
    cr_expect(arrived, "--%s %s did not arrive", r->flag, r->value);
}

Test(settings, every_flag_arrives_in_both_forms)
{
    for (size_t i = 0; i < sizeof round_trips / sizeof round_trips[0]; i++) {
        const struct round_trip *r = &round_trips[i];
        struct settings spaced, joined;
        char flag[64], both[128];
        int code;
        (void)snprintf(flag, sizeof flag, "--%s", r->flag);
        (void)snprintf(both, sizeof both, "--%s=%s", r->flag, r->value);
        cr_expect_eq(PARSE(&joined, both), 0, "%s", err.text);
        expect_arrived(&joined, r);
        code = r->kind == BOOL ? PARSE(&spaced, flag) : PARSE(&spaced, flag, r->value);
        cr_expect_eq(code, 0, "%s", err.text);
        expect_arrived(&spaced, r);
        cr_expect(settings_are_same(&spaced, &joined), "--%s: the two forms differ", r->flag);
        cr_expect_eq(n_bare, 0);
        settings_free(&spaced);
        settings_free(&joined);
    }
}

static const char *const every_group[] = {"engine", "controller", "prompt", "ids",
                                          "score",  "request",    "output", "common"};

/* Help as one string, to be freed. */
static char *help_text(void)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    settings_help(out, every_group, sizeof every_group / sizeof every_group[0]);
    (void)fclose(out);
    return text;
}

Test(settings, help_names_every_flag)
{
    char *text = help_text();
    for (size_t i = 0; i < sizeof round_trips / sizeof round_trips[0]; i++) {
        char flag[64];
        (void)snprintf(flag, sizeof flag, "--%s", round_trips[i].flag);
        cr_expect(strstr(text, flag) != NULL, "help lacks %s", flag);
    }
    cr_expect(strstr(text, "--cards LIST") != NULL);
    cr_expect(strstr(text, "--vram-mib LIST") != NULL);
    cr_expect(strstr(text, "-m, --model FILE") != NULL);
    free(text);
}

/* The value of "default: X]" for this flag in the help's text, whatever its line breaks. */
static bool help_default(char *entry, char *value, size_t capacity)
{
    char *end = strstr(entry + 2, "  --"), *found;
    size_t n_bytes = end != NULL ? (size_t)(end - entry) : strlen(entry);
    found = memmem(entry, n_bytes, "default:", 8);
    if (found == NULL)
        return false;
    found += 8;
    found += strspn(found, " \n");
    (void)snprintf(value, capacity, "%.*s", (int)strcspn(found, "]"), found);
    return true;
}

Test(settings, defaults_shown_in_help_are_the_defaults)
{
    char *text = help_text();
    size_t n_checked = 0;
    for (char *entry = text; (entry = strstr(entry, "  --")) != NULL; entry += 4) {
        char flag[64], value[64];
        struct settings s, untouched;
        (void)snprintf(flag, sizeof flag, "%.*s", (int)strcspn(entry + 2, " \n"), entry + 2);
        if (!help_default(entry, value, sizeof value) || strcmp(value, "ebbtide-<pid>") == 0 ||
            strcmp(value, "by name") == 0 || strcmp(value, "as the first") == 0)
            continue;
        settings_default(&untouched);
        cr_expect_eq(PARSE(&s, flag, value), 0, "%s", err.text);
        cr_expect(settings_are_same(&s, &untouched), "%s %s is not the default", flag, value);
        settings_free(&s);
        settings_free(&untouched);
        n_checked++;
    }
    free(text);
    cr_expect_geq(n_checked, 20, "only %zu defaults were seen", n_checked);
}

Test(settings, defaults_are_those_of_the_contract)
{
    struct settings s;
    settings_default(&s);
    cr_expect_null(s.model);
    cr_expect_eq(s.n_cards, 1);
    cr_expect_eq(s.cards[0].kind, CARD_CPU);
    cr_expect(s.cards_auto);
    cr_expect_str_eq(s.split, "auto");
    cr_expect_eq(s.parallel, 4);
    cr_expect_eq(s.chunk, 0);
    cr_expect_str_eq(s.kernels, "auto");
    cr_expect_str_eq(s.kv, "f16");
    cr_expect_str_eq(s.launch, "{stage}");
    cr_expect_eq(strncmp(s.name, "ebbtide-", 8), 0);
    cr_expect_null(s.control);
    cr_expect_str_eq(s.name_space, "default");
    cr_expect_eq(s.on_eof, ON_EOF_FINISH);
    cr_expect_eq(s.stage_attempts, 2);
    cr_expect_eq(s.max_new, 256);
    cr_expect_eq(s.temperature, 0.0);
    cr_expect_eq(s.top_p, 1.0);
    cr_expect_eq(s.min_p, 0.0);
    cr_expect_eq(s.top_k, 0);
    cr_expect_eq(s.repeat_penalty, 1.0);
    cr_expect_eq(s.repeat_last_n, 64);
    cr_expect_null(s.logit_bias);
    cr_expect_null(s.logprobs);
    cr_expect_str_eq(s.output, "text");
    settings_free(&s);
}

Test(settings, ranges_are_held_and_told)
{
    REFUSES(EBB_ERANGE, "--repeat-penalty: wanted a number from 0.01 to 100, got '0'",
            "--repeat-penalty", "0");
    REFUSES(EBB_ERANGE, "--frequency-penalty: wanted a number from -2 to 2, got '2.5'",
            "--frequency-penalty", "2.5");
    REFUSES(EBB_ERANGE, "--logprobs: wanted a whole number from 0 to 20, got '21'", "--logprobs",
            "21");
    REFUSES(EBB_EINVAL, "--logit-bias: wanted biases like 5:-1.5,7:2, got '5'", "--logit-bias",
            "5");
    REFUSES(EBB_ERANGE, "--parallel: wanted a whole number from 1 to 1024, got '0'", "--parallel",
            "0");
    REFUSES(EBB_ERANGE, "got '4294967296'", "--threads", "4294967296");
    REFUSES(EBB_ERANGE, "--seed", "--seed", "18446744073709551616");
    REFUSES(EBB_ERANGE, "--top-p: wanted a number from 0 to 1, got '1.5'", "--top-p", "1.5");
    REFUSES(EBB_ERANGE, "--temperature", "--temperature", "-1");
    REFUSES(EBB_EINVAL, "--max-new", "--max-new", "12x");
    REFUSES(EBB_EINVAL, "--max-new", "--max-new", "");
    REFUSES(EBB_EINVAL, "--chunk", "--chunk", "-4");
    REFUSES(EBB_EINVAL, "--chunk", "--chunk", "1.5");
    REFUSES(EBB_EINVAL, "--temperature", "--temperature", "nan");
    REFUSES(EBB_EINVAL, "--temperature", "--temperature", "0x1");
    REFUSES(EBB_EINVAL, "--temperature", "--temperature=");
    REFUSES(EBB_EINVAL, "wanted a value (N)", "--max-new");
    REFUSES(EBB_EINVAL, "wanted true or false, got 'maybe'", "--chat=maybe");
}

Test(settings, an_unknown_flag_names_the_nearest)
{
    REFUSES(EBB_EUNKNOWN_KEY, "nearest is --max-new", "--max-mew", "3");
    REFUSES(EBB_EUNKNOWN_KEY, "nearest is --temperature", "--temprature=1");
    REFUSES(EBB_EUNKNOWN_KEY, "nearest is --cards", "--card", "cpu:0");
    REFUSES(EBB_EUNKNOWN_KEY, "-x is not a flag", "-x");
    REFUSES(EBB_EINVAL, "the nearest is avx2", "--kernels", "avx");
    REFUSES(EBB_EINVAL, "the nearest is finish", "--on-eof", "finsih");
}

Test(settings, a_flag_of_another_command_is_refused)
{
    static const char *const engine[] = {"engine"};
    char *argv[] = {"--chunk", "16", "--max-new", "3"};
    struct settings s;
    settings_default(&s);
    cr_expect_eq(settings_parse_groups(&s, engine, 1, 2, argv, bare, &n_bare, &err), 0);
    cr_expect_eq(s.chunk, 16);
    cr_expect_eq(settings_parse_groups(&s, engine, 1, 4, argv, bare, &n_bare, &err),
                 EBB_EUNKNOWN_KEY);
    cr_expect(strstr(err.text, "--max-new is a flag of other commands") != NULL, "%s", err.text);
    settings_free(&s);
}

Test(settings, cards_are_read_in_order_with_their_hosts)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "--cards", "cpu:0,cuda:3,cpu:0@me@far-away.example"), 0, "%s", err.text);
    cr_assert_eq(s.n_cards, 3);
    cr_expect_eq(s.cards[1].kind, CARD_CUDA);
    cr_expect_eq(s.cards[1].ordinal, 3);
    cr_expect_str_eq(s.cards[1].host, "");
    cr_expect_eq(s.cards[2].kind, CARD_CPU);
    cr_expect_str_eq(s.cards[2].host, "me@far-away.example");
    settings_free(&s);
}

static int n_choices;

static void two_cuda_cards(struct settings *s)
{
    n_choices++;
    s->cards[0] = s->cards[1] = (struct card_setting){.kind = CARD_CUDA};
    s->cards[1].ordinal = 3;
    s->n_cards = 2;
}

Test(settings, auto_chooses_the_cards_before_their_memory_is_placed)
{
    char *argv[] = {"--vram-mib", "10,20", "--reserve-later-mib", "5"};
    struct settings s;
    settings_default(&s);
    s.cards_choose = two_cuda_cards;
    cr_assert_eq(settings_parse(&s, 4, argv, bare, &n_bare, &err), 0, "%s", err.text);
    cr_expect_eq(n_choices, 1);
    cr_expect_eq(s.n_cards, 2);
    cr_expect_eq(s.cards[1].ordinal, 3);
    cr_expect_eq(s.cards[0].vram_mib, 10);
    cr_expect_eq(s.cards[1].vram_mib, 20);
    cr_expect_eq(s.cards[1].reserve_mib, 5);
    settings_free(&s);
}

Test(settings, cards_that_are_named_are_not_chosen_and_the_last_word_holds)
{
    char *named[] = {"--cards", "auto", "--cards", "cpu:1"},
         *again[] = {"--cards", "cpu:1", "--cards", "auto"};
    struct settings s;
    settings_default(&s);
    s.cards_choose = two_cuda_cards;
    cr_assert_eq(settings_parse(&s, 4, named, bare, &n_bare, &err), 0, "%s", err.text);
    cr_expect_eq(n_choices, 0);
    cr_expect_not(s.cards_auto);
    cr_expect_eq(s.cards[0].ordinal, 1);
    cr_assert_eq(settings_parse(&s, 4, again, bare, &n_bare, &err), 0, "%s", err.text);
    cr_expect_eq(n_choices, 1);
    cr_expect_eq(s.cards[1].kind, CARD_CUDA);
    settings_free(&s);
}

Test(settings, bad_cards_are_refused)
{
    static const char *const bad[] = {"",           "cpu",         "cpu:",          "cpu:x",
                                      "gpu:0",      "cpu:0,",      ",cpu:0",        "cpu:-1",
                                      "cpu:0@",     "cpu:4096",    "cpu:0@-oProxy", "cpu:0@a b",
                                      "cpu:0@$(x)", "cpu:0,cpu:0", "cpu:0:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        REFUSES(EBB_EINVAL, "--cards: wanted", "--cards", bad[i]);
}

Test(settings, a_cuda_card_may_carry_several_stages_each_with_a_share_of_its_memory)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "--cards", "cuda:0,cuda:0,cuda:1", "--vram-mib", "100,200,0"), 0, "%s",
                 err.text);
    cr_expect_eq(s.n_cards, 3);
    cr_expect_eq(s.cards[1].ordinal, 0);
    cr_expect_eq(s.cards[1].vram_mib, 200);
    settings_free(&s);
    REFUSES(EBB_EINVAL, "cards 0 and 1 are both cuda:0", "--cards", "cuda:0,cuda:0");
    REFUSES(EBB_EINVAL, "got 0 for card 1", "--cards", "cuda:0,cuda:0", "--vram-mib", "100,0");
}

Test(settings, at_most_sixty_four_cards)
{
    char list[1024] = "cpu:0";
    struct settings s;
    for (int i = 1; i < CARDS_MAX; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",cpu:%d", i);
    cr_expect_eq(PARSE(&s, "--cards", list), 0, "%s", err.text);
    cr_expect_eq(s.n_cards, CARDS_MAX);
    settings_free(&s);
    (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",cuda:0");
    REFUSES(EBB_ERANGE, "at most 64 cards", "--cards", list);
}

Test(settings, memory_lists_are_one_for_all_or_one_per_card_in_any_order)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "--vram-mib", "64", "--cards", "cpu:0,cpu:1", "--reserve-mib", "1,2"), 0,
                 "%s", err.text);
    cr_expect_eq(s.cards[0].vram_mib, 64);
    cr_expect_eq(s.cards[1].vram_mib, 64);
    cr_expect_eq(s.cards[0].reserve_mib, 1);
    cr_expect_eq(s.cards[1].reserve_mib, 2);
    settings_free(&s);
    REFUSES(EBB_EINVAL,
            "--vram-mib: wanted one value for all or one for each of the 2 cards, got 3",
            "--vram-mib", "64,64,64", "--cards", "cpu:0,cpu:1");
    REFUSES(EBB_EINVAL, "--reserve-mib", "--reserve-mib", "1,2");
    REFUSES(EBB_EINVAL, "--vram-mib", "--vram-mib", "64,", "--cards", "cpu:0,cpu:1");
    REFUSES(EBB_ERANGE, "--vram-mib", "--vram-mib", "1073741825");
}

Test(settings, the_float_kernels_imply_a_float_kv_unless_it_is_given)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "--kernels", "float"), 0);
    cr_expect_str_eq(s.kv, "f32");
    settings_free(&s);
    cr_assert_eq(PARSE(&s, "--kv", "f16", "--kernels", "float"), 0);
    cr_expect_str_eq(s.kv, "f16");
    settings_free(&s);
}

Test(settings, the_launch_template_knows_its_fields)
{
    static const char *const good[] = {"ssh {host} CARD={card} {stage}", "fake-stage --die-at 3",
                                       "env HOME=${home} {stage}", "{ true; exec {stage}; }"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct settings s;
        cr_expect_eq(PARSE(&s, "--launch", good[i]), 0, "%s", err.text);
        settings_free(&s);
    }
    REFUSES(EBB_EINVAL, "--launch: wanted the fields {stage}, {host}, {card}, got '{hots}'",
            "--launch", "ssh {hots} {stage}");
    REFUSES(EBB_EINVAL, "--launch: wanted a command", "--launch", " ");
}

Test(settings, names_that_become_files_are_plain)
{
    REFUSES(EBB_EINVAL, "--name", "--name", "../other");
    REFUSES(EBB_EINVAL, "--name", "--name", ".hidden");
    REFUSES(EBB_EINVAL, "--namespace", "--namespace", "");
    REFUSES(EBB_EINVAL, "--ids", "--ids", "1,,2");
    REFUSES(EBB_EINVAL, "--ids", "--ids", "1,x");
    REFUSES(EBB_EINVAL, "--ids", "--ids", "");
}

Test(settings, bare_arguments_stay_in_order_and_a_double_dash_ends_the_flags)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "one", "-m", "x.gguf", "-", "--chat", "two", "--", "--chunk", "-m"), 0,
                 "%s", err.text);
    cr_expect_str_eq(s.model, "x.gguf");
    cr_assert_eq(n_bare, 5);
    cr_expect_str_eq(bare[0], "one");
    cr_expect_str_eq(bare[1], "-");
    cr_expect_str_eq(bare[2], "two");
    cr_expect_str_eq(bare[3], "--chunk");
    cr_expect_str_eq(bare[4], "-m");
    settings_free(&s);
}

Test(settings, the_last_of_a_flag_given_twice_holds)
{
    struct settings s;
    cr_assert_eq(
        PARSE(&s, "--chunk", "1", "--chunk=16", "--cards", "cpu:0,cpu:1", "--cards", "cpu:5"), 0);
    cr_expect_eq(s.chunk, 16);
    cr_expect_eq(s.n_cards, 1);
    cr_expect_eq(s.cards[0].ordinal, 5);
    settings_free(&s);
}

Test(settings, help_ends_the_reading)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "-h", "--no-such-flag"), 0);
    cr_expect(s.help);
    settings_free(&s);
}

Test(settings, a_reserve_for_the_later_cards_stands_beside_that_of_the_first)
{
    struct settings s;
    cr_assert_eq(
        PARSE(&s, "--cards", "cpu:0,cpu:1,cpu:2", "--reserve-later-mib", "5", "--reserve-mib", "3"),
        0, "%s", err.text);
    cr_expect_eq(s.cards[0].reserve_mib, 3);
    cr_expect_eq(s.cards[1].reserve_mib, 5);
    cr_expect_eq(s.cards[2].reserve_mib, 5);
    settings_free(&s);
    REFUSES(EBB_EINVAL, "--reserve-later-mib: wanted to stand beside one reserve", "--cards",
            "cpu:0,cpu:1", "--reserve-mib", "1,2", "--reserve-later-mib", "5");
    REFUSES(EBB_ERANGE, "--reserve-later-mib: wanted a whole number", "--reserve-later-mib",
            "1073741825");
    REFUSES(EBB_ENOENT, "/tmp/no-such.yaml", "--config", "/tmp/no-such.yaml");
}

Test(settings, what_attaching_takes_is_as_set_or_as_seen)
{
    struct settings s;
    cr_assert_eq(PARSE(&s, "--cards", "cpu:0,cuda:0"), 0, "%s", err.text);
    cr_assert_eq(card_attach_mib(&s, &s.cards[0], 524), 0);
    cr_assert_eq(card_attach_mib(&s, &s.cards[1], 0), 305);
    cr_assert_eq(card_attach_mib(&s, &s.cards[1], 200), 305);
    cr_assert_eq(card_attach_mib(&s, &s.cards[1], 524), 524);
    settings_free(&s);
    cr_assert_eq(PARSE(&s, "--cards", "cuda:0", "--attach-mib", "80"), 0, "%s", err.text);
    cr_assert_eq(card_attach_mib(&s, &s.cards[0], 524), 80);
    settings_free(&s);
}
