/* tests/unit/protocol/line_test.c - framing, the writer and percent coding: a test's name is the
 * promise it holds. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/protocol/feeding.h"

Test(line, is_the_same_in_any_two_pieces_and_byte_by_byte)
{
    const char *text = "PING a\r\n\r\n  \nGEN a1 5 text=h%20i\n\nVRAM - 1\r\nQUIT";
    size_t n = strlen(text);
    char *whole = fed_in_pieces(text, n, n, n), *bytewise = fed_in_pieces(text, n, 0, 1);

    cr_assert_str_eq(whole, "[PING a][][  ][GEN a1 5 text=h%20i][][VRAM - 1][QUIT]");
    cr_assert_str_eq(bytewise, whole);
    for (size_t cut = 0; cut <= n; cut++) {
        char *cut_up = fed_in_pieces(text, n, cut, n);
        cr_assert_str_eq(cut_up, whole, "cut at byte %zu", cut);
        free(cut_up);
    }
    free(whole);
    free(bytewise);
}

Test(line, that_is_too_long_is_told_once_and_the_next_one_is_whole)
{
    enum { N_LONG = 70000 };
    char *text = malloc(N_LONG + 32);
    static const size_t pieces[] = {1, 2, 4095, 4096, 65535, 65536, 65537, N_LONG + 32};

    memcpy(text, "PING before\n", 12);
    memset(text + 12, 'x', N_LONG);
    memcpy(text + 12 + N_LONG, "\nPING after\n", 12);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        char *seen = fed_in_pieces(text, N_LONG + 24, 0, pieces[i]);
        cr_assert_str_eq(seen, "[PING before](too long)[PING after]", "pieces of %zu", pieces[i]);
        free(seen);
    }
    free(text);
}

Test(line, may_have_65536_bytes_with_its_end_and_no_more)
{
    char *text = malloc(LINE_BYTES_MAX + 1), *seen;

    memset(text, 'x', LINE_BYTES_MAX + 1);
    text[LINE_BYTES_MAX - 1] = '\n';
    seen = fed_in_pieces(text, LINE_BYTES_MAX, 0, 1000);
    cr_assert_eq(strlen(seen), LINE_BYTES_MAX - 1 + 2);
    free(seen);
    text[LINE_BYTES_MAX - 1] = 'x';
    text[LINE_BYTES_MAX] = '\n';
    seen = fed_in_pieces(text, LINE_BYTES_MAX + 1, 0, 1000);
    cr_assert_str_eq(seen, "(too long)");
    free(seen);
    seen = fed_in_pieces(text, LINE_BYTES_MAX, 0,
                         1000); /* without an end it would have one byte more */
    cr_assert_str_eq(seen, "(too long)");
    free(seen);
    seen = fed_in_pieces(text, LINE_BYTES_MAX - 1, 0, 1000);
    cr_assert_eq(strlen(seen), LINE_BYTES_MAX - 1 + 2);
    free(seen);
    free(text);
}

Test(line, keeps_nul_bytes_for_the_parser_to_refuse)
{
    struct line_reader r;
    char *where, *line;
    size_t n;

    cr_assert_eq(line_reader_open(&r, NULL), 0);
    cr_assert_geq(line_reader_room(&r, &where), 4);
    memcpy(where, "a\0b\n", 4);
    line_reader_fed(&r, 4);
    cr_assert_eq(line_reader_next(&r, &line, &n), LINE_READY);
    cr_assert_eq(n, 3);
    cr_assert_eq(r.stream_offset, 4);
    line_reader_close(&r);
}

Test(line, writer_puts_one_space_between_fields_and_one_end)
{
    char buffer[256];
    struct line_writer w;
    const int32_t ids[] = {0, 1, 151935, INT32_MAX, -1, INT32_MIN};

    line_begin(&w, buffer, sizeof buffer, "TOK");
    line_bare(&w, "a");
    line_bare_i64(&w, -5);
    line_key(&w, "k", "v");
    line_u64(&w, "u", UINT64_MAX);
    line_i64(&w, "i", INT64_MIN);
    line_f64(&w, "f", 0.7);
    line_text(&w, "t", "a b", 3);
    line_text(&w, NULL, "c=d", 3);
    line_ids(&w, "ids", ids, 6);
    line_ids(&w, "none", ids, 0);
    cr_assert_eq(line_end(&w), (int)strlen(buffer));
    cr_assert_str_eq(
        buffer, "TOK a -5 k=v u=18446744073709551615 i=-9223372036854775808 f=0.7 t=a%20b c%3Dd "
                "ids=0,1,151935,2147483647,-1,-2147483648 none=\n");
}

Test(line, writer_remembers_that_something_did_not_fit)
{
    /* "PING abc=de\n" is 12 bytes: every smaller buffer says so and is not overrun. */
    for (size_t capacity = 0; capacity <= 13; capacity++) {
        char *buffer = malloc(capacity + 1);
        struct line_writer w;
        buffer[capacity] = '!';
        line_begin(&w, buffer, capacity, "PING");
        line_key(&w, "abc", "de");
        cr_assert_eq(line_end(&w), capacity < 12 ? EBB_ELINE_TOO_LONG : 12);
        cr_assert_eq(buffer[capacity], '!');
        free(buffer);
    }
}

