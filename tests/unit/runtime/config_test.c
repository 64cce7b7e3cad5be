/* Files of settings: what a file says is what the engine gets, flags win over it, and whatever is wrong is refused with its
 * line, its key, what was expected and what stood there. */
#include "runtime/settings.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct error err;

/* A file with this text; its name is the caller's to unlink. */
static void write_file(char *path, const char *text, size_t n_bytes)
{
    strcpy(path, "/tmp/ebbtide-config-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, n_bytes), (ssize_t)n_bytes);
    (void)close(fd);
}

static int read_text(struct settings *s, const char *text, size_t *n_keys)
{
    char path[64];
    write_file(path, text, strlen(text));
    memset(&err, 0, sizeof err);
    settings_default(s);
    int code = settings_read(s, path, n_keys, &err);
    (void)unlink(path);
    return code;
}

/* The file, then flags, as a command reads them. */
static int read_both(struct settings *s, const char *text, int argc, const char *const *flags)
{
    static const char *const engine[] = {"engine", "request"};
    char path[64], *argv[16] = {"--config", path}, *bare[16];
    size_t n_bare;
    write_file(path, text, strlen(text));
    for (int i = 0; i < argc; i++)
        argv[2 + i] = (char *)flags[i];
    memset(&err, 0, sizeof err);
    settings_default(s);
    int code = settings_parse_groups(s, engine, 2, argc + 2, argv, bare, &n_bare, &err);
    (void)unlink(path);
    return code;
}

#define BOTH(s, text, ...)                                                                         \
    read_both(s, text, sizeof((const char *const[]){"", __VA_ARGS__}) / sizeof(char *) - 1,        \
              (const char *const[]){"", __VA_ARGS__} + 1)

static const struct bad {
    const char *text;
    int line;
    const char *words, *more;
} bad[] = {
    /* clang-format off */
    {"contxt: 5\n", 1, "contxt: expected a known key (the nearest is context), got 'contxt'", NULL},
    {"\n\n# c\nModel: x\n", 4, "Model: expected a known key (the nearest is model)", NULL},
    {"vram:\n  reserve: 5\n", 2, "vram.reserve: expected a known key (the nearest is vram.reserve_mib), got 'reserve'", NULL},
    {"vram:\n  reserve_mib: 5\n  reserve_latter_mib: 1\n", 3, "nearest is vram.reserve_later_mib", NULL},
    {"cards:\n  - card: cpu:0\n    vram: 5\n", 3, "cards[0].vram: expected a key of a card (the nearest is card), got 'vram'", NULL},
    {"cards:\n  - cpu:0\n  - card: cpu:1\n    lunch: x\n", 4, "cards[1].lunch: expected a key of a card (the nearest is launch)", NULL},
    {"help: true\n", 1, "help: expected a known key", NULL},
    {"config: other.yaml\n", 1, "config: expected a known key", NULL},
    {"why: true\n", 1, "why: expected a known key", NULL},
    {"json: true\n", 1, "json: expected a known key", NULL},
    {"check: x\n", 1, "check: expected a known key", NULL},
    {"print: true\n", 1, "print: expected a known key", NULL},
    {"vram_mib_: 5\n", 1, "nearest is vram_mib", NULL},
    {"vram.reserve: 5\n", 1, "nearest is vram.reserve_mib", NULL},
    {"context.max: 5\n", 1, "context.max: expected a known key", NULL},
    {"<<: {context: 5}\n", 1, "<<: expected a known key", NULL},
    {"'': 5\n", 1, "expected a key, got ''", NULL},
    {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: 5\n", 1, "expected a key, got 'aaaa", NULL},
    {"? [a, b]\n: 5\n", 1, "expected a key, got a list", NULL},
    {"? {a: b}\n: 5\n", 1, "expected a key, got a map", NULL},
    {"5: 6\n", 1, "5: expected a known key", NULL},
    {"context: 5\nparallel: 2\ncontext: 6\n", 3, "context: expected once, got again (first on line 1)", NULL},
    {"kv-tokens: 9\nkv_tokens: 9\n", 2, "kv_tokens: expected once, got again (first on line 1)", NULL},
    {"vram:\n  reserve_mib: 1\nvram:\n  reserve_later_mib: 1\n", 3, "vram: expected once, got again (first on line 1)", NULL},
    {"vram:\n  reserve_mib: 1\nreserve_mib: 2\n", 3, "vram.reserve_mib: expected once, got again (first on line 2)", NULL},
    {"vram.reserve_mib: 1\nvram:\n  reserve_mib: 2\n", 3, "vram.reserve_mib: expected once, got again (first on line 1)", NULL},
    {"cards: cpu:0\ncards: cpu:1\n", 2, "cards: expected once, got again (first on line 1)", NULL},
    {"cards:\n  - card: cpu:0\n    card: cpu:1\n", 3, "cards[0].card: expected once, got again (first on line 2)", NULL},
    {"cards:\n  - card: cpu:0\n    vram_mib: 1\n    vram-mib: 1\n", 4, "cards[0].vram_mib: expected once, got again (first on line 3)", NULL},
    {"{context: 5,\n context: 6}\n", 2, "context: expected once", NULL},
    {"context: [5]\n", 1, "context: expected a whole number, 0..16777216, got a list", NULL},
    {"context:\n  - 5\n", 2, "context: expected a whole number, 0..16777216, got a list", NULL},
    {"context: {a: 5}\n", 1, "context: expected a whole number, 0..16777216, got a map", NULL},
    {"context:\n", 1, "context: expected a whole number, 0..16777216, got nothing", NULL},
    {"context: ~\n", 1, "got nothing", NULL},
    {"context: null\n", 1, "got nothing", NULL},
    {"context: '5'\n", 1, "context: expected a whole number, 0..16777216, got the text \"5\"", NULL},
    {"seed: \"1\"\n", 1, "seed: expected a whole number", NULL},
    {"chat: 'true'\n", 1, "chat: expected true or false, got the text \"true\"", NULL},
    {"temperature: \"0.5\"\n", 1, "temperature: expected a number, 0..100, got the text", NULL},
    {"model: [a]\n", 1, "model: expected text (FILE), got a list", NULL},
    {"model:\n", 1, "model: expected text (FILE), got nothing", NULL},
    {"model: {file: x}\n", 1, "model: expected text (FILE), got a map", NULL},
    {"kernels: [avx2]\n", 1, "kernels: expected one of auto|avx512|avx2", NULL},
    {"vram: 5\n", 1, "vram: expected a map of keys, got a value", NULL},
    {"vram: [5]\n", 1, "vram: expected a map of keys, got a list", NULL},
    {"vram:\n", 1, "vram: expected a map of keys, got a value", NULL},
    {"vram:\n  reserve_mib: {a: 1}\n", 2, "vram.reserve_mib: expected a whole number or a list of them, 0..1073741824, got a map", NULL},
    {"vram:\n  ? [a]\n  : 1\n", 2, "vram: expected a key, got a list", NULL},
    {"vram:\n  reserve_later_mib: [1, 2]\n", 2, "vram.reserve_later_mib: expected a whole number, 0..1073741824, got a list", NULL},
    {"vram_mib: [1, [2]]\n", 1, "vram_mib: expected a whole number or a list of them, 0..1073741824, got a list", NULL},
    {"vram_mib:\n  - 1\n  - {a: 2}\n", 3, "vram_mib: expected a whole number or a list of them, 0..1073741824, got a map", NULL},
    {"vram_mib: [1, '2']\n", 1, "got the text \"2\"", NULL},
    {"vram_mib: []\n", 1, "vram_mib: expected a whole number from 0 to 1073741824, got ''", NULL},
    {"cards: {card: cpu:0}\n", 1, "cards: expected auto or a list of cards, got a map", NULL},
    {"cards: []\n", 1, "cards: expected a card at least, got an empty list", NULL},
    {"cards:\n", 1, "cards: expected auto or a list of cards, got nothing", NULL},
    {"cards:\n  - [cpu:0]\n", 2, "cards[0]: expected a card such as cpu:0, or a map, got a list", NULL},
    {"cards:\n  - cpu:0\n  -\n", 3, "cards[1]: expected a card such as cpu:0, or a map, got nothing", NULL},
    {"cards:\n  - card: [cpu:0]\n", 2, "cards[0].card: expected a card such as cpu:0, got a list", NULL},
    {"cards:\n  - card: cpu:0\n    vram_mib: {a: 1}\n", 3, "cards[0].vram_mib: expected a whole number", NULL},
    {"cards:\n  - ? [x]\n    : y\n", 2, "cards[0]: expected a key, got a list", NULL},
    {"context: 5.5\n", 1, "context: expected a whole number from 0 to 16777216, got '5.5'", NULL},
    {"context: -1\n", 1, "context: expected a whole number from 0 to 16777216, got '-1'", NULL},
    {"context: 16777217\n", 1, "got '16777217'", NULL},
    {"context: 0x10\n", 1, "got '0x10'", NULL},
    {"context: 1_000\n", 1, "got '1_000'", NULL},
    {"context: 1e3\n", 1, "got '1e3'", NULL},
    {"context: many\n", 1, "got 'many'", NULL},
    {"parallel: 0\n", 1, "parallel: expected a whole number from 1 to 1024, got '0'", NULL},
    {"chunk: 8193\n", 1, "chunk: expected a whole number from 0 to 8192, got '8193'", NULL},
    {"pin: some\n", 1, "pin: expected none, cores, numa or processors such as 0-7,16 (below 1024), got 'some'", NULL},
    {"pin: 0-3,2-1\n", 1, "pin: expected", "got '0-3,2-1'"},
    {"pin: '1024'\n", 1, "pin: expected", NULL},
    {"pin: '1,'\n", 1, "pin: expected", NULL},
    {"cards:\n  - card: cpu:0\n    pin: core\n", 3, "cards[0].pin: expected none, cores, numa or processors", NULL},
    {"threads: 1025\n", 1, "threads: expected a whole number from 0 to 1024", NULL},
    {"kv_tokens: 1073741825\n", 1, "kv_tokens: expected", NULL},
    {"stage_attempts: 101\n", 1, "stage_attempts: expected a whole number from 0 to 100", NULL},
    {"segment_mib: 65537\n", 1, "segment_mib: expected a whole number from 0 to 65536", NULL},
    {"seed: 18446744073709551616\n", 1, "seed: expected", NULL},
    {"max_new: 0\n", 1, "max_new: expected a whole number from 1", NULL},
    {"top: 0\n", 1, "top: expected a whole number from 1 to 1024", NULL},
    {"temperature: 101\n", 1, "temperature: expected a number from 0 to 100, got '101'", NULL},
    {"temperature: hot\n", 1, "temperature: expected a number from 0 to 100, got 'hot'", NULL},
    {"temperature: .inf\n", 1, "temperature: expected a number", NULL},
    {"temperature: .nan\n", 1, "temperature: expected a number", NULL},
    {"top_p: 1.5\n", 1, "top_p: expected a number from 0 to 1, got '1.5'", NULL},
    {"min_p: -0.1\n", 1, "min_p: expected a number from 0 to 1, got '-0.1'", NULL},
    {"chat: yes\n", 1, "chat: expected true or false, got 'yes'", NULL},
    {"chat: 1\n", 1, "chat: expected true or false, got '1'", NULL},
    {"ignore_eos: True\n", 1, "ignore_eos: expected true or false, got 'True'", NULL},
    {"kernels: avx\n", 1, "kernels: expected one of", "the nearest is avx2"},
    {"kv: f8\n", 1, "kv: expected one of f16|q8_0|f32, got 'f8'", NULL},
    {"log_level: verbose\n", 1, "log_level: expected one of error|warn|info|debug, got 'verbose'", NULL},
    {"on_eof: wait\n", 1, "on_eof: expected one of finish|cancel", NULL},
    {"output: json\n", 1, "output: expected one of text|ids|jsonl, got 'json' (the nearest is jsonl)", NULL},
    {"launch: ' '\n", 1, "launch: expected a command such as {stage}", NULL},
    {"launch: '{stagee}'\n", 1, "launch: expected the fields {stage}, {host}, {card}, got '{stagee}'", NULL},
    {"name: ../x\n", 1, "name: expected 1 to 64 of", NULL},
    {"namespace: 'a b'\n", 1, "namespace: expected 1 to 64 of", NULL},
    {"ids: 1,,2\n", 1, "ids: expected token ids like 1,2,3", NULL},
    {"vram_mib: [1, 2, x]\n", 1, "vram_mib: expected a whole number from 0 to 1073741824, got 'x'", NULL},
    {"vram_mib:\n  - 1\n  - 1073741825\n", 3, "got '1073741825'", NULL},
    {"vram:\n  reserve_mib: -5\n", 2, "vram.reserve_mib: expected a whole number from 0 to 1073741824, got '-5'", NULL},
    {"vram:\n  reserve_later_mib: lots\n", 2, "vram.reserve_later_mib: expected a whole number", NULL},
    {"cards: cpu\n", 1, "cards: expected auto or a list like cpu:0", NULL},
    {"cards: cpu:0,cpu:0\n", 1, "cards: expected every card once", NULL},
    {"cards:\n  - cpu:0\n  - gpu:0\n", 3, "cards[1]: expected auto or a list like cpu:0", "got 'gpu:0'"},
    {"cards:\n  - cpu:0\n  - card: cpu:0\n", 3, "cards[1]: expected every card once, got 'cpu:0' as card 0 and 1", NULL},
    {"cards:\n  - cpu:0,cpu:1\n", 2, "cards[0]: expected one card, got 'cpu:0,cpu:1'", NULL},
    {"cards:\n  - vram_mib: 5\n", 2, "cards[0]: expected the key card (cpu:0), got a card without it", NULL},
    {"cards:\n  - card: cpu:0@a\n    host: b\n", 2, "cards[0]: expected one host, got cpu:0@a and host: b", NULL},
    {"cards:\n  - card: cpu:0\n    host: -oProxy\n", 3, "cards[0].host: expected a host such as box.local, got '-oProxy'", NULL},
    {"cards:\n  - card: cpu:0\n    host: 'a b'\n", 3, "cards[0].host: expected a host", NULL},
    {"cards:\n  - card: cpu:0\n    vram_mib: 1.5\n", 3, "cards[0].vram_mib: expected a whole number from 0 to 1073741824, got '1.5'", NULL},
    {"cards:\n  - card: cpu:0\n    reserve_mib: all\n", 3, "cards[0].reserve_mib: expected a whole number", NULL},
    {"cards:\n  - card: cpu:0\n    launch: '{hots}'\n", 3, "cards[0].launch: expected the fields", NULL},
    {"context: 5\nvram_mib: [1, 2]\n", 2, "vram_mib: expected one value for all or one for each of the 1 cards, got 2", NULL},
    {"vram:\n  reserve_mib: [1, 2, 3]\ncards: [cpu:0, cpu:1]\n", 2, "vram.reserve_mib: expected one value for all or one for each of the 2 cards, got 3", NULL},
    {"cards: [cpu:0, cpu:1]\nvram:\n  reserve_mib: [1, 2]\n  reserve_later_mib: 3\n", 4, "vram.reserve_later_mib: expected to stand beside one reserve", NULL},
    {"context: &a 5\n", 1, "expected a value, got the anchor &a", NULL},
    {"vram: &v\n  reserve_mib: 1\n", 1, "got the anchor &v", NULL},
    {"cards: &c [cpu:0]\n", 1, "got the anchor &c", NULL},
    {"context: *a\n", 1, "expected a value, got the alias *a", NULL},
    {"context: !!int 5\n", 1, "expected a value, got the tag", NULL},
    {"vram: !x {reserve_mib: 1}\n", 1, "got the tag !x", NULL},
    {"cards: !!set [cpu:0]\n", 1, "got the tag", NULL},
    {"context: 5\n---\nparallel: 1\n", 2, "expected one document, got another", NULL},
    {"- context: 5\n", 1, "expected a map of keys, got a list", NULL},
    {"context\n", 1, "expected a map of keys, got a value", NULL},
    {"context: 5\n parallel: 2\n", 1, "got '5 parallel'", NULL},
    {"context: 5\n\tparallel: 2\n", 2, "expected YAML", NULL},
    {"vram_mib: [1, 2\n", 2, "expected YAML", NULL},
    {"vram: {reserve_mib: 1\n", 2, "expected YAML", NULL},
    {"name: 'open\n\n", 3, "expected YAML", NULL},
    {"context: 5\nname: \"\\x\"\n", 2, "expected YAML", NULL},
    {"context: 5\n%: 6\n", 2, "expected YAML", NULL},
    {"context: 5\n@x: 6\n", 2, "expected YAML", NULL},
    {"context: 5: 6\n", 1, "expected YAML", NULL},
    {"%YAML 3.0\n---\ncontext: 5\n", 1, "expected YAML", NULL},
    {"context: 5\nname: a\001b\n", 2, "expected YAML", NULL},
    {"context: 5\n\nname: \377\n", 3, "expected YAML", NULL},
    {"model: \"a\\0b\"\n", 1, "model: expected text (FILE), got text with a NUL", NULL},
    /* clang-format on */
};

Test(config, more_than_a_hundred_mistakes_are_refused_with_their_line_key_expected_and_got)
{
    cr_assert_geq(sizeof bad / sizeof bad[0], 100);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct settings s;
        char where[32];
        size_t n_keys;
        cr_expect_lt(read_text(&s, bad[i].text, &n_keys), 0, "taken: %s", bad[i].text);
        const char *after = strstr(err.text, "-") != NULL ? strchr(err.text, ':') : NULL;
        (void)snprintf(where, sizeof where, ":%d: ", bad[i].line);
        cr_expect(after != NULL && strncmp(after, where, strlen(where)) == 0,
                  "%s\n\"%s\" does not name line %d", bad[i].text, err.text, bad[i].line);
        cr_expect(strstr(err.text, bad[i].words) != NULL, "%s\n\"%s\" does not say \"%s\"",
                  bad[i].text, err.text, bad[i].words);
        cr_expect(bad[i].more == NULL || strstr(err.text, bad[i].more) != NULL,
                  "\"%s\" does not say \"%s\"", err.text, bad[i].more);
        cr_expect(strstr(err.text, "expected ") != NULL && strstr(err.text, "got ") != NULL,
                  "\"%s\" does not say expected and got", err.text);
        settings_free(&s);
    }
}

Test(config, a_file_that_cannot_be_read_is_refused_by_name)
{
    struct settings s;
    size_t n_keys;
    settings_default(&s);
    cr_expect_eq(settings_read(&s, "/tmp/no-such.yaml", &n_keys, &err), EBB_ENOENT);
    cr_expect(strstr(err.text, "/tmp/no-such.yaml") != NULL);
    cr_expect_eq(settings_read(&s, "/tmp", &n_keys, &err), EBB_EIO);
    cr_expect_eq(settings_read(&s, "/dev/zero", &n_keys, &err), EBB_EIO);
    settings_free(&s);
}

Test(config, a_file_of_more_than_a_mebibyte_is_refused)
{
    static char text[(1 << 20) + 1];
    struct settings s;
    char path[64];
    size_t n_keys;
    memset(text, '#', sizeof text);
    write_file(path, text, sizeof text);
    settings_default(&s);
    cr_expect_eq(settings_read(&s, path, &n_keys, &err), EBB_ERANGE);
    cr_expect(strstr(err.text, "expected at most 1048576 bytes, got 1048577") != NULL, "%s",
              err.text);
    settings_free(&s);
    (void)unlink(path);
}

Test(config, depth_is_refused_where_it_begins_and_costs_nothing)
{
    static char text[400001] = "ids: ";
    struct settings s;
    size_t n_keys;
    memset(text + 5, '[', 300000);
    cr_expect_eq(read_text(&s, text, &n_keys), EBB_EINVAL);
    cr_expect(strstr(err.text, ":1: ids: expected text (LIST), got a list") != NULL, "%s",
              err.text);
    settings_free(&s);
    memset(text, '{', 300000);
    cr_expect_eq(read_text(&s, text, &n_keys), EBB_EFORMAT);
    settings_free(&s);
}

Test(config, every_kind_of_value_arrives)
{
    struct settings s;
    size_t n_keys;
    int code =
        read_text(&s,
                  "# a comment\nmodel: /m/x y.gguf\nkv-tokens: 4096\nkernels: reference\n"
                  "temperature: 0.7\nchat: true\non_eof: cancel\nseed: 18446744073709551615\n"
                  "vram: {reserve_mib: 3, reserve_later_mib: 5}\nlaunch: 'ssh {host} {stage}'\n"
                  "vram_mib: [10, 20, 30]\ncards: [cpu:0, 'cpu:1@far', card: cuda:2]\n",
                  &n_keys);
    cr_assert_eq(code, 0, "%s", err.text);
    cr_expect_eq(n_keys, 12);
    cr_expect_str_eq(s.model, "/m/x y.gguf");
    cr_expect_eq(s.kv_tokens, 4096);
    cr_expect_str_eq(s.kernels, "reference");
    cr_expect_eq(s.temperature, 0.7);
    cr_expect(s.chat);
    cr_expect_eq(s.on_eof, ON_EOF_CANCEL);
    cr_expect_eq(s.seed, UINT64_MAX);
    cr_assert_eq(s.n_cards, 3);
    cr_expect_str_eq(s.cards[1].host, "far");
    cr_expect_eq(s.cards[2].kind, CARD_CUDA);
    cr_expect_eq(s.cards[0].reserve_mib, 3);
    cr_expect_eq(s.cards[1].reserve_mib, 5);
    cr_expect_eq(s.cards[2].reserve_mib, 5);
    cr_expect_eq(s.cards[2].vram_mib, 30);
    settings_free(&s);
}

static const char cards_with_their_own[] = "vram_mib: 100\n"
                                           "vram:\n  reserve_mib: 1\n  reserve_later_mib: 2\n"
                                           "cards:\n"
                                           "  - cpu:0\n"
                                           "  - card: cpu:1\n    vram_mib: 200\n"
                                           "  - card: cpu:2\n    host: box\n    reserve_mib: 9\n"
                                           "    launch: \"ssh {host} nice {stage}\"\n";

static void expect_card(const struct settings *s, size_t i, uint64_t vram_mib, uint64_t reserve_mib)
{
    cr_expect_eq(s->cards[i].vram_mib, vram_mib, "card %zu: vram %zu", i,
                 (size_t)s->cards[i].vram_mib);
    cr_expect_eq(s->cards[i].reserve_mib, reserve_mib, "card %zu: reserve %zu", i,
                 (size_t)s->cards[i].reserve_mib);
}

Test(config, a_card_has_its_own_keys_and_flags_win_over_all)
{
    struct settings s;
    cr_assert_eq(BOTH(&s, cards_with_their_own), 0, "%s", err.text);
    expect_card(&s, 0, 100, 1);
    expect_card(&s, 1, 200, 2);
    expect_card(&s, 2, 100, 9);
    cr_expect_str_eq(s.cards[2].host, "box");
    cr_expect_str_eq(s.cards[2].launch, "ssh {host} nice {stage}");
    settings_free(&s);
    cr_assert_eq(BOTH(&s, cards_with_their_own, "--reserve-mib", "7"), 0, "%s", err.text);
    expect_card(&s, 0, 100, 7);
    expect_card(&s, 2, 100, 7);
    settings_free(&s);
    cr_assert_eq(BOTH(&s, cards_with_their_own, "--reserve-later-mib", "8"), 0, "%s", err.text);
    expect_card(&s, 0, 100, 1);
    expect_card(&s, 1, 200, 8);
    expect_card(&s, 2, 100, 8);
    settings_free(&s);
    cr_assert_eq(BOTH(&s, cards_with_their_own, "--cards", "cpu:5,cpu:6", "--vram-mib", "1,2"), 0);
    cr_assert_eq(s.n_cards, 2);
    expect_card(&s, 0, 1, 1);
    expect_card(&s, 1, 2, 2);
    cr_expect_str_eq(s.cards[1].launch, "");
    settings_free(&s);
}

Test(config, flags_win_wherever_the_file_is_named)
{
    struct settings s;
    cr_assert_eq(BOTH(&s, "context: 5\nparallel: 3\n", "--context", "6"), 0, "%s", err.text);
    cr_expect_eq(s.context, 6);
    cr_expect_eq(s.parallel, 3);
    settings_free(&s);
    char path[64], *argv[] = {"--context", "7", "--config", path}, *bare[4];
    size_t n_bare;
    write_file(path, "context: 5\n", 11);
    settings_default(&s);
    cr_assert_eq(settings_parse(&s, 4, argv, bare, &n_bare, &err), 0);
    cr_expect_eq(s.context, 7);
    cr_expect_str_eq(s.config, path);
    settings_free(&s);
    (void)unlink(path);
}

Test(config, keys_of_other_commands_are_checked_and_left)
{
    struct settings s;
    cr_assert_eq(BOTH(&s, "on_eof: cancel\noutput: ids\nmax_new: 9\n"), 0, "%s", err.text);
    cr_expect_eq(s.on_eof, ON_EOF_FINISH);
    cr_expect_str_eq(s.output, "text");
    cr_expect_eq(s.max_new, 9);
    settings_free(&s);
    cr_expect_eq(BOTH(&s, "on_eof: never\n"), EBB_EINVAL);
    settings_free(&s);
}

Test(config, the_float_kernels_of_a_file_imply_a_float_kv_unless_it_is_given)
{
    struct settings s;
    cr_assert_eq(BOTH(&s, "kernels: float\n"), 0);
    cr_expect_str_eq(s.kv, "f32");
    settings_free(&s);
    cr_assert_eq(BOTH(&s, "kernels: float\nkv: f16\n"), 0);
    cr_expect_str_eq(s.kv, "f16");
    settings_free(&s);
}

Test(config, nothing_but_comments_are_the_defaults)
{
    static const char *const texts[] = {"", "# nothing\n", "---\n{}\n", "--- {}\n...\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct settings s;
        size_t n_keys = 77;
        cr_expect_eq(read_text(&s, texts[i], &n_keys), 0, "%s: %s", texts[i], err.text);
        cr_expect_eq(n_keys, 0);
        settings_free(&s);
    }
}

/* A whole settings as the sample's text would have it: what differs is found by comparing what both print. */
static char *sample_text(void)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    settings_sample(out);
    (void)fclose(out);
    return text;
}

