/* runtime/plan_report.c - makes a plan for cards that are only said to be there (see plan_report.h). Pure but for what this
 * machine's memory is; owns nothing beyond the call.
 */
#include "runtime/plan_report.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* Of one CPU card alone, where nothing was given: half of the machine's memory, as its stage takes. */
static uint64_t half_of_memory_mib(void)
{
    long n_pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return n_pages > 0 && page > 0 ? (uint64_t)n_pages / 2 * (uint64_t)page / MIB : 0;
}

static int cards_fill(struct plan_report *r, struct error *err)
{
    uint64_t available = sizing_available_mib();
    r->n_cards = r->s->n_cards;
    for (size_t i = 0; i < r->n_cards; i++) {
        const struct card_setting *card = &r->s->cards[i];
        uint64_t mib = sizing_vram_mib(r->s, card, available);
        if (mib == 0)
            mib = card->seen_mib;
        if (mib == 0 && card->kind == CARD_CPU && card->host[0] == '\0')
            mib = half_of_memory_mib();
        plan_card(&r->cards[i], r->s, card, mib, card->reserve_mib);
        r->total_mib[i] = mib;
        if (mib == 0)
            return error_set(err, EBB_EINVAL,
                             "card %zu (%s): its memory is not known from here; say it with "
                             "--vram-mib",
                             i, r->cards[i].label);
        if (card->reserve_mib > mib)
            return error_set(err, EBB_ERANGE,
                             "card %zu (%s): a reserve of %" PRIu64 " MiB, it has %" PRIu64
                             " in all",
                             i, r->cards[i].label, card->reserve_mib, mib);
    }
    return 0;
}

void plan_split_text(const struct planner_split *split, size_t n_cards, char *text, size_t capacity)
{
    uint32_t next = 0;
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n_cards && n < capacity; i++) {
        uint32_t last = next + split->n_layers[i] - 1;
        n += (size_t)snprintf(text + n, capacity - n, "%s%" PRIu32 "-%" PRIu32, i > 0 ? "," : "",
                              next, last);
        next = last + 1;
    }
}

uint64_t plan_low_mib(uint64_t total_mib)
{
    uint64_t low = total_mib / 20;
    return low < 1 ? 1 : low > 512 ? 512 : low;
}

/* Every card's part of the plan; the first that does not fit is told, with a split that does if there is one. */
static int stages_fill(struct plan_report *r, const struct planner_model *m, struct error *err)
{
    int code = planner_solve(m, r->cards, r->n_cards, r->best, &r->n_best, NULL);
    for (size_t i = 0; i < r->n_cards; i++) {
        char split[CARDS_MAX * 12], advice[200] = "; no other split fits either";
        const struct plan_stage *p = &r->plan.stages[i];
        planner_stage(m, r->cards, r->n_cards, i, p->layer_first, p->layer_last, &r->stages[i]);
        r->ns += r->stages[i].ns;
        if (r->stages[i].fits)
            continue;
        if (code == 0 && r->n_best > 0) {
            plan_split_text(&r->best[0], r->n_cards, split, sizeof split);
            (void)snprintf(advice, sizeof advice, " - this would fit: --split %.160s", split);
        }
        return planner_refuse(&r->cards[i], i, &r->stages[i], advice, err);
    }
    return 0;
}

int plan_report_make(struct plan_report *r, const struct settings *s, const struct model *m,
                     struct error *err)
{
    struct plan_input in;
    uint32_t attempt = 0;
    *r = (struct plan_report){.s = s, .m = m};
    int code = plan_make(&r->plan, s->split, s->n_cards, m->geometry.n_layers, err);
    if (code == 0)
        code = cards_fill(r, err);
    if (code == 0)
        code = plan_choose(&r->plan, &r->sizes, s, m, r->cards, r->total_mib, &attempt, err);
    if (code == 0)
        code = plan_input_open(&in, m, s, &r->sizes, err);
    if (code != 0)
        return code;
    code = stages_fill(r, &in.model, err);
    plan_input_close(&in);
    return code;
}
