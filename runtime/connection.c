/* runtime/connection.c - reading a connection's lines, answering in order.
 *
 * Answers stand in a list in command order. A walk from its front sends what is done; it stops at
 * the first that is not, except that a pending VRAM (and what waits behind one) is passed over by
 * those that never wait behind a VRAM. LEDGER is asked when no VRAM stands before it, so it shows
 * what the VRAM left. A connection with many unanswered commands is not read until some are out:
 * memory per connection is bounded.
 */
#include "runtime/connection.h"
#include <stdlib.h>
#include <string.h>
#include "runtime/cards.h"
#include "runtime/lending.h"
#include "runtime/request.h"

#define QUEUE_BYTES_MAX ((size_t)4 << 20)
#define REPLIES_MAX     256u

int connection_add(struct engine *e, int fd_in, int fd_out, bool is_controller,
                   struct connection **out, struct error *err)
{
    struct connection *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a connection");
    int code = channel_open(&c->channel, fd_in, fd_out, false, QUEUE_BYTES_MAX, err);
    if (code != 0) {
        free(c);
        return code;
    }
    c->is_controller = is_controller;
    c->number = ++e->n_connections;
    c->next = e->connections;
    e->connections = c;
    *out = c;
    return 0;
}

void connection_lose(struct connection *c, int why)
{
    if (!c->lost)
        c->why_lost = why;
    c->lost = true;
}

/* A line that could not be kept would leave a hole in the answers: the connection ends instead. */
void connection_event(struct connection *c, const char *line, size_t n_bytes)
{
    int code = c->lost ? 0 : channel_send(&c->channel, line, n_bytes);
    if (code == EBB_EGONE || code == EBB_EIO || code == EBB_ENOMEM)
        connection_lose(c, code);
}

static void text_out(struct connection *c, const char *text)
{
    while (*text != '\0') {
        const char *end = strchr(text, '\n');
        size_t n = end != NULL ? (size_t)(end - text) + 1 : strlen(text);
        connection_event(c, text, n);
        text += n;
    }
}

void connection_greet(struct engine *e, struct connection *c)
{
    const char *slash = strrchr(e->model_path, '/'),
               *name = slash != NULL ? slash + 1 : e->model_path;
    struct line_writer w;
    char range[32];
    line_begin(&w, e->line, LINE_BYTES_MAX, "INFO");
    line_u64(&w, "protocol", 1);
    line_key(&w, "version", EBBTIDE_VERSION);
    line_text(&w, "model", name, strlen(name));
    line_u64(&w, "layers", e->model->geometry.n_layers);
    line_u64(&w, "experts", e->model->geometry.n_experts);
    line_u64(&w, "context", e->sizes.context);
    line_u64(&w, "parallel", e->settings->parallel);
    line_u64(&w, "cards", e->n_peers);
    if (line_end(&w) > 0)
        connection_event(c, e->line, w.n_bytes);
    for (uint32_t i = 0; i < e->n_peers; i++) {
        const struct peer *p = &e->peers[i];
        (void)snprintf(range, sizeof range, "%u-%u", e->plan.stages[i].layer_first,
                       e->plan.stages[i].layer_last);
        line_begin(&w, e->line, LINE_BYTES_MAX, "CARD");
        line_u64(&w, "device", i);
        line_key(&w, "kind", p->card->kind == CARD_CUDA ? "cuda" : "cpu");
        line_text(&w, "name", p->name, strlen(p->name));
        line_key(&w, "layers", range);
        line_u64(&w, "total_mib", p->total_mib);
        line_u64(&w, "free_mib", p->held.free >> 20);
        line_u64(&w, "reserve_mib", leases_in_force(&e->leases, i));
        line_u64(&w, "cache_mib", p->held.cache >> 20);
        line_u64(&w, "segment_mib", e->sizes.segment_mib);
        if (line_end(&w) > 0)
            connection_event(c, e->line, w.n_bytes);
    }
    line_begin(&w, e->line, LINE_BYTES_MAX, "READY");
    line_bare_i64(&w, e->sizes.context);
    if (line_end(&w) > 0)
        connection_event(c, e->line, w.n_bytes);
}

