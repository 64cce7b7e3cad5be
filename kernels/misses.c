/* misses.c - sharing a layer's absent experts out between a card and the host, as a CPU card does it (misses.h).
 *
 * A CPU card has no experts that are far away: this serves cards that only say they are devices, on which the stage's part in it is
 * tested, and is the plain form of misses.cu. A stream that waits looks at the flag without end, at last a few thousand times a second.
 * One thread; owns nothing. Refuses more rows or ranks than a request has room for.
 */
#include "kernels/misses.h"
#include <sched.h>
#include <string.h>
#include <time.h>
#include "kernels/pool_cpu.h"

/* The id of a pair whose expert is not resident, else -1. */
static int32_t absent(const struct miss_ask_args *p, size_t pair)
{
    int32_t id = p->ids[pair];
    return id >= 0 && (size_t)id < p->n_experts && p->addresses[id].resident == 0 ? id : -1;
}

/* order[pair] = which of the distinct absent experts a pair has, from 0, or -1; returns how many there are. */
static size_t absent_order(const struct miss_ask_args *p, size_t n_pairs, int order[MISS_PAIRS_MAX])
{
    size_t n = 0;
    for (size_t pair = 0; pair < n_pairs; pair++) {
        int32_t id = absent(p, pair);
        size_t first = 0;
        while (absent(p, first) != id)
            first++;
        order[pair] = id < 0 ? -1 : first < pair ? order[first] : (int)n++;
    }
    return n;
}

static void ask_run(const void *args, struct exec_cpu_worker *w)
{
    const struct miss_ask_args *p = args;
    int order[MISS_PAIRS_MAX];
    size_t n_pairs = p->n_rows * p->n_used, n_absent = absent_order(p, n_pairs, order);
    uint32_t n_away = p->control->split[n_absent];
    uint32_t number = MISS_NUMBER(p->control->number + p->index, (uint32_t)n_absent, n_away > 0);
    (void)w;
    for (size_t pair = 0; pair < n_pairs; pair++) {
        bool is_away = order[pair] >= 0 && order[pair] < (int)n_away;
        p->here[pair] = is_away ? -1 : p->ids[pair];
        if (n_away > 0)
            p->away[pair] = is_away ? p->ids[pair] : -1;
        if (is_away)
            p->heat[p->ids[pair]]++;
    }
    if (n_away > 0) {
        memcpy(p->away_x, p->x, p->n_rows * p->d_model * sizeof *p->x);
        p->request->tag = p->tag;
        p->request->n_experts = n_away;
        __atomic_store_n(&p->request->answered, 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&p->request->number, number, __ATOMIC_RELEASE);
}

static int ask_cpu(const struct miss_ask_args *args, struct exec_stream *s)
{
    if (args->n_rows > MISS_ROWS_MAX || args->n_used > EXPERTS_USED_MAX)
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, ask_run, args, sizeof *args);
}

static void take_run(const void *args, struct exec_cpu_worker *w)
{
    const struct miss_take_args *p = args;
    (void)w;
    for (size_t pair = 0; pair < p->n_rows * p->n_used; pair++)
        if (p->here[pair] < 0 && p->ids[pair] >= 0)
            memcpy(p->outputs + pair * p->d_model, p->rows + pair * p->d_model,
                   p->d_model * sizeof *p->rows);
}

static int take_cpu(const struct miss_take_args *args, struct exec_stream *s)
{
    return exec_cpu_push(s, take_run, args, sizeof *args);
}

struct wait_op {
    const uint32_t *flag;
    uint32_t value;
};

static void wait_run(const void *args, struct exec_cpu_worker *w)
{
    const struct wait_op *op = args;
    const struct timespec pause = {.tv_nsec = 200000};
    (void)w;
    for (int i = 0; __atomic_load_n(op->flag, __ATOMIC_ACQUIRE) != op->value; i++) {
        if (i < CPU_SPINS)
            cpu_relax();
        else if (i < CPU_SPINS + CPU_YIELDS)
            (void)sched_yield();
        else
            (void)nanosleep(&pause, NULL);
    }
}

static int wait_cpu(const uint32_t *flag, uint32_t value, struct exec_stream *s)
{
    struct wait_op op = {flag, value};
    return exec_cpu_push(s, wait_run, &op, sizeof op);
}

const struct miss_ops miss_ops_cpu = {.ask = ask_cpu, .wait = wait_cpu, .take = take_cpu};
