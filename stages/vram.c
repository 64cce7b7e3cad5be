/* stages/vram.c - VRAM commands with their receipts, and what STAT, LEDGER and HELD say of the card.
 *
 * Commands wait in a ring and are served one at a time at a boundary: a shrink lets running uploads end, puts the moves on the compute
 * stream, and ends at the next boundary; a grow is done at once and filled in the background. What stays is whole segments, rounded
 * down, never below the floor; the receipt is read from the driver and the pool, not computed from what was asked.
 * Threads: the control thread. Failure: what could be done stays done, and the receipt says how much and why not more.
 */
#include "stages/stage.h"

#include <string.h>

static struct vmm_memory memory_now(struct stage *s)
{
    struct vmm_memory mem = {0};
    struct error err;
    if (s->memory.memory(&s->memory, &mem, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    return mem;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* No prompt that runs or was announced needs more than the smallest workspace. */
static bool workspace_is_idle(const struct stage *s)
{
    bool runs = s->run.phase != RUN_IDLE && s->run.item->n_rows > s->forward.shape.rows_base;
    return !runs && !s->chunk_asked;
}

static void split_shrink(const struct stage *s, struct vram_split *split, size_t less)
{
    size_t floor = s->experts.n_segments_floor;
    size_t idle = workspace_is_idle(s) ? smaller(split->workspace, less) : 0;
    less -= idle;
    size_t cache = smaller(split->cache > floor ? split->cache - floor : 0, less);
    less -= cache;
    split->cache -= cache;
    split->workspace -= idle + smaller(split->workspace - idle, less);
}

static void split_grow(const struct stage *s, struct vram_split *split, size_t more)
{
    size_t full = s->experts.n_segments_full;
    size_t cache = smaller(full > split->cache ? full - split->cache : 0, more);
    size_t most = forward_segments_for(&s->forward, s->forward.shape.n_rows);
    split->cache += cache;
    split->workspace +=
        smaller(most > split->workspace ? most - split->workspace : 0, more - cache);
}

struct vram_split vram_wanted(struct stage *s, uint64_t reserve_mib, struct error *err)
{
    const struct experts *x = &s->experts;
    struct vram_split split = {experts_n_held(x), x->n_workspace};
    struct vmm_memory mem;
    if (x->cache == NULL || s->memory.memory(&s->memory, &mem, err) != 0)
        return split;
    uint64_t reserve = reserve_mib * MIB;
    size_t less = pool_segments_to_release(reserve, mem.free_bytes, x->pool.segment_bytes);
    if (less > 0)
        split_shrink(s, &split, less);
    else
        split_grow(s, &split,
                   pool_segments_to_take(reserve, mem.free_bytes, x->pool.segment_bytes));
    if (split.cache > x->n_segments_full)
        split.cache = x->n_segments_full;
    if (split.cache < x->n_segments_floor)
        split.cache = x->n_segments_floor;
    return split;
}

void vram_grow(struct stage *s, const struct vram_split *wanted, struct error *err)
{
    struct experts *x = &s->experts;
    size_t reached, n_more = 0;
    (void)experts_grow(x, wanted->cache, &reached, err);
    if (wanted->workspace <= x->n_workspace || reached < wanted->cache)
        return;
    n_more = wanted->workspace - x->n_workspace;
    (void)pool_hold(&x->pool, x->pool.n_held + n_more, &reached, err);
    (void)budget_workspace(s, x->n_workspace + smaller(x->pool.n_free, n_more));
}

uint64_t segments_mib(const struct stage *s, size_t n)
{
    return n * (uint64_t)s->experts.pool.segment_bytes / MIB;
}

/* Slots that n segments hold, as far as there are experts for them. */
static size_t slots_of(const struct stage *s, size_t n_segments)
{
    if (s->experts.cache == NULL)
        return 0;
    size_t n = n_segments * cache_slots_per_segment(s->experts.cache);
    return n < s->experts.n_slots_full ? n : s->experts.n_slots_full;
}

static size_t slots_now(const struct stage *s)
{
    return s->experts.cache != NULL ? slots_of(s, cache_n_segments(s->experts.cache)) : 0;
}

static const char *shortfall_reason(const struct stage *s, const struct vmm_memory *mem,
                                    const struct error *driver)
{
    if (driver->code != 0)
        return "driver";
    if (s->experts.n_kv > 0 &&
        mem->free_bytes + segments_mib(s, s->experts.n_kv) * MIB >= s->reserve_mib * MIB)
        return "loan"; /* KV blocks that were promised are in the way */
    if (mem->foreign_bytes > 0 && mem->own_bytes + s->reserve_mib * MIB <= mem->total_bytes)
        return "foreign"; /* without the others it would be free */
    return "floor";
}

static void receipt_say(struct stage *s, const struct vmm_memory *mem, const struct error *driver)
{
    const struct vram_pending *p = &s->vram[s->vram_first];
    uint64_t now = now_us();
    yield_restart(s, mem->foreign_bytes);
    struct vram_receipt r = {
        .device = s->load.device,
        .reserve_mib = s->reserve_mib,
        .cache_mib = segments_mib(s, experts_n_held(&s->experts)),
        .cache_full_mib = segments_mib(s, s->experts.n_segments_full),
        .slots = slots_now(s),
        .slots_full = s->experts.n_slots_full,
        .before_mib = s->vram_before_mib,
        .free_mib = mem->free_bytes / MIB,
        .freed_mib = (int64_t)segments_mib(s, s->vram_segments_before) -
                     (int64_t)segments_mib(s, vram_n_segments(s)),
        .foreign_mib = mem->foreign_bytes / MIB,
        .prompt_chunk = budget_rows_lendable(s),
        .wait_us = s->vram_started_us - p->arrived_us,
        .us = now - s->vram_started_us,
        .reason = "ok",
    };
    r.shortfall_mib = r.reserve_mib > r.free_mib ? r.reserve_mib - r.free_mib : 0;
    if (r.shortfall_mib > 0 || driver->code != 0)
        (void)snprintf(r.reason, sizeof r.reason, "%s", shortfall_reason(s, mem, driver));
    if (driver->code != 0)
        stage_log("card %u: VRAM %llu: %s", s->load.device, (unsigned long long)s->reserve_mib,
                  driver->text);
    trace_span(&s->trace, TRACE_VRAM, s->vram_started_us, now,
               "name=VRAM reserve_mib=%llu freed_mib=%lld wait_us=%llu",
               (unsigned long long)r.reserve_mib, (long long)r.freed_mib,
               (unsigned long long)r.wait_us);
    int n = vram_receipt_write(&r, s->line, sizeof s->line);
    if (n < 0 || channel_send(&s->control, s->line, (size_t)n) != 0) {
        s->quitting = true;
        return;
    }
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "VRAM-DONE");
    line_u64(&w, "cards", 1);
    line_i64(&w, "freed_mib", r.freed_mib);
    line_u64(&w, "shortfall_mib", r.shortfall_mib);
    stage_say(s, &w);
}

/* The command that is served now is done: the turn is the neighbours', its receipt is said, and on to the next. */
static void vram_end(struct stage *s, const struct error *driver)
{
    struct vmm_memory mem = memory_now(s);
    turn_give(s);
    if (s->vram[s->vram_first].is_own) {
        yield_ended(s, s->vram_segments_before, driver);
    } else {
        receipt_say(s, &mem, driver);
    }
    s->vram_first = (s->vram_first + 1) % VRAM_QUEUE_MAX;
    s->n_vram--;
}

/* False: it has to wait, for its turn or for uploads that run. */
static bool vram_begin(struct stage *s)
{
    struct experts *x = &s->experts;
    struct error err = {0}, driver = {0};
    if (!turn_take(s))
        return false;
    int idle = uploads_settle(s, &err);
    if (idle <= 0) {
        if (idle < 0)
            stage_fail(s, &err);
        return false;
    }
    const struct vram_pending *p = &s->vram[s->vram_first];
    if (!p->is_own)
        s->reserve_mib = p->to_start ? s->load.reserve_mib : p->reserve_mib;
    s->vram_started_us = now_us();
    s->vram_before_mib = memory_now(s).free_bytes / MIB;
    s->vram_segments_before = vram_n_segments(s);
    struct vram_split wanted = vram_wanted(s, p->is_own ? p->reserve_mib : s->reserve_mib, &driver);
    size_t n_backed = x->cache != NULL ? cache_n_segments(x->cache) : 0;
    if (wanted.workspace < x->n_workspace) /* the pool has these, until the cache is as wanted */
        (void)budget_workspace(s, wanted.workspace);
    if (wanted.cache < n_backed) {
        int rc = experts_shrink_begin(x, wanted.cache, s->compute, &driver);
        if (x->shrinking) {
            s->vram_moving = true;
            s->trace.moves_us = trace_is_on(&s->trace) ? now_us() : 0;
            run_flush(s, "moves");
            return false;
        }
        if (rc != 0)
            stage_log("card %u: %s", s->load.device, driver.text);
    } else if (x->cache != NULL && (wanted.cache != experts_n_held(x) || wanted.cache > n_backed ||
                                    wanted.workspace > x->n_workspace)) {
        /* Where the driver refused before, the pool may hold more than the cache has: what may stay comes into use. */
        vram_grow(s, &wanted, &driver);
    }
    vram_end(s, &driver);
    return true;
}

void vram_advance(struct stage *s)
{
    if (s->run.busy)
        return;
    if (s->vram_moving) {
        struct error driver = {0};
        size_t reached;
        s->vram_moving = false;
        if (trace_is_on(&s->trace))
            trace_span(&s->trace, TRACE_VRAM, s->trace.moves_us, now_us(), "name=moves slots=%zu",
                       s->experts.plan.n_moves);
        (void)experts_shrink_end(&s->experts, &reached, &driver);
        vram_end(s, &driver);
    }
    while (s->n_vram > 0 && !s->quitting && vram_begin(s))
        ;
}

bool vram_is_waiting(const struct stage *s)
{
    return s->n_vram > 0 && s->turn.asked_us == 0;
}

void vram_command(struct stage *s, const struct message *m)
{
    struct error err = {0};
    struct vram_request request;
    int rc = vram_request_parse(m, 1, &request, &err);
    struct vmm_memory mem = {0};
    if (rc == 0)
        rc = s->memory.memory(&s->memory, &mem, &err);
    uint64_t total_mib = mem.total_bytes / MIB;
    if (rc == 0 && !request.to_start && request.reserve_mib > total_mib)
        rc = error_set(&err, EBB_ERANGE,
                       "VRAM: a reserve of %llu MiB is more than the card has: %llu",
                       (unsigned long long)request.reserve_mib, (unsigned long long)total_mib);
    if (rc == 0 && s->n_vram == VRAM_QUEUE_MAX)
        rc = error_set(&err, EBB_EBUSY, "VRAM: %d commands are waiting already", VRAM_QUEUE_MAX);
    if (rc != 0) {
        stage_refuse(s, "-", &err);
        return;
    }
    if (s->n_vram == 1 && s->vram[s->vram_first].is_own && !s->vram_moving)
        s->n_vram = 0; /* commands go before what the stage wants of its own */
    s->vram[(s->vram_first + s->n_vram++) % VRAM_QUEUE_MAX] = (struct vram_pending){
        .to_start = request.to_start, .reserve_mib = request.reserve_mib, .arrived_us = now_us()};
}

/* What is KV's: the head, and what it has of the pool. */
static uint64_t kv_bytes(const struct stage *s)
{
    return kv_head_bytes(&s->kv) + s->experts.n_kv * (uint64_t)s->experts.pool.segment_bytes;
}

/* What is there for life, and what is lent to it. */
static uint64_t workspace_bytes(const struct stage *s)
{
    return s->forward.memory.bytes +
           s->experts.n_workspace * (uint64_t)s->experts.pool.segment_bytes;
}

static const char *state_name(const struct stage *s)
{
    switch (s->state) {
    case STAGE_EMPTY: return "empty";
    case STAGE_HELD: return "held";
    case STAGE_LOADING: return "loading";
    case STAGE_SERVING: break;
    }
    return s->run.phase != RUN_IDLE ? "running" : "idle";
}

static void say_layers(const struct stage *s, struct line_writer *w)
{
    char layers[32];
    (void)snprintf(layers, sizeof layers, "%u-%u", s->load.layer_first, s->load.layer_last);
    line_key(w, "layers", layers);
}

/* Of the heat of the experts, how much is resident, in thousandths: in all, and a list by layer. */
static void say_heat(const struct experts *x, struct line_writer *w)
{
    char list[8192] = "";
    double here_all = 0, heat_all = 0;
    size_t at = 0;
    for (size_t g = 0; x->cache != NULL && g < x->n_groups; g++) {
        double here = 0, heat = 0;
        experts_heat(x, g, &here, &heat);
        here_all += here;
        heat_all += heat;
        int n = snprintf(list + at, sizeof list - at, "%s%.0f", g > 0 ? "," : "",
                         heat > 0 ? 1000 * here / heat : 0);
        at += n > 0 && (size_t)n < sizeof list - at ? (size_t)n : 0;
    }
    line_u64(w, "heat_resident", heat_all > 0 ? (uint64_t)(1000 * here_all / heat_all + 0.5) : 0);
    line_key(w, "heat_layers", list);
}

void stat_command(struct stage *s)
{
    const struct experts *x = &s->experts;
    struct vmm_memory mem = memory_now(s);
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "STAT");
    line_u64(&w, "device", s->load.device);
    line_key(&w, "kind", s->platform->kind);
    line_text(&w, "name", s->card_name, strlen(s->card_name));
    line_text(&w, "uuid", s->card_uuid, strlen(s->card_uuid));
    line_key(&w, "state", state_name(s));
    say_layers(s, &w);
    line_u64(&w, "total_mib", mem.total_bytes / MIB);
    line_u64(&w, "free_mib", mem.free_bytes / MIB);
    line_u64(&w, "foreign_mib", mem.foreign_bytes / MIB);
    line_u64(&w, "reserve_mib", s->reserve_mib);
    line_u64(&w, "base_mib", s->load.reserve_mib);
    line_u64(&w, "segment_mib", segments_mib(s, 1));
    line_u64(&w, "cache_mib", segments_mib(s, experts_n_held(x)));
    line_u64(&w, "cache_full_mib", segments_mib(s, x->n_segments_full));
    line_u64(&w, "cache_floor_mib", segments_mib(s, x->n_segments_floor));
    line_u64(&w, "slots", slots_now(s));
    line_u64(&w, "slots_full", x->n_slots_full);
    line_u64(&w, "slots_floor", slots_of(s, x->n_segments_floor));
    line_u64(&w, "resident", x->cache != NULL ? cache_n_resident(x->cache) : 0);
    line_u64(&w, "kv_blocks", s->kv.n_blocks);
    line_u64(&w, "kv_blocks_free", s->kv.n_free);
    line_u64(&w, "sequences", kv_n_sequences(&s->kv));
    line_u64(&w, "prompt_chunk", budget_rows_lendable(s));
    line_u64(&w, "steps", s->n_steps);
    line_u64(&w, "tokens", s->n_tokens);
    line_u64(&w, "hits", s->n_hits);
    line_u64(&w, "lookups", s->n_lookups);
    line_u64(&w, "promotions", x->n_promoted);
    line_u64(&w, "refill_done", s->refill.n_done);
    line_u64(&w, "refill_total", s->refill.n_wanted);
    line_u64(&w, "kv_mib", kv_bytes(s) / MIB);
    line_u64(&w, "kv_blocks_max", kv_blocks_max(&s->kv));
    line_u64(&w, "yielded_mib", segments_mib(s, s->yield.n_segments));
    line_u64(&w, "workspace_mib", segments_mib(s, x->n_workspace));
    line_u64(&w, "workspace_rows", budget_rows_held(s));
    say_heat(x, &w);
    line_u64(&w, "graph_resident", s->graphs.n_resident);
    line_u64(&w, "graph_misses", s->graphs.n_missing);
    line_u64(&w, "miss_card_us", (uint64_t)(miss_rates_card_us(&s->misses.rates, 8) / 8));
    line_u64(&w, "miss_host_us", (uint64_t)s->misses.rates.host_us_each);
    stage_say(s, &w);
    line_begin(&w, s->line, sizeof s->line, "STAT-DONE");
    stage_say(s, &w);
}

void ledger_read(struct stage *s, struct ledger *out)
{
    struct vmm_memory mem = memory_now(s);
    memset(out, 0, sizeof *out);
    out->owned_bytes[LEDGER_WEIGHTS] = s->weights.memory.bytes;
    out->owned_bytes[LEDGER_KV] = kv_bytes(s);
    out->owned_bytes[LEDGER_CACHE] = experts_n_held(&s->experts) * s->experts.pool.segment_bytes;
    out->owned_bytes[LEDGER_WORKSPACE] = workspace_bytes(s);
    out->owned_bytes[LEDGER_LINK] = s->link_memory.bytes + s->link_memory_in.bytes +
                                    s->link_room.block.bytes + s->link_room.taken_bytes;
    out->owned_bytes[LEDGER_CONTEXT] = mem.context_bytes;
    out->foreign_bytes = mem.foreign_bytes;
    out->free_bytes = mem.free_bytes;
    out->total_bytes = mem.total_bytes;
    out->unexplained_bytes = (int64_t)(mem.own_bytes + mem.context_bytes);
    for (int i = 0; i < LEDGER_N_OWNERS; i++)
        out->unexplained_bytes -= (int64_t)out->owned_bytes[i];
}

void ledger_command(struct stage *s)
{
    struct ledger l;
    struct line_writer w;
    ledger_read(s, &l);
    line_begin(&w, s->line, sizeof s->line, "LEDGER");
    line_u64(&w, "device", s->load.device);
    line_u64(&w, "total", l.total_bytes);
    line_u64(&w, "free", l.free_bytes);
    line_u64(&w, "foreign", l.foreign_bytes);
    line_i64(&w, "unexplained", l.unexplained_bytes);
    for (int i = 0; i < LEDGER_N_OWNERS; i++)
        line_u64(&w, ledger_owner_name((enum ledger_owner)i), l.owned_bytes[i]);
    line_u64(&w, "host_registered", host_bytes(s, s->registration.done_bytes));
    stage_say(s, &w);
    line_begin(&w, s->line, sizeof s->line, "LEDGER-DONE");
    stage_say(s, &w);
}

void held_say(struct stage *s)
{
    struct ledger l;
    struct line_writer w;
    ledger_read(s, &l);
    line_begin(&w, s->line, sizeof s->line, "HELD");
    line_u64(&w, "device", s->load.device);
    line_u64(&w, "stage", s->load.stage);
    say_layers(s, &w);
    for (int i = 0; i < LEDGER_N_OWNERS; i++)
        line_u64(&w, ledger_owner_name((enum ledger_owner)i), l.owned_bytes[i]);
    line_u64(&w, "free", l.free_bytes);
    line_u64(&w, "total", l.total_bytes);
    line_u64(&w, "host_registered", host_bytes(s, s->registration.bytes));
    line_u64(&w, "slots", slots_now(s));
    line_u64(&w, "slots_full", s->experts.n_slots_full);
    line_u64(&w, "kv_blocks", s->kv.n_blocks);
    line_u64(&w, "kv_blocks_max", kv_blocks_max(&s->kv));
    line_u64(&w, "block_tokens", KV_BLOCK_TOKENS);
    line_u64(&w, "workspace_mib", segments_mib(s, s->experts.n_workspace));
    line_u64(&w, "workspace_rows", budget_rows_held(s));
    line_u64(&w, "prompt_chunk", budget_rows_lendable(s));
    line_u64(&w, "threads", s->load.n_threads);
    stage_say(s, &w);
}
