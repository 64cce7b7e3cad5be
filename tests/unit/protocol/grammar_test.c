/* tests/unit/protocol/grammar_test.c - every message of the grammar, every way to break one, and
 * random bytes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "tests/fuzz/protocol_lines.h"
#include "tests/unit/protocol/feeding.h"

static const char *const control_requests[] = {
    "PART a1 ids=1,2,3",
    "PART a1 role=user text=h%20i",
    "GEN a1 48",
    "GEN a1 48 temperature=0.7 top_p=0.9 top_k=40 min_p=0.05 seed=7 stop=%0A stop=x ignore_eos=1 "
    "ids=1,2",
    "GEN a:1.b_c-d 48 text=",
    "SCORE a1 top=5 ids=1,2",
    "SCORE a1",
    "STOP a1",
    "VRAM",
    "VRAM 12000",
    "VRAM - 1",
    "VRAM 12000 1",
    "VRAM 12000 1 for=600 lease=comfy",
    "VRAM - pid=17",
    "VRAM 5 conn=1",
    "UNLEASE comfy",
    "LEASES",
    "WATCH",
    "STAT",
    "STAT 1",
    "LEDGER",
    "LEDGER 0",
    "PLAN",
    "PING abc",
    "QUIT",
    "SHUTDOWN",
};

static const char *const stage_requests[] = {
    "LOAD model=/models/a%20b.gguf",
    "LOAD model=m.gguf fingerprint=0123456789abcdef device=1 stage=0 stages=2 layers=0-3 "
    "reserve_mib=0 segment_mib=1 "
    "context=2048 sequences=4 kv_tokens=8192 chunk=64 threads=1 kernels=auto kv=f16 epoch=1",
    "LOAD model=m.gguf pin=cores share=1/2",
    "LINK epoch=1 in=listen host=127.0.0.1",
    "LINK epoch=1 out=unix:/tmp/x key=00ff",
    "LINK epoch=1 back-in=listen",
    "LINK epoch=1 back-out=unix:/tmp/y key=00ff",
    "GO",
    "RELEASE",
    "ROWS epoch=1 step=17 seq=0 pos=5 ids=5,6,@16.0 want=top:5",
    "ROWS epoch=1 step=17 seq=0 pos=5 ids=5 want=last temperature=1 top_p=1 top_k=0 min_p=0 seed=1",
    "STEP epoch=1 step=17 rows=3 through=1",
    "FORK 2 1 128",
    "DROP 2",
    "CANCEL epoch=1 step=17",
    "VRAM 12000",
    "VRAM -",
    "VRAM",
    "STAT",
    "LEDGER",
    "PING x",
    "QUIT",
};

/* Replies and events: they are parsed, never checked. */
static const char *const replies[] = {
    "INFO protocol=1 version=0.1.0 model=demo layers=8 experts=16 context=2048 parallel=4 cards=2",
    "CARD device=0 kind=cpu name=cpu%3A0 layers=0-3 total_mib=64 free_mib=30 reserve_mib=0 "
    "cache_mib=8 segment_mib=1",
    "READY 2048",
    "RESUME a1 reused=128",
    "PP a1 64 1470 12.5",
    "T a1 5 text=na\xC3\xAFve",
    "LOGITS a1 3 5 top=5:1.25,6:-0.5",
    "DONE a1 stop generated=5 prompt=7 reused=0 prefill_ms=1.5 decode_ms=2 hits=3 lookups=4 tail=x "
    "error=y",
    "VRAM device=1 reserve_mib=12000 cache_mib=12288 cache_full_mib=16384 slots=6624 "
    "slots_full=8832 before_mib=8292 "
    "free_mib=12388 freed_mib=4096 shortfall_mib=0 foreign_mib=305 prompt_chunk=4096 wait_us=900 "
    "us=3140 reason=ok",
    "VRAM-DONE cards=1 freed_mib=4096 shortfall_mib=0",
    "VRAM-DONE cards=1 freed_mib=4096 shortfall_mib=0 lease=comfy",
    "LEASES lease=comfy reserve_mib=12000 device=1 for=599",
    "LEASES-DONE count=1",
    "EVENT lease state=ended lease=comfy reserve_mib=12000 pid=17 why=process",
    "ERR step:1.17 busy no credit: want=2 got=1",
    "HELLO ebbtide-stage protocol=1 version=0.1.0 device=0 kind=cpu name=x uuid=y free_mib=1 "
    "total_mib=2",
    "HELD device=0 stage=0 layers=0-3 weights=1 kv=2",
    "RAN epoch=1 step=17 us=5 hits=1,2 lookups=3,4 kv_blocks_free=5",
    "TOK epoch=1 step=17 rows=0,2 ids=5,6",
    "PONG abc",
};

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static struct message m;
static struct error err;
static char buffer[LINE_BYTES_MAX];

