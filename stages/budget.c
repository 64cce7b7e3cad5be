/* stages/budget.c - CREDIT: how many KV blocks the coordinator may count on, and the segments that move for it.
 *
 * A credit is backed memory: a stage grants what is mapped, so that a step never fails for want of KV and no VRAM command can take
 * what was promised. More blocks take, in this order, segments that lie free in the pool, new ones as far as the reserve stays free,
 * and segments of the expert cache down to its floor, chosen and compacted as in any shrink. Fewer blocks: those in use move to the
 * front, and what they leave goes to the cache, or to the driver where the reserve in force is short. Lending maps and unmaps; it
 * creates and copies nothing of its own.
 *
 * Served in the order of the steps, between two of them, with no upload running. x->n_lent is KV's part of the pool; it is raised
 * before segments are on their way, so that the ledger names every byte at any time. Failure: what was had stays, and the answer says
 * how much that is. Threads: the control thread.
 */
#include "stages/stage.h"

bool budget_is_next(const struct stage *s)
{
    const struct queue *q = &s->queue;
    return s->run.phase == RUN_IDLE && q->n_used > 0 && q->items[q->first].kind == ITEM_CREDIT;
}

static void credit_end(struct stage *s)
{
    const struct item *it = queue_first(&s->queue);
    const struct experts *x = &s->experts;
    struct vmm_memory mem = {0};
    struct line_writer w;
    (void)s->memory.memory(&s->memory, &mem, NULL);
    line_begin(&w, s->line, sizeof s->line, "CREDITED");
    line_bare_i64(&w, it->n_blocks);
    line_u64(&w, "kv_blocks", s->kv.n_blocks);
    line_u64(&w, "kv_blocks_free", s->kv.n_free);
    line_u64(&w, "free_mib", mem.free_bytes / MIB);
    line_u64(&w, "reserve_mib", s->reserve_mib);
    line_u64(&w, "cache_mib", segments_mib(s, experts_n_held(x)));
    line_u64(&w, "cache_floor_mib", segments_mib(s, x->n_segments_floor));
    stage_say(s, &w);
    queue_pop(&s->queue);
}

/* The pool's books again as they are: KV has what is mapped there; of the rest the cache gets what the reserve allows. */
static void cache_follow(struct stage *s)
{
    struct experts *x = &s->experts;
    struct error err = {0};
    size_t reached;
    x->n_lent = kv_n_segments(&s->kv);
    size_t wanted = vram_segments_wanted(s, s->reserve_mib, &err);
    size_t n_backed = cache_n_segments(x->cache);
    (void)experts_grow(x, wanted > n_backed ? wanted : n_backed, &reached, &err);
    if (err.code != 0)
        stage_log("card %u: %s", s->load.device, err.text);
}

static void grow_end(struct stage *s, size_t n_segments)
{
    struct error err = {0};
    if (kv_grow(&s->kv, n_segments, &err) != 0)
        stage_log("card %u: KV has %zu segments, not %zu: %s", s->load.device,
                  kv_n_segments(&s->kv), n_segments, err.text);
    cache_follow(s);
    credit_end(s);
}

/* New segments for `n_short` of KV, as far as the reserve in force stays free. */
static void pool_grow(struct stage *s, size_t n_short)
{
    struct pool *pool = &s->experts.pool;
    struct vmm_memory mem = {0};
    struct error err = {0};
    size_t reached;
    if (s->memory.memory(&s->memory, &mem, &err) != 0)
        return;
    size_t room = pool_segments_to_take(s->reserve_mib * MIB, mem.free_bytes, pool->segment_bytes);
    room = room < n_short ? room : n_short;
    if (room > 0 && pool_hold(pool, pool->n_held + room, &reached, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
}

/* KV to n_segments, or as many as can be had. False: the cache's moves are on their way. */
static bool grow_begin(struct stage *s, size_t n_segments)
{
    struct experts *x = &s->experts;
    struct error err = {0};
    size_t had = kv_n_segments(&s->kv), n_short = n_segments - had;
    if (n_short > x->pool.n_free)
        pool_grow(s, n_short - x->pool.n_free);
    size_t n_free = x->pool.n_free < n_short ? x->pool.n_free : n_short;
    size_t n_backed = cache_n_segments(x->cache), from_cache = n_short - n_free;
    size_t spare = n_backed > x->n_segments_floor ? n_backed - x->n_segments_floor : 0;
    from_cache = from_cache < spare ? from_cache : spare;
    n_segments = had + n_free + from_cache;
    x->n_lent = n_segments;
    if (from_cache > 0 && experts_shrink_begin(x, n_backed - from_cache, s->compute, &err) != 0 &&
        !x->shrinking)
        stage_log("card %u: %s", s->load.device, err.text);
    if (!x->shrinking) {
        grow_end(s, had + n_free);
        return true;
    }
    s->kv_moving = KV_GROWS;
    run_flush(s, "kv-moves");
    return false;
}

static void shrink_end(struct stage *s)
{
    struct error err = {0};
    if (kv_shrink_end(&s->kv, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    cache_follow(s);
    credit_end(s);
}

/* KV down to n_segments; where what is in use needs more, to that. False: blocks are on their way. */
static bool shrink_begin(struct stage *s, size_t n_segments)
{
    struct kv *kv = &s->kv;
    size_t n_needed = kv_segments_for(kv, kv->n_blocks - kv->n_free),
           bytes = kv_block_bytes(&kv->shape);
    struct error err = {0};
    int rc = kv_shrink_begin(kv, n_segments > n_needed ? n_segments : n_needed, &err);
    for (size_t i = 0; rc == 0 && i < kv->n_moves; i++)
        rc = s->platform->exec->copy(s->compute, kv->base + bytes * (size_t)kv->moves[i].to,
                                     kv->base + bytes * (size_t)kv->moves[i].from, bytes);
    if (rc != 0) {
        error_set(&err, rc, "card %u: KV blocks could not be moved (%s)", s->load.device,
                  error_code_name(rc));
        stage_fail(s, &err);
        return false;
    }
    if (kv->n_moves == 0) {
        shrink_end(s);
        return true;
    }
    s->kv_moving = KV_SHRINKS;
    run_flush(s, "kv-moves");
    return false;
}

bool budget_begin(struct stage *s)
{
    struct error err = {0};
    size_t n_segments = kv_segments_for(&s->kv, queue_first(&s->queue)->n_blocks);
    int idle = uploads_settle(s, &err);
    if (idle < 0)
        stage_fail(s, &err);
    if (idle <= 0)
        return false;
    if (n_segments > kv_n_segments(&s->kv))
        return grow_begin(s, n_segments);
    if (n_segments < kv_n_segments(&s->kv))
        return shrink_begin(s, n_segments);
    credit_end(s);
    return true;
}

void budget_finish(struct stage *s)
{
    enum kv_moving moving = s->kv_moving;
    struct error err = {0};
    size_t reached;
    s->kv_moving = KV_STILL;
    if (moving == KV_SHRINKS)
        shrink_end(s);
    if (moving != KV_GROWS)
        return;
    size_t wanted = s->experts.n_lent;
    if (experts_shrink_end(&s->experts, &reached, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    size_t can = kv_n_segments(&s->kv) + s->experts.pool.n_free;
    grow_end(s, wanted < can ? wanted : can);
}
