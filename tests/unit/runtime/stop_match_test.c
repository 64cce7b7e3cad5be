/* Stop strings over pieces cut anywhere. */
#include "runtime/stop_match.h"
#include <criterion/criterion.h>
#include <string.h>

static struct error err;

/* Feeds text in pieces of n bytes; out gets what was let out before the end. */
static bool feed(struct stop_match *m, const char *text, size_t n, char *out)
{
    size_t n_out = 0;
    bool met = false;
    for (size_t at = 0; at < strlen(text) && !met; at += n) {
        const char *piece;
        size_t n_piece, left = strlen(text) - at;
        met = stop_match_feed(m, text + at, left < n ? left : n, &piece, &n_piece);
        memcpy(out + n_out, piece, n_piece);
        n_out += n_piece;
    }
    if (!met) {
        const char *rest;
        size_t n_rest;
        stop_match_flush(m, &rest, &n_rest);
        memcpy(out + n_out, rest, n_rest);
        n_out += n_rest;
    }
    out[n_out] = '\0';
    return met;
}

static void expect(const char *text, bool met, const char *before)
{
    static const char *const stops[] = {"END", "\n\n", "aab"};
    for (size_t n = 1; n <= strlen(text); n++) {
        struct stop_match m = {0};
        char out[200];
        for (size_t i = 0; i < 3; i++)
            cr_assert_eq(stop_match_add(&m, stops[i], strlen(stops[i]), &err), 0);
        cr_assert_eq(feed(&m, text, n, out), met, "%s in pieces of %zu", text, n);
        cr_assert_str_eq(out, before, "%s in pieces of %zu: %s", text, n, out);
        stop_match_close(&m);
    }
}

Test(stop_match, a_match_is_found_however_the_text_is_cut)
{
    expect("hello END of it", true, "hello ");
    expect("aaaaab", true, "aaa");
    expect("one\ntwo\n\nthree", true, "one\ntwo");
    expect("ENENEND", true, "ENEN");
}

Test(stop_match, text_without_a_match_comes_out_whole)
{
    expect("nothing here EN", false, "nothing here EN");
    expect("aa", false, "aa");
    expect("\n", false, "\n");
}

Test(stop_match, nothing_is_held_where_there_are_no_stop_strings)
{
    struct stop_match m = {0};
    const char *out;
    size_t n;
    cr_assert(!stop_match_feed(&m, "abc", 3, &out, &n));
    cr_assert_eq(n, 3);
    stop_match_flush(&m, &out, &n);
    cr_assert_eq(n, 0);
    stop_match_close(&m);
}

Test(stop_match, empty_and_too_long_and_too_many_are_refused)
{
    static char longest[STOP_BYTES_MAX + 1];
    struct stop_match m = {0};
    cr_assert_eq(stop_match_add(&m, "", 0, &err), EBB_ERANGE);
    cr_assert_eq(stop_match_add(&m, longest, sizeof longest, &err), EBB_ERANGE);
    for (int i = 0; i < STOP_STRINGS_MAX; i++)
        cr_assert_eq(stop_match_add(&m, "x", 1, &err), 0);
    cr_assert_eq(stop_match_add(&m, "x", 1, &err), EBB_ERANGE);
    stop_match_close(&m);
}