static int check(enum dialect dialect, const char *text)
{
    int rc;

    strcpy(buffer, text);
    err = (struct error){0};
    rc = message_parse(&m, buffer, strlen(text), &err);
    return rc < 0 ? rc : message_check(&m, dialect, &err);
}

/* A message as one text: what two parses must agree on. */
static void describe(char *out, size_t capacity)
{
    size_t n = (size_t)snprintf(out, capacity, "%s|%zu", m.verb, m.n_bare);

    for (size_t i = 0; i < m.n_fields; i++)
        n += (size_t)snprintf(out + n, capacity - n, "|%s=%s",
                              m.fields[i].key ? m.fields[i].key : "", m.fields[i].value);
}

/* What the message says after going through a reader in pieces of `first` bytes and then `piece`.
 */
static void described_after_pieces(const char *text, size_t first, size_t piece, char *out,
                                   size_t capacity)
{
    char *stream = malloc(strlen(text) + 3), *seen;
    size_t n;

    sprintf(stream, "%s\r\n", text);
    seen = fed_in_pieces(stream, strlen(stream), first, piece);
    n = strlen(seen);
    cr_assert_eq(n, strlen(text) + 2, "%s became %s", text, seen);
    memcpy(buffer, seen + 1, n - 2);
    buffer[n - 2] = '\0';
    cr_assert_eq(message_parse(&m, buffer, n - 2, &err), 0, "%s", err.text);
    describe(out, capacity);
    free(stream);
    free(seen);
}

static void cut_at_every_byte(const char *text)
{
    char wanted[2048], got[2048];

    strcpy(buffer, text);
    cr_assert_eq(message_parse(&m, buffer, strlen(text), &err), 0);
    describe(wanted, sizeof wanted);
    described_after_pieces(text, 0, 1, got, sizeof got);
    cr_assert_str_eq(got, wanted);
    for (size_t cut = 0; cut <= strlen(text) + 2; cut++) {
        described_after_pieces(text, cut, strlen(text) + 2, got, sizeof got);
        cr_assert_str_eq(got, wanted, "cut at %zu", cut);
    }
}

Test(grammar, every_message_is_the_same_cut_at_every_byte)
{
    for (size_t i = 0; i < COUNT(control_requests); i++)
        cut_at_every_byte(control_requests[i]);
    for (size_t i = 0; i < COUNT(stage_requests); i++)
        cut_at_every_byte(stage_requests[i]);
    for (size_t i = 0; i < COUNT(replies); i++)
        cut_at_every_byte(replies[i]);
}

Test(grammar, every_message_ended_early_is_read_or_refused_and_never_worse)
{
    for (size_t i = 0; i < COUNT(control_requests); i++)
        for (size_t n = 0; n <= strlen(control_requests[i]); n++)
            fuzz_feed(control_requests[i], n, n / 2);
    for (size_t i = 0; i < COUNT(stage_requests); i++)
        for (size_t n = 0; n <= strlen(stage_requests[i]); n++)
            fuzz_feed(stage_requests[i], n, n / 2);
    for (size_t i = 0; i < COUNT(replies); i++)
        for (size_t n = 0; n <= strlen(replies[i]); n++)
            fuzz_feed(replies[i], n, n / 2);
}

Test(grammar, every_request_is_taken)
{
    for (size_t i = 0; i < COUNT(control_requests); i++)
        cr_assert_eq(check(DIALECT_CONTROL, control_requests[i]), 0, "%s: %s", control_requests[i],
                     err.text);
    for (size_t i = 0; i < COUNT(stage_requests); i++)
        cr_assert_eq(check(DIALECT_STAGE, stage_requests[i]), 0, "%s: %s", stage_requests[i],
                     err.text);
}

