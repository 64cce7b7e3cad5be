/* tests/unit/vmm/policy_test.c - what the shipped policy promises on recorded texts: it learns from the
 * first half, and is measured on the second, at 25, 50 and 75 % of the experts in slots. The others'
 * settings are chosen on first halves, too. */
#include "tests/policies/policies.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define POINT 0.01 /* of the hit rate: one lookup in a hundred */

static struct texts texts;

static void measure(size_t a, size_t b, size_t percent, double rate[REPLAY_N])
{
    struct trace joined = texts_join(&texts.trace[a], &texts.trace[b], texts.trace[a].n_tokens / 2);
    size_t n_slots = joined.n_keys * percent / 100;
    double lfu = texts_lfu_setting(&texts.trace[a], n_slots);
    for (int p = 0; p < REPLAY_N; p++)
        rate[p] =
            replay(&replay_policies[p], &joined, joined.n_tokens / 2, n_slots, lfu, NULL).hit_rate;
    for (int p = 0; p < REPLAY_N; p++)
        cr_assert_leq(rate[p], rate[REPLAY_OPTIMUM]);
    free((void *)joined.keys);
}

static void for_all(bool switches, double slack)
{
    texts_open(&texts, EBBTIDE_TEST_DATA "/routing.json");
    cr_assert_geq(texts.n, 3);
    for (size_t a = 0; a < texts.n; a++)
        for (size_t b = 0; b < texts.n; b++)
            for (size_t percent = 25; percent < 100 && (a != b) == switches; percent += 25) {
                double rate[REPLAY_N];
                measure(a, b, percent, rate);
                for (int p = 0; p < REPLAY_SHIPPED; p++)
                    cr_expect_geq(rate[REPLAY_SHIPPED], rate[p] - slack,
                                  "%s, then %s, %zu %%: shipped %.4f, %s %.4f", texts.name[a],
                                  texts.name[b], percent, rate[REPLAY_SHIPPED],
                                  replay_policies[p].name, rate[p]);
            }
    texts_close(&texts);
}

Test(policy, shipped_is_within_a_point_of_the_best_on_the_second_half_of_each_text)
{
    for_all(false, POINT);
}

/* Not even where LFU's half-life is chosen with hindsight. */
Test(policy, shipped_beats_lfu_of_every_half_life_after_a_switch_of_text)
{
    texts_open(&texts, EBBTIDE_TEST_DATA "/routing.json");
    for (size_t pair = 0; pair < texts.n * texts.n; pair++) {
        size_t a = pair / texts.n, b = pair % texts.n;
        if (a == b)
            continue;
        struct trace t = texts_join(&texts.trace[a], &texts.trace[b], texts.trace[a].n_tokens / 2);
        for (size_t n_slots = t.n_keys / 4; n_slots < t.n_keys; n_slots += t.n_keys / 4) {
            double shipped =
                replay(&replay_policies[REPLAY_SHIPPED], &t, t.n_tokens / 2, n_slots, 0, NULL)
                    .hit_rate;
            for (double setting = 256; setting <= 16384; setting *= 2)
                cr_expect_geq(
                    shipped,
                    replay(&replay_policies[REPLAY_LFU], &t, t.n_tokens / 2, n_slots, setting, NULL)
                        .hit_rate,
                    "%s, then %s, %zu slots, half-life %g", texts.name[a], texts.name[b], n_slots,
                    setting);
        }
        free((void *)t.keys);
    }
    texts_close(&texts);
}

Test(policy, shipped_is_the_best_after_a_switch_of_text)
{
    for_all(true, 0.0);
}

Test(policy, a_small_cache_by_hand)
{
    /* One slot, key 0 in it: LRU hits the second 1 alone, the optimum lets 0 pass by and hits the third, too. */
    static const uint32_t keys[] = {1, 1, 0, 1};
    struct trace t = {
        .n_layers = 1, .n_experts = 2, .n_keys = 2, .n_per_token = 1, .n_tokens = 4, .keys = keys};
    cr_expect_float_eq(replay(&replay_policies[REPLAY_LRU], &t, 0, 1, 0, NULL).hit_rate, 0.25,
                       1e-9);
    cr_expect_float_eq(replay(&replay_policies[REPLAY_OPTIMUM], &t, 0, 1, 0, NULL).hit_rate, 0.5,
                       1e-9);
    cr_expect_float_eq(replay(&replay_policies[REPLAY_OPTIMUM], &t, 0, 1, 0, NULL).n_uploads, 0.25,
                       1e-9);
}
