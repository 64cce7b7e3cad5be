/* runtime/plan_model.h - what the planner has to know of a model, of settings and of cards; and the automatic split.
 *
 * Sizes follow the stage's own: the layout of its weights, workspace, KV blocks and link tiles, for the CPU's kernel sets.
 * Nothing of the file is read but its tables. Lifetimes: a plan_input borrows nothing after it was opened.
 */
#pragma once
#include "runtime/model/model.h"
#include "runtime/planner.h"
#include "runtime/sizing.h"

#define PLANS_MAX 6 /* attempts, each with smaller sizes */

struct plan_input {
    struct planner_model model;
    struct planner_layer *layers; /* owned */
    double *mass;                 /* owned */
};

/* EBB_ENOMEM. */
int plan_input_open(struct plan_input *in, const struct model *m, const struct settings *s,
                    const struct sizes *z, struct error *err);
void plan_input_close(struct plan_input *in);

/* The planner's view of a card of s->cards: its label, speeds, rounding; free memory as told. */
void plan_card(struct planner_card *out, const struct settings *s, const struct card_setting *card,
               uint64_t free_mib, uint64_t reserve_mib);
/* Whether stages of one host are to link through memory that both map, where they can: as --link says; auto: they are not. */
bool plan_link_is_ipc(const struct settings *s);
/* LOAD's word for how stages are to link: "ipc", "nccl" or "socket". */
const char *plan_link_word(const struct settings *s);

/* Plan and sizes for these cards, which fit each other: as the split says, or planned where it is "auto"; *attempt is raised
 * until something fits. cards, total_mib: [s->n_cards]. EBB_ENOMEM: nothing fits, with the first attempt's words; what
 * plan_make() and sizing_choose() say. */
int plan_choose(struct plan *p, struct sizes *z, const struct settings *s, const struct model *m,
                const struct planner_card *cards, const uint64_t *total_mib, uint32_t *attempt,
                struct error *err);
