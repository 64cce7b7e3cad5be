/* The one form in which a card's processors are written. */
#include <criterion/criterion.h>
#include <string.h>

#include "protocol/pin.h"

static size_t count(const struct pin *p)
{
    size_t n = 0;
    for (size_t i = 0; i < PIN_PROCESSORS_MAX; i++)
        n += p->listed[i];
    return n;
}

Test(pin, words_and_lists_are_read)
{
    struct pin p;
    cr_assert(pin_parse(&p, "none", NULL) == 0 && p.how == PIN_NONE);
    cr_assert(pin_parse(&p, "cores", NULL) == 0 && p.how == PIN_CORES);
    cr_assert(pin_parse(&p, "numa", NULL) == 0 && p.how == PIN_NUMA && count(&p) == 0);
    cr_assert(pin_parse(&p, "0-2,7,1023,2-3", NULL) == 0 && p.how == PIN_LIST);
    cr_assert(p.listed[0] && p.listed[1] && p.listed[2] && p.listed[3] && p.listed[7] &&
              p.listed[1023] && count(&p) == 6);
}

Test(pin, anything_else_is_refused_with_what_is_wanted)
{
    static const char *const bad[] = {"",    "-",    "Cores", "cores ", "1,",     ",1",        "1-",
                                      "3-2", "1024", "0 1",   "0x1",    "1--2",   "0-1023000", "+1",
                                      "0-",  "a",    "1,,2",  "1;2",    "0-1024", "-1"};
    struct pin p;
    struct error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(pin_parse(&p, bad[i], &err), EBB_EINVAL, "'%s' was taken", bad[i]);
        cr_assert_not_null(strstr(err.text, "wanted none, cores, numa or processors"));
    }
    char wide[PIN_TEXT_MAX + 1];
    memset(wide, '1', PIN_TEXT_MAX);
    wide[PIN_TEXT_MAX] = '\0';
    cr_assert_eq(pin_parse(&p, wide, &err), EBB_ERANGE);
}
