/* runtime/plan.h - which layers each card holds: every layer exactly once, in card order. */
#pragma once
#include "runtime/settings.h"

struct plan {
    size_t n_stages;
    struct plan_stage {
        uint32_t layer_first, layer_last; /* inclusive */
    } stages[CARDS_MAX];
};

/* "0-3,4-7" (one range per card, ascending, covering 0..n_layers-1 exactly) or "auto" (even: sizes differ by at most one, the
 * first cards get the larger share). More cards than layers: EBB_EINVAL. Errors name the range, wanted and got. */
int plan_make(struct plan *p, const char *split, size_t n_cards, uint32_t n_layers,
              struct error *err);
