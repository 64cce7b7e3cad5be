/* kernels/experts_plan.c - sorting the (row, rank) pairs of a launch by expert: one counting sort,
 * no allocation.
 *
 * The groups' array first serves as a counter for each expert and is closed up at the end, so
 * scratch holds one entry an expert and one number a pair. Runs on one thread inside a job. Refuses
 * nothing; bad ids are left out.
 */
#include "kernels/experts_plan.h"

static size_t part_bytes(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

size_t experts_plan_bytes(size_t n_rows, size_t n_used, size_t n_experts)
{
    return part_bytes(n_rows * n_used * sizeof(uint32_t)) +
           part_bytes(n_experts * sizeof(struct experts_group));
}

void experts_plan_place(struct experts_plan *plan, void *scratch, size_t n_rows, size_t n_used)
{
    plan->pairs = scratch;
    plan->groups = (void *)((uint8_t *)scratch + part_bytes(n_rows * n_used * sizeof(uint32_t)));
    plan->n_pairs = plan->n_groups = 0;
}

static int id_valid(const struct experts_args *p, int32_t id)
{
    return id >= 0 && (size_t)id < p->n_experts;
}

void experts_plan_make(struct experts_plan *plan, const struct experts_args *p)
{
    struct experts_group *g = plan->groups;
    size_t n_all = p->n_rows * p->n_used;
    uint32_t place = 0;
    for (size_t e = 0; e < p->n_experts; e++)
        g[e] = (struct experts_group){.expert = (uint32_t)e};
    for (size_t pair = 0; pair < n_all; pair++)
        if (id_valid(p, p->ids[pair]))
            g[p->ids[pair]].last++;
    for (size_t e = 0; e < p->n_experts; e++) {
        uint32_t n = g[e].last;
        g[e].first = g[e].last = place;
        place += n;
    }
    for (size_t pair = 0; pair < n_all; pair++)
        if (id_valid(p, p->ids[pair]))
            plan->pairs[g[p->ids[pair]].last++] = (uint32_t)pair;
    plan->n_pairs = place;
    plan->n_groups = 0;
    for (size_t e = 0; e < p->n_experts; e++)
        if (g[e].last > g[e].first)
            g[plan->n_groups++] = g[e];
}

void experts_plan_count(const struct experts_plan *plan, const struct experts_args *p)
{
    for (size_t i = 0; i < plan->n_groups; i++) {
        const struct experts_group *g = &plan->groups[i];
        p->heat[g->expert] += g->last - g->first;
        if (p->addresses[g->expert].resident != 0)
            for (uint32_t place = g->first; place < g->last; place++)
                p->hits[plan->pairs[place] / p->n_used]++;
    }
}
