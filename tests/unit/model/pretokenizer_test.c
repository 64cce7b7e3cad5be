/* tests/unit/model/pretokenizer_test.c - every pre-tokeniser cuts where its pattern says. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/unit/model/made.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/tokenizer.h"

#define LLAMA EBBTIDE_TEST_DATA "/arch/llama.gguf"

struct cut {
    const char *pre, *text;
    const char *words; /* with | between them */
};

static const struct cut cuts[] = {
    {"gpt-2", "I've 123 DON'T  stop", "I|'ve| 123| DON|'|T| | stop"},
    {"gpt-2", "a\n\nb ", "a|\n|\n|b| "},
    {"olmo", "x1 y2", "x|1| y|2"},
    {"llama-bpe", "I'VE 12345 don't\n\n x", "I|'VE| |123|45| don|'t|\n\n| x"},
    {"llama-bpe", "(foo)bar!!\n", "(foo|)bar|!!\n"},
    {"qwen2", "I'VE 123", "I|'VE| |1|2|3"},
    {"qwen2", "cafe\314\201 x", "cafe|\314\201| x"},
    {"qwen35", "cafe\314\201 x", "cafe\314\201| x"},
    {"smollm", "ab12 c3", "ab|1|2| c|3"},
    {"starcoder", "x 42", "x| |4|2"},
    {"falcon", "a+b 12345 ok?!", "a|+|b| |123|45| ok|?!"},
    {"falcon", "it's", "it|'|s"},
    {"default", "a+b 12345 ok?!", "a|+|b| |123|45| ok|?!"},
    {"default", "x` 1234", "x|`| |123|4"},
    {"deepseek-llm", "Hello, world 12\n\xe4\xbd\xa0\xe5\xa5\xbd!",
     "Hello|,| world| |12|\n|\xe4\xbd\xa0\xe5\xa5\xbd|!"},
    {"deepseek-llm", "a  b  ", "a| | b|  "},
    {"deepseek-coder", "int x = 42;\r\n", "int| x| = |4|2|;|\r|\n"},
    {"deepseek-v3", "Hello 12345 world!\n", "Hello| |123|45| world|!\n"},
    {"gpt-4o", "HelloWorld's FOOBar 12345//\n", "Hello|World's| FOOBar| |123|45|//\n"},
    {"tekken", "HelloWorld's 123", "Hello|World|'s| |1|2|3"},
};

Test(pretokenizer, every_pattern_cuts_as_published)
{
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const struct cut *c = &cuts[i];
        struct made m;
        struct gguf *g = NULL;
        struct error err;
        struct pretokenizer p;
        char got[256] = "";
        size_t start = 0, end = 0, n = strlen(c->text), at = 0;
        made_open(&m, LLAMA);
        made_set_text(&m, "tokenizer.ggml.pre", c->pre);
        made_write(&m);
        cr_assert(gguf_open(&g, m.path, &err) == 0, "%s", err.text);
        cr_assert(pretokenizer_open(&p, g, &err) == 0, "%s", err.text);
        pretokenizer_begin(&p, c->text, n);
        while (end < n) {
            cr_assert(pretokenizer_next(&p, &start, &end) == 0 && end > start);
            at += (size_t)snprintf(got + at, sizeof got - at, "%s%.*s", start == 0 ? "" : "|",
                                   (int)(end - start), c->text + start);
        }
        cr_assert(strcmp(got, c->words) == 0, "%s: \"%s\": wants\n%s\ngot\n%s", c->pre, c->text,
                  c->words, got);
        cr_assert(pretokenizer_next(&p, &start, &end) == 0 && start == end, "then nothing comes");
        pretokenizer_close(&p);
        gguf_close(g);
        made_close(&m);
    }
}

/* A small SentencePiece vocabulary: bytes, then pieces with their scores. */
static const char *const pieces[] = {"<unk>", "<s>", "</s>", "<end>"};
static const struct {
    const char *text;
    float score;
} words[] = {{"\342\226\201", -1},
             {"a", -2},
             {"b", -3},
             {"c", -4},
             {"ab", -5},
             {"bc", -4.5f},
             {"abc", -9},
             {"\342\226\201a", -6},
             {"\342\226\201abc", -10},
             {"  ", -7}};
enum { N_PIECES = 4, FIRST_WORD = N_PIECES + 256, N_WORDS = sizeof words / sizeof words[0] };

