/* stages/yield.c - giving way to foreign memory, and coming back (see yield.h).
 *
 * Reads memory at most every LOOK_US; on a CPU card that is one short lock of the shared account, on a CUDA card one driver call.
 * Threads: the control thread. Failure: a reading that fails is told in the log and changes nothing.
 */
#include "stages/stage.h"

#define LOOK_US UINT64_C(100000)

void yield_restart(struct stage *s, uint64_t foreign_bytes)
{
    struct yield *y = &s->yield;
    y->stirred_us = now_us();
    y->foreign_bytes = y->foreign_least = foreign_bytes;
    y->n_segments = 0;
}

/* What is to stay free now. */
static uint64_t keep_bytes(const struct stage *s, uint64_t foreign_bytes)
{
    uint64_t start = s->load.reserve_mib * MIB, promised = s->reserve_mib * MIB;
    uint64_t taken = foreign_bytes - s->yield.foreign_least;
    if (promised <= start)
        return promised;
    promised = taken < promised ? promised - taken : 0;
    return promised > start ? promised : start;
}

static void foreign_see(struct yield *y, uint64_t foreign, size_t segment_bytes, uint64_t now)
{
    uint64_t before = y->foreign_bytes;
    if (foreign < y->foreign_least)
        y->foreign_least = foreign;
    if ((foreign > before ? foreign - before : before - foreign) <= segment_bytes / 2)
        return;
    y->foreign_bytes = foreign;
    y->stirred_us = now;
}

static void change_queue(struct stage *s, uint64_t keep)
{
    s->vram[s->vram_first] = (struct vram_pending){
        .is_own = true, .reserve_mib = (keep + MIB - 1) / MIB, .arrived_us = now_us()};
    s->n_vram = 1;
}

static bool may_grow(const struct stage *s)
{
    const struct experts *x = &s->experts;
    return experts_n_held(x) < x->n_segments_full ||
           x->n_workspace < forward_segments_for(&s->forward, s->forward.shape.n_rows);
}

void yield_look(struct stage *s)
{
    struct yield *y = &s->yield;
    const struct experts *x = &s->experts;
    struct vmm_memory mem = {0};
    struct error err = {0};
    uint64_t now;
    if (!y->is_on || s->state != STAGE_SERVING || s->n_vram > 0 || x->cache == NULL)
        return;
    now = now_us();
    if (now - y->looked_us < LOOK_US)
        return;
    y->looked_us = now;
    if (s->memory.memory(&s->memory, &mem, &err) != 0) {
        stage_log("card %u: %s", s->load.device, err.text);
        return;
    }
    foreign_see(y, mem.foreign_bytes, x->pool.segment_bytes, now);
    uint64_t keep = keep_bytes(s, mem.foreign_bytes), margin = x->pool.segment_bytes / 4;
    if (mem.free_bytes < keep) {
        y->stirred_us = now;
        if (experts_n_held(x) > x->n_segments_floor || x->n_workspace > 0)
            change_queue(s, keep);
    } else if (now - y->stirred_us >= y->quiet_us && may_grow(s) &&
               mem.free_bytes - keep >= x->pool.segment_bytes + margin) {
        change_queue(s, keep + margin);
    }
}

/* No receipt tells the coordinator what the card can lend now. */
static void chunk_tell(struct stage *s)
{
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "EVENT");
    line_bare(&w, "chunk");
    line_u64(&w, "prompt_chunk", budget_rows_lendable(s));
    stage_say(s, &w);
}

void yield_ended(struct stage *s, size_t n_before, const struct error *driver)
{
    struct yield *y = &s->yield;
    size_t n = vram_n_segments(s);
    y->stirred_us = now_us();
    if (n < n_before) {
        y->n_segments += n_before - n;
        stage_log("card %u: foreign memory: %zu segments given up, %zu stay", s->load.device,
                  n_before - n, n);
    } else if (n > n_before) {
        y->n_segments -= n - n_before < y->n_segments ? n - n_before : y->n_segments;
        stage_log("card %u: foreign memory: %zu segments taken again, %zu in all", s->load.device,
                  n - n_before, n);
    }
    if (driver->code != 0)
        stage_log("card %u: foreign memory: %s", s->load.device, driver->text);
    if (n != n_before)
        chunk_tell(s);
}

int yield_timeout(const struct stage *s)
{
    uint64_t since = now_us() - s->yield.looked_us;
    if (!s->yield.is_on || s->state != STAGE_SERVING)
        return -1;
    return since < LOOK_US ? (int)((LOOK_US - since) / 1000 + 1) : 0;
}
