/* stages/load.c - from an empty process to a serving stage: LOAD makes all memory and answers HELD, GO reads the weights, LOADED.
 *
 * LOAD is all or nothing: whatever fails, everything made so far goes back and the stage is empty again, so that the coordinator may
 * plan anew. GO copies in pieces between which lines are answered; the expert cache fills by the same road as any later refill.
 * Threads: the control thread. Owns: the order in which the parts of a stage open and close.
 */
#include "stages/stage.h"

#include <inttypes.h>
#include <string.h>
#include "stages/heat_file.h"

#define LOAD_PIECE_BYTES    (16 * MIB)
#define CONTEXT_DEFAULT_MAX 8192
/* So cold that any real use outweighs it; it only orders the first fill: expert 0 of every layer, then expert 1, … */
#define FILL_ORDER_HEAT 1e-9

static int optional(int rc)
{
    return rc == EBB_ENOENT ? 0 : rc;
}

static int read_u32(const struct message *m, const char *key, uint32_t min, uint32_t max,
                    uint32_t *value, struct error *err)
{
    uint64_t wide = *value;
    int rc = optional(message_u64(m, key, min, max, &wide, err));
    *value = (uint32_t)wide;
    return rc;
}

static int read_fingerprint(const struct message *m, uint64_t *out, struct error *err)
{
    const char *text = message_key(m, "fingerprint");
    if (text == NULL)
        return 0;
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return error_set(err, EBB_EINVAL, "fingerprint: 16 hex digits wanted, got %.40s", text);
    (void)sscanf(text, "%16" SCNx64, out);
    return 0;
}

static const char *const kv_names[] = {[KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8_0] = "q8_0"};

static int read_kv(const char *name, enum kv_type *kv, struct error *err)
{
    *kv = KV_F16;
    for (size_t i = 0; name != NULL && i < sizeof kv_names / sizeof kv_names[0]; i++)
        if (strcmp(name, kv_names[i]) == 0) {
            *kv = (enum kv_type)i;
            return 0;
        }
    if (name == NULL)
        return 0;
    return error_set(err, EBB_EINVAL, "kv: f16, q8_0 or f32 wanted, got %.40s", name);
}

static int read_names(const struct message *m, struct load_settings *l, struct error *err)
{
    size_t n = 0;
    const char *kernels = message_key(m, "kernels");
    int rc = message_text(m, "model", l->model, sizeof l->model - 1, &n, err);
    if (rc == EBB_ENOENT)
        return error_set(err, EBB_EINVAL, "LOAD: wants model=<file>");
    l->model[n] = '\0';
    if (rc != 0)
        return rc;
    rc = optional(message_text(m, "trace", l->trace, sizeof l->trace - 1, &n, err));
    if (rc != 0)
        return rc;
    if (kernels != NULL && strlen(kernels) >= sizeof l->kernels)
        return error_set(err, EBB_EINVAL, "kernels: no set is called %.40s", kernels);
    (void)snprintf(l->kernels, sizeof l->kernels, "%s", kernels != NULL ? kernels : "auto");
    rc = link_want_read(message_key(m, "link"), &l->link, err);
    if (rc == 0)
        rc = optional(message_text(m, "heat_file", l->heat_file, sizeof l->heat_file - 1, &n, err));
    if (rc == 0)
        rc = read_kv(message_key(m, "kv"), &l->kv, err);
    return rc != 0 ? rc : read_fingerprint(m, &l->fingerprint, err);
}

/* What the card's kernels do not compute is refused before anything is opened. */
static int check_kv(const struct stage *s, struct error *err)
{
    if (s->load.kv == KV_F16 || !s->platform->kv_f16_only)
        return 0;
    return error_set(err, EBB_EUNSUPPORTED, "kv: f16 wanted, a %s card computes no %s",
                     s->platform->kind, kv_names[s->load.kv]);
}

/* miss_threads=auto|<n> miss_share=auto|<percent> */
static int read_misses(const struct message *m, struct load_settings *l, struct error *err)
{
    const char *threads = message_key(m, "miss_threads"), *share = message_key(m, "miss_share");
    uint64_t percent = 0;
    int rc = 0;
    l->miss_threads_given = threads != NULL && strcmp(threads, "auto") != 0;
    l->miss_percent = MISS_SHARE_AUTO;
    if (l->miss_threads_given)
        rc = read_u32(m, "miss_threads", 0, 1024, &l->miss_threads, err);
    if (rc == 0 && share != NULL && strcmp(share, "auto") != 0) {
        rc = message_u64(m, "miss_share", 0, 100, &percent, err);
        l->miss_percent = (int)percent;
    }
    return rc;
}

