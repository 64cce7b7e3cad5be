/* runtime/cards.c - VRAM, STAT, LEDGER, PLAN: fan out to the stages, gather, answer in device
 * order.
 *
 * VRAM and UNLEASE are one queue over all connections: each changes base or leases when its turn
 * comes, then every card concerned is told the reserve in force.
 *
 * A card_command stands in its connection's order of answers; while stages owe it something they
 * point at it, so one whose connection is lost lives on without it until the last has answered.
 * Receipts are read and written anew (nothing of a stage reaches a client unchecked); STAT and
 * LEDGER lines pass as they are, but for the base reserve, after their syntax and device were checked.
 */
#include "runtime/cards.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/connection.h"
#include "runtime/lending.h"
#include "runtime/steps.h"

static bool concerns(const struct card_command *k, uint32_t device)
{
    return (k->cards >> device & 1) != 0;
}

static void lines_free(struct engine *e, struct card_command *k)
{
    for (uint32_t i = 0; k->lines != NULL && i < e->n_peers; i++)
        free(k->lines[i]);
    free(k->lines);
    k->lines = NULL;
}

void card_command_free(struct engine *e, struct card_command *k)
{
    lines_free(e, k);
    lending_handle_close(&k->pidfd);
    free(k->text);
    free(k);
}

void cards_close(struct engine *e)
{
    while (e->vram_first != NULL) {
        struct card_command *k = e->vram_first;
        e->vram_first = k->next_vram;
        card_command_free(e, k);
    }
    e->vram_last = NULL;
}

/* All cards have answered: lines in device order, then `last`. */
static void answer_whole(struct engine *e, struct card_command *k, const char *last)
{
    size_t n = strlen(last) + 1, at = 0;
    for (uint32_t i = 0; i < e->n_peers; i++)
        n += k->lines[i] != NULL ? strlen(k->lines[i]) : 0;
    k->done = true;
    k->text = malloc(n);
    for (uint32_t i = 0; k->text != NULL && i < e->n_peers; i++)
        if (k->lines[i] != NULL) {
            size_t n_line = strlen(k->lines[i]);
            memcpy(k->text + at, k->lines[i], n_line);
            at += n_line;
        }
    if (k->text != NULL)
        memcpy(k->text + at, last, strlen(last) + 1);
    lines_free(e, k);
    if (k->connection == NULL)
        card_command_free(e, k);
    else
        replies_flush(e, k->connection);
}

static struct card_command *command_add(struct engine *e, struct connection *c,
                                        enum reply_kind kind)
{
    struct card_command *k = reply_add(e, c, kind, kind == REPLY_STAT);
    if (k == NULL)
        return NULL;
    k->lines = calloc(e->n_peers, sizeof *k->lines);
    if (k->lines == NULL)
        connection_lose(c, EBB_ENOMEM);
    return k->lines != NULL ? k : NULL;
}

static void vram_send(struct engine *e, struct peer *p)
{
    struct line_writer w;
    line_begin(&w, e->line, LINE_BYTES_MAX, "VRAM");
    p->sent_mib = leases_in_force(&e->leases, p->index);
    line_bare_i64(&w, (int64_t)p->sent_mib);
    int n = line_end(&w);
    p->vram_sent = true;
    if (n > 0)
        peer_send(p, e->line, (size_t)n);
}

static void vram_start(struct engine *e, struct card_command *k)
{
    k->started = true;
    lending_apply(e, k);
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        if (!concerns(k, i))
            continue;
        p->vram = k;
        p->vram_sent = false;
        k->n_missing++;
        if (p->state == PEER_READY && !p->broken)
            vram_send(e, p);
    }
}

static char *line_with(const char *line, const char *key, uint64_t value, const char *end);