Test(config, the_sample_reads_back_as_the_defaults)
{
    char *text = sample_text();
    struct settings s, d;
    size_t n_keys;
    cr_assert_eq(read_text(&s, text, &n_keys), 0, "%s", err.text);
    settings_default(&d);
    cr_expect_geq(n_keys, 25);
    /* Every value that is not owned text lies in the struct itself. */
    char **texts_s[] = {
        &s.model,          &s.split,       &s.kernels,    &s.kv,           &s.launch,
        &s.name,           &s.control,     &s.name_space, &s.log_level,    &s.output,
        &s.prompt,         &s.prompt_file, &s.ids,        &s.ids_file,     &s.config,
        &s.config_checked, &s.logit_bias,  &s.logprobs,   &s.pin,          &s.attach_mib,
        &s.heat_file,      &s.link,        &s.yield,      &s.miss_threads, &s.miss_share};
    char **texts_d[] = {
        &d.model,          &d.split,       &d.kernels,    &d.kv,           &d.launch,
        &d.name,           &d.control,     &d.name_space, &d.log_level,    &d.output,
        &d.prompt,         &d.prompt_file, &d.ids,        &d.ids_file,     &d.config,
        &d.config_checked, &d.logit_bias,  &d.logprobs,   &d.pin,          &d.attach_mib,
        &d.heat_file,      &d.link,        &d.yield,      &d.miss_threads, &d.miss_share};
    for (size_t i = 0; i < sizeof texts_s / sizeof texts_s[0]; i++) {
        char *a = *texts_s[i], *b = *texts_d[i];
        cr_expect(a == b || (a != NULL && b != NULL && strcmp(a, b) == 0), "%s is not %s", a, b);
        *texts_s[i] = *texts_d[i] = NULL;
        free(a);
        free(b);
    }
    cr_expect_eq(memcmp(&s, &d, sizeof s), 0, "a number differs");
    free(text);
}

