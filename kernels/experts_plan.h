/* kernels/experts_plan.h - the (row, rank) pairs of a launch, sorted by expert. Internal to the
 * room.
 *
 * A pair is row * n_used + rank, the same number that indexes ids, mix and outputs. Its "place" is
 * its index in the sorted list; the places of one expert are neighbours and form a group. The plan
 * lives in the caller's scratch and is made anew by every job; nothing is allocated. One thread
 * makes it, all threads of the job then read it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"

struct experts_group {
    uint32_t expert;
    uint32_t first, last; /* places */
};

struct experts_plan {
    uint32_t *pairs; /* [n_pairs], by expert, then ascending */
    struct experts_group
        *groups; /* [n_groups], ascending experts; room for one more pass over all experts */
    size_t n_pairs, n_groups;
};

/* Bytes of scratch that a plan takes, a multiple of 64. */
size_t experts_plan_bytes(size_t n_rows, size_t n_used, size_t n_experts);

/* Puts the plan's lists at the start of scratch (64-byte aligned). */
void experts_plan_place(struct experts_plan *plan, void *scratch, size_t n_rows, size_t n_used);

/* Sorts the pairs of p->ids; ids outside 0..n_experts - 1 are left out. */
void experts_plan_make(struct experts_plan *plan, const struct experts_args *p);

/* heat[e] += rows of e; hits[r] += ranks of r whose expert is resident. Only for pairs in the
 * plan. */
void experts_plan_count(const struct experts_plan *plan, const struct experts_args *p);