/* The run's chunk is what all its cards can lend, so it is known when the last of them has answered. */
static void receipts_agree(const struct engine *e, struct card_command *k)
{
    for (uint32_t i = 0; i < e->n_peers; i++) {
        char *line = k->lines[i];
        if (line == NULL)
            continue;
        k->lines[i] = line_with(line, " prompt_chunk=", steps_prompt_chunk(e), "");
        free(line);
    }
}

static void vram_finish(struct engine *e, struct card_command *k)
{
    char last[700];
    uint32_t n_cards = 0;
    const char *lease = k->request.lease;
    receipts_agree(e, k);
    for (uint32_t i = 0; i < e->n_peers; i++)
        n_cards += k->lines[i] != NULL;
    if (k->refused.code != 0)
        (void)snprintf(last, sizeof last, "ERR - %s %s\n", error_code_name(k->refused.code),
                       k->refused.text);
    else
        (void)snprintf(
            last, sizeof last,
            "VRAM-DONE cards=%" PRIu32 " freed_mib=%" PRId64 " shortfall_mib=%" PRIu64 "%s%s\n",
            n_cards, k->freed_mib, k->shortfall_mib, lease[0] != '\0' ? " lease=" : "", lease);
    lending_finish(e, k);
    e->vram_first = k->next_vram;
    if (e->vram_first == NULL)
        e->vram_last = NULL;
    answer_whole(e, k, last);
}

/* A loop: one command that needs no card must not call for the next from within. */
static void vram_advance(struct engine *e)
{
    while (e->vram_first != NULL) {
        if (!e->vram_first->started)
            vram_start(e, e->vram_first);
        if (e->vram_first->n_missing > 0)
            return;
        vram_finish(e, e->vram_first);
    }
}

static void vram_part_done(struct engine *e, struct peer *p)
{
    struct card_command *k = p->vram;
    p->vram = NULL;
    if (--k->n_missing == 0)
        vram_advance(e);
}

/* Every card concerned must have as much in all; else nothing changes anywhere. */
static int vram_check(const struct engine *e, const struct vram_request *r, struct error *err)
{
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        if (!r->to_start && (r->every_card || r->device == i) && r->reserve_mib > p->total_mib)
            return error_set(err, EBB_ERANGE,
                             "VRAM: a reserve of %" PRIu64 " MiB; device %" PRIu32
                             " (%s) has %" PRIu64 " in all",
                             r->reserve_mib, i, p->label, p->total_mib);
    }
    return 0;
}

static void vram_queue(struct engine *e, struct card_command *k)
{
    *(e->vram_last != NULL ? &e->vram_last->next_vram : &e->vram_first) = k;
    e->vram_last = k;
    if (e->vram_first == k)
        vram_advance(e);
}

void cards_vram(struct engine *e, struct connection *c, const struct message *m)
{
    struct vram_request r;
    struct error err = {0};
    struct card_command *k;
    int pidfd = -1;
    int code = vram_request_parse(m, e->n_peers, &r, &err);
    if (code == 0)
        code = vram_check(e, &r, &err);
    if (code == 0 && r.term == LEASE_PROCESS)
        code = lending_handle_open(r.pid, &pidfd, &err);
    if (code != 0) {
        reply_error(e, c, false, "-", &err);
        return;
    }
    k = command_add(e, c, REPLY_VRAM);
    if (k == NULL) {
        lending_handle_close(&pidfd);
        return;
    }
    k->action = r.term == LEASE_NONE ? VRAM_BASE : VRAM_LEASE;
    k->request = r;
    k->pidfd = pidfd;
    vram_queue(e, k);
}

void cards_unlease(struct engine *e, struct connection *c, const struct message *m)
{
    const char *name = message_bare(m, 0);
    struct error err;
    struct card_command *k;
    if (!tag_is_valid(name)) {
        (void)leases_end(&e->leases, name, NULL, &err); /* says that it is none, and the nearest */
        reply_error(e, c, false, "-", &err);
        return;
    }
    k = command_add(e, c, REPLY_VRAM);
    if (k == NULL)
        return;
    k->action = VRAM_UNLEASE;
    (void)snprintf(k->request.lease, sizeof k->request.lease, "%s", name);
    vram_queue(e, k);
}

