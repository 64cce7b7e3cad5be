/* tests/unit/protocol/message_test.c - a line as verb, fields and typed values. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>
#include "protocol/line.h"
#include "protocol/message.h"

static struct message m;
static char buffer[2 * LINE_BYTES_MAX];
static struct error err;

static int parse_bytes(const char *text, size_t n)
{
    memcpy(buffer, text, n);
    buffer[n] = '\0';
    err = (struct error){0};
    return message_parse(&m, buffer, n, &err);
}

static int parse(const char *text)
{
    return parse_bytes(text, strlen(text));
}

Test(message, has_a_verb_bare_fields_first_and_keys)
{
    cr_assert_eq(parse("  GEN  a1 top_k=5   48 stop=x text=a=b stop=y  "), 0);
    cr_assert_str_eq(m.verb, "GEN");
    cr_assert_eq(m.n_bare, 2);
    cr_assert_eq(m.n_fields, 6);
    cr_assert_str_eq(message_bare(&m, 0), "a1");
    cr_assert_str_eq(message_bare(&m, 1), "48");
    cr_assert_null(message_bare(&m, 2));
    cr_assert_str_eq(message_key(&m, "top_k"), "5");
    cr_assert_str_eq(message_key(&m, "text"), "a=b");
    cr_assert_str_eq(message_key(&m, "stop"), "x");
    cr_assert_str_eq(m.fields[5].value, "y");
    cr_assert_null(message_key(&m, "top"));
    cr_assert_eq(parse("T a text="), 0);
    cr_assert_str_eq(message_key(&m, "text"), "");
}

Test(message, that_is_empty_or_blank_has_no_verb)
{
    cr_assert_eq(parse(""), 0);
    cr_assert_str_eq(m.verb, "");
    cr_assert_eq(parse("    "), 0);
    cr_assert_str_eq(m.verb, "");
    cr_assert_eq(m.n_fields, 0);
    cr_assert_eq(message_check(&m, DIALECT_CONTROL, &err), 0);
    cr_assert_str_eq(message_tag(&m), "-");
}

Test(message, refuses_what_is_no_text_with_the_offset)
{
    static const struct {
        const char *text;
        size_t n;
        const char *offset;
    } cases[] = {
        {"GEN a1\0 5", 9, "byte 6:"},
        {"\0", 1, "byte 0:"},
        {"GEN a1 5 \xC3(", 11, "byte 9:"},
        {"PING \xED\xA0\x80", 8, "byte 5:"},
        {"PING a\xF0\x9D\x84", 9, "byte 6:"},
        {"VRAM\t1", 6, "byte 4:"},
        {"PING a\rb", 8, "byte 6:"},
        {"PING \x7F", 6, "byte 5:"},
        {"PING =a", 7, "byte 5:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(parse_bytes(cases[i].text, cases[i].n), EBB_EINVAL, "case %zu", i);
        cr_assert_eq(strncmp(err.text, cases[i].offset, strlen(cases[i].offset)), 0, "%s",
                     err.text);
    }
    cr_assert_eq(parse("PING naïve→𝄞"), 0);
}

Test(message, that_was_refused_half_way_still_has_its_tag)
{
    cr_assert_eq(parse("GEN a1 5 text=\xFF"), EBB_EINVAL);
    cr_assert_str_eq(message_tag(&m), "a1");
    cr_assert_eq(m.n_fields, 2);
    cr_assert_eq(parse("GEN a1\xFF 5"), EBB_EINVAL);
    cr_assert_str_eq(message_tag(&m), "-");
    cr_assert_eq(parse("GE\xFFN a1 5"), EBB_EINVAL);
    cr_assert_str_eq(message_tag(&m), "-");
    cr_assert_eq(parse("STOP a1 =x"), EBB_EINVAL);
    cr_assert_str_eq(message_tag(&m), "a1");
}

Test(message, has_at_most_256_fields_and_says_so)
{
    char text[4096] = "PART tag";

    for (int i = 0; i < MESSAGE_FIELDS_MAX - 1; i++)
        strcat(text, i % 2 ? " a=1" : " b");
    cr_assert_eq(parse(text), 0);
    cr_assert_eq(m.n_fields, MESSAGE_FIELDS_MAX);
    strcat(text, " z");
    cr_assert_eq(parse(text), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "at most 256 fields"));
    cr_assert_str_eq(message_tag(&m), "tag");
}

Test(message, points_into_the_line_and_copies_no_long_value)
{
    static char text[LINE_BYTES_MAX] = "PART a ids=";

    for (size_t n = strlen(text); n < 60000; n += 2)
        memcpy(text + n, "7,", 3);
    strcat(text, "8");
    cr_assert_eq(parse(text), 0);
    cr_assert(message_key(&m, "ids") > buffer && message_key(&m, "ids") < buffer + sizeof buffer);

    const char *cursor = message_key(&m, "ids");
    int32_t id = -1;
    size_t n_ids = 0;
    while (ids_next(&cursor, 151935, &id, &err) == 1)
        n_ids++;
    cr_assert_eq(id, 8);
    cr_assert_eq(n_ids, (strlen(text) - 11 + 1) / 2);
}

Test(message, error_line_keeps_its_free_text)
{
    const char *tag;
    struct error said;

    cr_assert_eq(parse("ERR a1 out-of-range GEN: top_k wants  1 to 5, got top_k=9 = x  y"), 0);
    cr_assert(message_error(&m, &tag, &said));
    cr_assert_str_eq(tag, "a1");
    cr_assert_eq(said.code, EBB_ERANGE);
    cr_assert_str_eq(said.text, "GEN: top_k wants  1 to 5, got top_k=9 = x  y");
    cr_assert_eq(parse("ERR - news"), 0);
    cr_assert(message_error(&m, &tag, &said));
    cr_assert_str_eq(tag, "-");
    cr_assert_eq(said.code, EBB_EPEER);
    cr_assert_str_eq(said.text, "");
    cr_assert_eq(parse("ERR"), 0);
    cr_assert(message_error(&m, &tag, &said));
    cr_assert_str_eq(tag, "-");
    cr_assert_eq(parse("DONE a1 error"), 0);
    cr_assert_not(message_error(&m, &tag, &said));
}

Test(message, every_code_has_a_name_that_leads_back)
{
    for (int code = EBB_EINVAL; code >= EBB_EMISMATCH; code--) {
        cr_assert_str_neq(error_code_name(code), "error");
        cr_assert_eq(error_code_from_name(error_code_name(code)), code);
    }
    cr_assert_str_eq(error_code_name(EBB_EMISMATCH - 1), "error");
    cr_assert_eq(error_code_from_name("ok"), EBB_EPEER);
}

Test(message, tags_are_of_64_plain_characters)
{
    char longest[MESSAGE_TAG_MAX + 2];

    memset(longest, 'a', sizeof longest);
    longest[MESSAGE_TAG_MAX] = '\0';
    cr_assert(tag_is_valid(longest));
    longest[MESSAGE_TAG_MAX] = 'a';
    longest[MESSAGE_TAG_MAX + 1] = '\0';
    cr_assert_not(tag_is_valid(longest));
    cr_assert(tag_is_valid("step:3.17_a-B"));
    cr_assert(tag_is_valid("-"));
    cr_assert_not(tag_is_valid(""));
    cr_assert_not(tag_is_valid("a/b"));
    cr_assert_not(tag_is_valid("a%20"));
    cr_assert_not(tag_is_valid("ä"));
}

Test(number, is_the_whole_field_and_in_range)
{
    static const struct {
        const char *text;
        int rc;
        uint64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"18446744073709551615", 0, UINT64_MAX},
        {"007", 0, 7},
        {"18446744073709551616", EBB_ERANGE, 0},
        {"99999999999999999999999999", EBB_ERANGE, 0},
        {"", EBB_EINVAL, 0},
        {"+1", EBB_EINVAL, 0},
        {"-1", EBB_EINVAL, 0},
        {" 1", EBB_EINVAL, 0},
        {"1 ", EBB_EINVAL, 0},
        {"0x10", EBB_EINVAL, 0},
        {"1.5", EBB_EINVAL, 0},
        {"1e3", EBB_EINVAL, 0},
        {"12000MiB", EBB_EINVAL, 0},
        {"99999999999999999999999999x", EBB_EINVAL, 0},
        {"٣", EBB_EINVAL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t value = 42;
        cr_assert_eq(parse_u64(cases[i].text, 0, UINT64_MAX, &value), cases[i].rc, "\"%s\"",
                     cases[i].text);
        cr_assert_eq(value, cases[i].rc == 0 ? cases[i].value : 42);
    }
    uint64_t value;
    cr_assert_eq(parse_u64("5", 5, 5, &value), 0);
    cr_assert_eq(parse_u64("4", 5, 9, &value), EBB_ERANGE);
    cr_assert_eq(parse_u64("10", 5, 9, &value), EBB_ERANGE);
}

Test(number, that_is_not_given_leaves_the_default)
{
    uint64_t u = 7;
    int64_t s = 7;
    double f = 7;
    uint32_t a = 7, b = 7;
    size_t n = 7;
    char out[4];

    cr_assert_eq(parse("GEN a1 5"), 0);
    cr_assert_eq(message_u64(&m, "top_k", 0, 9, &u, &err), EBB_ENOENT);
    cr_assert_eq(message_i64(&m, "top_k", 0, 9, &s, &err), EBB_ENOENT);
    cr_assert_eq(message_f64(&m, "top_p", 0, 1, &f, &err), EBB_ENOENT);
    cr_assert_eq(message_range(&m, "layers", &a, &b, &err), EBB_ENOENT);
    cr_assert_eq(message_text(&m, "text", out, sizeof out, &n, &err), EBB_ENOENT);
    cr_assert_eq(message_bare_u64(&m, 2, "n", 0, 9, &u, &err), EBB_ENOENT);
    cr_assert(u == 7 && s == 7 && f == 7 && a == 7 && b == 7 && n == 7);
}

Test(number, errors_name_verb_key_and_value)
{
    uint64_t u = 7;

    cr_assert_eq(parse("GEN a1 5x top_k=1.5 seed=100"), 0);
    cr_assert_eq(message_u64(&m, "top_k", 0, 9, &u, &err), EBB_EINVAL);
    cr_assert_str_eq(err.text, "GEN: top_k wants a whole number, got \"1.5\"");
    cr_assert_eq(message_u64(&m, "seed", 1, 9, &u, &err), EBB_ERANGE);
    cr_assert_str_eq(err.text, "GEN: seed wants 1 to 9, got 100");
    cr_assert_eq(message_bare_u64(&m, 1, "max_new", 0, 9, &u, &err), EBB_EINVAL);
    cr_assert_str_eq(err.text, "GEN: max_new wants a whole number, got \"5x\"");
    cr_assert_eq(u, 7);
}

Test(number, with_a_sign_reaches_both_limits)
{
    static const struct {
        const char *text;
        int rc;
        int64_t value;
    } cases[] = {
        {"K k=-9223372036854775808", 0, INT64_MIN},
        {"K k=9223372036854775807", 0, INT64_MAX},
        {"K k=-9223372036854775809", EBB_ERANGE, 0},
        {"K k=9223372036854775808", EBB_ERANGE, 0},
        {"K k=-0", 0, 0},
        {"K k=--1", EBB_EINVAL, 0},
        {"K k=-", EBB_EINVAL, 0},
        {"K k=+1", EBB_EINVAL, 0},
        {"K k=", EBB_EINVAL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 42;
        cr_assert_eq(parse(cases[i].text), 0);
        cr_assert_eq(message_i64(&m, "k", INT64_MIN, INT64_MAX, &value, &err), cases[i].rc, "%s",
                     cases[i].text);
        cr_assert_eq(value, cases[i].rc == 0 ? cases[i].value : 42);
    }
}

Test(number, with_a_point_is_decimal_and_finite)
{
    static const char *const good[] = {"0", "1", "0.5", ".5", "-0.25", "1e-3", "2E+0", "5."};
    static const char *const bad[] = {"",   ".",  "-",  "nan", "inf", "0x1p-3", "+1",
                                      " 1", "1 ", "1e", "1e+", "1,5", "1.2.3",  "1f"};
    static const char *const outside[] = {"2.1", "-0.6", "1e400", "-1e400"};
    char text[64];
    double value;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        snprintf(text, sizeof text, "K k=%s", good[i]);
        cr_assert_eq(parse(text), 0);
        cr_assert_eq(message_f64(&m, "k", -0.5, 5, &value, &err), 0, "%s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        strcpy(buffer, "K");
        m.verb = buffer;
        m.n_bare = 0;
        m.n_fields = 1;
        m.fields[0] = (struct message_field){"k", bad[i], strlen(bad[i])};
        cr_assert_eq(message_f64(&m, "k", -0.5, 2, &value, &err), EBB_EINVAL, "%s", bad[i]);
    }
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        snprintf(text, sizeof text, "K k=%s", outside[i]);
        cr_assert_eq(parse(text), 0);
        cr_assert_eq(message_f64(&m, "k", -0.5, 2, &value, &err), EBB_ERANGE, "%s", outside[i]);
    }
}

Test(value, text_is_decoded_into_exactly_what_it_needs)
{
    char out[8];
    size_t n;

    memset(out, '!', sizeof out);
    cr_assert_eq(parse("T t=a%00b%20c"), 0);
    cr_assert_eq(message_text(&m, "t", out, 4, &n, &err), EBB_ERANGE);
    cr_assert_eq(message_text(&m, "t", out, 5, &n, &err), 0);
    cr_assert_eq(n, 5);
    cr_assert_eq(memcmp(out, "a\0b c!!!", 8), 0);
}

Test(value, text_taken_as_it_comes_is_empty_where_it_is_missing_broken_or_too_long)
{
    char out[4];

    cr_assert_eq(parse("T a=x%20y b=abcd c=%zz"), 0);
    message_text_take(&m, "a", out, sizeof out);
    cr_assert_str_eq(out, "x y");
    for (const char *key = "bcd"; *key != '\0'; key++) {
        message_text_take(&m, (const char[]){*key, '\0'}, out, sizeof out);
        cr_assert_str_eq(out, "");
    }
}

Test(value, text_with_bad_escapes_never_outgrows_its_buffer)
{
    char out[12];
    size_t n;

    memset(out, '!', sizeof out);
    cr_assert_eq(parse("T t=aaaaaaaaaaaa%%%%%%"), 0);
    cr_assert_lt(message_text(&m, "t", out, 10, &n, &err), 0);
    cr_assert(out[10] == '!' && out[11] == '!');
    cr_assert_eq(parse("T t=ab%4"), 0);
    cr_assert_eq(message_text(&m, "t", out, 10, &n, &err), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "byte 2"), "%s", err.text);
}

Test(value, range_is_first_dash_last)
{
    static const char *const bad[] = {"L l=3-0",   "L l=3",
                                      "L l=-3",    "L l=3-",
                                      "L l=a-b",   "L l=0-4294967296",
                                      "L l=0-1-2", "L l=99999999999999999999-1"};
    uint32_t first = 9, last = 9;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(parse(bad[i]), 0);
        cr_assert_eq(message_range(&m, "l", &first, &last, &err), EBB_EINVAL, "%s", bad[i]);
    }
    cr_assert_eq(parse("L l=0-3"), 0);
    cr_assert_eq(message_range(&m, "l", &first, &last, &err), 0);
    cr_assert(first == 0 && last == 3);
    cr_assert_eq(parse("L l=4294967295-4294967295"), 0);
    cr_assert_eq(message_range(&m, "l", &first, &last, &err), 0);
    cr_assert(first == UINT32_MAX && last == UINT32_MAX);
}

Test(value, ids_are_numbers_between_commas)
{
    static const struct {
        const char *text;
        int n, rc;
    } cases[] = {
        {"", 0, 0},
        {"5", 1, 0},
        {"5,6,100", 3, 0},
        {"5,", 0, EBB_EINVAL},
        {",5", 0, EBB_EINVAL},
        {"5,,6", 1, EBB_EINVAL},
        {"5,x", 1, EBB_EINVAL},
        {"5,101", 1, EBB_ERANGE},
        {"-1", 0, EBB_EINVAL},
        {"5 6", 0, EBB_EINVAL},
        {"99999999999999999999", 0, EBB_ERANGE},
        {"@1.0", 0, EBB_EINVAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *cursor = cases[i].text;
        int32_t id;
        int n = 0, rc;
        while ((rc = ids_next(&cursor, 100, &id, &err)) == 1)
            n++;
        cr_assert(n == cases[i].n && rc == cases[i].rc, "\"%s\": %d ids, %d", cases[i].text, n, rc);
    }
}

Test(message, biases_are_read_within_their_bounds)
{
    static const struct {
        const char *list, *says;
        int rc;
    } refused[] = {
        {"", "<id>:<number>", EBB_EINVAL},      {"5", "<id>:<number>", EBB_EINVAL},
        {"5:", "<id>:<number>", EBB_EINVAL},    {":5", "<id>:<number>", EBB_EINVAL},
        {"5:1,", "<id>:<number>", EBB_EINVAL},  {"5:1,,6:1", "<id>:<number>", EBB_EINVAL},
        {"5:inf", "<id>:<number>", EBB_EINVAL}, {"5:0x1", "<id>:<number>", EBB_EINVAL},
        {"-5:1", "<id>:<number>", EBB_EINVAL},  {"5:1:2", "<id>:<number>", EBB_EINVAL},
        {"10:1", "0 to 9", EBB_ERANGE},         {"99999999999999999999:1", "0 to 9", EBB_ERANGE},
        {"5:100.5", "-100 to 100", EBB_ERANGE}, {"5:-1e9", "-100 to 100", EBB_ERANGE},
        {"5:1,6:2,5:3", "5 twice", EBB_EINVAL},
    };
    struct logit_bias biases[LOGIT_BIAS_MAX];
    struct error why;
    size_t n;
    cr_assert_eq(biases_read("5:-1.5,9:100,0:-1e2", 9, biases, &n, &why), 0, "%s", why.text);
    cr_assert_eq(n, 3);
    cr_assert(biases[0].id == 5 && biases[0].bias == -1.5f);
    cr_assert(biases[2].id == 0 && biases[2].bias == -100.0f);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cr_assert_eq(biases_read(refused[i].list, 9, biases, &n, &why), refused[i].rc, "%s: %s",
                     refused[i].list, why.text);
        cr_assert_not_null(strstr(why.text, refused[i].says), "%s", why.text);
    }
}

Test(message, a_list_of_biases_holds_64_and_no_more)
{
    struct logit_bias biases[LOGIT_BIAS_MAX];
    struct error why;
    char list[1024] = "0:1";
    size_t n;
    for (int i = 1; i < LOGIT_BIAS_MAX; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",%d:1", i);
    cr_assert_eq(biases_read(list, 1000, biases, &n, &why), 0, "%s", why.text);
    cr_assert_eq(n, LOGIT_BIAS_MAX);
    strcat(list, ",64:1");
    cr_assert_eq(biases_read(list, 1000, biases, &n, &why), EBB_ERANGE);
}