Test(line, writer_never_makes_a_line_that_readers_discard)
{
    char *buffer = malloc(3 * LINE_BYTES_MAX), *text = malloc(2 * LINE_BYTES_MAX);
    struct line_writer w;

    memset(text, 'x', 2 * LINE_BYTES_MAX);
    line_begin(&w, buffer, 3 * LINE_BYTES_MAX, "T");
    line_text(&w, "t", text, LINE_BYTES_MAX - 5);
    cr_assert_eq(line_end(&w), LINE_BYTES_MAX);
    line_begin(&w, buffer, 3 * LINE_BYTES_MAX, "T");
    line_text(&w, "t", text, LINE_BYTES_MAX - 4);
    cr_assert_eq(line_end(&w), EBB_ELINE_TOO_LONG);
    free(buffer);
    free(text);
}

Test(line, floats_read_back_the_same_and_short_ones_stay_short)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {0.1, "0.1"},
                 {0.95, "0.95"},
                 {-2.5, "-2.5"},
                 {1234.5, "1234.5"},
                 {FLT_MAX, "3.4028235e+38"},
                 {16777216, "16777216"},
                 {1e300, "1.0000000000000001e+300"}};
    char buffer[128];
    struct line_writer w;
    uint32_t bits = 1;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        line_begin(&w, buffer, sizeof buffer, "F");
        line_f64(&w, "f", cases[i].value);
        cr_assert_gt(line_end(&w), 0);
        buffer[strlen(buffer) - 1] = '\0';
        cr_assert_str_eq(buffer + 4, cases[i].text);
    }
    for (int i = 0; i < 20000; i++) {
        float value;
        bits = bits * 1664525u + 1013904223u;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        line_begin(&w, buffer, sizeof buffer, "F");
        line_f64(&w, "f", (double)value);
        cr_assert_gt(line_end(&w), 0);
        cr_assert_eq(strtof(buffer + 4, NULL), value);
    }
}

/* Writes bytes as a text and decodes them again; the encoded text is left in `encoded`. */
static void round_trip(const char *bytes, size_t n, char *encoded, size_t capacity)
{
    struct line_writer w;
    char decoded[4096];
    size_t n_decoded;

    line_begin(&w, encoded, capacity, "T");
    line_text(&w, "t", bytes, n);
    cr_assert_gt(line_end(&w), 0);
    encoded[strlen(encoded) - 1] = '\0';
    memmove(encoded, encoded + 4, strlen(encoded + 4) + 1);
    cr_assert_eq(percent_decode(encoded, strlen(encoded), decoded, &n_decoded, NULL), 0);
    cr_assert_eq(n_decoded, n);
    cr_assert_eq(memcmp(decoded, bytes, n), 0);
}

Test(percent, carries_every_byte_and_encodes_what_the_grammar_says)
{
    char encoded[8192], wanted[8];

    for (int c = 0; c < 256; c++) {
        char byte = (char)c;
        bool plain = c > 0x20 && c < 0x7F && strchr("%=,", c) == NULL;
        round_trip(&byte, 1, encoded, sizeof encoded);
        snprintf(wanted, sizeof wanted, plain ? "%c" : "%%%02X", c);
        cr_assert_str_eq(encoded, wanted);
    }
    char all[512];
    for (int i = 0; i < 512; i++)
        all[i] = (char)(i * 7 + i / 256);
    round_trip(all, sizeof all, encoded, sizeof encoded);
    round_trip("", 0, encoded, sizeof encoded);
    cr_assert_str_eq(encoded, "");
}

Test(percent, leaves_whole_characters_and_encodes_invalid_utf8)
{
    static const struct {
        const char *bytes, *encoded;
    } cases[] = {
        {"naïve → 𝄞", "naïve%20→%20𝄞"},
        {"\xC3", "%C3"},                      /* cut off */
        {"\xE2\x86x", "%E2%86x"},             /* cut off by a letter */
        {"\x80\xBF", "%80%BF"},               /* no beginning */
        {"\xC0\xAF", "%C0%AF"},               /* overlong */
        {"\xE0\x9F\xBF", "%E0%9F%BF"},        /* overlong */
        {"\xED\xA0\x80", "%ED%A0%80"},        /* a surrogate */
        {"\xF4\x90\x80\x80", "%F4%90%80%80"}, /* beyond U+10FFFF */
        {"\xF0\x8F\xBF\xBF", "%F0%8F%BF%BF"}, /* overlong */
        {"\xFF\xFE", "%FF%FE"},
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
    };
    char encoded[256];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        round_trip(cases[i].bytes, strlen(cases[i].bytes), encoded, sizeof encoded);
        cr_assert_str_eq(encoded, cases[i].encoded);
    }
}

Test(percent, reads_any_byte_written_as_an_escape_and_refuses_a_bad_one)
{
    static const char *const bad[] = {"%",    "a%",  "ab%4", "%4G", "%G4",
                                      "%%41", "%-1", "% 1",  "%+1", "%0x"};
    struct error err;
    char out[64];
    size_t n;

    for (int c = 0; c < 256; c++) {
        char text[8];
        snprintf(text, sizeof text, c % 2 ? "%%%02X" : "%%%02x", c);
        cr_assert_eq(percent_decode(text, 3, out, &n, &err), 0);
        cr_assert_eq(n, 1);
        cr_assert_eq((unsigned char)out[0], c);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(percent_decode(bad[i], strlen(bad[i]), out, &n, &err), EBB_EINVAL, "%s",
                     bad[i]);
    (void)percent_decode("ab%zz", 5, out, &n, &err);
    cr_assert_not_null(strstr(err.text, "byte 2"));
}