static int read_yield(const struct message *m, struct load_settings *l, struct error *err)
{
    const char *yield = message_key(m, "yield");
    uint64_t quiet_s = 10;
    l->yields = yield != NULL && strcmp(yield, "auto") == 0;
    if (yield != NULL && !l->yields && strcmp(yield, "off") != 0)
        return error_set(err, EBB_EINVAL, "yield: wanted off or auto, got '%.40s'", yield);
    int rc = optional(message_u64(m, "yield_quiet_s", 0, 86400, &quiet_s, err));
    l->yield_quiet_us = quiet_s * 1000000;
    return rc;
}

static int read_numbers(const struct message *m, struct load_settings *l, struct error *err)
{
    int rc = read_u32(m, "device", 0, 1023, &l->device, err);
    if (rc == 0)
        rc = read_u32(m, "stages", 1, 1024, &l->n_stages, err);
    if (rc == 0)
        rc = read_u32(m, "stage", 0, l->n_stages - 1, &l->stage, err);
    if (rc == 0)
        rc = read_u32(m, "context", 1, UINT32_C(1) << 30, &l->context, err);
    if (rc == 0)
        rc = read_u32(m, "sequences", 1, 4096, &l->n_sequences, err);
    if (rc == 0)
        rc = read_u32(m, "chunk", 1, 1u << 16, &l->chunk, err);
    if (rc == 0)
        rc = read_u32(m, "chunk_min", 1, l->chunk, &l->chunk_min, err);
    if (rc == 0)
        rc = read_u32(m, "threads", 1, 1024, &l->n_threads, err);
    if (rc == 0)
        rc = read_u32(m, "epoch", 0, UINT32_MAX, &l->epoch, err);
    if (rc == 0)
        rc = optional(message_u64(m, "reserve_mib", 0, UINT64_C(1) << 40, &l->reserve_mib, err));
    if (rc == 0)
        rc = read_yield(m, l, err);
    if (rc == 0)
        rc = optional(message_u64(m, "host_mib", 0, UINT64_C(1) << 40, &l->host_mib, err));
    if (rc == 0)
        rc = optional(message_u64(m, "segment_mib", 1, UINT64_C(1) << 20, &l->segment_mib, err));
    if (rc == 0)
        rc = optional(message_u64(m, "kv_tokens", 1, UINT64_C(1) << 40, &l->kv_tokens, err));
    if (rc == 0)
        rc =
            optional(message_u64(m, "kv_tokens_max", 1, UINT64_C(1) << 40, &l->kv_tokens_max, err));
    return rc;
}

/* pin=cores share=0/2 */
static int read_pin(const struct message *m, struct load_settings *l, struct error *err)
{
    const char *pin = message_key(m, "pin"), *share = message_key(m, "share");
    struct error why = {0};
    int used = 0;
    int rc = pin_parse(&l->pin, pin != NULL ? pin : "none", &why);
    if (rc != 0)
        return error_set(err, rc, "pin: %s", why.text);
    if (share != NULL &&
        (sscanf(share, "%4" SCNu32 "/%4" SCNu32 "%n", &l->share, &l->n_shares, &used) != 2 ||
         share[used] != '\0' || l->share >= l->n_shares))
        return error_set(err, EBB_EINVAL, "share: wanted one such as 0/2, got '%.40s'", share);
    return 0;
}

static int read_load(const struct message *m, struct load_settings *l, struct error *err)
{
    *l = (struct load_settings){
        .n_stages = 1, .segment_mib = 512, .n_sequences = 4, .chunk = 64, .n_shares = 1};
    int rc = read_names(m, l, err);
    if (rc == 0)
        rc = read_pin(m, l, err);
    if (rc == 0)
        rc = read_misses(m, l, err);
    return rc != 0 ? rc : read_numbers(m, l, err);
}

/* LOAD trace=<file>: its first line says whose it is. */
static int open_trace(struct stage *s, struct error *err)
{
    struct line_writer w;
    char layers[32];
    if (s->load.trace[0] == '\0')
        return 0;
    (void)snprintf(layers, sizeof layers, "%u-%u", s->load.layer_first, s->load.layer_last);
    line_begin(&w, s->line, sizeof s->line, "STAGE");
    line_u64(&w, "stage", s->load.stage);
    line_u64(&w, "device", s->load.device);
    line_key(&w, "kind", s->platform->kind);
    line_text(&w, "name", s->card_name, strlen(s->card_name));
    line_key(&w, "layers", layers);
    int n = line_end(&w);
    return n < 0 ? error_set(err, n, "trace: a card's name is too long")
                 : trace_open(&s->trace, s->load.trace, s->line, err);
}

