/* tools/bench/vram.c - giving memory back and taking it: by an engine's VRAM command, and by the card's driver alone.
 *
 * First what it could cost at least: the driver's calls for a segment, through the pool that the stage uses too. Then the engine's
 * cycle, from the full expert cache to its floor and back; its receipts say how much moved and how long it took, moving
 * experts out of leaving segments included. On a card with memory of its own, last, how fast the grown cache fills again, beside
 * the speed of copying to the card.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/model/gguf.h"
#include "runtime/model/model.h"
#include "tools/bench/card.h"
#include "tools/bench/engine.h"
#include "vmm/pool.h"

#define RUNS_MAX 15
#define MIB      ((uint64_t)1 << 20)
#define REFILL_S 20.0

#define SLOT_PADDING 4096 /* more than aligning an expert's matrices adds */

/* One segment through its whole life, in microseconds: held, lent, taken back, given up. */
struct segment_times {
    double hold[RUNS_MAX], lend[RUNS_MAX], take_back[RUNS_MAX], give_up[RUNS_MAX];
};

static int segment_run(struct pool *p, void *base, bool touch, struct segment_times *t, int run,
                       struct error *err)
{
    size_t reached, segment;
    double times[5];
    times[0] = bench_now();
    int code = pool_hold(p, 1, &reached, err);
    times[1] = bench_now();
    if (code == 0)
        code = pool_lend(p, base, &segment, err);
    times[2] = bench_now();
    if (code != 0)
        return code;
    if (touch)
        memset(base, 1, p->segment_bytes); /* its pages are there, as a cache's are */
    times[3] = bench_now();
    code = pool_take_back(p, segment, err);
    times[4] = bench_now();
    if (code == 0)
        code = pool_hold(p, 0, &reached, err);
    t->hold[run] = (times[1] - times[0]) * 1e6;
    t->lend[run] = (times[2] - times[1]) * 1e6;
    t->take_back[run] = (times[4] - times[3]) * 1e6;
    t->give_up[run] = (bench_now() - times[4]) * 1e6;
    return code;
}

/* Microseconds for a segment: to have it (made and mapped), and to be rid of it. */
struct segment_cost {
    double take, give;
};

static int segments_time(const struct bench_settings *s, size_t segment_bytes, bool touch,
                         struct vmm_driver *driver, struct segment_times *t, struct error *err)
{
    struct pool pool;
    void *base;
    int n_runs = s->quick ? 5 : RUNS_MAX;
    int code = driver->reserve(driver, segment_bytes, &base, err);
    if (code != 0)
        return code;
    code = pool_open(&pool, driver, segment_bytes, 1, err);
    if (code == 0) {
        for (int run = -1; run < n_runs && code == 0; run++)
            code = segment_run(&pool, base, touch, t, run < 0 ? 0 : run, err);
        pool_close(&pool);
    }
    (void)driver->unreserve(driver, base, segment_bytes, NULL);
    return code;
}

static int segments_measure(const struct bench_settings *s, size_t segment_bytes,
                            struct segment_times *t, struct error *err)
{
    const struct card_tables *tables;
    struct vmm_driver driver;
    int device;
    int code = card_find(s->cards, &tables, &device, err);
    if (code == 0)
        code = tables->memory_open(&driver, device, tables->is_cuda ? 0 : 2 * segment_bytes, err);
    if (code != 0)
        return code;
    code = segments_time(s, segment_bytes, !tables->is_cuda, &driver, t, err);
    driver.close(&driver);
    return code;
}

/* Sorts the times. */
static struct segment_cost segments_report(const struct bench_settings *s, struct report *r,
                                           size_t segment_bytes, struct segment_times *t)
{
    int n_runs = s->quick ? 5 : RUNS_MAX;
    struct row rows[] = {
        {.what = "created", .value = bench_median(t->hold, n_runs)},
        {.what = "mapped", .value = bench_median(t->lend, n_runs)},
        {.what = "unmapped", .value = bench_median(t->take_back, n_runs)},
        {.what = "destroyed", .value = bench_median(t->give_up, n_runs)},
    };
    for (size_t i = 0; r != NULL && i < sizeof rows / sizeof rows[0]; i++) {
        rows[i].n_runs = n_runs;
        rows[i].unit = "us/seg";
        (void)snprintf(rows[i].shape, sizeof rows[i].shape, "driver; %llu MiB",
                       (unsigned long long)(segment_bytes / MIB));
        report_row(r, &rows[i]);
    }
    return (struct segment_cost){rows[0].value + rows[1].value, rows[2].value + rows[3].value};
}

