/* What a card's pin comes to on machines of every shape: shares are apart, together everything, and never empty. */
#include <criterion/criterion.h>
#include <string.h>

#include "stages/pin.h"

#define N_MAX 64

/* nodes x cores x threads, numbered as many machines do: second threads after all the first ones. */
static size_t machine(struct processor *all, int nodes, int cores, int threads)
{
    size_t n = 0;
    for (int node = 0; node < nodes; node++)
        for (int core = 0; core < cores; core++)
            for (int thread = 0; thread < threads; thread++)
                all[n++] =
                    (struct processor){.number = thread * nodes * cores + node * cores + core,
                                       .core = node * cores + core,
                                       .node = node};
    return n;
}

static struct pin_choice choose(const char *text, const struct processor *all, size_t n,
                                uint32_t share, uint32_t n_shares)
{
    struct pin pin;
    struct pin_choice c;
    struct error err = {0};
    cr_assert_eq(pin_parse(&pin, text, &err), 0);
    cr_assert_eq(pin_choose(&c, &pin, all, n, share, n_shares, &err), 0, "%s", err.text);
    return c;
}

Test(pin, none_pins_nothing)
{
    struct processor all[N_MAX];
    cr_assert_eq(choose("none", all, machine(all, 2, 4, 2), 0, 1).n, 0);
    cr_assert_eq(choose("none", all, 0, 0, 1).n, 0);
}

Test(pin, cores_are_shared_out_apart_and_completely_one_processor_each)
{
    for (int nodes = 1; nodes <= 2; nodes++)
        for (int cores = 1; cores <= 5; cores++)
            for (uint32_t n_shares = 1; n_shares <= 8; n_shares++) {
                struct processor all[N_MAX];
                size_t n = machine(all, nodes, cores, 2), total = 0;
                bool taken[N_MAX] = {false};
                for (uint32_t share = 0; share < n_shares; share++) {
                    struct pin_choice c = choose("cores", all, n, share, n_shares);
                    cr_assert(c.one_each && c.n > 0);
                    for (size_t i = 0; i < c.n; i++) {
                        int number = c.processors[i];
                        cr_assert_lt(number, nodes * cores, "a core's second processor");
                        if ((uint32_t)(nodes * cores) >= n_shares)
                            cr_assert_not(taken[number], "two cards on one core");
                        taken[number] = true;
                        total++;
                    }
                }
                if ((uint32_t)(nodes * cores) >= n_shares)
                    cr_assert_eq(total, (size_t)(nodes * cores));
            }
}

Test(pin, a_card_keeps_to_its_memory_nodes_with_all_their_processors)
{
    struct processor all[N_MAX];
    size_t n = machine(all, 2, 4, 2);
    struct pin_choice second = choose("numa", all, n, 1, 2), only = choose("numa", all, n, 0, 1);
    cr_assert(second.n == 8 && !second.one_each);
    for (size_t i = 0; i < second.n; i++)
        cr_assert(second.processors[i] % 8 >= 4, "processor %d", second.processors[i]);
    cr_assert_eq(only.n, 16);
    struct pin_choice third = choose("numa", all, n, 2, 4), fourth = choose("numa", all, n, 3, 4);
    cr_assert(third.n == 8 && memcmp(third.processors, fourth.processors, 8 * sizeof(int)) == 0,
              "more cards than nodes: neighbours have one in common");
}

Test(pin, listed_processors_are_taken_as_they_are_or_refused_by_number)
{
    struct processor all[N_MAX];
    struct pin pin;
    struct pin_choice c = choose("1,3-4", all, machine(all, 1, 8, 1), 0, 2);
    struct error err;
    cr_assert(c.n == 3 && !c.one_each && c.processors[0] == 1 && c.processors[2] == 4);
    cr_assert_eq(pin_parse(&pin, "7,8", &err), 0);
    cr_assert_eq(pin_choose(&c, &pin, all, 8, 0, 1, &err), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "processor 8"));
}

Test(pin, a_thread_is_bound_and_let_go_as_it_was)
{
    cpu_set_t before, during, after;
    struct pin_bound bound;
    struct error err = {0};
    struct pin_choice c = {.n = 1};
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
    while (!CPU_ISSET((size_t)c.processors[0], &before))
        c.processors[0]++;
    cr_assert_eq(pin_bind(&bound, &c, &err), 0, "%s", err.text);
    cr_assert_eq(sched_getaffinity(0, sizeof during, &during), 0);
    cr_assert(CPU_COUNT(&during) == 1 && CPU_ISSET((size_t)c.processors[0], &during));
    pin_unbind(&bound);
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0);
    cr_assert(CPU_EQUAL(&before, &after));
    c.processors[0] = PIN_PROCESSORS_MAX - 1;
    cr_assert_eq(pin_bind(&bound, &c, &err), EBB_EIO, "a processor that is not there");
    cr_assert_not(bound.is_bound);
}
