/* tests/unit/model/tokenizer_test.c - the same ids as the library that trained the vocabulary,
 * and no byte lost. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>
#include <time.h>
#include "tests/unit/model/patched.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

static struct gguf *gguf;
static struct tokenizer *tokenizer;

static struct tokenizer *open_at(const char *path)
{
    struct error err;
    cr_assert(gguf_open(&gguf, path, &err) == 0, "%s", err.text);
    cr_assert(tokenizer_open(&tokenizer, gguf, &err) == 0, "%s", err.text);
    return tokenizer;
}

static void open_demo(void)
{
    open_at(DEMO);
}

static void close_demo(void)
{
    tokenizer_close(tokenizer);
    gguf_close(gguf);
}

TestSuite(tokenizer, .init = open_demo, .fini = close_demo);

static size_t encode(const char *text, size_t n, bool special, int32_t *ids, size_t ids_max)
{
    size_t n_ids = 0;
    struct error err;
    cr_assert(tokenizer_encode(tokenizer, text, n, special, ids, ids_max, &n_ids, &err) == 0, "%s",
              err.text);
    return n_ids;
}

typedef int piece_of(const struct tokenizer *t, int32_t id, const char **bytes, size_t *n_bytes);

static size_t decode(piece_of *piece, const int32_t *ids, size_t n_ids, char *out, size_t out_max)
{
    size_t n_out = 0, n;
    const char *bytes;
    for (size_t i = 0; i < n_ids; i++) {
        cr_assert(piece(tokenizer, ids[i], &bytes, &n) == 0);
        cr_assert(n_out + n <= out_max);
        memcpy(out + n_out, bytes, n);
        n_out += n;
    }
    return n_out;
}

Test(tokenizer, gives_the_reference_ids_and_bytes)
{
    json_error_t error;
    size_t index, cases = 0;
    json_t *all = json_load_file(EBBTIDE_TEST_DATA "/tokenizer_cases.json", JSON_ALLOW_NUL, &error),
           *one;
    cr_assert(all != NULL, "%s", error.text);
    json_array_foreach(all, index, one)
    {
        int32_t ids[1024];
        char out[4096];
        json_t *text = json_object_get(one, "text"), *wanted = json_object_get(one, "ids");
        json_t *decoded = json_object_get(one, "decoded");
        size_t n_ids = encode(json_string_value(text), json_string_length(text), true, ids, 1024);
        cr_assert(n_ids == json_array_size(wanted), "case %zu: %zu ids", index, n_ids);
        for (size_t i = 0; i < n_ids; i++)
            cr_assert(ids[i] == json_integer_value(json_array_get(wanted, i)), "case %zu, id %zu",
                      index, i);
        size_t n_out = decode(tokenizer_text, ids, n_ids, out, sizeof out);
        cr_assert(n_out == json_string_length(decoded), "case %zu: %zu bytes", index, n_out);
        cr_assert(memcmp(out, json_string_value(decoded), n_out) == 0, "case %zu", index);
        cases++;
    }
    cr_assert(cases == 52);
    json_decref(all);
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return x * 0x9e3779b97f4a7c15u >> 16;
}

/* Words, any bytes, pieces of characters, spaces, marks written out: mixed. */
static size_t random_text(uint64_t *state, char *out, size_t max)
{
    static const char *const parts[] = {"the ",        "  ",       "\n",           "<|im_end|>",
                                        "<|im_",       "\302\240", "\360\237\232", "\xed\xa0\x80",
                                        "caf\303\251", "'s",       "1234"};
    size_t n = 0, wanted = random_next(state) % max;
    while (n < wanted) {
        const char *part = parts[random_next(state) % (sizeof parts / sizeof parts[0])];
        switch (random_next(state) % 3) {
        case 0: out[n++] = (char)random_next(state); break;
        case 1: out[n++] = (char)('a' + random_next(state) % 26); break;
        default:
            if (n + strlen(part) > max)
                return n;
            memcpy(out + n, part, strlen(part));
            n += strlen(part);
        }
    }
    return n;
}

Test(tokenizer, decoding_gives_back_any_bytes)
{
    uint64_t state = 1;
    for (int i = 0; i < 10000; i++) {
        char text[256], out[256];
        int32_t ids[256];
        bool special = i % 2 == 0;
        size_t n = random_text(&state, text, sizeof text);
        size_t n_ids = encode(text, n, special, ids, 256);
        size_t n_out =
            decode(special ? tokenizer_text : tokenizer_piece, ids, n_ids, out, sizeof out);
        cr_assert(n_out == n && memcmp(out, text, n) == 0, "text %d of %zu bytes gives %zu", i, n,
                  n_out);
    }
}

Test(tokenizer, control_tokens_come_only_from_text_that_may_have_them)
{
    const char *text = "a<|endoftext|><|im_start|>b<|im_end|>";
    int32_t ids[64];
    size_t n = encode(text, strlen(text), true, ids, 64);
    cr_assert(n == 5 && ids[1] == 0 && ids[2] == 1 && ids[4] == 2);
    n = encode(text, strlen(text), false, ids, 64);
    cr_assert(n > 5);
    for (size_t i = 0; i < n; i++)
        cr_assert(ids[i] > 2);
}

Test(tokenizer, control_tokens_print_nothing)
{
    const char *bytes;
    size_t n = 9;
    for (int32_t id = 0; id < 3; id++)
        cr_assert(tokenizer_piece(tokenizer, id, &bytes, &n) == 0 && n == 0);
    cr_assert(tokenizer_text(tokenizer, 2, &bytes, &n) == 0 && n == 10);
    cr_assert(memcmp(bytes, "<|im_end|>", 10) == 0);
    cr_assert(tokenizer_piece(tokenizer, -1, &bytes, &n) == EBB_ERANGE);
    cr_assert(tokenizer_piece(tokenizer, 4096, &bytes, &n) == EBB_ERANGE);
}

