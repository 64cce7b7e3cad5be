/* stages/experts.h - the experts of a stage: which are in slots of the card, which are read from the mapped file, and how that changes.
 *
 * addresses[layer][expert] is what kernels read; it changes only at a boundary, when no work that reads it is queued. Uploads run on a
 * stream of their own into slots that nobody reads yet and are published at a later boundary. So no token waits for an upload, and the
 * bits of a result do not depend on where an expert was.
 *
 *   experts_settle()        at a boundary: publishes finished uploads
 *   experts_upload()        starts the next: free slots first, also while a step runs; then, at a boundary, a hot absent expert for a
 *                           clearly colder resident one
 *   experts_shrink_begin()  plans, puts the moves on the compute stream; experts_shrink_end() when they are done
 *   experts_grow()          more segments; settle() fills them, hottest first
 */
#pragma once
#include "kernels/kernels.h"
#include "runtime/model/model.h"
#include "vmm/cache.h"

#define UPLOADS_MAX 32

struct experts_settings {
    const struct model *model; /* borrowed */
    uint32_t layer_first, layer_last;
    const struct exec_driver *exec;
    struct exec *card;
    const struct kernel_set *kernels;
    struct vmm_driver *driver;
    size_t segment_bytes;
    struct expert_address *addresses; /* borrowed [n_layers][n_experts] */
    uint32_t *heat;                   /* borrowed [n_layers][n_experts], counted by kernels */
    size_t lendable_kv,
        lendable_workspace; /* bytes of the pool that they may hold beside a whole cache */
};

struct expert_layout { /* of a layer's experts in a slot */
    size_t gate_bytes, up_bytes, down_bytes, up_at, down_at;
};

struct experts {
    struct experts_settings set;
    size_t n_layers, n_experts, n_used;
    size_t n_groups;               /* layers with routed experts: the cache's groups */
    uint32_t *layers;              /* owned [n_groups]: the stage's layer of each */
    struct expert_layout *layouts; /* owned [n_groups] */
    struct pool pool;
    size_t n_kv,
        n_workspace;     /* segments of the pool that are theirs, or are about to be (budget.c) */
    struct cache *cache; /* NULL: the model has no experts */
    size_t slot_bytes, n_slots_full, n_segments_full, n_segments_floor;
    struct exec_stream *upload;
    struct exec_event *uploaded;
    size_t uploading[UPLOADS_MAX]; /* slots being filled */
    struct cache_key uploading_key[UPLOADS_MAX];
    size_t n_uploading;
    bool exchanging;               /* what uploads takes the slot of an expert that left for it */
    struct cache_shrink_plan plan; /* of the shrink that runs */
    struct move_pair *moves;       /* owned [n_slots_full]: where its experts go */
    bool shrinking;
    bool changed; /* the addresses, since the owner of their copy last cleared this */
    uint64_t n_promoted, upload_bytes,
        n_batches; /* since the start; batches: of uploads, published */
};

/* Sizes only: how many segments hold every expert, and the floor: the top-k of one layer twice and one spare slot. */
int experts_open(struct experts *x, const struct experts_settings *settings, struct error *err);
void experts_close(struct experts *x); /* uploads must have ended */

static inline size_t experts_n_lent(const struct experts *x)
{
    return x->n_kv + x->n_workspace;
}

/* What the pool holds for the cache. */
static inline size_t experts_n_held(const struct experts *x)
{
    return x->pool.n_held > experts_n_lent(x) ? x->pool.n_held - experts_n_lent(x) : 0;
}

/* Every expert of the stage is in a slot of the card. */
static inline bool experts_are_resident(const struct experts *x)
{
    return x->cache == NULL || cache_n_resident(x->cache) == x->n_slots_full;
}

/* Brings the cache to n_segments of the pool, which holds what is lent beside them. *reached is what it is; partial success is success with an err to tell. */
int experts_grow(struct experts *x, size_t n_segments, size_t *reached, struct error *err);

/* At a boundary. 1 = no upload runs now, 0 = one does, < 0 = a copy failed. */
int experts_settle(struct experts *x, struct error *err);
/* Starts uploads until bytes_new are on their way, if none runs. Into free slots at any time; may_exchange, at a boundary only: the
 * slot of a colder expert too. */
int experts_upload(struct experts *x, uint64_t bytes_new, bool may_exchange, struct error *err);
bool experts_is_filling(const struct experts *x); /* free slots and absent experts remain */
size_t experts_n_open(
    const struct experts *x); /* slots that hold none and could, but for an exchange under way */
/* Adds what kernels counted to the cache's heat. At a boundary. */
void experts_fold_heat(struct experts *x);

/* What the experts of a group have of heat, resident ones and all. */
void experts_heat(const struct experts *x, size_t group, double *resident, double *all);

/* No upload may run. The moves go on s; when they are done, _end() unmaps and gives the segments back to the driver. */
int experts_shrink_begin(struct experts *x, size_t n_segments, struct exec_stream *s,
                         struct error *err);
int experts_shrink_end(struct experts *x, size_t *reached, struct error *err);
