/* tests/unit/stages/refill_test.c - how much a refill may take of the time, on a clock of our own. */
#include "stages/refill.h"

#include <criterion/criterion.h>

#define SLOT  UINT64_C(130000)
#define SPEED 5000.0 /* bytes a microsecond */

/* A card that copies at SPEED while steps of step_us run, asked at every boundary: bytes uploaded in `us`. */
static uint64_t fill_beside_steps(struct refill *r, uint64_t step_us, uint64_t us, uint64_t *most)
{
    uint64_t sum = 0, now = r->seen_us;
    *most = 0;
    for (uint64_t end = now + us; now < end; now += step_us) {
        uint64_t may = refill_allowance(r, now, true, SLOT), bytes = 0;
        while (bytes < may)
            bytes += SLOT;
        if (bytes == 0)
            continue;
        refill_started(r, now, bytes);
        refill_ended(r, now + (uint64_t)((double)bytes / SPEED));
        *most = bytes > *most ? bytes : *most;
        sum += bytes;
    }
    return sum;
}

static struct refill after_loading(void)
{
    struct refill r = {0};
    cr_assert_eq(refill_allowance(&r, 1000000, false, SLOT), UINT64_MAX, "loading: at full speed");
    refill_started(&r, 1000000, 5000000);
    refill_ended(&r, 1001000);
    cr_assert_float_eq(r.speed, SPEED, 1e-6);
    r.seen_us = 2000000;
    return r;
}

Test(refill, takes_no_more_than_its_share_of_the_steps_time)
{
    static const uint64_t steps_us[] = {20, 300, 1000, 7000, 45000};
    for (size_t i = 0; i < sizeof steps_us / sizeof *steps_us; i++) {
        struct refill r = after_loading();
        uint64_t most, us = 2000000;
        uint64_t bytes = fill_beside_steps(&r, steps_us[i], us, &most);
        cr_expect_leq((double)bytes / SPEED, 0.05 * (double)us + 2 * SLOT / SPEED,
                      "steps of %zu us", (size_t)steps_us[i]);
        cr_expect_geq((double)bytes / SPEED, 0.02 * (double)us, "it does go on: steps of %zu us",
                      (size_t)steps_us[i]);
        cr_expect_leq((double)most, 0.05 * SPEED * (double)steps_us[i] + 2 * SLOT, "no burst");
    }
}

Test(refill, goes_at_full_speed_when_no_step_came_for_a_while)
{
    struct refill r = after_loading();
    uint64_t most, now;
    (void)fill_beside_steps(&r, 1000, 100000, &most);
    now = r.seen_us;
    cr_expect_neq(refill_allowance(&r, now + REFILL_QUIET_US - 1, false, SLOT), UINT64_MAX);
    cr_expect_eq(refill_allowance(&r, now + REFILL_QUIET_US + 1, false, SLOT), UINT64_MAX);
    refill_started(&r, now + REFILL_QUIET_US + 1, 100 * SLOT);
    refill_ended(&r, now + REFILL_QUIET_US + 2600);
    /* What went out meanwhile is not held against the next step. */
    uint64_t may = refill_allowance(&r, now + 2 * REFILL_QUIET_US, true, SLOT);
    cr_expect_gt(may, 0);
    cr_expect_neq(may, UINT64_MAX);
}

Test(refill, of_an_unknown_bus_begins_with_one_expert)
{
    struct refill r = {0};
    cr_expect_eq(refill_allowance(&r, 5000, true, SLOT), 1);
    refill_started(&r, 5000, SLOT);
    refill_ended(&r, 5026);
    cr_expect_float_eq(r.speed, SPEED, 1e-6);
}

Test(refill, progress_counts_from_the_slots_that_a_grow_opened)
{
    struct refill r = {0};
    refill_progress(&r, 64);
    refill_progress(&r, 48);
    cr_expect(r.n_done == 16 && r.n_wanted == 64);
    refill_progress(&r, 0);
    cr_expect(r.n_done == 64 && r.n_wanted == 64);
    refill_progress(&r, 24);
    cr_expect(r.n_done == 0 && r.n_wanted == 24);
    refill_progress(&r, 8); /* a shrink in the middle takes open slots away */
    cr_expect(r.n_done == 16 && r.n_wanted == 24);
    refill_progress(&r, 30); /* another grow */
    cr_expect(r.n_done == 0 && r.n_wanted == 30);
}

/* The same with steps told to the refill, each longer by `stops` of what its uploads take: bytes uploaded, and how long all steps took. */
static uint64_t fill_and_tell(struct refill *r, uint64_t step_us, size_t n_steps, double stops,
                              double *took_us)
{
    uint64_t sum = 0, now = r->seen_us;
    refill_progress(r, 1000000);
    *took_us = 0;
    for (size_t i = 0; i < n_steps; i++) {
        uint64_t may = refill_allowance(r, now, true, SLOT), bytes = 0;
        while (bytes < may && bytes < (uint64_t)(SPEED * (double)step_us) - SLOT)
            bytes += SLOT;
        double upload_us = (double)bytes / SPEED;
        uint64_t us = step_us + (uint64_t)(stops * upload_us);
        if (bytes > 0) {
            refill_started(r, now, bytes);
            refill_ended(r, now + (uint64_t)upload_us);
        }
        refill_step(r, i % 8 == 0 ? 8 : 1, us); /* a short prompt now and then */
        now += us;
        sum += bytes;
        *took_us += (double)us;
    }
    return sum;
}

Test(refill, beside_steps_that_it_does_not_slow_goes_nearly_as_fast_as_the_bus)
{
    static const uint64_t steps_us[] = {500, 2200, 7000};
    for (size_t i = 0; i < sizeof steps_us / sizeof *steps_us; i++) {
        struct refill r = after_loading();
        double us;
        (void)fill_and_tell(&r, steps_us[i], 200, 0.0, &us);
        uint64_t bytes = fill_and_tell(&r, steps_us[i], 220, 0.0, &us);
        cr_expect_gt((double)bytes / SPEED, 0.5 * us, "steps of %zu us", (size_t)steps_us[i]);
    }
}

Test(refill, beside_steps_that_it_stops_makes_no_step_longer_than_promised)
{
    static const double stops[] = {1.0, 0.5, 0.25};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        struct refill r = after_loading();
        double us;
        uint64_t bytes = fill_and_tell(&r, 2200, 2000, stops[i], &us);
        cr_expect_lt(us, 1.06 * 2200 * 2000, "%g of an upload stops a step", stops[i]);
        cr_expect_geq((double)bytes / SPEED, 0.02 * us, "it does go on");
    }
}

Test(refill, gives_up_its_share_when_steps_begin_to_suffer)
{
    struct refill r = after_loading();
    double us;
    (void)fill_and_tell(&r, 2200, 400, 0.0, &us);
    (void)fill_and_tell(&r, 2200, 200, 1.0, &us);
    (void)fill_and_tell(&r, 2200, 1000, 1.0, &us);
    cr_expect_lt(us, 1.06 * 2200 * 1000);
}
