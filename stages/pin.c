/* stages/pin.c - shares cores and memory nodes out among cards, and binds a thread (see pin.h). */
#include "stages/pin.h"

#include <errno.h>
#include <string.h>

/* The share's part [*first, *last) of n things: parts differ by one at most; one thing where there are fewer than shares. */
static void part_of(size_t n, uint32_t share, uint32_t n_shares, size_t *first, size_t *last)
{
    *first = n * share / n_shares;
    *last = n * (share + 1) / n_shares;
    if (n < n_shares)
        *last = *first + 1;
}

/* How many cores or nodes end before all[i]: the running number of its own. */
static size_t core_of(const struct processor *all, size_t i)
{
    size_t n = 0;
    for (size_t j = 1; j <= i; j++)
        n += all[j].core != all[j - 1].core;
    return n;
}

static size_t node_of(const struct processor *all, size_t i)
{
    size_t n = 0;
    for (size_t j = 1; j <= i; j++)
        n += all[j].node != all[j - 1].node;
    return n;
}

static void choose_cores(struct pin_choice *c, const struct processor *all, size_t n_all,
                         uint32_t share, uint32_t n_shares)
{
    size_t first, last;
    part_of(core_of(all, n_all - 1) + 1, share, n_shares, &first, &last);
    for (size_t i = 0; i < n_all; i++) {
        size_t core = core_of(all, i);
        bool is_new = i == 0 || all[i].core != all[i - 1].core;
        if (is_new && core >= first && core < last)
            c->processors[c->n++] = all[i].number;
    }
    c->one_each = true;
}

static void choose_nodes(struct pin_choice *c, const struct processor *all, size_t n_all,
                         uint32_t share, uint32_t n_shares)
{
    size_t first, last;
    part_of(node_of(all, n_all - 1) + 1, share, n_shares, &first, &last);
    for (size_t i = 0; i < n_all; i++) {
        size_t node = node_of(all, i);
        if (node >= first && node < last)
            c->processors[c->n++] = all[i].number;
    }
}

static int choose_listed(struct pin_choice *c, const struct pin *pin, const struct processor *all,
                         size_t n_all, struct error *err)
{
    bool listed[PIN_PROCESSORS_MAX];
    memcpy(listed, pin->listed, sizeof listed);
    for (size_t i = 0; i < n_all; i++)
        if (listed[all[i].number]) {
            listed[all[i].number] = false;
            c->processors[c->n++] = all[i].number;
        }
    for (int i = 0; i < PIN_PROCESSORS_MAX; i++)
        if (listed[i])
            return error_set(err, EBB_EINVAL,
                             "pin: processor %d is not one that this card may use here (%zu are)",
                             i, n_all);
    return 0;
}

int pin_choose(struct pin_choice *choice, const struct pin *pin, const struct processor *all,
               size_t n_all, uint32_t share, uint32_t n_shares, struct error *err)
{
    *choice = (struct pin_choice){0};
    if (pin->how == PIN_NONE)
        return 0;
    if (n_all == 0 || share >= n_shares)
        return error_set(err, EBB_EINVAL, "pin: share %u of %u, of %zu processors", share, n_shares,
                         n_all);
    if (pin->how == PIN_LIST)
        return choose_listed(choice, pin, all, n_all, err);
    if (pin->how == PIN_CORES)
        choose_cores(choice, all, n_all, share, n_shares);
    else
        choose_nodes(choice, all, n_all, share, n_shares);
    return 0;
}

int pin_bind(struct pin_bound *bound, const struct pin_choice *choice, struct error *err)
{
    cpu_set_t set;
    *bound = (struct pin_bound){0};
    if (choice->n == 0)
        return 0;
    CPU_ZERO(&set);
    for (size_t i = 0; i < choice->n; i++)
        CPU_SET((size_t)choice->processors[i], &set);
    if (sched_getaffinity(0, sizeof bound->before, &bound->before) != 0 ||
        sched_setaffinity(0, sizeof set, &set) != 0)
        return error_set(err, EBB_EIO, "pin: %zu processors from %d on: %s", choice->n,
                         choice->processors[0], strerror(errno));
    bound->is_bound = true;
    return 0;
}

void pin_unbind(struct pin_bound *bound)
{
    if (bound->is_bound)
        (void)sched_setaffinity(0, sizeof bound->before, &bound->before);
    bound->is_bound = false;
}

size_t pin_processors_allowed(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (size_t)n : 1;
}
