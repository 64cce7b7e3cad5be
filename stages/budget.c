/* stages/budget.c - CREDIT: how many KV blocks the coordinator may count on; CHUNK: for how many rows of a step there is workspace; and
 * the segments that move for them.
 *
 * A credit is backed memory: a stage grants what is mapped, so that a step never fails for want of KV and no VRAM command can take
 * what was promised. More blocks take, in this order, segments that lie free in the pool, new ones as far as the reserve stays free,
 * those of the workspace, and segments of the expert cache down to its floor, chosen and compacted as in any shrink. Fewer blocks: those in use move to the
 * front, and what they leave goes to the cache, or to the driver where the reserve in force is short. Lending maps and unmaps; it
 * creates and copies nothing of its own.
 *
 * The workspace of long prompts is a loan that nothing depends on: a step of more rows than there is workspace for takes longer, no
 * more (forward.h). So CHUNK takes what lies free and what the cache can lend, makes nothing, and any VRAM command or CREDIT may take
 * it back. What the cache cannot use stays there: where every expert is on the card, a loan moves nothing.
 *
 * Served in the order of the steps, between two of them, with no upload running. x->n_kv and x->n_workspace are their parts of the
 * pool; they are raised before segments are on their way, so that the ledger names every byte at any time. Failure: what was had stays, and the answer says
 * how much that is. Threads: the control thread.
 */
#include "stages/stage.h"

bool budget_is_next(const struct stage *s)
{
    const struct queue *q = &s->queue;
    return s->run.phase == RUN_IDLE && q->n_used > 0 &&
           (q->items[q->first].kind == ITEM_CREDIT || q->items[q->first].kind == ITEM_CHUNK);
}

uint32_t budget_rows_held(const struct stage *s)
{
    return s->forward.rows < s->load.chunk ? (uint32_t)s->forward.rows : s->load.chunk;
}

/* Segments of the cache above its floor. */
static size_t cache_spare(const struct experts *x)
{
    size_t n = x->cache != NULL ? cache_n_segments(x->cache) : 0;
    return n > x->n_segments_floor ? n - x->n_segments_floor : 0;
}

uint32_t budget_rows_lendable(const struct stage *s)
{
    const struct experts *x = &s->experts;
    size_t n = forward_n_segments(&s->forward) + x->pool.n_free + cache_spare(x);
    size_t rows = forward_rows_within(&s->forward, n);
    return rows < s->load.chunk ? (uint32_t)rows : s->load.chunk;
}

bool budget_workspace(struct stage *s, size_t n_segments)
{
    struct error err = {0};
    int rc = forward_back(&s->forward, n_segments, &err);
    s->experts.n_workspace = forward_n_segments(&s->forward);
    if (rc != 0)
        stage_log("card %u: the workspace has %zu segments, not %zu: %s", s->load.device,
                  s->experts.n_workspace, n_segments, err.text);
    return rc == 0;
}

static void chunk_end(struct stage *s)
{
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "CHUNKED");
    line_bare_i64(&w, queue_first(&s->queue)->n_wanted);
    line_u64(&w, "workspace_rows", budget_rows_held(s));
    line_u64(&w, "prompt_chunk", budget_rows_lendable(s));
    stage_say(s, &w);
    queue_pop(&s->queue);
}

static void credit_end(struct stage *s)
{
    const struct item *it = queue_first(&s->queue);
    const struct experts *x = &s->experts;
    struct vmm_memory mem = {0};
    struct line_writer w;
    (void)s->memory.memory(&s->memory, &mem, NULL);
    line_begin(&w, s->line, sizeof s->line, "CREDITED");
    line_bare_i64(&w, it->n_wanted);
    line_u64(&w, "kv_blocks", s->kv.n_blocks);
    line_u64(&w, "kv_blocks_free", s->kv.n_free);
    line_u64(&w, "free_mib", mem.free_bytes / MIB);
    line_u64(&w, "reserve_mib", s->reserve_mib);
    line_u64(&w, "cache_mib", segments_mib(s, experts_n_held(x)));
    line_u64(&w, "cache_floor_mib", segments_mib(s, x->n_segments_floor));
    line_u64(&w, "prompt_chunk", budget_rows_lendable(s));
    stage_say(s, &w);
    queue_pop(&s->queue);
}

