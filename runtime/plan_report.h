/* runtime/plan_report.h - a plan made from files alone, and how it is told: a table for people, JSON for programs.
 *
 * No stage is started and no device asked: a card has what --vram-mib says; a CPU card of this host without it has what the
 * engine would give it.
 */
#pragma once
#include "runtime/plan_model.h"

struct plan_report {
    const struct settings *s; /* borrowed */
    const struct model *m;    /* borrowed */
    struct sizes sizes;
    struct plan plan;
    size_t n_cards;
    uint64_t total_mib[CARDS_MAX];
    struct planner_card cards[CARDS_MAX];
    struct planner_stage stages[CARDS_MAX];
    uint64_t ns; /* per token, all cards */
    struct planner_split best[PLANNER_KEPT];
    size_t n_best; /* 0: none fits but the split that was given */
};

/* EBB_EINVAL: a card whose memory is not known from here, or a split that cannot be; EBB_ENOMEM: it does not fit, and what
 * would; EBB_ERANGE: sizes that exclude each other. */
int plan_report_make(struct plan_report *r, const struct settings *s, const struct model *m,
                     struct error *err);
void plan_report_print(FILE *out, const struct plan_report *r);
int plan_report_json(FILE *out, const struct plan_report *r, struct error *err);
/* Memory that stays free below this is told as LOW: a twentieth of the card, 1 to 512 MiB. */
uint64_t plan_low_mib(uint64_t total_mib);
/* "0-3,4-7" */
void plan_split_text(const struct planner_split *split, size_t n_cards, char *text,
                     size_t capacity);
