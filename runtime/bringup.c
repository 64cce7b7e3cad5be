/* runtime/bringup.c - stages from launch to LOADED.
 *
 * A machine without a memory of its own: bringup_advance() looks at every peer's state and does the
 * next thing that all of them allow. During PHASE_BRINGUP a failure ends the engine; during
 * PHASE_RECOVERING it breaks the peer, and recovery.c tries again. Reserves: LOAD carries the base
 * in force, so a restarted stage comes back as small as it was told to be.
 */
#include "runtime/bringup.h"
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "runtime/cards.h"
#include "runtime/lending.h"
#include "runtime/plan_model.h"
#include "runtime/recovery.h"
#include "runtime/trace.h"
#include "runtime/vacancy.h"

static uint32_t count_state(const struct engine *e, enum peer_state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_peers; i++)
        n += e->peers[i].state == state;
    return n;
}

void bringup_hello(struct engine *e, struct peer *p, const struct message *m)
{
    struct error err = {0};
    uint64_t protocol = 0;
    const char *who = message_bare(m, 0), *version = message_key(m, "version"),
               *kind = message_key(m, "kind");
    const char *wanted = p->card->kind == CARD_CUDA ? "cuda" : "cpu";
    (void)e;
    if (p->state != PEER_STARTED || who == NULL || strcmp(who, "ebbtide-stage") != 0)
        peer_break(p, EBB_EPEER, "HELLO ebbtide-stage was wanted once, got HELLO %s in state %s",
                   who != NULL ? who : "", peer_state_name(p->state));
    else if (message_u64(m, "protocol", 1, 1, &protocol, &err) != 0)
        peer_break(p, EBB_EMISMATCH, "protocol 1 was wanted: %s", err.text);
    else if (version == NULL || strcmp(version, EBBTIDE_VERSION) != 0)
        peer_break(p, EBB_EMISMATCH, "its stage is version %s, this program %s",
                   version != NULL ? version : "(none)", EBBTIDE_VERSION);
    else if (kind == NULL || strcmp(kind, wanted) != 0)
        peer_break(p, EBB_EMISMATCH, "a %s stage was wanted, got kind %s", wanted,
                   kind != NULL ? kind : "(none)");
    else if (message_u64(m, "total_mib", 1, UINT32_MAX, &p->total_mib, &err) != 0 ||
             message_u64(m, "free_mib", 0, UINT32_MAX, &p->free_mib, &err) != 0)
        peer_break(p, EBB_EPEER, "%s", err.text);
    if (p->broken)
        return;
    message_text_take(m, "name", p->name, sizeof p->name);
    message_text_take(m, "uuid", p->uuid, sizeof p->uuid);
    p->state = PEER_GREETED;
}

static int held_read(const struct message *m, struct held *h, struct error *err)
{
    const struct {
        const char *key;
        uint64_t *value;
    } keys[] = {
        {"weights", &h->weights},
        {"kv", &h->kv},
        {"cache", &h->cache},
        {"workspace", &h->workspace},
        {"stream", &h->stream},
        {"link", &h->link},
        {"blas", &h->blas},
        {"context", &h->context},
        {"free", &h->free},
        {"total", &h->total},
        {"slots", &h->slots},
        {"slots_full", &h->slots_full},
        {"threads", &h->threads},
        {"host_registered", &h->host_registered},
        {"workspace_mib", &h->workspace_mib},
    };
    *h = (struct held){0};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int code = message_u64(m, keys[i].key, 0, UINT64_MAX, keys[i].value, err);
        if (code != 0 && code != EBB_ENOENT)
            return code;
    }
    int code = message_u64(m, "kv_blocks", 1, UINT32_MAX / 2, &h->kv_blocks, err);
    h->kv_blocks_max = h->kv_blocks;
    if (code == 0)
        code =
            message_u64(m, "kv_blocks_max", h->kv_blocks, UINT32_MAX / 2, &h->kv_blocks_max, err);
    if (code == EBB_ENOENT)
        code = h->kv_blocks != 0 ? 0 : EBB_ENOENT;
    return code != 0 ? code : message_u64(m, "block_tokens", 1, 65536, &h->block_tokens, err);
}