Test(tokenizer, knows_its_special_ids)
{
    cr_assert(tokenizer_n_vocab(tokenizer) == 4096);
    cr_assert(tokenizer_bos(tokenizer) == 0 && tokenizer_eos(tokenizer) == 0);
    cr_assert(!tokenizer_adds_bos(tokenizer));
    cr_assert(tokenizer_special(tokenizer, "<|im_end|>") == 2);
    cr_assert(tokenizer_special(tokenizer, "<|im_end|") == -1);
    cr_assert(tokenizer_special(tokenizer, "a") == -1, "an ordinary token is not special");
    cr_assert(tokenizer_is_end(tokenizer, 0) && tokenizer_is_end(tokenizer, 2));
    cr_assert(!tokenizer_is_end(tokenizer, 1) && !tokenizer_is_end(tokenizer, 67));
}

Test(tokenizer, too_little_room_appends_nothing)
{
    int32_t ids[8] = {0};
    struct error err;
    size_t n_ids = 3;
    for (size_t room = 0; room < 3; room++) {
        cr_assert(tokenizer_encode(tokenizer, "Hello", 5, false, ids, 3 + room, &n_ids, &err) ==
                  EBB_ERANGE);
        cr_assert(n_ids == 3);
    }
    cr_assert(tokenizer_encode(tokenizer, "Hello", 5, false, ids, 6, &n_ids, &err) == 0);
    cr_assert(n_ids == 6 && ids[3] == 42 && ids[4] == 1888 && ids[5] == 81);
}

Test(tokenizer, a_long_word_costs_no_more_than_its_length)
{
    enum { N = 60000 };
    static char text[N], out[N];
    static int32_t ids[N];
    static const char *const fillings[] = {"ab", " ", "\200", "antidisestablishment", "<"};
    clock_t start = clock();
    for (size_t f = 0; f < sizeof fillings / sizeof fillings[0]; f++) {
        for (size_t i = 0; i < N; i++)
            text[i] = fillings[f][i % strlen(fillings[f])];
        size_t n_ids = encode(text, N, true, ids, N);
        cr_assert(decode(tokenizer_piece, ids, n_ids, out, N) == N && memcmp(out, text, N) == 0);
    }
    cr_assert(clock() - start < 5 * CLOCKS_PER_SEC);
}

Test(tokenizer, the_files_name_of_the_pattern_decides)
{
    static struct patched p;
    int32_t ids[16], digits[3];
    cr_assert(encode("123", 3, false, ids, 16) == 1 || encode("123", 3, false, ids, 16) == 2);
    for (size_t i = 0; i < 3; i++)
        (void)encode(&"123"[i], 1, false, digits + i, 1);
    close_demo();
    patched_open(&p);
    patched_bytes(&p, patched_behind(&p, "tokenizer.ggml.pre") + 12, "qwen2", 5);
    open_at(p.path);
    cr_assert(encode("123", 3, false, ids, 16) == 3 && memcmp(ids, digits, sizeof digits) == 0);
    patched_close(&p);
}

struct bad_vocabulary {
    const char *behind;
    size_t skip;
    uint64_t value;
    const char *text;
    int code;
    const char *says;
};

static const struct bad_vocabulary bad_vocabularies[] = {
    {"tokenizer.ggml.model", 12, 0, "bert", EBB_EUNSUPPORTED, "got \"bert\""},
    {"tokenizer.ggml.pre", 12, 0, "gpt-9", EBB_EUNSUPPORTED, "got \"gpt-9\""},
    {"tokenizer.ggml.token_type", 16, 9, NULL, EBB_EFORMAT, "token_type"},
    {"tokenizer.ggml.merges", 24, 0, "??", EBB_EFORMAT, "merge 0"},
    {"tokenizer.ggml.bos_token_id", 4, 4096, NULL, EBB_EFORMAT, "wants 0..4095, got 4096"},
    {"tokenizer.ggml.eos_token_id", 4, UINT32_MAX, NULL, EBB_EFORMAT, "eos_token_id"},
    {"tokenizer.ggml.add_bos_token", 4, 2, NULL, EBB_EFORMAT, "wants 0 or 1, got 2"},
    /* the token "!" (id 3, behind 13, 12 and 10 bytes of text with their lengths) becomes a
     * control token */
    {"tokenizer.ggml.token_type", 28, 3, NULL, EBB_EFORMAT, "byte 0x21"},
};

Test(bad_vocabulary, is_refused_naming_file_and_key)
{
    static struct patched p;
    patched_open(&p);
    for (size_t i = 0; i < sizeof bad_vocabularies / sizeof bad_vocabularies[0]; i++) {
        const struct bad_vocabulary *bad = &bad_vocabularies[i];
        size_t at = patched_behind(&p, bad->behind) + bad->skip;
        struct gguf *g = NULL;
        struct tokenizer *t = NULL;
        struct error err = {0};
        if (bad->text != NULL)
            patched_bytes(&p, at, bad->text, strlen(bad->text));
        else
            patched_number(&p, at, bad->value, bad->value == 2 ? 1 : 4);
        cr_assert(gguf_open(&g, p.path, &err) == 0, "%s", err.text);
        cr_assert(tokenizer_open(&t, g, &err) == bad->code && t == NULL, "%s: %s", bad->behind,
                  err.text);
        cr_assert(strstr(err.text, p.path) == err.text && strstr(err.text, bad->says) != NULL, "%s",
                  err.text);
        gguf_close(g);
        patched_restore(&p);
    }
    patched_close(&p);
}