struct card_command *reply_add(struct engine *e, struct connection *c, enum reply_kind kind,
                               bool bypass)
{
    struct card_command *k = calloc(1, sizeof *k);
    (void)e;
    if (k == NULL) {
        connection_lose(c, EBB_ENOMEM);
        return NULL;
    }
    k->connection = c;
    k->pidfd = -1;
    k->kind = kind;
    k->bypass = bypass;
    *(c->last != NULL ? &c->last->next : &c->first) = k;
    c->last = k;
    c->n_replies++;
    return k;
}

void reply_line(struct engine *e, struct connection *c, bool bypass, const char *line,
                size_t n_bytes)
{
    if (c->first == NULL) {
        connection_event(c, line, n_bytes);
        return;
    }
    struct card_command *k = reply_add(e, c, REPLY_TEXT, bypass);
    if (k == NULL)
        return;
    k->started = k->done = true;
    k->text = strndup(line, n_bytes);
    replies_flush(e, c);
}

void reply_error(struct engine *e, struct connection *c, bool bypass, const char *tag,
                 const struct error *err)
{
    char line[800];
    int n = snprintf(line, sizeof line, "ERR %s %s %s\n", tag != NULL ? tag : "-",
                     error_code_name(err->code), err->text);
    if (n > 0 && (size_t)n < sizeof line)
        reply_line(e, c, bypass, line, (size_t)n);
}

static void reply_remove(struct engine *e, struct connection *c, struct card_command *before,
                         struct card_command *k)
{
    *(before != NULL ? &before->next : &c->first) = k->next;
    if (c->last == k)
        c->last = before;
    c->n_replies--;
    card_command_free(e, k);
}

/* The first answer that may move now: started if it was not, or sent. false: nothing can. */
static bool replies_step(struct engine *e, struct connection *c)
{
    struct card_command *before = NULL;
    bool vram_before = false;
    for (struct card_command *k = c->first; k != NULL; before = k, k = k->next) {
        bool may_pass = !vram_before || k->bypass;
        if (k->done && may_pass) {
            if (k->text != NULL)
                text_out(c, k->text);
            else
                connection_lose(c, EBB_ENOMEM);
            reply_remove(e, c, before, k);
            return true;
        }
        if (k->kind == REPLY_VRAM) {
            vram_before = true;
            continue;
        }
        if (!k->started && may_pass && k->kind != REPLY_TEXT) {
            cards_start(e, k); /* may answer at once, which walks this list */
            return true;
        }
        if (!k->done && may_pass)
            return false;
    }
    return false;
}

void replies_flush(struct engine *e, struct connection *c)
{
    while (replies_step(e, c))
        ;
}

static void stop_request(struct engine *e, struct connection *c, const struct message *m)
{
    const char *tag = message_bare(m, 0);
    struct request *r = request_find(c, tag);
    struct error err;
    if (r != NULL && request_is_active(r) && r->state != REQUEST_ENDING) {
        request_end(e, r, "cancel", NULL);
        return;
    }
    (void)error_set(&err, EBB_EGONE, "STOP: %s is not running", tag);
    if (r != NULL && !request_is_active(r))
        request_free(e, r);
    reply_error(e, c, true, tag, &err);
}

static void quit(struct engine *e, struct connection *c)
{
    c->quitting = true;
    if (c->is_controller)
        e->ending = true;
}

/* As long a line as the one asked with: up to LINE_BYTES_MAX. */
static void pong(struct engine *e, struct connection *c, const char *token)
{
    struct line_writer w;
    line_begin(&w, e->scratch, LINE_BYTES_MAX, "PONG");
    line_bare(&w, token);
    int n = line_end(&w);
    if (n > 0)
        reply_line(e, c, true, e->scratch, (size_t)n);
}

/* What concerns the cards and their leases. false: another verb. */
static bool card_line_serve(struct engine *e, struct connection *c, const struct message *m)
{
    const char *verb = m->verb;
    if (strcmp(verb, "VRAM") == 0)
        cards_vram(e, c, m);
    else if (strcmp(verb, "UNLEASE") == 0)
        cards_unlease(e, c, m);
    else if (strcmp(verb, "LEASES") == 0)
        cards_leases(e, c);
    else if (strcmp(verb, "WATCH") == 0)
        lending_watch(e, c);
    else if (strcmp(verb, "STAT") == 0)
        cards_ask(e, c, m, REPLY_STAT);
    else if (strcmp(verb, "LEDGER") == 0)
        cards_ask(e, c, m, REPLY_LEDGER);
    else if (strcmp(verb, "PLAN") == 0)
        cards_plan(e, c);
    else
        return false;
    return true;
}