/* A stage that does not say has workspace for whole chunks. */
static void chunk_read(struct peer *p, const struct message *m, uint32_t chunk)
{
    uint64_t held = chunk, lendable = chunk;
    (void)message_u64(m, "workspace_rows", 1, chunk, &held, NULL);
    (void)message_u64(m, "prompt_chunk", 1, chunk, &lendable, NULL);
    p->chunk = (struct chunk_grant){.held = (uint32_t)held, .lendable = (uint32_t)lendable};
}

void bringup_held(struct engine *e, struct peer *p, const struct message *m)
{
    const struct plan_stage *plan = &e->plan.stages[p->index];
    struct error err = {0};
    uint32_t first, last;
    if (p->state != PEER_LOADING) {
        peer_break(p, EBB_EPEER, "HELD in state %s", peer_state_name(p->state));
    } else if (held_read(m, &p->held, &err) != 0 ||
               message_range(m, "layers", &first, &last, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
    } else if (first != plan->layer_first || last != plan->layer_last) {
        peer_break(p, EBB_EMISMATCH, "layers %u-%u were wanted, it holds %u-%u", plan->layer_first,
                   plan->layer_last, first, last);
    } else {
        p->cache_mib = p->held.cache >> 20;
        p->state = PEER_HELD;
        p->grant = (struct kv_grant){.kv_blocks = p->held.kv_blocks};
        chunk_read(p, m, e->sizes.chunk);
    }
}

void bringup_progress(struct engine *e, struct peer *p, const struct message *m)
{
    uint64_t done = 0, total = 0;
    (void)message_u64(m, "done", 0, UINT64_MAX / 128, &p->progress_done, NULL);
    (void)message_u64(m, "total", 0, UINT64_MAX / 128, &p->progress_total, NULL);
    for (uint32_t i = 0; i < e->n_peers; i++) {
        done += e->peers[i].progress_done;
        total += e->peers[i].progress_total;
    }
    if (e->events.progress != NULL && e->phase == PHASE_BRINGUP)
        e->events.progress(e->events.ctx, "load", done, total);
}

void bringup_loaded(struct engine *e, struct peer *p)
{
    (void)e;
    if (p->state != PEER_FILLING)
        peer_break(p, EBB_EPEER, "LOADED in state %s", peer_state_name(p->state));
    else
        p->state = PEER_READY;
}

/* Which of the run's cards of its kind on its host a card is, and of how many: they share its processors out. */
static void share_add(const struct settings *s, const struct card_setting *card,
                      struct line_writer *w)
{
    uint32_t share = 0, n_shares = 0;
    char text[24];
    for (size_t i = 0; i < s->n_cards; i++)
        if (s->cards[i].kind == card->kind && strcmp(s->cards[i].host, card->host) == 0) {
            if (&s->cards[i] == card)
                share = n_shares;
            n_shares++;
        }
    (void)snprintf(text, sizeof text, "%" PRIu32 "/%" PRIu32, share, n_shares);
    line_key(w, "share", text);
}

/* What of the host's processors is the card's. */
static void processors_add(const struct settings *s, const struct card_setting *card,
                           struct line_writer *w)
{
    const char *pin = card->pin[0] != '\0' ? card->pin : s->pin;
    bool is_pinned = card->kind == CARD_CPU && pin != NULL && strcmp(pin, "none") != 0;
    if (is_pinned)
        line_key(w, "pin", pin);
    if (is_pinned || card->kind == CARD_CUDA)
        share_add(s, card, w);
    if (s->threads > 0)
        line_u64(w, "threads", s->threads);
    if (s->miss_threads != NULL)
        line_key(w, "miss_threads", s->miss_threads);
    if (s->miss_share != NULL)
        line_key(w, "miss_share", s->miss_share);
}

static void load_send(struct engine *e, struct peer *p)
{
    const struct plan_stage *plan = &e->plan.stages[p->index];
    const struct settings *s = e->settings;
    struct line_writer w;
    char range[32], fingerprint[20], part[TRACE_PATH_MAX];
    (void)snprintf(range, sizeof range, "%u-%u", plan->layer_first, plan->layer_last);
    (void)snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, e->model->fingerprint);
    line_begin(&w, e->line, LINE_BYTES_MAX, "LOAD");
    line_text(&w, "model", e->model_path, strlen(e->model_path));
    line_key(&w, "fingerprint", fingerprint);
    line_u64(&w, "device", p->index);
    line_u64(&w, "stage", p->index);
    line_u64(&w, "stages", e->n_peers);
    line_key(&w, "layers", range);
    p->sent_mib = lending_reserve_to_load(e, p);
    line_u64(&w, "reserve_mib", p->sent_mib);
    line_u64(&w, "segment_mib", e->sizes.segment_mib);
    if (s->yield != NULL && strcmp(s->yield, "auto") == 0) {
        line_key(&w, "yield", "auto");
        line_u64(&w, "yield_quiet_s", s->yield_quiet_s);
    }
    if (s->budget_mib > 0)
        line_u64(&w, "host_mib", s->budget_mib);
    line_u64(&w, "context", e->sizes.context);
    line_u64(&w, "sequences", e->sizes.n_sequences);
    line_u64(&w, "kv_tokens", e->sizes.kv_tokens);
    line_u64(&w, "kv_tokens_max", e->sizes.kv_tokens_max);
    line_u64(&w, "chunk", e->sizes.chunk);
    line_u64(&w, "chunk_min", e->sizes.chunk_min);
    processors_add(s, p->card, &w);
    line_key(&w, "kernels", s->kernels != NULL ? s->kernels : "auto");
    line_key(&w, "kv", e->sizes.kv);
    if (e->trace_path[0] != '\0' &&
        trace_stage_path(e->trace_path, p->index, part, sizeof part, NULL) == 0)
        line_text(&w, "trace", part, strlen(part));
    if (s->heat_file != NULL && strcmp(s->heat_file, "none") != 0)
        line_text(&w, "heat_file", s->heat_file, strlen(s->heat_file));
    if (e->n_peers > 1)
        line_key(&w, "link", plan_link_word(s));
    line_u64(&w, "epoch", e->epoch);
    int n = line_end(&w);
    p->state = PEER_LOADING;
    if (n > 0)
        peer_send(p, e->line, (size_t)n);
    else
        peer_break(p, EBB_ELINE_TOO_LONG, "the model's path is too long for a line");
}