struct cycle {
    double shrink_us[RUNS_MAX], grow_us[RUNS_MAX]; /* a segment */
    double shrink_ms[RUNS_MAX], grow_ms[RUNS_MAX]; /* until the answer was here, the whole */
    uint64_t segment_mib, n_segments;
};

static int key_take(struct engine *e, const char *key, int64_t *to, struct error *err)
{
    return message_i64(&e->message, key, INT64_MIN, INT64_MAX, to, err);
}

/* One VRAM command for card 0: MiB freed, microseconds by the receipt, milliseconds by our clock. */
static int vram_ask(struct engine *e, const char *line, int64_t *freed_mib, int64_t *us, double *ms,
                    struct error *err)
{
    double begin = bench_now();
    int code = engine_ask(e, line, "VRAM", err);
    if (code == 0)
        code = key_take(e, "freed_mib", freed_mib, err);
    if (code == 0)
        code = key_take(e, "us", us, err);
    if (code == 0 && strcmp(e->message.verb, "VRAM") == 0)
        code = engine_ask(e, "PING here", "PONG", err);
    *ms = (bench_now() - begin) * 1e3;
    return code;
}

static int cycle_run(struct engine *e, struct cycle *c, int run, struct error *err)
{
    int64_t free_mib, cache, workspace, cache_floor, segment, freed, taken, shrink_us, grow_us;
    char line[64];
    int code = engine_ask(e, "STAT 0", "STAT", err);
    const struct {
        const char *key;
        int64_t *to;
    } keys[] = {{"free_mib", &free_mib},
                {"cache_mib", &cache},
                {"workspace_mib", &workspace},
                {"cache_floor_mib", &cache_floor},
                {"segment_mib", &segment}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && code == 0; i++)
        code = key_take(e, keys[i].key, keys[i].to, err);
    if (code != 0)
        return code;
    (void)snprintf(line, sizeof line, "VRAM %lld 0",
                   (long long)(free_mib + cache + workspace - cache_floor));
    code = vram_ask(e, line, &freed, &shrink_us, &c->shrink_ms[run], err);
    if (code == 0)
        code = vram_ask(e, "VRAM - 0", &taken, &grow_us, &c->grow_ms[run], err);
    if (code != 0)
        return code;
    if (segment <= 0 || freed < segment || -taken < segment)
        return error_set(err, EBB_EPEER,
                         "the card gave %lld MiB and took %lld: less than a segment (%lld MiB)",
                         (long long)freed, (long long)-taken, (long long)segment);
    c->segment_mib = (uint64_t)segment;
    c->n_segments = (uint64_t)(freed / segment);
    c->shrink_us[run] = (double)shrink_us / (double)(freed / segment);
    c->grow_us[run] = (double)grow_us / (double)(-taken / segment);
    return 0;
}

/* Segments such that there are some 32 of them, and an expert fits into one; 0: the model has no experts. */
static int segment_choose(const char *path, uint64_t *segment_mib, struct error *err)
{
    struct model *m;
    size_t slot_bytes = 0, gate, up, down;
    int code = model_open(&m, path, err);
    if (code != 0)
        return code;
    for (uint32_t i = 0; i < m->geometry.n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        if (l->router.data == NULL)
            continue;
        (void)model_expert(&l->gate_exps, 0, &gate);
        (void)model_expert(&l->up_exps, 0, &up);
        (void)model_expert(&l->down_exps, 0, &down);
        if (gate + up + down > slot_bytes)
            slot_bytes = gate + up + down;
    }
    *segment_mib = slot_bytes > 0;
    while (slot_bytes > 0 && *segment_mib < 512 &&
           (*segment_mib * MIB < slot_bytes + SLOT_PADDING ||
            *segment_mib * 64 * MIB <= gguf_file_bytes(m->gguf)))
        *segment_mib *= 2;
    model_close(m);
    return 0;
}

static void cycle_report(const struct bench_settings *s, struct report *r, struct cycle *c,
                         const struct segment_cost *cost)
{
    int n_runs = s->quick ? 5 : RUNS_MAX;
    double n = (double)c->n_segments * 1e-3; /* segments, for milliseconds */
    struct row rows[] = {
        {"shrink", .value = bench_median(c->shrink_us, n_runs), .against = cost->give},
        {"grow", .value = bench_median(c->grow_us, n_runs), .against = cost->take},
        {"shrink until answered", .value = bench_median(c->shrink_ms, n_runs),
         .against = n * cost->give},
        {"grow until answered", .value = bench_median(c->grow_ms, n_runs),
         .against = n * cost->take},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rows[i].unit = i < 2 ? "us/seg" : "ms";
        rows[i].n_runs = n_runs;
        (void)snprintf(rows[i].shape, sizeof rows[i].shape, "%llu x %llu MiB",
                       (unsigned long long)c->n_segments, (unsigned long long)c->segment_mib);
        report_row(r, &rows[i]);
    }
}