int cards_settle(struct engine *e)
{
    struct card_command *k = calloc(1, sizeof *k);
    if (k != NULL)
        k->lines = calloc(e->n_peers, sizeof *k->lines);
    if (k == NULL || k->lines == NULL) {
        free(k);
        return EBB_ENOMEM;
    }
    k->kind = REPLY_VRAM;
    k->action = VRAM_SETTLE;
    k->pidfd = -1;
    vram_queue(e, k);
    return 0;
}

void cards_receipt(struct engine *e, struct peer *p, const struct message *m)
{
    struct vram_receipt r;
    struct error err = {0};
    char line[1024];
    struct card_command *k = p->vram;
    if (k == NULL || !p->vram_sent)
        return;
    if (vram_receipt_read(m, &r, &err) != 0) {
        peer_break(p, EBB_EPEER, "%s", err.text);
        return;
    }
    steps_chunk_redecide(e, p, r.prompt_chunk);
    r.prompt_chunk = steps_prompt_chunk(e);
    int n = r.device == p->index ? vram_receipt_write(&r, line, sizeof line - 1) : -1;
    if (n < 0) {
        peer_break(p, EBB_EPEER, "a VRAM receipt of device %" PRIu32 ", it is %" PRIu32, r.device,
                   p->index);
        return;
    }
    line[n] = '\0';
    p->cache_mib = r.cache_mib;
    lending_receipt(e, k, line);
    k->lines[p->index] = strdup(line);
    k->freed_mib += r.freed_mib;
    k->shortfall_mib += r.shortfall_mib;
    scheduler_credit_retry(e->scheduler);
    vram_part_done(e, p);
}

void cards_refused(struct engine *e, struct peer *p, const struct error *said)
{
    struct card_command *k = p->vram;
    if (k->refused.code == 0)
        (void)error_set(&k->refused, said->code, "card %s: %.300s", p->label, said->text);
    vram_part_done(e, p);
}

void cards_give_up(struct engine *e, const struct error *why)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        if (e->peers[i].vram != NULL && e->peers[i].state != PEER_READY)
            cards_refused(e, &e->peers[i], why);
}

void cards_peer_ready(struct engine *e, struct peer *p)
{
    if (p->vram != NULL && !p->vram_sent)
        vram_send(e, p);
}

/* What the coordinator itself knows of a card whose stage is away. */
static char *line_without_stage(const struct engine *e, const struct peer *p, enum reply_kind kind)
{
    const struct plan_stage *plan = &e->plan.stages[p->index];
    char line[2048], name[800];
    struct line_writer w;
    line_begin(&w, name, sizeof name, "");
    line_text(&w, "name", p->name, strlen(p->name));
    line_text(&w, "uuid", p->uuid, strlen(p->uuid));
    name[w.n_bytes < sizeof name ? w.n_bytes : sizeof name - 1] = '\0';
    const char *named = strstr(name, "name=");
    if (kind == REPLY_STAT)
        (void)snprintf(
            line, sizeof line,
            "STAT device=%" PRIu32 " kind=%s %.780s state=restarting layers=%" PRIu32 "-%" PRIu32
            " total_mib=%" PRIu64 " free_mib=0 foreign_mib=0 reserve_mib=%" PRIu64
            " base_mib=%" PRIu64 " segment_mib=%" PRIu64
            " cache_mib=0 cache_full_mib=0 cache_floor_mib=0 slots=0 slots_full=%" PRIu64
            " slots_floor=0 resident=0 kv_blocks=%" PRIu64
            " kv_blocks_free=0 sequences=0 prompt_chunk=%" PRIu32
            " steps=0 tokens=0 hits=0 lookups=0 promotions=0 refill_done=0 refill_total=0 kv_mib=0"
            " kv_blocks_max=%" PRIu64
            " yielded_mib=0 workspace_mib=0 workspace_rows=0 heat_resident=0 heat_layers="
            " graph_resident=0 graph_misses=0 miss_card_us=0 miss_host_us=0\n",
            p->index, p->card->kind == CARD_CUDA ? "cuda" : "cpu",
            named != NULL ? named : "name= uuid=", plan->layer_first, plan->layer_last,
            p->total_mib, leases_in_force(&e->leases, p->index), e->leases.base_mib[p->index],
            e->sizes.segment_mib, p->held.slots_full, p->held.kv_blocks, e->sizes.chunk,
            p->held.kv_blocks_max);
    else
        (void)snprintf(line, sizeof line,
                       "LEDGER device=%" PRIu32 " total=%" PRIu64
                       " free=0 foreign=0 unexplained=0 weights=0 kv=0 cache=0 "
                       "workspace=0 stream=0 link=0 blas=0 context=0 host_registered=0 "
                       "state=restarting\n",
                       p->index, p->total_mib << 20);
    return strdup(line);
}