/* The split, where it is ours to choose, and the plan's figures, once every card's size is known; smaller at each attempt. */
static int sizes_decide(struct engine *e, struct error *err)
{
    uint64_t total_mib[CARDS_MAX];
    struct planner_card cards[CARDS_MAX];
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        total_mib[i] = p->total_mib;
        uint64_t reserve_mib = leases_in_force(&e->leases, i);
        plan_card(&cards[i], e->settings, p->card, p->free_mib, reserve_mib);
        vacancy_words(p, cards[i].holders, sizeof cards[i].holders);
        if (reserve_mib > p->total_mib)
            return error_set(err, EBB_ERANGE,
                             "card %s: a reserve of %" PRIu64 " MiB, it has %" PRIu64 " in all",
                             p->label, reserve_mib, p->total_mib);
    }
    int code = plan_choose(&e->plan, &e->sizes, e->settings, e->model, cards, total_mib,
                           &e->plan_attempts, err);
    if (code != 0)
        return code;
    engine_log(e, "info",
               "context %u, KV for %u positions, segments of %" PRIu64 " MiB, chunks of %u rows",
               e->sizes.context, e->sizes.kv_tokens, e->sizes.segment_mib, e->sizes.chunk);
    e->sized = true;
    return 0;
}

static const struct peer *first_refused(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].state == PEER_REFUSED)
            return &e->peers[i];
    return NULL;
}