static struct tokenizer *spm_open_with(struct made *m, bool adds_space)
{
    static char bytes[256][8];
    const char *tokens[FIRST_WORD + N_WORDS];
    float scores[FIRST_WORD + N_WORDS] = {0};
    int32_t types[FIRST_WORD + N_WORDS] = {2, 3, 3, 4};
    struct tokenizer *t = NULL;
    struct gguf *g = NULL;
    struct error err;
    memcpy(tokens, pieces, sizeof pieces);
    for (size_t b = 0; b < 256; b++) {
        (void)snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", (unsigned)b);
        tokens[N_PIECES + b] = bytes[b];
        types[N_PIECES + b] = 6;
    }
    for (size_t i = 0; i < N_WORDS; i++) {
        tokens[FIRST_WORD + i] = words[i].text;
        scores[FIRST_WORD + i] = words[i].score;
        types[FIRST_WORD + i] = i + 1 == N_WORDS ? 4 : 1; /* two spaces are user-defined */
    }
    made_open(m, LLAMA);
    made_set_text(m, "tokenizer.ggml.model", "llama");
    made_set_texts(m, "tokenizer.ggml.tokens", tokens, FIRST_WORD + N_WORDS);
    made_set_numbers(m, "tokenizer.ggml.scores", GGUF_F32, scores, FIRST_WORD + N_WORDS);
    made_set_numbers(m, "tokenizer.ggml.token_type", GGUF_I32, types, FIRST_WORD + N_WORDS);
    made_set_u32(m, "tokenizer.ggml.bos_token_id", 1);
    made_set_u32(m, "tokenizer.ggml.eos_token_id", 2);
    made_set_u32(m, "tokenizer.ggml.unknown_token_id", 0);
    made_remove(m, "tokenizer.ggml.add_bos_token");
    if (!adds_space)
        made_set_bool(m, "tokenizer.ggml.add_space_prefix", false);
    made_write(m);
    cr_assert(gguf_open(&g, m->path, &err) == 0, "%s", err.text);
    cr_assert(tokenizer_open(&t, g, &err) == 0, "%s", err.text);
    gguf_close(m->source); /* the tokenizer's texts are in g, which made_close() then closes */
    m->source = g;
    return t;
}

static void expect_ids(struct tokenizer *t, const char *text, bool special, size_t n,
                       const int32_t *wanted)
{
    int32_t ids[64];
    char out[64];
    size_t n_ids = 0, n_out = 0;
    struct error err;
    cr_assert(tokenizer_encode(t, text, strlen(text), special, ids, 64, &n_ids, &err) == 0);
    cr_assert(n_ids == n && memcmp(ids, wanted, n * sizeof *ids) == 0, "\"%s\": %zu ids, %d…", text,
              n_ids, ids[0]);
    if (special)
        return;
    cr_assert(tokenizer_decode(t, ids, n_ids, out, sizeof out, &n_out, &err) == 0);
    cr_assert(n_out == strlen(text) && memcmp(out, text, n_out) == 0, "\"%s\"", text);
}

#define WORD(i) (FIRST_WORD + (i))
#define BYTE(b) (N_PIECES + (b))
#define EXPECT(t, text, special, ...)                                                              \
    expect_ids(t, text, special, sizeof((int32_t[]){__VA_ARGS__}) / 4, (int32_t[]){__VA_ARGS__})

Test(spm, joins_by_score_and_falls_back_to_bytes)
{
    struct made m;
    struct tokenizer *t = spm_open_with(&m, true);
    cr_assert(tokenizer_adds_bos(t) && !tokenizer_adds_eos(t) && tokenizer_adds_space(t));
    EXPECT(t, "abc", false, WORD(8));         /* ▁ put before; bc, abc, ▁abc */
    EXPECT(t, "bc", false, WORD(0), WORD(5)); /* no ▁b */
    EXPECT(t, "ab", false, WORD(0), WORD(4)); /* ab is worth more than ▁a */
    EXPECT(t, "a", false, WORD(7));
    EXPECT(t, "aab", false, WORD(7), WORD(4));
    EXPECT(t, "a\303\251", false, WORD(7), BYTE(0xc3), BYTE(0xa9));
    EXPECT(t, "a\377", false, WORD(7), BYTE(0xff));
    EXPECT(t, " a", false, WORD(0), WORD(7));
    EXPECT(t, "a  b", false, WORD(7), WORD(9), WORD(2)); /* user-defined first */
    EXPECT(t, "<s>a</s>", true, 1, WORD(7), 2);
    EXPECT(t, "<0x41>", false, WORD(0), BYTE('<'), BYTE('0'), BYTE('x'), BYTE('4'), BYTE('1'),
           BYTE('>'));
    tokenizer_close(t);
    made_close(&m);
}

Test(spm, puts_no_space_where_the_file_says_so)
{
    struct made m;
    struct tokenizer *t = spm_open_with(&m, false);
    EXPECT(t, "abc", false, WORD(6));
    EXPECT(t, " a", false, WORD(7));
    tokenizer_close(t);
    made_close(&m);
}

Test(spm, text_that_goes_on_gets_no_space)
{
    struct made m;
    struct tokenizer *t = spm_open_with(&m, true);
    int32_t ids[8];
    size_t n = 0;
    struct error err;
    cr_assert(tokenizer_encode_on(t, "abc", 3, ids, 8, &n, &err) == 0);
    cr_assert(n == 1 && ids[0] == WORD(6));
    tokenizer_close(t);
    made_close(&m);
}

Test(spm, a_long_text_costs_no_more_than_its_length)
{
    enum { N = 60000 };
    static char text[N];
    static int32_t ids[N + 1];
    struct made m;
    struct tokenizer *t = spm_open_with(&m, true);
    struct error err;
    for (size_t f = 0; f < 3; f++) {
        size_t n = 0;
        memset(text, "a c"[f], N);
        cr_assert(tokenizer_encode(t, text, N, false, ids, N + 1, &n, &err) == 0, "%s", err.text);
        cr_assert(n > 0);
    }
    tokenizer_close(t);
    made_close(&m);
}
