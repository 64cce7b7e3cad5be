/* tools/bench/card_model.c - a model on given cards by a whole engine: decode by depth of context and by rows, prefill, and decode
 * with half of the experts resident; each beside what its bytes allow.
 *
 * What bounds a step are the bytes that it must read: all dense weights once, the experts that its rows are routed to, the KV of its
 * sequences. Of n_experts experts evenly chosen, n rows of n_used meet n_experts * (1 - (1 - n_used / n_experts)^n). The bound is
 * those bytes at the speed of copying within the card's memory; of what is not resident, at the speed of copying to it, both side
 * by side. Stages of one sequence work one after another, so the bound does not grow with their number.
 */
#include <math.h>
#include <string.h>

#include "runtime/model/model.h"
#include "tools/bench/card.h"
#include "tools/bench/engine.h"

#define RUNS_MAX 5
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* What a step reads of a model, by kind. */
struct work {
    double dense, expert_layers, expert, n_experts, n_used; /* bytes, bytes of one, counts */
    double kv;                                              /* bytes of one position */
    uint64_t context_max;
};

static const uint64_t depths[] = {16, 512, 4096, 16384};
static const size_t side_by_side[] = {2, 4, 8, 16, 32, 64};
enum { PROMPT_OF_MANY = 16, DEPTH_QUICK = 512, SIDES_QUICK = 8 };

static void layer_add(struct work *w, const struct model_layer *l)
{
    const struct tensor_view *dense[] = {
        &l->q,    &l->k,  &l->v,    &l->o,      &l->attn_norm,   &l->ffn_norm,  &l->q_norm,
        &l->gate, &l->up, &l->down, &l->router, &l->gate_shared, &l->up_shared, &l->down_shared};
    size_t gate, up, down;
    for (size_t i = 0; i < COUNT(dense); i++)
        w->dense += dense[i]->data != NULL ? (double)dense[i]->bytes : 0;
    if (l->router.data == NULL)
        return;
    (void)model_expert(&l->gate_exps, 0, &gate);
    (void)model_expert(&l->up_exps, 0, &up);
    (void)model_expert(&l->down_exps, 0, &down);
    w->expert = (w->expert * w->expert_layers + (double)(gate + up + down)) /
                (w->expert_layers + 1); /* the mean: types differ from layer to layer */
    w->expert_layers++;
}

static int work_read(struct work *w, const char *path, struct error *err)
{
    struct model *m;
    int code = model_open(&m, path, err);
    if (code != 0)
        return code;
    const struct model_geometry *g = &m->geometry;
    *w = (struct work){.dense = (double)m->output.bytes,
                       .n_experts = g->n_experts,
                       .n_used = g->n_experts_used,
                       .kv = 2.0 * 2 * g->n_layers * g->n_kv_heads * g->head_dim,
                       .context_max = g->context_max};
    for (uint32_t i = 0; i < g->n_layers; i++)
        layer_add(w, &m->layers[i]);
    model_close(m);
    return 0;
}

/* Tokens a second that the bytes allow to n sequences of that many positions, `hit` of whose experts are resident. */
static double bound(const struct work *w, const struct card_speeds *speeds, double n, double depth,
                    double hit)
{
    double missed_by_all = w->n_experts > 0 ? pow(1 - w->n_used / w->n_experts, n) : 1;
    double experts = w->n_experts * (1 - missed_by_all) * w->expert_layers * w->expert;
    double here = (w->dense + experts * hit + w->kv * depth * n) / speeds->copy;
    double there = experts * (1 - hit) / speeds->upload;
    return n / (here > there ? here : there);
}

struct bed {
    const struct bench_settings *settings;
    struct report *report;
    struct work work;
    struct card_speeds speeds;
    struct engine engine;
    const char *stages; /* "1 stage" */
    uint64_t depth_max;
    int n_runs;
};

static void share_row(struct bed *b, const char *shape, uint64_t hits, uint64_t lookups)
{
    struct row row = {.what = "experts resident", .unit = "%", .n_runs = 1};
    row.value = lookups > 0 ? 100.0 * (double)hits / (double)lookups : 0;
    (void)snprintf(row.shape, sizeof row.shape, "%s", shape);
    if (lookups > 0)
        report_row(b->report, &row);
}