static const struct {
    enum dialect dialect;
    const char *line;
    int rc;
    const char *says;
} refused[] = {
    {DIALECT_CONTROL, "vram 1", EBB_EUNKNOWN_VERB, "VRAM"},
    {DIALECT_CONTROL, "VARM 1", EBB_EUNKNOWN_VERB, "VRAM"},
    {DIALECT_CONTROL, "VRM", EBB_EUNKNOWN_VERB, "VRAM"},
    {DIALECT_CONTROL, "STATS", EBB_EUNKNOWN_VERB, "STAT"},
    {DIALECT_CONTROL, "EXIT", EBB_EUNKNOWN_VERB, "QUIT"},
    {DIALECT_CONTROL, "SHUT", EBB_EUNKNOWN_VERB, "SHUTDOWN"},
    {DIALECT_CONTROL, "ROWS", EBB_EUNKNOWN_VERB, "nearest"},
    {DIALECT_STAGE, "GEN a 1", EBB_EUNKNOWN_VERB, "nearest"},
    {DIALECT_STAGE, "load model=x", EBB_EUNKNOWN_VERB, "LOAD"},
    {DIALECT_CONTROL, "GEN a1 5 temp=1", EBB_EUNKNOWN_KEY, "temperature="},
    {DIALECT_CONTROL, "GEN a1 5 topk=1", EBB_EUNKNOWN_KEY, "top_k="},
    {DIALECT_CONTROL, "GEN a1 5 Seed=1", EBB_EUNKNOWN_KEY, "seed="},
    {DIALECT_CONTROL, "STOP a1 x=1", EBB_EUNKNOWN_KEY, "no keys"},
    {DIALECT_STAGE, "LOAD modle=x", EBB_EUNKNOWN_KEY, "model="},
    {DIALECT_CONTROL, "GEN a1 5 seed=1 seed=1", EBB_EINVAL, "seed= is given twice"},
    {DIALECT_CONTROL, "PART a1 ids=1 ids=2", EBB_EINVAL, "twice"},
    {DIALECT_CONTROL, "GEN a1", EBB_EINVAL, "<tag> <max_new>"},
    {DIALECT_CONTROL, "GEN", EBB_EINVAL, "<tag> <max_new>"},
    {DIALECT_CONTROL, "GEN a1 5 6", EBB_EINVAL, "\"6\""},
    {DIALECT_CONTROL, "GEN a/1 5", EBB_EINVAL, "wants a tag"},
    {DIALECT_CONTROL, "GEN a1 5 ids=1 text=x", EBB_EINVAL, "exclude"},
    {DIALECT_CONTROL, "PART a1", EBB_EINVAL, "ids= or text="},
    {DIALECT_CONTROL, "VRAM 1 2 3", EBB_EINVAL, "\"3\""},
    {DIALECT_STAGE, "VRAM 1 2", EBB_EINVAL, "\"2\""},
    {DIALECT_CONTROL, "PING", EBB_EINVAL, "<token>"},
    {DIALECT_CONTROL, "QUIT now", EBB_EINVAL, "\"now\""},
    {DIALECT_STAGE, "LOAD", EBB_EINVAL, "model="},
    {DIALECT_STAGE, "ROWS epoch=1 step=1 seq=0 ids=1", EBB_EINVAL, "pos="},
    {DIALECT_STAGE, "STEP epoch=1 step=1", EBB_EINVAL, "rows="},
    {DIALECT_STAGE, "FORK 1 2", EBB_EINVAL, "<new> <old> <n>"},
    {DIALECT_CONTROL, "VRAM 1 fo=5", EBB_EUNKNOWN_KEY, "for="},
    {DIALECT_CONTROL, "VRAM 1 con=1", EBB_EUNKNOWN_KEY, "conn="},
    {DIALECT_CONTROL, "VRAM 1 for=5 laese=x", EBB_EUNKNOWN_KEY, "lease="},
    {DIALECT_CONTROL, "VRAM 1 for=5 for=6", EBB_EINVAL, "twice"},
    {DIALECT_CONTROL, "LEASE", EBB_EUNKNOWN_VERB, "LEASES"},
    {DIALECT_CONTROL, "UNLEASES x", EBB_EUNKNOWN_VERB, "UNLEASE"},
    {DIALECT_CONTROL, "wacth", EBB_EUNKNOWN_VERB, "WATCH"},
    {DIALECT_CONTROL, "UNLEASE", EBB_EINVAL, "<lease>"},
    {DIALECT_CONTROL, "LEASES x", EBB_EINVAL, "\"x\""},
    {DIALECT_CONTROL, "WATCH vram=1", EBB_EUNKNOWN_KEY, "no keys"},
    {DIALECT_STAGE, "VRAM 1 for=5", EBB_EUNKNOWN_KEY, "no keys"},
    {DIALECT_CONTROL, "GEN a1 5 repeat_penalty=1", EBB_EUNKNOWN_KEY, "repetition_penalty="},
    {DIALECT_CONTROL, "GEN a1 5 logit_bias=1:1 logit_bias=2:1", EBB_EINVAL, "twice"},
    {DIALECT_CONTROL, "RECYCLE", EBB_EUNSUPPORTED, "RECYCLE"},
    {DIALECT_CONTROL, "PING \x01", EBB_EINVAL, "byte 5"},
};

