/* tests/unit/runtime/leases_test.c - the table of leases, under a clock that the test turns. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/leases.h"

#define S UINT64_C(1000000)

static struct leases t;
static struct error err;
static const struct lease *taken;
static struct lease before, gone;
static uint64_t clock_us;

static void begin(void)
{
    leases_init(&t, (const uint64_t[]){10, 20, 30}, 3);
    clock_us = 1000 * S;
}

static struct lease timed(const char *name, uint64_t mib, int device, uint64_t seconds)
{
    struct lease l = {.reserve_mib = mib,
                      .every_card = device < 0,
                      .device = device < 0 ? 0 : (uint32_t)device,
                      .term = LEASE_TIME,
                      .until_us = clock_us + seconds * S,
                      .handle = -1};
    (void)snprintf(l.name, sizeof l.name, "%s", name);
    return l;
}

static void take(const char *name, uint64_t mib, int device, uint64_t seconds)
{
    struct lease l = timed(name, mib, device, seconds);
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0, "%s", err.text);
}

static void in_force(uint64_t a, uint64_t b, uint64_t c)
{
    cr_assert_eq(leases_in_force(&t, 0), a, "card 0: %lu", (unsigned long)leases_in_force(&t, 0));
    cr_assert_eq(leases_in_force(&t, 1), b, "card 1: %lu", (unsigned long)leases_in_force(&t, 1));
    cr_assert_eq(leases_in_force(&t, 2), c, "card 2: %lu", (unsigned long)leases_in_force(&t, 2));
}

/* Turns the clock and counts what ends. */
static size_t ends_after(uint64_t seconds)
{
    size_t n = 0;
    clock_us += seconds * S;
    while (leases_expire(&t, clock_us, &gone))
        n++;
    return n;
}

Test(leases, the_reserve_in_force_is_the_largest_of_base_and_leases_on_the_card)
{
    begin();
    in_force(10, 20, 30);
    take("all", 25, -1, 100);
    in_force(25, 25, 30);
    take("one", 100, 1, 50);
    take("two", 60, 1, 70);
    in_force(25, 100, 30);
    cr_assert_eq(ends_after(50), 1u);
    cr_assert_str_eq(gone.name, "one");
    in_force(25, 60, 30);
    cr_assert_eq(leases_end(&t, "two", &gone, &err), 0);
    in_force(25, 25, 30);
    cr_assert_eq(ends_after(50), 1u);
    in_force(10, 20, 30);
}

Test(leases, a_change_of_the_base_leaves_leases_alone_and_is_there_when_they_end)
{
    begin();
    take("a", 50, -1, 10);
    leases_base(&t, &(struct vram_request){.reserve_mib = 70, .device = 1});
    in_force(50, 70, 50);
    leases_base(&t, &(struct vram_request){.reserve_mib = 5, .every_card = true});
    in_force(50, 50, 50);
    leases_base(&t, &(struct vram_request){.to_start = true, .device = 2});
    in_force(50, 50, 50);
    cr_assert_eq(ends_after(10), 1u);
    in_force(5, 5, 30);
    leases_base(&t, &(struct vram_request){.to_start = true, .every_card = true});
    in_force(10, 20, 30);
}

Test(leases, a_lease_of_the_starts_reserve_is_each_cards_own)
{
    begin();
    leases_base(&t, &(struct vram_request){.reserve_mib = 0, .every_card = true});
    struct lease l = timed("dash", 0, -1, 10);
    l.to_start = true;
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0);
    in_force(10, 20, 30);
    cr_assert_eq(ends_after(10), 1u);
    in_force(0, 0, 0);
}

Test(leases, a_renewal_replaces_amount_cards_and_term_and_gives_the_old_one_back)
{
    begin();
    struct lease l = timed("r", 90, 0, 0);
    l.term = LEASE_PROCESS;
    l.handle = 77;
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0);
    cr_assert_eq(before.name[0], '\0');
    cr_assert_eq(before.handle, -1);
    take("other", 1, 0, 500);
    take("r", 40, 1, 10);
    cr_assert_str_eq(before.name, "r");
    cr_assert_eq(before.handle, 77);
    cr_assert_eq(before.device, 0u);
    cr_assert_eq(t.n, 2u);
    cr_assert_str_eq(t.rows[0].name, "r", "a renewal keeps its place");
    in_force(10, 40, 30);
    cr_assert_not(leases_end_handle(&t, 77, &gone), "its process no longer counts");
    cr_assert_eq(ends_after(9), 0u);
    take("r", 40, 1, 10);
    cr_assert_eq(ends_after(9), 0u);
    cr_assert_eq(ends_after(1), 1u);
    in_force(10, 20, 30);
}

Test(leases, they_end_in_the_order_of_their_times_whatever_the_order_of_their_making)
{
    begin();
    static const uint64_t seconds[] = {50, 10, 30, 10, 40};
    static const char *const order[] = {"l1", "l3", "l2", "l4", "l0"};
    for (size_t i = 0; i < 5; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "l%zu", i);
        take(name, 1, 0, seconds[i]);
    }
    uint64_t until, last = 0;
    for (size_t i = 0; i < 5; i++) {
        cr_assert(leases_next(&t, &until));
        cr_assert_geq(until, last);
        cr_assert_not(leases_expire(&t, until - 1, &gone), "not a microsecond early");
        cr_assert(leases_expire(&t, until, &gone));
        cr_assert_str_eq(gone.name, order[i]);
        last = until;
    }
    cr_assert_not(leases_next(&t, &until));
}

