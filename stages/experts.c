/* stages/experts.c - the expert cache of a stage on top of vmm/cache.h (see experts.h).
 *
 * Owns the pool, the cache and the upload stream; the address and heat tables are the stage's fixed buffers. Keys are (layer of the
 * stage, expert). Threads: the control thread; the upload stream writes only FILLING slots.
 */
#include "stages/experts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "vmm/policy.h"

#define BLOB_ALIGN MOVE_ALIGN

static size_t align_up(size_t n)
{
    return (n + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
}

static const struct model_layer *layer_of(const struct experts *x, size_t group)
{
    return &x->set.model->layers[x->set.layer_first + x->layers[group]];
}

static struct expert_address *address_of(const struct experts *x, struct cache_key key)
{
    return &x->set.addresses[(size_t)x->layers[key.group] * x->n_experts + key.index];
}

static void point_to_file(struct experts *x, struct cache_key key)
{
    const struct model_layer *l = layer_of(x, key.group);
    size_t bytes;
    x->changed = true;
    *address_of(x, key) =
        (struct expert_address){.gate = model_expert(&l->gate_exps, key.index, &bytes),
                                .up = model_expert(&l->up_exps, key.index, &bytes),
                                .down = model_expert(&l->down_exps, key.index, &bytes)};
}

static void point_to_slot(struct experts *x, struct cache_key key, size_t slot)
{
    const struct expert_layout *at = &x->layouts[key.group];
    const unsigned char *base = cache_slot_address(x->cache, slot);
    x->changed = true;
    *address_of(x, key) = (struct expert_address){
        .gate = base, .up = base + at->up_at, .down = base + at->down_at, .resident = 1};
}

static void lay_out(struct experts *x, size_t group)
{
    const struct model_layer *l = layer_of(x, group);
    struct expert_layout *at = &x->layouts[group];
    (void)model_expert(&l->gate_exps, 0, &at->gate_bytes);
    (void)model_expert(&l->up_exps, 0, &at->up_bytes);
    (void)model_expert(&l->down_exps, 0, &at->down_bytes);
    at->up_at = align_up(at->gate_bytes);
    at->down_at = at->up_at + align_up(at->up_bytes);
    size_t blob = at->down_at + align_up(at->down_bytes);
    if (blob > x->slot_bytes)
        x->slot_bytes = blob;
}

static size_t segments_for(const struct experts *x, size_t n_slots)
{
    size_t per_segment = x->pool.segment_bytes / x->slot_bytes;
    return (n_slots + per_segment - 1) / per_segment;
}

static int open_cache(struct experts *x, struct error *err)
{
    const struct experts_settings *set = &x->set;
    size_t granularity = set->driver->granularity;
    size_t segment_bytes = (set->segment_bytes + granularity - 1) / granularity * granularity;
    if (segment_bytes < x->slot_bytes)
        return error_set(
            err, EBB_EINVAL,
            "segment of %zu bytes: an expert needs a slot of %zu; set a larger segment size",
            segment_bytes, x->slot_bytes);
    size_t per_segment = segment_bytes / x->slot_bytes;
    size_t n_segments = (x->n_slots_full + per_segment - 1) / per_segment;
    size_t n_lendable = (set->lendable_kv + segment_bytes - 1) / segment_bytes +
                        (set->lendable_workspace + segment_bytes - 1) / segment_bytes;
    int rc = pool_open(&x->pool, set->driver, segment_bytes, n_segments + n_lendable, err);
    if (rc != 0)
        return rc;
    x->n_segments_full = n_segments;
    size_t floor_slots = 2 * x->n_used + 1;
    x->n_segments_floor =
        segments_for(x, floor_slots < x->n_slots_full ? floor_slots : x->n_slots_full);
    struct cache_settings cs = {.slot_bytes = x->slot_bytes,
                                .n_groups = x->n_groups,
                                .n_indexes = x->n_experts,
                                .half_life_touches =
                                    policy_half_life_touches(&policy_shipped, x->n_slots_full)};
    return cache_open(&x->cache, &x->pool, &cs, n_segments, err);
}

int experts_open(struct experts *x, const struct experts_settings *settings, struct error *err)
{
    memset(x, 0, sizeof *x);
    x->set = *settings;
    const struct model_geometry *g = &settings->model->geometry;
    x->n_layers = settings->layer_last - settings->layer_first + 1;
    x->n_experts = g->n_experts;
    x->n_used = g->n_experts_used;
    x->layouts = calloc(x->n_layers, sizeof *x->layouts);
    x->layers = calloc(x->n_layers, sizeof *x->layers);
    if (x->layouts == NULL || x->layers == NULL) {
        experts_close(x);
        return error_set(err, EBB_ENOMEM, "experts: no memory for the layouts of %zu layers",
                         x->n_layers);
    }
    for (uint32_t l = 0; l < x->n_layers; l++)
        if (settings->model->layers[settings->layer_first + l].router.data != NULL)
            x->layers[x->n_groups++] = l;
    if (x->n_groups == 0)
        return 0;
    x->n_slots_full = x->n_groups * x->n_experts;
    for (size_t group = 0; group < x->n_groups; group++)
        lay_out(x, group);
    int rc = open_cache(x, err);
    if (rc == 0)
        rc = settings->exec->stream_open(settings->card, &x->upload, err);
    if (rc == 0)
        rc = settings->exec->event_open(settings->card, &x->uploaded, err);
    if (rc == 0)
        rc = settings->exec->shared_alloc(settings->card, x->n_slots_full * sizeof *x->moves,
                                          (void **)&x->moves, err);
    if (rc != 0) {
        experts_close(x);
        return rc;
    }
    for (uint32_t group = 0; group < x->n_groups; group++)
        for (uint32_t e = 0; e < x->n_experts; e++)
            point_to_file(x, (struct cache_key){group, e});
    return 0;
}

void experts_close(struct experts *x)
{
    if (x->upload != NULL)
        x->set.exec->stream_close(x->upload);
    if (x->uploaded != NULL)
        x->set.exec->event_close(x->uploaded);
    if (x->moves != NULL)
        x->set.exec->shared_free(x->set.card, x->moves);
    if (x->cache != NULL)
        cache_close(x->cache);
    if (x->pool.segments != NULL)
        pool_close(&x->pool);
    free(x->layers);
    free(x->layouts);
    memset(x, 0, sizeof *x);
}

int experts_grow(struct experts *x, size_t n_segments, size_t *reached, struct error *err)
{
    size_t held = 0, freed = 0;
    int rc = pool_hold(&x->pool, n_segments + experts_n_lent(x), &held, err);
    held = experts_n_held(x);
    if (held > x->n_segments_full)
        held = x->n_segments_full;
    int rc2 = cache_grow(x->cache, held, reached, rc == 0 ? err : NULL);
    if (*reached < held) /* what could not be mapped is not kept */
        (void)pool_hold(&x->pool, *reached + experts_n_lent(x), &freed, NULL);
    return rc != 0 ? rc : rc2;
}

static int upload_begin(struct experts *x, struct cache_key key, size_t slot)
{
    const struct exec_driver *exec = x->set.exec;
    const struct expert_layout *at = &x->layouts[key.group];
    const struct model_layer *l = layer_of(x, key.group);
    unsigned char *to = cache_slot_address(x->cache, slot);
    size_t bytes;
    int rc =
        exec->copy(x->upload, to, model_expert(&l->gate_exps, key.index, &bytes), at->gate_bytes);
    if (rc == 0)
        rc = exec->copy(x->upload, to + at->up_at, model_expert(&l->up_exps, key.index, &bytes),
                        at->up_bytes);
    if (rc == 0)
        rc = exec->copy(x->upload, to + at->down_at, model_expert(&l->down_exps, key.index, &bytes),
                        at->down_bytes);
    x->uploading[x->n_uploading] = slot;
    x->uploading_key[x->n_uploading++] = key;
    x->upload_bytes += at->gate_bytes + at->up_bytes + at->down_bytes;
    return rc;
}

bool experts_is_filling(const struct experts *x)
{
    return experts_n_open(x) > 0;
}

size_t experts_n_open(const struct experts *x)
{
    if (x->cache == NULL)
        return 0;
    size_t n =
        cache_n_slots(x->cache) < x->n_slots_full ? cache_n_slots(x->cache) : x->n_slots_full;
    size_t n_held = cache_n_resident(x->cache) + (x->exchanging ? 1 : 0);
    return n > n_held ? n - n_held : 0;
}

static int uploads_publish(struct experts *x)
{
    x->n_batches += x->n_uploading > 0;
    for (size_t i = 0; i < x->n_uploading; i++) {
        int rc = cache_publish(x->cache, x->uploading[i]);
        if (rc != 0)
            return rc;
        point_to_slot(x, x->uploading_key[i], x->uploading[i]);
    }
    x->n_uploading = 0;
    x->exchanging = false;
    return 0;
}

int experts_settle(struct experts *x, struct error *err)
{
    if (x->cache == NULL)
        return 1;
    int done = x->set.exec->event_query(x->uploaded);
    if (done == 0)
        return 0;
    int rc = done < 0 ? done : uploads_publish(x);
    return rc == 0 ? 1 : error_set(err, rc, "experts: an upload failed");
}

int experts_upload(struct experts *x, uint64_t bytes_new, bool may_exchange, struct error *err)
{
    uint64_t bytes_before = x->upload_bytes;
    struct cache_key key, evicted;
    bool did_evict = false;
    int rc = 0;
    if (x->cache == NULL || x->n_uploading > 0)
        return 0;
    while (rc == 0 && !did_evict && x->n_uploading < UPLOADS_MAX &&
           x->upload_bytes - bytes_before < bytes_new &&
           policy_next(&policy_shipped, x->cache, may_exchange && x->n_uploading == 0, &key)) {
        size_t slot;
        if (cache_insert(x->cache, key, &slot, &did_evict, &evicted, NULL) != 0)
            break;
        if (did_evict) {
            point_to_file(x, evicted);
            x->n_promoted++;
            x->exchanging = true;
        }
        rc = upload_begin(x, key, slot);
    }
    if (rc == 0 && x->n_uploading > 0)
        rc = x->set.exec->event_record(x->uploaded, x->upload);
    return rc == 0 ? 0 : error_set(err, rc, "experts: an upload failed");
}

void experts_fold_heat(struct experts *x)
{
    for (uint32_t group = 0; group < x->n_groups; group++) {
        uint32_t *uses = x->set.heat + (size_t)x->layers[group] * x->n_experts;
        for (uint32_t e = 0; e < x->n_experts; e++) {
            if (uses[e] != 0)
                cache_touch(x->cache, (struct cache_key){group, e}, uses[e]);
            uses[e] = 0;
        }
    }
}

void experts_heat(const struct experts *x, size_t group, double *resident, double *all)
{
    *resident = *all = 0;
    for (size_t e = 0; e < x->n_experts; e++) {
        struct cache_key key = {(uint32_t)group, (uint32_t)e};
        double heat = cache_heat(x->cache, key);
        *all += heat;
        *resident += cache_slot_of(x->cache, key) != CACHE_NO_SLOT ? heat : 0;
    }
}

int experts_shrink_begin(struct experts *x, size_t n_segments, struct exec_stream *s,
                         struct error *err)
{
    assert(x->n_uploading == 0 && !x->shrinking);
    int rc = cache_shrink_begin(x->cache, n_segments, &x->plan, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < x->plan.n_evicted; i++)
        point_to_file(x, x->plan.evicted[i]);
    for (size_t i = 0; i < x->plan.n_moves; i++)
        x->moves[i] =
            (struct move_pair){.from = cache_slot_address(x->cache, x->plan.moves[i].slot_from),
                               .to = cache_slot_address(x->cache, x->plan.moves[i].slot_to)};
    struct move_args moves = {.pairs = x->moves, .n = x->plan.n_moves, .bytes = x->slot_bytes};
    if (moves.n > 0)
        rc = x->set.kernels->move(&moves, s);
    x->shrinking = true;
    return rc == 0 ? 0 : error_set(err, rc, "experts: a move between slots failed");
}

int experts_shrink_end(struct experts *x, size_t *reached, struct error *err)
{
    assert(x->shrinking);
    x->shrinking = false;
    for (size_t i = 0; i < x->plan.n_moves; i++)
        point_to_slot(x, x->plan.moves[i].key, x->plan.moves[i].slot_to);
    size_t n_segments = 0, held = 0;
    int rc = cache_shrink_end(x->cache, &n_segments, err);
    size_t keep = n_segments + experts_n_lent(x); /* a shrink makes nothing */
    if (keep > x->pool.n_held)
        keep = x->pool.n_held;
    int rc2 = pool_hold(&x->pool, keep, &held, rc == 0 ? err : NULL);
    *reached = experts_n_held(x);
    return rc != 0 ? rc : rc2;
}
