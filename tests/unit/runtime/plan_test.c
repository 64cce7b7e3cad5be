/* Plans: every layer exactly once, in card order, or an error that says which range is wrong. */
#include "runtime/plan.h"

#include <criterion/criterion.h>
#include <string.h>

static struct error err;

static void expect_whole(const struct plan *p, size_t n_cards, uint32_t n_layers)
{
    uint32_t next = 0;
    cr_assert_eq(p->n_stages, n_cards);
    for (size_t i = 0; i < n_cards; i++) {
        cr_assert_eq(p->stages[i].layer_first, next);
        cr_assert_geq(p->stages[i].layer_last, p->stages[i].layer_first);
        next = p->stages[i].layer_last + 1;
    }
    cr_assert_eq(next, n_layers);
}

Test(plan, even_splits_hold_every_layer_once_and_differ_by_at_most_one)
{
    for (uint32_t n_layers = 1; n_layers <= 24; n_layers++) {
        for (size_t n_cards = 1; n_cards <= 8; n_cards++) {
            struct plan p;
            int code = plan_make(&p, "auto", n_cards, n_layers, &err);
            if (n_cards > n_layers) {
                cr_assert_eq(code, EBB_EINVAL);
                continue;
            }
            cr_assert_eq(code, 0, "%s", err.text);
            expect_whole(&p, n_cards, n_layers);
            for (size_t i = 0; i < n_cards; i++) {
                uint32_t size = p.stages[i].layer_last - p.stages[i].layer_first + 1;
                uint32_t larger = n_layers % (uint32_t)n_cards;
                cr_assert_eq(size, n_layers / n_cards + (i < larger ? 1 : 0));
            }
        }
    }
}

Test(plan, manual_splits_are_taken_as_they_stand)
{
    struct plan p;
    cr_assert_eq(plan_make(&p, "0-3,4-7", 2, 8, &err), 0, "%s", err.text);
    expect_whole(&p, 2, 8);
    cr_assert_eq(plan_make(&p, "0-0,1,2-7", 3, 8, &err), 0, "%s", err.text);
    expect_whole(&p, 3, 8);
    cr_expect_eq(p.stages[1].layer_first, 1);
    cr_expect_eq(p.stages[1].layer_last, 1);
}

Test(plan, bad_ranges_are_refused_with_the_range_what_was_wanted_and_what_it_got)
{
    static const struct {
        const char *split;
        size_t n_cards;
        int code;
        const char *words;
    } bad[] = {
        {"0-2,4-7", 2, EBB_EINVAL,
         "card 1: range '4-7': wanted it to begin at layer 3, got 4 (a gap)"},
        {"0-4,4-7", 2, EBB_EINVAL, "wanted it to begin at layer 5, got 4 (layers given twice)"},
        {"1-7", 1, EBB_EINVAL, "wanted it to begin at layer 0, got 1"},
        {"4-7,0-3", 2, EBB_EINVAL, "card 0: range '4-7'"},
        {"0-3,4-8", 2, EBB_ERANGE, "card 1: range '4-8': wanted layers 0 to 7, got 8"},
        {"0-3,4-6", 2, EBB_EINVAL, "wanted it to end at layer 7, the model's last, got 6"},
        {"0-3", 2, EBB_EINVAL, "wanted one range for each of the 2 cards, got 1"},
        {"0-3,4-5,6-7", 2, EBB_EINVAL, "wanted one range for each of the 2 cards, got 3"},
        {"3-0,4-7", 2, EBB_EINVAL, "wanted the first layer before the last"},
        {"", 1, EBB_EINVAL, "wanted a range of layers like 0-3, got ''"},
        {"0-3,", 2, EBB_EINVAL, "card 1"},
        {"0-3,4-", 2, EBB_EINVAL, "got '4-'"},
        {"-3,4-7", 2, EBB_EINVAL, "got '-3'"},
        {"0-3, 4-7", 2, EBB_EINVAL, "got ' 4-7'"},
        {"0-3,4-7x", 2, EBB_EINVAL, "got '4-7x'"},
        {"0-3,4-5-7", 2, EBB_EINVAL, "got '4-5-7'"},
        {"0-99999999999999999999", 1, EBB_EINVAL, "card 0"},
        {"0-00000000000000000000000000000000000000000007", 1, EBB_EINVAL, "card 0"},
        {"Auto", 1, EBB_EINVAL, "got 'Auto'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct plan p = {.n_stages = 77};
        cr_expect_eq(plan_make(&p, bad[i].split, bad[i].n_cards, 8, &err), bad[i].code, "%s: %s",
                     bad[i].split, err.text);
        cr_expect(strstr(err.text, bad[i].words) != NULL, "\"%s\" does not say \"%s\"", err.text,
                  bad[i].words);
        cr_expect_eq(p.n_stages, 77, "a refused plan was written");
    }
}

Test(plan, more_cards_than_layers_is_refused)
{
    struct plan p;
    cr_expect_eq(plan_make(&p, "auto", 3, 2, &err), EBB_EINVAL);
    cr_expect(strstr(err.text, "at most 2 cards") != NULL, "%s", err.text);
    cr_expect_eq(plan_make(&p, "auto", 0, 2, &err), EBB_EINVAL);
    cr_expect_eq(plan_make(&p, "auto", CARDS_MAX + 1, 200, &err), EBB_EINVAL);
}