Test(leases, processes_and_connections_end_theirs_and_no_others)
{
    begin();
    struct lease l = timed("c1", 50, 0, 0);
    l.term = LEASE_CONNECTION;
    l.connection = 7;
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0);
    strcpy(l.name, "c2");
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0);
    strcpy(l.name, "c3");
    l.connection = 8;
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0);
    l = timed("p", 60, 1, 0);
    l.term = LEASE_PROCESS;
    l.handle = 7;
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), 0);
    cr_assert(leases_end_connection(&t, 7, &gone));
    cr_assert_str_eq(gone.name, "c1");
    cr_assert(leases_end_connection(&t, 7, &gone));
    cr_assert_not(leases_end_connection(&t, 7, &gone));
    in_force(50, 60, 30);
    cr_assert_eq(ends_after(1000000), 0u, "neither ends by time");
    cr_assert_not(leases_end_handle(&t, 8, &gone));
    cr_assert(leases_end_handle(&t, 7, &gone));
    cr_assert_eq(gone.handle, 7, "whoever opened it closes it");
    in_force(50, 20, 30);
}

Test(leases, names_are_made_up_that_nobody_has)
{
    begin();
    take("lease-2", 1, 0, 5);
    take("", 1, 0, 5);
    cr_assert_str_eq(taken->name, "lease-1");
    take("", 1, 0, 5);
    cr_assert_str_eq(taken->name, "lease-3");
    cr_assert_eq(t.n, 3u);
}

Test(leases, a_full_table_refuses_new_ones_but_renews_and_takes_again_once_one_has_ended)
{
    begin();
    for (size_t i = 0; i < LEASES_MAX; i++)
        take("", i, 0, 1000);
    struct lease l = timed("late", 5000, 0, 5);
    cr_assert_eq(leases_take(&t, &l, &taken, &before, &err), EBB_EBUSY);
    cr_assert_not_null(strstr(err.text, "256"), "%s", err.text);
    in_force(LEASES_MAX - 1, 20, 30);
    take("lease-9", 4000, 0, 5);
    cr_assert_eq(t.n, (size_t)LEASES_MAX);
    in_force(4000, 20, 30);
    cr_assert_eq(leases_end(&t, "lease-1", &gone, &err), 0);
    take("late", 5000, 0, 5);
    in_force(5000, 20, 30);
}

Test(leases, one_that_is_not_there_is_refused_with_the_nearest)
{
    begin();
    cr_assert_eq(leases_end(&t, "comfy", &gone, &err), EBB_ENOENT);
    cr_assert_not_null(strstr(err.text, "none at all"), "%s", err.text);
    take("comfy-ui", 1, 0, 5);
    take("game", 1, 0, 5);
    cr_assert_eq(leases_end(&t, "comfyui", &gone, &err), EBB_ENOENT);
    cr_assert_not_null(strstr(err.text, "nearest is comfy-ui"), "%s", err.text);
    cr_assert_eq(t.n, 2u);
}

/* Against a plain list that is searched anew each time. */
Test(leases, a_thousand_random_changes_agree_with_a_plain_model)
{
    struct lease model[40] = {0};
    uint64_t base[3] = {10, 20, 30};
    begin();
    srand(7);
    for (int step = 0; step < 1000; step++) {
        int which = rand() % 40, kind = rand() % 10;
        char name[8];
        (void)snprintf(name, sizeof name, "m%d", which);
        if (kind < 5) {
            take(name, (uint64_t)rand() % 100, rand() % 4 - 1, 1 + (uint64_t)rand() % 60);
            model[which] = *taken;
        } else if (kind < 7) {
            int known = leases_end(&t, name, &gone, &err) == 0;
            cr_assert_eq(known, model[which].term != LEASE_NONE);
            model[which].term = LEASE_NONE;
        } else if (kind < 8) {
            uint32_t device = (uint32_t)rand() % 3;
            base[device] = (uint64_t)rand() % 100;
            leases_base(&t, &(struct vram_request){.reserve_mib = base[device], .device = device});
        } else {
            size_t wanted = 0;
            uint64_t forward = (uint64_t)rand() % 5;
            for (int i = 0; i < 40; i++)
                if (model[i].term != LEASE_NONE && model[i].until_us <= clock_us + forward * S) {
                    model[i].term = LEASE_NONE;
                    wanted++;
                }
            cr_assert_eq(ends_after(forward), wanted);
        }
        for (uint32_t d = 0; d < 3; d++) {
            uint64_t most = base[d];
            for (int i = 0; i < 40; i++)
                if (model[i].term != LEASE_NONE && (model[i].every_card || model[i].device == d) &&
                    model[i].reserve_mib > most)
                    most = model[i].reserve_mib;
            cr_assert_eq(leases_in_force(&t, d), most, "step %d", step);
        }
    }
}