static void refused_fail(struct engine *e, const struct peer *p)
{
    struct error err;
    char holders[200];
    vacancy_words(p, holders, sizeof holders);
    bool memory = p->load_error.code == EBB_ENOMEM && holders[0] != '\0';
    (void)error_set(&err, p->load_error.code, "card %s: %.300s%s%s%s", p->label, p->load_error.text,
                    memory ? "; " : "", memory ? holders : "", memory ? " - free it" : "");
    engine_fail(e, &err);
}

/* Some stage could not hold its part: all give back, and the plan is made again, smaller. */
static void plan_again(struct engine *e)
{
    const struct peer *refused = first_refused(e);
    bool memory = refused->load_error.code == EBB_ENOMEM ||
                  refused->load_error.code == EBB_EDRIVER ||
                  refused->load_error.code == EBB_ERANGE || refused->load_error.code == EBB_EBUSY;
    struct error err = {0};
    if (!memory || e->plan_attempts + 1 == PLANS_MAX) {
        refused_fail(e, refused);
        return;
    }
    e->plan_attempts++;
    if (sizes_decide(e, &err) != 0) {
        refused_fail(e, refused);
        return;
    }
    engine_log(e, "warn", "card %s: %s; trying with KV for %u positions, chunks of %u rows",
               refused->label, refused->load_error.text, e->sizes.kv_tokens, e->sizes.chunk);
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        if (p->state == PEER_HELD) {
            peer_send(p, "RELEASE\n", 8);
            p->state = PEER_RELEASING;
        } else {
            p->state = PEER_GREETED;
        }
    }
}

/* CPU cards of one host whose threads are kept nowhere take turns on its processors, unless these are enough for all. */
static bool takes_turns(const struct engine *e, uint32_t index)
{
    const struct card_setting *card = e->peers[index].card;
    const char *pin = card->pin[0] != '\0' ? card->pin : e->settings->pin;
    return card->kind == CARD_CPU && (pin == NULL || strcmp(pin, "none") == 0) &&
           e->peers[index].held.threads > 0;
}

/* How many of the n cards on a host that take turns can work at once. */
static uint32_t turns_at_once(const struct engine *e, const struct peer *p, uint32_t n)
{
    cpu_set_t set;
    uint64_t at_once = 1; /* as many threads as processors, wherever that is */
    if (e->settings->threads > 0 && p->card->host[0] != '\0')
        return n;
    if (e->settings->threads > 0 && sched_getaffinity(0, sizeof set, &set) == 0)
        at_once = (uint64_t)CPU_COUNT(&set) / p->held.threads;
    return at_once < 1 ? 1 : at_once < n ? (uint32_t)at_once : n;
}

/* How many stages can work beside each other. */
static uint32_t groups_count(const struct engine *e)
{
    uint32_t n_groups = 0;
    for (uint32_t i = 0; i < e->n_peers; i++) {
        uint32_t n_before = 0, n = 0;
        for (uint32_t j = 0; takes_turns(e, i) && j < e->n_peers; j++) {
            bool is_beside =
                takes_turns(e, j) && strcmp(e->peers[i].card->host, e->peers[j].card->host) == 0;
            n += is_beside;
            n_before += is_beside && j < i;
        }
        if (n_before == 0)
            n_groups += n > 0 ? turns_at_once(e, &e->peers[i], n) : 1;
    }
    return n_groups;
}