/* Prefill of `depth` ids and decode behind them, by one sequence. */
static int depth_measure(struct bed *b, uint64_t depth, struct error *err)
{
    double prefill[RUNS_MAX], decode[RUNS_MAX];
    struct generation g = {.n_prompt = depth, .n_new = b->settings->quick ? 32 : 128, .seed = 3};
    int n_runs = depth > 4096 ? 2 : b->n_runs, code = 0;
    for (int run = -1; run < n_runs && code == 0; run++) { /* the first warms up */
        code = engine_generate(&b->engine, &g, err);
        if (code == 0 && g.n_decoded == 0)
            code = error_set(err, EBB_EPEER, "a generation gave no token after its first");
        prefill[run < 0 ? 0 : run] = (double)depth / g.prefill_s;
        decode[run < 0 ? 0 : run] = (double)g.n_decoded / g.decode_s;
    }
    if (code != 0)
        return code;
    struct row rows[] = {
        {.what = "prefill", .value = bench_median(prefill, n_runs)},
        {.what = "decode",
         .value = bench_median(decode, n_runs),
         .against = bound(&b->work, &b->speeds, 1, (double)depth + (double)g.n_new / 2, 1)},
    };
    for (size_t i = depth >= 512 ? 0 : 1; i < COUNT(rows); i++) {
        rows[i].unit = "tok/s";
        rows[i].n_runs = n_runs;
        (void)snprintf(rows[i].shape, sizeof rows[i].shape, "%s; %s%llu", b->stages,
                       i == 0 ? "" : "behind ", (unsigned long long)depth);
        report_row(b->report, &rows[i]);
    }
    if (depth == depths[0])
        share_row(b, b->stages, g.hits, g.lookups);
    return 0;
}

static int sides_measure(struct bed *b, size_t n, struct error *err)
{
    double rates[RUNS_MAX];
    struct generation g = {.n_prompt = PROMPT_OF_MANY, .n_new = 256, .seed = 5};
    struct row row = {.what = "decode", .unit = "tok/s", .n_runs = b->n_runs};
    int code = 0;
    for (int run = -1; run < b->n_runs && code == 0; run++)
        code = engine_generate_side_by_side(&b->engine, &g, n, &rates[run < 0 ? 0 : run], err);
    if (code != 0)
        return code;
    row.value = bench_median(rates, b->n_runs);
    row.against = bound(&b->work, &b->speeds, (double)n, PROMPT_OF_MANY + 128, 1);
    (void)snprintf(row.shape, sizeof row.shape, "%s; %zu side by side", b->stages, n);
    report_row(b->report, &row);
    return 0;
}

/* Half of the first card's experts leave, and the same decode again. Tokens of the first run teach the cache. */
static int half_measure(struct bed *b, struct error *err)
{
    struct generation g = {.n_prompt = 16, .n_new = b->settings->quick ? 32 : 128, .seed = 7};
    int64_t values[5];
    static const char *const keys[] = {"free_mib", "cache_mib", "cache_full_mib", "cache_floor_mib",
                                       "workspace_mib"};
    double rates[RUNS_MAX];
    char line[64];
    int code = engine_ask(&b->engine, "STAT 0", "STAT", err);
    for (size_t i = 0; i < COUNT(keys) && code == 0; i++)
        code = message_i64(&b->engine.message, keys[i], 0, INT64_MAX, &values[i], err);
    if (code != 0)
        return code;
    int64_t half = values[3] + (values[2] - values[3]) / 2;
    (void)snprintf(line, sizeof line, "VRAM %lld 0",
                   (long long)(values[0] + values[1] + values[4] - half));
    code = engine_ask(&b->engine, line, "VRAM", err);
    for (int run = -1; run < b->n_runs && code == 0; run++) {
        code = engine_generate(&b->engine, &g, err);
        rates[run < 0 ? 0 : run] = (double)g.n_decoded / g.decode_s;
    }
    if (code == 0)
        code = engine_ask(&b->engine, "VRAM - 0", "VRAM", err);
    if (code != 0)
        return code;
    struct row row = {.what = "decode, half resident", .unit = "tok/s", .n_runs = b->n_runs};
    row.value = bench_median(rates, b->n_runs);
    if (g.lookups > 0)
        row.against = bound(&b->work, &b->speeds, 1, 16 + 64, (double)g.hits / (double)g.lookups);
    (void)snprintf(row.shape, sizeof row.shape, "%s; behind 16", b->stages);
    report_row(b->report, &row);
    share_row(b, "half resident", g.hits, g.lookups);
    return 0;
}