/* Experts in slots, and bytes of all slots. */
static int slots_read(struct engine *e, int64_t *n_resident, int64_t *n_slots, double *bytes,
                      struct error *err)
{
    int64_t cache_mib;
    int code = engine_ask(e, "STAT 0", "STAT", err);
    if (code == 0)
        code = key_take(e, "resident", n_resident, err);
    if (code == 0)
        code = key_take(e, "slots_full", n_slots, err);
    if (code == 0)
        code = key_take(e, "cache_full_mib", &cache_mib, err);
    if (code == 0)
        *bytes = (double)cache_mib * (double)MIB;
    return code;
}

/* From a cache that has just grown from its floor until every slot is filled; tokens flow meanwhile, as fills follow them. */
static int refill_measure(double upload, struct report *r, struct engine *e, struct error *err)
{
    struct cycle c;
    struct generation g = {.n_prompt = 8, .n_new = 8, .seed = 11};
    struct row row = {.what = "refill", .unit = "GB/s", .n_runs = 1};
    int64_t first, now, n_slots;
    double bytes, begin;
    int code = cycle_run(e, &c, 0, err);
    begin = bench_now();
    if (code == 0)
        code = slots_read(e, &first, &n_slots, &bytes, err);
    for (now = first; code == 0 && now < n_slots && bench_now() - begin < REFILL_S;) {
        code = engine_generate(e, &g, err);
        if (code == 0)
            code = slots_read(e, &now, &n_slots, &bytes, err);
    }
    if (code != 0)
        return code;
    if (now == first) {
        report_note(r, "(the cache was full again before it could be asked)");
        return 0;
    }
    row.value = (double)(now - first) / (double)n_slots * bytes * 1e-9 / (bench_now() - begin);
    row.against = upload * 1e-9;
    (void)snprintf(row.shape, sizeof row.shape, "%lld of %lld experts", (long long)(now - first),
                   (long long)n_slots);
    report_row(r, &row);
    return 0;
}

static int cycle_measure(const struct bench_settings *s, struct report *r, uint64_t n_mib,
                         const struct segment_cost *cost, struct error *err)
{
    char segment_mib[32];
    struct engine_flags flags = {.model = s->model, .cards = s->cards, .segment_mib = segment_mib};
    struct engine e;
    struct cycle c = {.segment_mib = 0};
    struct card_speeds speeds = {0};
    int n_runs = s->quick ? 5 : RUNS_MAX;
    (void)snprintf(segment_mib, sizeof segment_mib, "%llu", (unsigned long long)n_mib);
    int code = s->by_card ? card_speeds_measure(s, &speeds, err) : 0; /* no engine uploads yet */
    if (code != 0)
        return code;
    code = engine_open(&e, s, &flags, err);
    for (int run = -1; run < n_runs && code == 0; run++)
        code = cycle_run(&e, &c, run < 0 ? 0 : run, err);
    if (code == 0)
        cycle_report(s, r, &c, cost);
    if (code == 0 && s->by_card)
        code = refill_measure(speeds.upload, r, &e, err);
    engine_close(&e);
    return code;
}

int bench_vram(const struct bench_settings *s, struct report *r, struct error *err)
{
    uint64_t n_mib = 0;
    struct segment_times times;
    report_part(r, "vram",
                "Memory given back and taken, by the engine and by the card's driver alone",
                "driver", false);
    int code = segment_choose(s->model, &n_mib, err);
    size_t segment_bytes = (n_mib > 0 ? n_mib : s->quick ? 8 : 64) * MIB;
    if (code == 0)
        code = segments_measure(s, segment_bytes, &times, err);
    if (code != 0)
        return code;
    struct segment_cost cost = segments_report(s, NULL, segment_bytes, &times);
    if (n_mib == 0)
        report_note(r, "the model has no experts: there is no cache to give back");
    else
        code = cycle_measure(s, r, n_mib, &cost, err);
    if (code == 0)
        (void)segments_report(s, r, segment_bytes, &times);
    return code;
}