Test(grammar, every_kind_of_error_says_what_and_the_nearest_known_name)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        int rc = check(refused[i].dialect, refused[i].line);
        cr_assert_eq(rc, refused[i].rc, "%s: %d %s", refused[i].line, rc, err.text);
        cr_assert_eq(err.code, rc);
        cr_assert_not_null(strstr(err.text, refused[i].says), "%s: %s", refused[i].line, err.text);
    }
}

Test(grammar, stop_may_be_given_more_than_once)
{
    cr_assert_eq(check(DIALECT_CONTROL, "GEN a1 5 stop=a stop=b stop=c"), 0, "%s", err.text);
}

Test(grammar, an_error_carries_the_tag_if_there_is_one)
{
    static const char *const cases[][2] = {
        {"GEN a1 5", "a1"}, {"GEN a1 5 nosuch=1", "a1"},
        {"PART a1", "a1"},  {"STOP a.b:c x", "a.b:c"},
        {"SCORE s", "s"},   {"GEN a/1 5", "-"},
        {"GEN", "-"},       {"VRAM 5", "-"},
        {"PING a1", "-"},   {"gen a1 5", "-"},
        {"", "-"},          {"GEN key=a1", "-"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        (void)check(DIALECT_CONTROL, cases[i][0]);
        cr_assert_str_eq(message_tag(&m), cases[i][1], "%s", cases[i][0]);
    }
}

Test(grammar, a_long_unknown_name_is_quoted_short_and_clean)
{
    static char text[LINE_BYTES_MAX];

    for (size_t n = 0; n + 4 < 60000; n += 3)
        memcpy(text + n, "→", 4);
    cr_assert_eq(check(DIALECT_CONTROL, text), EBB_EUNKNOWN_VERB);
    cr_assert_lt(strlen(err.text), 200);
    cr_assert_not_null(strstr(err.text, "→…\""), "%s", err.text);
}

/* protocol/GRAMMAR.md as it is in the tree. */
static const char *page(void)
{
    static char text[1 << 16];
    FILE *file = fopen(EBBTIDE_TEST_DATA "/../../protocol/GRAMMAR.md", "r");
    size_t n;

    cr_assert_not_null(file);
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    return text;
}

static void page_names(const char *text, const char *before, const char *name, const char *after)
{
    char wanted[128];

    snprintf(wanted, sizeof wanted, "%s%s%s", before, name, after);
    cr_assert_not_null(strstr(text, wanted), "GRAMMAR.md does not say \"%s\"", wanted);
}

static void page_names_request(const char *text, enum dialect dialect, const char *line)
{
    cr_assert_eq(check(dialect, line), 0);
    page_names(text, "", m.verb, "");
    for (size_t i = m.n_bare; i < m.n_fields; i++)
        page_names(text, "", m.fields[i].key, "=");
}

Test(grammar, the_page_names_every_code_verb_and_key)
{
    const char *text = page();

    for (int code = EBB_EINVAL; code >= EBB_EMISMATCH; code--)
        page_names(text, "`", error_code_name(code), "`");
    for (size_t i = 0; i < COUNT(control_requests); i++)
        page_names_request(text, DIALECT_CONTROL, control_requests[i]);
    for (size_t i = 0; i < COUNT(stage_requests); i++)
        page_names_request(text, DIALECT_STAGE, stage_requests[i]);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

Test(grammar, random_bytes_never_break_the_reader_the_parser_or_the_check)
{
    static char data[1024];
    uint32_t state = 20240229;

    for (int round = 0; round < 2000; round++) {
        size_t n = next_random(&state) % sizeof data;
        for (size_t i = 0; i < n; i++)
            data[i] =
                round % 2
                    ? (char)next_random(&state)
                    : " =\n\r%,:-@.0123456789AGENVRMSTOPLtexidsp\xC3\xA9\0"[next_random(&state) %
                                                                            43];
        fuzz_protocol_lines(data, n);
    }
}

/* Random bytes rarely look like requests: damage real ones instead. */
Test(grammar, damaged_requests_never_break_the_reader_the_parser_or_the_check)
{
    uint32_t state = 17;
    char data[1024];

    for (int round = 0; round < 2000; round++) {
        size_t n = 0;
        for (int line = 0; line < 3; line++)
            n += (size_t)snprintf(data + n, sizeof data - n, "%s\n%s\n",
                                  control_requests[next_random(&state) % COUNT(control_requests)],
                                  replies[next_random(&state) % COUNT(replies)]);
        n = n < sizeof data ? n : sizeof data - 1;
        for (int damage = 0; damage < 4; damage++)
            data[next_random(&state) % n] = (char)next_random(&state);
        fuzz_protocol_lines(data, n);
    }
}