Test(config, every_key_of_the_sample_that_stands_there_as_a_comment_may_be_given)
{
    char *text = sample_text(), *save = NULL;
    size_t n = 0;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char key[64], given[160];
        struct settings s;
        size_t n_keys;
        if (sscanf(line, "# %63[a-z_]: %*[A-Z]%n", key, &(int){0}) != 1 ||
            line[strlen(key) + 2] != ':' || strchr(line + strlen(key) + 4, ' ') != NULL)
            continue;
        (void)snprintf(given, sizeof given, "%s: %s\n", key,
                       strcmp(key, "ids") == 0          ? "1,2"
                       : strcmp(key, "logit_bias") == 0 ? "\"5:-1.5,7:2\""
                       : strcmp(key, "logprobs") == 0   ? "5"
                                                        : "something");
        cr_expect_eq(read_text(&s, given, &n_keys), 0, "%s: %s", given, err.text);
        settings_free(&s);
        n++;
    }
    cr_expect_geq(n, 5);
    free(text);
}

/* Cut anywhere, and with any byte turned into another, the sample is either taken or refused in one line. */
Test(config, damaged_files_are_taken_or_refused_and_nothing_else)
{
    char *text = sample_text();
    size_t n_bytes = strlen(text);
    uint64_t state = 3;
    for (int i = 0; i < 1500; i++) {
        struct settings s;
        size_t n_keys, at = (size_t)(state >> 33) % n_bytes;
        char kept = text[at], damage[] = "\t{}[]:,&*!|>'\"%@`#-? \n0a~\xff\x01";
        text[at] = i % 3 == 0 ? '\0' : damage[(state >> 20) % (sizeof damage - 1)];
        int code = read_text(&s, text, &n_keys);
        cr_assert(code == 0 || err.code == code);
        cr_assert(code == 0 || (err.text[0] == '/' && strchr(err.text, '\n') == NULL), "%s",
                  err.text);
        settings_free(&s);
        text[at] = kept;
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    }
    free(text);
}
