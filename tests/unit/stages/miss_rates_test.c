/* miss_rates_test.c - absent experts are shared out so that the card and the host are done together. */
#include <criterion/criterion.h>
#include "stages/miss_rates.h"

static struct miss_rates rates(double card_each, double host_each)
{
    return (struct miss_rates){.card_us = {card_each, 2 * card_each, 4 * card_each, 8 * card_each},
                               .host_us_each = host_each,
                               .percent = MISS_SHARE_AUTO};
}

Test(miss_rates, the_faster_side_gets_more)
{
    uint16_t split[9];
    struct miss_rates r = rates(50, 50);
    miss_rates_split(&r, 0, 8, split);
    cr_assert_eq(split[0], 0);
    cr_assert_eq(split[1], 0, "with the asking the host is slower");
    cr_assert_eq(split[2], 1);
    cr_assert_eq(split[8], 4);
    r = rates(50, 20);
    miss_rates_split(&r, 0, 8, split);
    cr_assert_eq(split[1], 1);
    cr_assert_eq(split[2], 1);
    cr_assert_eq(split[3], 2);
    cr_assert_eq(split[8], 6);
    r = rates(50, 400);
    miss_rates_split(&r, 0, 8, split);
    for (int m = 0; m <= 8; m++)
        cr_assert_eq(split[m], 0);
}

Test(miss_rates, no_choice_is_later_done_than_any_other)
{
    uint16_t split[65];
    for (double host = 5; host < 500; host *= 1.7) {
        struct miss_rates r = rates(37, host);
        miss_rates_split(&r, 0, 64, split);
        for (size_t m = 0; m <= 64; m++) {
            double best = 1e9, chosen = 0;
            for (size_t k = 0; k <= m; k++) {
                double card = miss_rates_card_us(&r, m - k),
                       done = k > 0 ? MISS_ASK_US + host * (double)k : 0;
                double us = card > done ? card : done;
                best = us < best ? us : best;
                chosen = k == split[m] ? us : chosen;
            }
            cr_assert_leq(chosen, best * 1.0001, "host %g, %zu absent: %d", host, m, split[m]);
        }
    }
}

Test(miss_rates, a_fixed_share_is_kept_whatever_was_measured)
{
    uint16_t split[11];
    struct miss_rates r = rates(1, 1000);
    r.percent = 30;
    miss_rates_split(&r, 0, 10, split);
    cr_assert_eq(split[1], 0);
    cr_assert_eq(split[2], 1);
    cr_assert_eq(split[10], 3);
    r.percent = 100;
    miss_rates_split(&r, 0, 10, split);
    cr_assert_eq(split[10], 10);
}

Test(miss_rates, between_and_beyond_measured_numbers_times_are_on_straight_lines)
{
    struct miss_rates r = {.card_us = {30, 40, 80, 120}};
    cr_assert_float_eq(miss_rates_card_us(&r, 0), 0, 1e-9);
    cr_assert_float_eq(miss_rates_card_us(&r, 3), 60, 1e-9);
    cr_assert_float_eq(miss_rates_card_us(&r, 6), 100, 1e-9);
    cr_assert_float_eq(miss_rates_card_us(&r, 10), 140, 1e-9);
}

Test(miss_rates, one_slow_answer_moves_little)
{
    struct miss_rates r = rates(50, 0);
    miss_rates_host(&r, 2, 80);
    cr_assert_float_eq(r.host_us_each, 40, 1e-9);
    miss_rates_host(&r, 1, 200);
    cr_assert_float_eq(r.host_us_each, 50, 1e-9);
    for (int i = 0; i < 200; i++)
        miss_rates_host(&r, 1, 100);
    cr_assert_float_eq(r.host_us_each, 100, 0.1);
}

/* Whatever was reckoned: times that were seen decide, once they are known. */
Test(miss_rates, what_was_seen_goes_before_what_was_reckoned)
{
    uint16_t split[9];
    struct miss_rates r = rates(50, 20);
    miss_rates_split(&r, 1, 8, split);
    cr_assert_eq(split[3], 2);
    miss_rates_seen(&r, 1, 3, 2, 300);
    miss_rates_split(&r, 1, 8, split);
    cr_assert_eq(split[3], 2, "all else is reckoned to take as much longer");
    miss_rates_seen(&r, 1, 3, 3, 200);
    miss_rates_split(&r, 1, 8, split);
    cr_assert_eq(split[3], 3);
    miss_rates_split(&r, 0, 8, split);
    cr_assert_eq(split[3], 2, "steps of another size have times of their own");
    for (int i = 0; i < 300; i++)
        miss_rates_seen(&r, 1, 3, 3, 400);
    miss_rates_split(&r, 1, 8, split);
    cr_assert_neq(split[3], 3, "it has become slow");
}

Test(miss_rates, one_in_many_steps_tries_a_neighbour_of_the_best)
{
    uint16_t split[9];
    struct miss_rates r = rates(50, 20);
    int n_more = 0, n_less = 0;
    for (int i = 0; i < 320; i++) {
        miss_rates_split(&r, 0, 8, split);
        n_more += split[3] == 3;
        n_less += split[3] == 1;
        cr_assert_eq(split[0], 0);
        cr_assert_leq(split[1], 1);
    }
    cr_assert_eq(n_more, 10);
    cr_assert_eq(n_less, 10);
}