/* The pool's books again as they are: KV has what is mapped there; of the rest the cache gets what the reserve allows. */
static void cache_follow(struct stage *s)
{
    struct experts *x = &s->experts;
    struct error err = {0};
    x->n_kv = kv_n_segments(&s->kv);
    struct vram_split wanted = vram_wanted(s, s->reserve_mib, &err);
    size_t n_backed = cache_n_segments(x->cache);
    wanted.cache = wanted.cache > n_backed ? wanted.cache : n_backed;
    vram_grow(s, &wanted, &err);
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

/* Of n_short segments, how many can be had: those that lie free, then *from_cache of the cache's. */
static size_t available(const struct experts *x, size_t n_short, size_t *from_cache)
{
    size_t n_free = x->pool.n_free < n_short ? x->pool.n_free : n_short, spare = cache_spare(x);
    *from_cache = n_short - n_free < spare ? n_short - n_free : spare;
    return n_free + *from_cache;
}

/* True: the cache's moves are on their way, after which it has n_segments fewer. */
static bool cache_moves(struct stage *s, size_t n_segments, enum moving moving, const char *name)
{
    struct experts *x = &s->experts;
    struct error err = {0};
    if (n_segments == 0)
        return false;
    (void)experts_shrink_begin(x, cache_n_segments(x->cache) - n_segments, s->compute, &err);
    if (err.code != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    if (!x->shrinking)
        return false;
    s->moving = moving;
    run_flush(s, name);
    return true;
}

/* KV to n_segments, or as many as can be had. False: the cache's moves are on their way. */
static bool grow_begin(struct stage *s, size_t n_segments)
{
    struct experts *x = &s->experts;
    size_t had = kv_n_segments(&s->kv), n_short = n_segments - had, from_cache;
    if (n_short > x->pool.n_free)
        pool_grow(s, n_short - x->pool.n_free);
    if (n_short > x->pool.n_free && x->n_workspace > 0) {
        size_t n = n_short - x->pool.n_free;
        (void)budget_workspace(s, x->n_workspace > n ? x->n_workspace - n : 0);
    }
    size_t n_had = available(x, n_short, &from_cache);
    x->n_kv = had + n_had;
    if (cache_moves(s, from_cache, MOVING_KV_GROWS, "kv-moves"))
        return false;
    grow_end(s, had + n_had - from_cache);
    return true;
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
    s->moving = MOVING_KV_SHRINKS;
    run_flush(s, "kv-moves");
    return false;
}

/* Workspace for so many rows, or the most that can be lent. False: the cache's moves are on their way. */
static bool lend_begin(struct stage *s, size_t rows)
{
    struct experts *x = &s->experts;
    const struct forward *f = &s->forward;
    size_t had = x->n_workspace, n = forward_segments_for(f, rows), from_cache = 0;
    if (n > had) {
        n = had + available(x, n - had, &from_cache);
        n = forward_segments_for(f, forward_rows_within(f, n));
    }
    if (n > had) {
        (void)available(x, n - had, &from_cache);
        x->n_workspace = n;
        if (cache_moves(s, from_cache, MOVING_WORKSPACE_GROWS, "workspace-moves"))
            return false;
        x->n_workspace = had;
        if (from_cache == 0)
            (void)budget_workspace(s, n);
    }
    chunk_end(s);
    return true;
}

/* What the cache can use goes back to it. */
static void lend_end(struct stage *s)
{
    struct experts *x = &s->experts;
    size_t n_cache = x->cache != NULL ? cache_n_segments(x->cache) : 0;
    size_t n = x->n_segments_full > n_cache ? x->n_segments_full - n_cache : 0;
    n = n < x->n_workspace ? n : x->n_workspace;
    if (n > 0 && budget_workspace(s, x->n_workspace - n))
        cache_follow(s);
    chunk_end(s);
}

static bool chunk_begin(struct stage *s)
{
    size_t rows = queue_first(&s->queue)->n_wanted;
    s->chunk_asked = rows > s->forward.shape.rows_base;
    if (s->chunk_asked)
        return lend_begin(s, rows);
    lend_end(s);
    return true;
}

static bool credit_begin(struct stage *s)
{
    size_t n_segments = kv_segments_for(&s->kv, queue_first(&s->queue)->n_wanted);
    if (n_segments > kv_n_segments(&s->kv))
        return grow_begin(s, n_segments);
    if (n_segments < kv_n_segments(&s->kv))
        return shrink_begin(s, n_segments);
    credit_end(s);
    return true;
}

bool budget_begin(struct stage *s)
{
    struct error err = {0};
    int idle = uploads_settle(s, &err);
    if (idle < 0)
        stage_fail(s, &err);
    if (idle <= 0)
        return false;
    return queue_first(&s->queue)->kind == ITEM_CHUNK ? chunk_begin(s) : credit_begin(s);
}

void budget_finish(struct stage *s)
{
    enum moving moving = s->moving;
    struct experts *x = &s->experts;
    struct error err = {0};
    size_t reached;
    s->moving = MOVING_NOTHING;
    if (moving == MOVING_KV_SHRINKS)
        shrink_end(s);
    if (moving != MOVING_KV_GROWS && moving != MOVING_WORKSPACE_GROWS)
        return;
    size_t n_kv = x->n_kv, n_workspace = x->n_workspace, n_free;
    if (experts_shrink_end(x, &reached, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    n_free = x->pool.n_free;
    if (moving == MOVING_KV_GROWS) {
        size_t can = kv_n_segments(&s->kv) + n_free;
        grow_end(s, n_kv < can ? n_kv : can);
    } else {
        size_t can = forward_n_segments(&s->forward) + n_free;
        (void)budget_workspace(s, n_workspace < can ? n_workspace : can);
        chunk_end(s);
    }
}