static void part_answered(struct engine *e, struct card_command *k, uint32_t device, char *line)
{
    k->lines[device] = line;
    if (--k->n_missing == 0)
        answer_whole(e, k, k->kind == REPLY_STAT ? "STAT-DONE\n" : "LEDGER-DONE\n");
}

static void queue_fail(struct engine *e, struct peer *p, struct asked_queue *q,
                       enum reply_kind kind)
{
    while (q->first != NULL) {
        struct asked *a = q->first;
        q->first = a->next;
        part_answered(e, a->command, p->index, line_without_stage(e, p, kind));
        free(a);
    }
    q->last = NULL;
}

void cards_peer_down(struct engine *e, struct peer *p)
{
    p->vram_sent = false;
    queue_fail(e, p, &p->stat, REPLY_STAT);
    queue_fail(e, p, &p->ledger, REPLY_LEDGER);
}

static int device_read(const struct engine *e, const struct message *m, bool *every_card,
                       uint32_t *device, struct error *err)
{
    uint64_t value = 0;
    *every_card = message_bare(m, 0) == NULL;
    *device = 0;
    if (*every_card)
        return 0;
    int code = message_bare_u64(m, 0, "dev", 0, UINT32_MAX, &value, err);
    if (code == 0 && value >= e->n_peers)
        code = error_set(err, EBB_ENOENT, "%s: no device %" PRIu64 "; this run has 0 to %" PRIu32,
                         m->verb, value, e->n_peers - 1);
    *device = (uint32_t)value;
    return code;
}

void cards_ask(struct engine *e, struct connection *c, const struct message *m,
               enum reply_kind kind)
{
    struct error err = {0};
    bool every_card;
    uint32_t device;
    if (device_read(e, m, &every_card, &device, &err) != 0) {
        reply_error(e, c, kind == REPLY_STAT, "-", &err);
        return;
    }
    struct card_command *k = command_add(e, c, kind);
    if (k == NULL)
        return;
    k->cards = lending_cards(e, every_card, device);
    replies_flush(e, c);
}

static void plan_answer(struct engine *e, struct card_command *k);
static void leases_answer(struct engine *e, struct card_command *k);

