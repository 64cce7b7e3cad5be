/* runtime/planner.h - the split of layers over cards that costs one sequence the least time per token.
 *
 * Pure arithmetic on bytes and speeds; nothing here knows a file or a device. A card holds the layers first..last and pays
 *
 *   fixed  = dense(layers) + embedding on the first card + norm and head on the last + KV + workspace + its link tiles
 *   cache  = whole segments of free - reserve - fixed, never more than all experts of its layers take;
 *            it does not fit when that is less than the floor: the experts of one token twice, and one slot more
 *   time   = sum over layers (layer_ns + (dense + n_used * expert) / speed) + head / speed
 *            + sum over layers n_used * (1 - mass(resident)) * expert / miss_speed + hop_ns for a card that is not the first
 *
 * mass(k) is the share of routed tokens that the k hottest experts of a layer get (`mass` below). The whole is the sum over
 * the cards, in whole nanoseconds, so that equal splits cost equally to the digit; of equal ones the evenest wins (least sum
 * of squares), of those the one whose first cards have more. The search is exact: dynamic programming over the borders.
 */
#pragma once
#include "runtime/settings.h"

#define PLANNER_KEPT 8 /* best splits that are told */

struct planner_speed {
    uint64_t layer_ns;        /* of a layer beside the bytes it reads */
    double bytes_per_ns;      /* weights from the card's memory */
    double miss_bytes_per_ns; /* experts that are not resident, from the host's */
    uint64_t hop_ns;          /* to take a row from the card before */
};
/* What is assumed of a kind until something measures it. */
extern const struct planner_speed planner_speeds[2]; /* by enum card_kind */

struct planner_card {
    char label[160];
    char holders[160]; /* who holds what is not free, in words; "": not known */
    uint64_t free_bytes, reserve_bytes;
    uint64_t granularity; /* to which the driver rounds fixed blocks up */
    bool has_ring;        /* the stage before maps its ring of tiles, which is a block of its own */
    bool tiles_on_host;   /* all other tiles, and the ids' ones, are in host memory */
    /* Kept for NCCL, once and for each neighbour, and of each of these a ring in one block of its own; 0: no NCCL. */
    uint64_t nccl_bytes, nccl_link_bytes;
    struct planner_speed speed;
};

struct planner_layer {
    uint64_t dense_bytes, kv_bytes;
    uint64_t slot_bytes;   /* of an expert in the cache; 0: no routed experts */
    uint64_t expert_bytes; /* that one expert's use reads */
};

struct planner_model {
    uint32_t n_layers, n_experts, n_used;
    const struct planner_layer *layers; /* borrowed [n_layers] */
    uint64_t first_bytes, last_bytes;   /* of the embedding; of norm and head */
    uint64_t shared_bytes;              /* counted once where both are on one card */
    uint64_t workspace_bytes, workspace_last_bytes;
    uint64_t
        workspace_lent_bytes; /* of whole chunks, beside these: by segments that the cache cannot use */
    uint64_t link_bytes, ring_bytes; /* ring: of link, the tiles that come in */
    uint64_t segment_bytes;
    const double *mass; /* borrowed [n_experts + 1], 0..1 rising; NULL: uniform */
};

struct planner_stage { /* what one card would hold and cost */
    uint32_t layer_first, layer_last;
    uint64_t dense_bytes, kv_bytes, workspace_bytes, link_bytes;
    uint64_t cache_bytes, left_bytes; /* left: neither used nor reserved */
    uint64_t slots, slots_full;       /* experts that stay resident, of how many */
    uint64_t need_bytes;              /* at least, without the reserve */
    bool fits, segment_is_small;      /* small: no expert fits into a segment */
    double misses;                    /* expected per token */
    uint64_t ns;                      /* per token */
};

struct planner_split {
    uint64_t ns, unevenness;
    uint32_t n_layers[CARDS_MAX];
};

/* Layers first..last on `card`. Always filled, also where it does not fit. */
void planner_stage(const struct planner_model *m, const struct planner_card *cards, size_t n_cards,
                   size_t card, uint32_t first, uint32_t last, struct planner_stage *out);
/* The best splits, best first, at most PLANNER_KEPT; *n of them. EBB_EINVAL: fewer layers than cards. EBB_ENOMEM: no split
 * fits, and err names the card that stands most in the way of the nearest one; or no memory. */
int planner_solve(const struct planner_model *m, const struct planner_card *cards, size_t n_cards,
                  struct planner_split *splits, size_t *n, struct error *err);
/* Says why a stage does not fit: the card, what it has, what it needs. Returns EBB_ENOMEM. */
int planner_refuse(const struct planner_card *card, size_t index, const struct planner_stage *stage,
                   const char *advice, struct error *err);
/* mass[0..n_experts] of a routing in which the k-th hottest expert gets a share like 1 / k^skew; 0 is uniform. */
void planner_mass_fill(double *mass, uint32_t n_experts, double skew);