/* The file, and what of LOAD depends on it. */
static int open_model(struct stage *s, const struct message *m, struct error *err)
{
    struct load_settings *l = &s->load;
    int rc = model_open(&s->model, l->model, err);
    if (rc != 0)
        return rc;
    const struct model_geometry *g = &s->model->geometry;
    if (l->fingerprint != 0 && l->fingerprint != s->model->fingerprint)
        return error_set(err, EBB_EMISMATCH,
                         "%s: fingerprint %016" PRIx64 " wanted, this file has %016" PRIx64,
                         l->model, l->fingerprint, s->model->fingerprint);
    l->layer_first = 0;
    l->layer_last = g->n_layers - 1;
    rc = optional(message_range(m, "layers", &l->layer_first, &l->layer_last, err));
    if (rc != 0)
        return rc;
    if (l->layer_last >= g->n_layers || (l->layer_first == 0) != (l->stage == 0) ||
        (l->layer_last + 1 == g->n_layers) != (l->stage + 1 == l->n_stages))
        return error_set(err, EBB_EMISMATCH, "layers %u-%u of stage %u of %u: %s has layers 0-%u",
                         l->layer_first, l->layer_last, l->stage, l->n_stages, l->model,
                         g->n_layers - 1);
    if (l->kv == KV_Q8_0 && g->head_dim % KV_QUANTS != 0)
        return error_set(err, EBB_EUNSUPPORTED,
                         "kv: q8_0 wants heads of a multiple of %d values, %s has heads of %u",
                         KV_QUANTS, l->model, g->head_dim);
    s->n_layers = l->layer_last - l->layer_first + 1;
    if (l->context == 0)
        l->context = g->context_max < CONTEXT_DEFAULT_MAX ? g->context_max : CONTEXT_DEFAULT_MAX;
    if (l->kv_tokens == 0)
        l->kv_tokens = l->context;
    if (l->kv_tokens_max < l->kv_tokens)
        l->kv_tokens_max = l->kv_tokens;
    return 0;
}

/* Before any memory is touched: what this thread and those it starts touch first lies near them. */
static int open_pin(struct stage *s, struct error *err)
{
    struct processor all[PIN_PROCESSORS_MAX];
    size_t n = 0;
    int rc = 0;
    s->pinned = (struct pin_choice){0};
    if (s->load.pin.how != PIN_NONE && s->platform->processors == NULL)
        return error_set(err, EBB_EUNSUPPORTED, "pin: none wanted, a %s card's threads stay free",
                         s->platform->kind);
    if (s->load.pin.how != PIN_NONE)
        rc = s->platform->processors(all, PIN_PROCESSORS_MAX, &n, err);
    if (rc == 0)
        rc = pin_choose(&s->pinned, &s->load.pin, all, n, s->load.share, s->load.n_shares, err);
    if (rc == 0)
        rc = pin_bind(&s->bound, &s->pinned, err);
    if (s->load.n_threads == 0)
        s->load.n_threads = (uint32_t)(s->pinned.n > 0 ? s->pinned.n : pin_processors_allowed());
    return rc;
}

static int open_compute(struct stage *s, struct error *err)
{
    const struct exec_driver *exec = s->platform->exec;
    struct exec_settings settings = {.device = s->card_setting.device,
                                     .n_threads = (int)s->load.n_threads,
                                     .cpus = s->pinned.processors,
                                     .n_cpus = s->pinned.one_each ? s->pinned.n : 0};
    size_t rows = s->load.chunk > s->load.n_sequences ? s->load.chunk : s->load.n_sequences;
    s->kernels = s->platform->kernels(s->load.kernels, err);
    if (s->kernels == NULL)
        return err->code;
    int rc = exec->open(&s->card, &settings, err);
    if (rc == 0)
        rc = exec->stream_open(s->card, &s->compute, err);
    if (rc == 0)
        rc = queue_open(&s->queue, rows, rows < s->load.n_sequences ? rows : s->load.n_sequences,
                        err);
    return rc == 0 ? run_open(s, err) : rc;
}