void cards_start(struct engine *e, struct card_command *k)
{
    bool is_stat = k->kind == REPLY_STAT;
    k->started = true;
    if (k->kind == REPLY_PLAN) {
        plan_answer(e, k);
        return;
    }
    if (k->kind == REPLY_LEASES) {
        leases_answer(e, k);
        return;
    }
    k->n_missing = 1; /* held until all are asked */
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        struct asked_queue *q = is_stat ? &p->stat : &p->ledger;
        struct asked *a =
            concerns(k, i) && p->state == PEER_READY && !p->broken ? calloc(1, sizeof *a) : NULL;
        if (!concerns(k, i))
            continue;
        if (a == NULL) {
            k->lines[i] = line_without_stage(e, p, k->kind);
            continue;
        }
        a->command = k;
        *(q->last != NULL ? &q->last->next : &q->first) = a;
        q->last = a;
        k->n_missing++;
        peer_send(p, is_stat ? "STAT\n" : "LEDGER\n", is_stat ? 5 : 7);
    }
    if (--k->n_missing == 0)
        answer_whole(e, k, is_stat ? "STAT-DONE\n" : "LEDGER-DONE\n");
}

/* A copy with another value of a key that is followed by more; `end` comes behind it. NULL: no memory. */
static char *line_with(const char *line, const char *key, uint64_t value, const char *end)
{
    const char *at = strstr(line, key), *after = at != NULL ? at + strlen(key) : line;
    size_t room = strlen(line) + 32;
    char *copy = malloc(room);
    if (copy == NULL)
        return NULL;
    if (at == NULL)
        (void)snprintf(copy, room, "%s%s", line, end);
    else
        (void)snprintf(copy, room, "%.*s%" PRIu64 "%s%s", (int)(after - line), line, value,
                       after + strcspn(after, " "), end);
    return copy;
}

void cards_answer(struct engine *e, struct peer *p, const char *line, enum reply_kind kind)
{
    struct asked_queue *q = kind == REPLY_STAT ? &p->stat : &p->ledger;
    struct asked *a = q->first;
    if (a == NULL)
        return;
    q->first = a->next;
    if (q->first == NULL)
        q->last = NULL;
    /* With the base reserve as the coordinator knows it: a stage's own is what LOAD told it, which leases and restarts have a part in. */
    part_answered(e, a->command, p->index,
                  line_with(line, " base_mib=", e->leases.base_mib[p->index], "\n"));
    free(a);
}

static void plan_answer(struct engine *e, struct card_command *k)
{
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        const struct held *h = &p->held;
        char line[600];
        (void)snprintf(
            line, sizeof line,
            "PLAN device=%" PRIu32 " card=%s layers=%" PRIu32 "-%" PRIu32 " total_mib=%" PRIu64
            " reserve_mib=%" PRIu64 " segment_mib=%" PRIu64 " weights=%" PRIu64 " kv=%" PRIu64
            " workspace=%" PRIu64 " cache=%" PRIu64 " slots=%" PRIu64 " slots_full=%" PRIu64
            " kv_tokens=%" PRIu32 " context=%" PRIu32 " chunk=%" PRIu32 " threads=%" PRIu64
            " attach_mib=%" PRIu64 "\n",
            i, p->label, e->plan.stages[i].layer_first, e->plan.stages[i].layer_last, p->total_mib,
            e->leases.base_mib[i], e->sizes.segment_mib, h->weights, h->kv, h->workspace, h->cache,
            h->slots, h->slots_full, e->sizes.kv_tokens, e->sizes.context, e->sizes.chunk,
            h->threads, card_attach_mib(e->settings, p->card, h->context >> 20));
        k->lines[i] = strdup(line);
    }
    answer_whole(e, k, "PLAN-DONE\n");
}

/* At its turn, so that it shows what the commands before it did. */
static void leases_answer(struct engine *e, struct card_command *k)
{
    char *text = lending_list(e, now_us());
    if (text == NULL && k->connection != NULL)
        connection_lose(k->connection, EBB_ENOMEM);
    answer_whole(e, k, text != NULL ? text : "");
    free(text);
}

void cards_leases(struct engine *e, struct connection *c)
{
    if (command_add(e, c, REPLY_LEASES) != NULL)
        replies_flush(e, c);
}

void cards_plan(struct engine *e, struct connection *c)
{
    if (command_add(e, c, REPLY_PLAN) != NULL)
        replies_flush(e, c);
}