/* One count of KV credits serves all stages: the smallest of what they may grow to, and of what they hold at the start. */
static int credits_open(struct engine *e, struct error *err)
{
    struct sched_shape shape = {.n_stages = e->n_peers,
                                .n_groups = groups_count(e),
                                .parallel = e->settings->parallel,
                                .n_slots = e->sizes.n_sequences,
                                .chunk = e->sizes.chunk,
                                .chunk_min = e->sizes.chunk_min,
                                .context = e->sizes.context,
                                .n_blocks = UINT32_MAX,
                                .n_granted = UINT32_MAX,
                                .block_tokens = (uint32_t)e->peers[0].held.block_tokens,
                                .run_ahead = true};
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        if (p->held.block_tokens != shape.block_tokens)
            return error_set(err, EBB_EMISMATCH,
                             "card %s: KV blocks of %" PRIu64 " positions, card %s has %u",
                             p->label, p->held.block_tokens, e->peers[0].label, shape.block_tokens);
        if (p->held.kv_blocks_max < shape.n_blocks)
            shape.n_blocks = (uint32_t)p->held.kv_blocks_max;
        if (p->held.kv_blocks < shape.n_granted)
            shape.n_granted = (uint32_t)p->held.kv_blocks;
        if (p->held.kv_blocks_max * shape.block_tokens < e->sizes.context)
            return error_set(err, EBB_ENOMEM,
                             "card %s: %" PRIu64 " KV blocks of %u positions, a context has %u",
                             p->label, p->held.kv_blocks_max, shape.block_tokens, e->sizes.context);
    }
    return scheduler_open(&e->scheduler, &shape, err);
}

/* A restarted stage must keep what was promised in its name, as the start's amount and as what may be asked of it. */
static void credits_check(struct engine *e)
{
    struct sched_shape shape = scheduler_shape(e->scheduler);
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        if (p->state == PEER_HELD &&
            (p->held.kv_blocks < shape.n_granted || p->held.kv_blocks_max < shape.n_blocks ||
             p->held.block_tokens != shape.block_tokens))
            peer_break(
                p, EBB_ENOMEM,
                "it came back with %" PRIu64 " KV blocks of %" PRIu64 ", %u of %u were promised",
                p->held.kv_blocks, p->held.block_tokens, shape.n_granted, shape.block_tokens);
    }
}

static void launch_all(struct engine *e)
{
    struct error err = {0};
    for (uint32_t i = 0; i < e->n_peers && !e->failed; i++) {
        struct peer *p = &e->peers[i];
        if (p->state != PEER_DOWN || p->broken || peer_start(e, p, &err) == 0)
            continue;
        peer_break(p, err.code, "%s", err.text);
    }
}

static void load_all(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].state == PEER_GREETED)
            load_send(e, &e->peers[i]);
}

static void go_all(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].state == PEER_HELD) {
            peer_send(&e->peers[i], "GO\n", 3);
            e->peers[i].state = PEER_FILLING;
        }
}

static void refused_handle(struct engine *e)
{
    if (e->phase == PHASE_BRINGUP) {
        plan_again(e);
        return;
    }
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].state == PEER_REFUSED)
            peer_break(&e->peers[i], e->peers[i].load_error.code, "%.380s",
                       e->peers[i].load_error.text);
}

static bool any_broken(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].broken)
            return true;
    return false;
}

void bringup_advance(struct engine *e)
{
    struct error err = {0};
    if (e->phase == PHASE_SERVING || e->failed || any_broken(e) ||
        (e->retry_us != 0 && now_us() < e->retry_us))
        return;
    e->retry_us = 0;
    launch_all(e);
    if (any_broken(e) || count_state(e, PEER_DOWN) + count_state(e, PEER_STARTED) > 0)
        return;
    if (!e->sized && !vacancy_settled(e))
        return;
    if (!e->sized && sizes_decide(e, &err) != 0) {
        engine_fail(e, &err);
        return;
    }
    if (count_state(e, PEER_RELEASING) > 0)
        return;
    load_all(e);
    if (count_state(e, PEER_LOADING) > 0)
        return;
    if (count_state(e, PEER_REFUSED) > 0) {
        refused_handle(e);
        if (!e->failed && !any_broken(e))
            bringup_advance(e);
        return;
    }
    if (e->scheduler == NULL && (vacancy_host_budget(e, &err) != 0 || credits_open(e, &err) != 0)) {
        engine_fail(e, &err);
        return;
    }
    credits_check(e);
    if (any_broken(e) || !links_made(e))
        return;
    go_all(e);
    if (count_state(e, PEER_READY) == e->n_peers)
        recovery_done(e);
}