static int engine_measure(struct bed *b, struct error *err)
{
    int code = 0;
    for (size_t i = 0; i < COUNT(depths) && code == 0; i++)
        if (depths[i] <= b->depth_max)
            code = depth_measure(b, depths[i], err);
    for (size_t i = 0; i < COUNT(side_by_side) && code == 0; i++)
        if (!b->settings->quick || side_by_side[i] <= SIDES_QUICK)
            code = sides_measure(b, side_by_side[i], err);
    return code == 0 && b->work.n_experts > 0 ? half_measure(b, err) : code;
}

static int cards_measure(struct bed *b, const char *cards, struct error *err)
{
    const size_t n_sides = b->settings->quick ? SIDES_QUICK : 64;
    char context[24], parallel[24], kv_tokens[24];
    uint64_t n_context = b->depth_max + 256, n_kv = n_sides * (PROMPT_OF_MANY + 256 + 32);
    struct engine_flags flags = {.model = b->settings->model,
                                 .cards = cards,
                                 .context = context,
                                 .parallel = parallel,
                                 .kv_tokens = kv_tokens,
                                 .chunk = "512"};
    (void)snprintf(context, sizeof context, "%llu", (unsigned long long)n_context);
    (void)snprintf(parallel, sizeof parallel, "%zu", n_sides);
    (void)snprintf(kv_tokens, sizeof kv_tokens, "%llu",
                   (unsigned long long)(n_kv > n_context ? n_kv : n_context));
    int code = engine_open(&b->engine, b->settings, &flags, err);
    if (code == 0)
        code = engine_measure(b, err);
    engine_close(&b->engine);
    return code;
}

static void speeds_report(struct report *r, const struct card_speeds *speeds)
{
    struct row rows[] = {{"copy", .shape = "on it, read + written", .value = speeds->copy * 1e-9},
                         {"copy", .shape = "to the card", .value = speeds->upload * 1e-9}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        rows[i].unit = "GB/s";
        rows[i].n_runs = CARD_SPEED_RUNS;
        report_row(r, &rows[i]);
    }
}

int bench_card_model(const struct bench_settings *s, struct report *r, struct error *err)
{
    struct bed b = {.settings = s, .report = r, .n_runs = s->quick ? 3 : RUNS_MAX};
    const char *comma = strchr(s->cards, ','), *name = strrchr(s->model, '/');
    char title[256], first[64], stages[32];
    size_t n_stages = 1;
    for (const char *c = comma; c != NULL; c = strchr(c + 1, ','))
        n_stages++;
    (void)snprintf(first, sizeof first, "%.*s",
                   (int)(comma != NULL ? (size_t)(comma - s->cards) : strlen(s->cards)), s->cards);
    int code = work_read(&b.work, s->model, err);
    if (code == 0)
        code = card_speeds_measure(s, &b.speeds, err);
    if (code != 0)
        return code;
    b.depth_max = s->quick ? DEPTH_QUICK : depths[COUNT(depths) - 1];
    if (b.depth_max + 256 > b.work.context_max)
        b.depth_max = b.work.context_max > 256 ? b.work.context_max - 256 : 0;
    (void)snprintf(title, sizeof title,
                   "A model by the engine, beside what its bytes allow at these speeds: %.150s",
                   name != NULL ? name + 1 : s->model);
    report_part(r, "model", title, "bound", false);
    speeds_report(r, &b.speeds);
    b.stages = "1 stage";
    code = cards_measure(&b, first, err);
    if (code == 0 && n_stages > 1) {
        (void)snprintf(stages, sizeof stages, "%zu stages", n_stages);
        b.stages = stages;
        code = cards_measure(&b, s->cards, err);
    }
    return code;
}