static void line_serve(struct engine *e, struct connection *c, char *line, size_t n_bytes)
{
    struct message *m = &e->message;
    struct error err = {0};
    int code = message_parse(m, line, n_bytes, &err);
    if (code == 0 && m->verb[0] == '\0')
        return;
    if (code == 0)
        code = message_check(m, DIALECT_CONTROL, &err);
    if (code != 0) {
        reply_error(e, c, false, message_tag(m), &err);
        return;
    }
    const char *verb = m->verb;
    if (card_line_serve(e, c, m))
        return;
    if (strcmp(verb, "PART") == 0)
        code = prompt_part(e, c, m, &err);
    else if (strcmp(verb, "GEN") == 0)
        code = prompt_generate(e, c, m, &err);
    else if (strcmp(verb, "SCORE") == 0)
        code = prompt_score(e, c, m, &err);
    else if (strcmp(verb, "STOP") == 0)
        stop_request(e, c, m);
    else if (strcmp(verb, "PING") == 0)
        pong(e, c, message_bare(m, 0));
    else if (strcmp(verb, "QUIT") == 0)
        quit(e, c);
    else if (strcmp(verb, "SHUTDOWN") == 0)
        e->ending = e->cancelled = true;
    if (code != 0)
        reply_error(e, c, false, message_tag(m), &err);
}

static void lines_serve(struct engine *e, struct connection *c)
{
    char *line;
    size_t n_bytes;
    struct error err;
    c->held_back = false;
    while (!c->lost && !c->quitting && !e->cancelled) {
        if (c->n_replies >= REPLIES_MAX) {
            c->held_back = true;
            return;
        }
        enum line_status got = channel_next(&c->channel, &line, &n_bytes);
        if (got == LINE_NEED_MORE)
            break;
        if (got == LINE_READY) {
            line_serve(e, c, line, n_bytes);
            continue;
        }
        (void)error_set(&err, EBB_ELINE_TOO_LONG, "a line of more than %d bytes was dropped",
                        LINE_BYTES_MAX);
        reply_error(e, c, false, "-", &err);
    }
    if (c->channel.at_end && !c->quitting) {
        c->quitting = true;
        if (c->is_controller) {
            e->ending = true;
            e->cancelled = e->cancelled || e->settings->on_eof == ON_EOF_CANCEL;
        }
    }
}

void connection_readable(struct engine *e, struct connection *c)
{
    struct error err = {0};
    int code = channel_read(&c->channel, &err);
    if (code == EBB_EIO)
        connection_lose(c, code);
    lines_serve(e, c);
}

void connection_free(struct engine *e, struct connection *c)
{
    struct connection **at = &e->connections;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    lending_connection_gone(e, c);
    while (c->requests != NULL)
        request_free(e, c->requests);
    for (struct card_command *k = c->first, *next; k != NULL; k = next) {
        next = k->next;
        k->connection = NULL;
        bool is_owed = !k->done && (k->kind == REPLY_VRAM || k->started);
        if (!is_owed)
            card_command_free(e, k);
    }
    channel_close(&c->channel);
    free(c);
}

/* A controller that went is an end like any other; one that could not be served is a failure. */
static void controller_lost(struct engine *e, const struct connection *c)
{
    struct error err;
    e->ending = e->cancelled = true;
    if (c->why_lost == EBB_EGONE)
        return;
    (void)error_set(&err, c->why_lost, "the controller's connection cannot go on: %s",
                    c->why_lost == EBB_ENOMEM ? "no memory for a line"
                                              : "reading or writing failed");
    engine_fail(e, &err);
}

void connections_reap(struct engine *e)
{
    for (struct connection *c = e->connections, *next; c != NULL; c = next) {
        next = c->next;
        if (c->held_back && c->n_replies < REPLIES_MAX / 2)
            lines_serve(e, c);
        bool busy = c->first != NULL || channel_wants_write(&c->channel);
        for (struct request *r = c->requests; r != NULL && !busy; r = r->next)
            busy = request_is_active(r);
        if (c->lost && c->is_controller)
            controller_lost(e, c);
        if (c->lost || (c->quitting && !busy && !c->is_controller))
            connection_free(e, c);
    }
}