static size_t kv_blocks_for(uint64_t tokens)
{
    return (size_t)((tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

/* The experts' sizes and the pool, without a segment yet, that KV and the workspace grow from: of as many segments as all may hold. */
static int open_experts(struct stage *s, const struct kv_shape *ks, struct error *err)
{
    struct experts_settings es = {.model = s->model,
                                  .layer_first = s->load.layer_first,
                                  .layer_last = s->load.layer_last,
                                  .exec = s->platform->exec,
                                  .card = s->card,
                                  .kernels = s->kernels,
                                  .driver = &s->memory,
                                  .segment_bytes = (size_t)(s->load.segment_mib * MIB),
                                  .addresses = s->forward.in.addresses,
                                  .heat = s->forward.out.heat,
                                  .lendable_kv =
                                      (ks->n_blocks_max - ks->n_blocks) * kv_block_bytes(ks),
                                  .lendable_workspace = forward_lendable_bytes(&s->forward)};
    int rc = experts_open(&s->experts, &es, err);
    return rc == 0 && s->experts.cache != NULL
               ? forward_lend_open(&s->forward, &s->experts.pool, err)
               : rc;
}

/* Rows that have workspace for life: all, where there is no pool of which more could be lent. */
static size_t rows_base(const struct stage *s)
{
    const struct load_settings *l = &s->load;
    size_t least = l->chunk_min > l->n_sequences ? l->chunk_min : l->n_sequences;
    bool may_borrow = l->chunk_min > 0 && s->model->geometry.n_experts > 0;
    for (uint32_t i = l->layer_first; may_borrow && i <= l->layer_last; i++)
        if (s->model->layers[i].router.data != NULL)
            return least;
    return 0;
}

/* What is not elastic: workspace, weights, KV of the start, link tiles. */
static int open_fixed(struct stage *s, struct error *err)
{
    const struct model_geometry *g = &s->model->geometry;
    struct forward_shape fs = {.geometry = g,
                               .n_layers = s->n_layers,
                               .n_rows = s->queue.rows_max,
                               .rows_base = rows_base(s),
                               .n_sequences = s->load.n_sequences,
                               .table_stride =
                                   (s->load.context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
                               .is_last = s->load.stage + 1 == s->load.n_stages,
                               .exec = s->platform->exec,
                               .card = s->card};
    struct kv_shape ks = {.n_layers = s->n_layers,
                          .n_kv_heads = g->n_kv_heads,
                          .head_dim = g->head_dim,
                          .type = s->load.kv,
                          .n_blocks = kv_blocks_for(s->load.kv_tokens),
                          .n_blocks_max = kv_blocks_for(s->load.kv_tokens_max),
                          .n_sequences = s->load.n_sequences,
                          .table_stride = fs.table_stride};
    int rc = weights_open(&s->weights, &s->memory, s->model, s->load.layer_first,
                          s->load.layer_last, err);
    if (rc == 0)
        rc = forward_open(&s->forward, &s->memory, s->kernels, &fs, err);
    if (rc == 0)
        rc = open_experts(s, &ks, err);
    if (rc == 0)
        rc = kv_open(&s->kv, &s->memory, s->experts.cache != NULL ? &s->experts.pool : NULL, &ks,
                     s->forward.in.tables, err);
    if (rc == 0 && s->load.n_stages > 1)
        rc = links_memory_open(s, err);
    return rc;
}

static void fill_order(struct stage *s)
{
    struct experts *x = &s->experts;
    for (uint32_t e = 0; x->cache != NULL && e < x->n_experts; e++)
        for (uint32_t group = 0; group < x->n_groups; group++)
            cache_touch(x->cache, (struct cache_key){group, e},
                        FILL_ORDER_HEAT * (double)(x->n_experts - e));
}

/* What was hot before comes first. A file that cannot be used costs a word, not the start. */
static void heat_load(struct stage *s)
{
    struct error err = {0};
    if (s->load.heat_file[0] == '\0')
        return;
    int rc = heat_file_read(s->load.heat_file, &s->experts, &err);
    if (rc != 0 && rc != EBB_ENOENT)
        stage_log("warning: card %u: no heat was loaded: %s", s->load.device, err.text);
}

void load_heat_save(struct stage *s)
{
    struct error err = {0};
    if (s->load.heat_file[0] == '\0' || s->state != STAGE_SERVING || s->experts.cache == NULL ||
        s->n_steps == 0)
        return;
    if (heat_file_write(s->load.heat_file, &s->experts, &err) != 0)
        stage_log("warning: card %u: heat was not saved: %s", s->load.device, err.text);
}

/* As much cache as the reserve allows, at least the floor. */
static int open_cache(struct stage *s, struct error *err)
{
    struct experts *x = &s->experts;
    struct vmm_memory mem;
    if (x->cache == NULL)
        return 0;
    int rc = s->memory.memory(&s->memory, &mem, err);
    if (rc != 0)
        return rc;
    uint64_t reserve = s->load.reserve_mib * MIB;
    size_t room = pool_segments_to_take(reserve, mem.free_bytes, x->pool.segment_bytes),
           reached = 0;
    if (room < x->n_segments_floor)
        return error_set(err, EBB_ENOMEM,
                         "card %u (%s): %llu MiB free, reserve %llu: layers %u-%u need at least "
                         "%zu segments of %llu MiB for experts",
                         s->load.device, s->card_name, (unsigned long long)(mem.free_bytes / MIB),
                         (unsigned long long)s->load.reserve_mib, s->load.layer_first,
                         s->load.layer_last, x->n_segments_floor,
                         (unsigned long long)s->load.segment_mib);
    struct error driver = {0};
    size_t wanted = room < x->n_segments_full ? room : x->n_segments_full;
    (void)experts_grow(x, wanted, &reached, &driver);
    if (reached < x->n_segments_floor) {
        *err = driver;
        return err->code;
    }
    if (reached < wanted)
        stage_log("card %u: %zu segments for experts, not %zu: %s", s->load.device, reached, wanted,
                  driver.text);
    fill_order(s);
    heat_load(s);
    return 0;
}

/* The host's help with absent experts: of the processors that the cards of this host have between them, two a card are kept for
 * control threads and the engine; a single one left would not be worth the asking. */
static int open_misses(struct stage *s, struct error *err)
{
    const struct load_settings *l = &s->load;
    size_t own = pin_processors_allowed() / l->n_shares, left = own > 3 ? own - 2 : 0;
    struct misses_settings set = {.ops = s->platform->misses,
                                  .f = &s->forward,
                                  .layers = s->model->layers + l->layer_first,
                                  .n_layers = s->n_layers,
                                  .n_threads =
                                      l->miss_threads_given ? l->miss_threads : (uint32_t)left,
                                  .percent = l->miss_percent};
    return misses_open(&s->misses, &set, err);
}

/* What a device needs before the first step: the file's pages, and its short steps recorded. */
static int open_device(struct stage *s, struct error *err)
{
    const struct load_settings *l = &s->load;
    s->graphs = (struct graphs){.f = &s->forward,
                                .weights = &s->weights,
                                .kv = &s->kv,
                                .misses = &s->misses,
                                .layers = s->model->layers + l->layer_first,
                                .embeds = l->stage == 0};
    int rc = registration_open(&s->registration, s->platform->exec, s->card, s->model,
                               l->layer_first, l->layer_last, err);
    if (rc == 0)
        rc = open_misses(s, err);
    if (rc == 0)
        rc = host_budget_check(s, err);
    return rc == 0 ? graphs_open(&s->graphs, s->compute, err) : rc;
}

/* What the card has beside everything else is workspace from the start: a prompt of many rows borrows nothing then. After the graphs,
 * which are of the addresses that are there for life. */
static void open_workspace(struct stage *s)
{
    struct error err = {0};
    struct experts *x = &s->experts;
    struct vram_split wanted = vram_wanted(s, s->load.reserve_mib, &err);
    wanted.cache = experts_n_held(x); /* its part is had already */
    if (x->cache != NULL && err.code == 0 && wanted.workspace > x->n_workspace)
        vram_grow(s, &wanted, &err);
    if (err.code != 0)
        stage_log("card %u: %s", s->load.device, err.text);
}

void load_release(struct stage *s)
{
    const struct exec_driver *exec = s->platform->exec;
    if (s->compute != NULL)
        exec->stream_close(s->compute); /* drains: from here on nothing of ours runs */
    s->compute = NULL;
    kv_close(&s->kv);
    forward_lend_close(&s->forward);
    experts_close(&s->experts);
    graphs_close(&s->graphs);
    misses_close(&s->misses);
    registration_close(&s->registration);
    links_close(s);
    links_memory_close(s);
    if (s->card != NULL)
        run_close(s);
    queue_close(&s->queue);
    forward_close(&s->forward);
    weights_close(&s->weights);
    if (s->card != NULL)
        exec->close(s->card);
    s->card = NULL;
    pin_unbind(&s->bound);
    model_close(s->model);
    s->model = NULL;
    trace_close(&s->trace);
    s->vram_moving = false;
    s->moving = MOVING_NOTHING;
    s->chunk_asked = false;
    s->n_vram = 0;
    turn_give(s);
    s->state = STAGE_EMPTY;
    struct vmm_memory mem = {0};
    if (s->memory.memory != NULL && s->memory.memory(&s->memory, &mem, NULL) == 0 &&
        mem.own_bytes > 0)
        stage_log("card %u: the driver keeps %llu bytes that were given back", s->load.device,
                  (unsigned long long)mem.own_bytes);
}

void load_command(struct stage *s, const struct message *m)
{
    struct error err = {0};
    int rc = read_load(m, &s->load, &err);
    if (rc == 0)
        rc = check_kv(s, &err);
    if (rc == 0)
        rc = open_model(s, m, &err);
    if (rc == 0)
        rc = open_pin(s, &err);
    if (rc == 0)
        rc = open_compute(s, &err);
    if (rc == 0)
        rc = open_fixed(s, &err);
    if (rc == 0)
        rc = open_cache(s, &err);
    if (rc == 0)
        rc = open_device(s, &err);
    if (rc == 0)
        rc = open_trace(s, &err);
    if (rc == 0)
        open_workspace(s);
    if (rc != 0) {
        load_release(s);
        stage_refuse(s, "-", &err);
        return;
    }
    s->epoch = s->load.epoch;
    s->reserve_mib = s->load.reserve_mib;
    s->yield = (struct yield){.is_on = s->load.yields, .quiet_us = s->load.yield_quiet_us};
    s->state = STAGE_HELD;
    held_say(s);
}

void load_go(struct stage *s)
{
    s->state = STAGE_LOADING;
    s->load_started_us = now_us();
    s->load_done_bytes = s->load_told_bytes = 0;
    s->load_total_bytes = s->weights.copy_bytes;
    for (size_t group = 0; group < s->experts.n_groups; group++) {
        const struct expert_layout *at = &s->experts.layouts[group];
        s->load_total_bytes +=
            (at->gate_bytes + at->up_bytes + at->down_bytes) * s->experts.n_experts;
    }
    size_t slots = s->experts.cache != NULL ? cache_n_slots(s->experts.cache) : 0;
    if (slots < s->experts.n_slots_full) /* an estimate: layers differ a little */
        s->load_total_bytes = s->weights.copy_bytes + slots * s->experts.slot_bytes;
}

static void say_progress(struct stage *s, uint64_t done)
{
    if (done > s->load_total_bytes)
        done = s->load_total_bytes;
    if (done - s->load_told_bytes < s->load_total_bytes / 20)
        return;
    s->load_told_bytes = done;
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "PROGRESS");
    line_u64(&w, "done", done);
    line_u64(&w, "total", s->load_total_bytes);
    stage_say(s, &w);
}

/* The next dense copies. False: all are made. */
static bool dense_piece(struct stage *s, int *rc)
{
    uint64_t put = 0;
    const struct weight_copy *c;
    while (*rc == 0 && put < LOAD_PIECE_BYTES && (c = weights_next(&s->weights)) != NULL) {
        *rc = s->platform->exec->copy(s->compute, c->to, c->from, c->bytes);
        put += c->bytes;
    }
    s->load_done_bytes += put;
    return put > 0;
}

void load_advance(struct stage *s)
{
    if (s->state != STAGE_LOADING || !run_at_boundary(s))
        return;
    say_progress(s, s->load_done_bytes + s->experts.upload_bytes);
    struct error err = {0};
    int rc = registration_next(&s->registration, &err);
    if (rc == 0)
        return; /* lines first, then the next piece */
    rc = rc == 1 ? 0 : rc;
    if (rc == 0 && dense_piece(s, &rc)) {
        run_flush(s, "weights");
    } else if (rc == 0 && !experts_is_filling(&s->experts) && s->experts.n_uploading == 0 &&
               (rc = misses_probe(&s->misses, s->compute, &err)) == 0) {
        struct line_writer w;
        s->state = STAGE_SERVING;
        struct vmm_memory mem = {0};
        (void)s->memory.memory(&s->memory, &mem, NULL);
        yield_restart(s, mem.foreign_bytes);
        line_begin(&w, s->line, sizeof s->line, "LOADED");
        line_u64(&w, "us", now_us() - s->load_started_us);
        stage_say(s, &w);
    }
    if (rc != 0) {
        if (err.code == 0)
            error_set(&err, rc, "stage %u: copying weights failed", s->load.stage);
        stage_fail(s, &err);
    }
}
