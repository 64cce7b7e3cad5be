/* tests/unit/model/utf8_stream_test.c - a stream of pieces comes out as whole characters, and
 * all of it comes out. */
#include <criterion/criterion.h>
#include <string.h>
#include "runtime/model/tokenizer.h"

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return x * 0x9e3779b97f4a7c15u >> 16;
}

static void expect_add(struct utf8_stream *u, const char *piece, const char *wanted)
{
    char out[16];
    size_t n = utf8_stream_add(u, piece, strlen(piece), out);
    cr_assert(n == strlen(wanted) && memcmp(out, wanted, n) == 0, "\"%s\" gives %zu bytes", piece,
              n);
}

Test(utf8_stream, an_unfinished_character_waits)
{
    struct utf8_stream u = {0};
    char out[8];
    expect_add(&u, "a\303", "a");
    expect_add(&u, "\251b", "\303\251b");
    expect_add(&u, "\360\237", "");
    expect_add(&u, "\232", "");
    expect_add(&u, "\242\360\237", "\360\237\232\242");
    cr_assert(utf8_stream_flush(&u, out) == 2 && memcmp(out, "\360\237", 2) == 0);
    cr_assert(utf8_stream_flush(&u, out) == 0);
}

Test(utf8_stream, what_can_never_be_a_character_passes_at_once)
{
    static const char *const hopeless[] = {
        "\200",     "\277",      "\300\200",      "\301",
        "\365",     "\377",      "\340\200",      "\340\237",
        "\355\240", "\360\200",  "\360\217",      "\364\220",
        "\303a",    "\342\202a", "\360\237\232a", "\342\202\200\200"};
    for (size_t i = 0; i < sizeof hopeless / sizeof hopeless[0]; i++) {
        struct utf8_stream u = {0};
        expect_add(&u, hopeless[i], hopeless[i]);
        cr_assert(u.n_pending == 0, "case %zu", i);
    }
}

static size_t put_character(uint32_t c, char *out)
{
    if (c < 0x80)
        return out[0] = (char)c, 1;
    if (c < 0x800)
        return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)),
               out[2] = (char)(0x80 | (c & 63)), 3;
    return out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63)),
           out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63)), 4;
}

/* Characters of all lengths; begins[i] where one begins. */
static size_t random_characters(uint64_t *state, char *out, size_t max, bool *begins)
{
    static const uint32_t tops[] = {0x80, 0x800, 0x10000, 0x110000};
    size_t n = 0;
    memset(begins, 0, (max + 1) * sizeof *begins);
    while (n + 4 <= max) {
        uint32_t c = (uint32_t)(random_next(state) % tops[random_next(state) % 4]);
        if (c >= 0xd800 && c < 0xe000)
            continue;
        begins[n] = true;
        n += put_character(c, out + n);
    }
    begins[n] = true;
    return n;
}

/* Feeds text in random cuts; every emission must end where a character does, if begins is given. */
static void feed(uint64_t *state, const char *text, size_t n, const bool *begins)
{
    struct utf8_stream u = {0};
    char out[600];
    size_t n_out = 0;
    for (size_t at = 0, cut; at < n; at += cut) {
        cut = random_next(state) % 7;
        cut = cut > n - at ? n - at : cut;
        n_out += utf8_stream_add(&u, text + at, cut, out + n_out);
        cr_assert(n_out + u.n_pending == at + cut && u.n_pending <= 3);
        cr_assert(begins == NULL || begins[n_out], "half a character at %zu", n_out);
    }
    n_out += utf8_stream_flush(&u, out + n_out);
    cr_assert(n_out == n && memcmp(out, text, n) == 0);
}

Test(utf8_stream, random_cuts_of_text_never_split_a_character)
{
    uint64_t state = 3;
    char text[512];
    bool begins[sizeof text + 1];
    for (int i = 0; i < 2000; i++) {
        size_t n = random_characters(&state, text, sizeof text, begins);
        feed(&state, text, n, begins);
    }
}

Test(utf8_stream, random_cuts_of_any_bytes_lose_nothing)
{
    uint64_t state = 4;
    char text[512];
    for (int i = 0; i < 2000; i++) {
        for (size_t k = 0; k < sizeof text;
             k++) /* mostly bytes of the upper half: leads and continuations */
            text[k] = (char)(random_next(&state) % 8 == 0 ? 'a' : 0x80 | random_next(&state) % 128);
        feed(&state, text, sizeof text, NULL);
    }
}
