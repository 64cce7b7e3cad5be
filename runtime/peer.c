/* runtime/peer.c - a stage's process and its lines.
 *
 * Owns the process and the channel of each peer. A line is parsed once and handed to the source
 * that it concerns; whatever breaks the grammar (no verb, a bad number, a line too long, a state in
 * which it cannot be said) breaks the peer. The stage's stderr goes to the log line by line, and
 * its last line is kept: it is often the reason of a death.
 */
#include "runtime/peer.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "runtime/bringup.h"
#include "runtime/cards.h"
#include "runtime/launch.h"
#include "runtime/steps.h"
#include "runtime/vacancy.h"

#define SILENT_US  (UINT64_C(10) * 1000000)
#define STALLED_US (UINT64_C(60) * 1000000)
#define HELLO_US   (UINT64_C(120) * 1000000)

const char *peer_state_name(enum peer_state state)
{
    switch (state) {
    case PEER_DOWN: return "down";
    case PEER_STARTED: return "started";
    case PEER_GREETED: return "greeted";
    case PEER_LOADING: return "loading";
    case PEER_REFUSED: return "refused";
    case PEER_RELEASING: return "releasing";
    case PEER_HELD: return "held";
    case PEER_FILLING: return "filling";
    default: return "ready";
    }
}

void peer_break(struct peer *p, int code, const char *format, ...)
{
    char text[400];
    va_list args;
    if (p->broken)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->broken = true;
    (void)error_set(&p->why, code, "card %s: %s", p->label, text);
}

int peer_start(struct engine *e, struct peer *p, struct error *err)
{
    struct launch launch;
    uint64_t vram_mib = sizing_vram_mib(e->settings, p->card, e->available_mib);
    int code = launch_open(&launch, e->settings, p->card, vram_mib, err);
    if (code != 0)
        return code;
    code = process_start(&p->process, launch.argv, err);
    launch_close(&launch);
    if (code == 0) {
        code = channel_open(&p->channel, p->process.fd_out, p->process.fd_in, false, 0, err);
        p->channel_open = code == 0;
    }
    if (code != 0) {
        peer_close(e, p);
        return code;
    }
    p->process.fd_in = p->process.fd_out = -1; /* the channel's now */
    p->broken = p->deaf = p->warned = false;
    p->n_err_line = 0;
    p->words[0] = '\0';
    p->pinged_us = p->n_owed = 0;
    p->holders_owed = false;
    p->heard_us = now_us();
    p->state = PEER_STARTED;
    return 0;
}

void peer_close(struct engine *e, struct peer *p)
{
    struct process *process = &p->process;
    if (p->state == PEER_READY || p->state == PEER_DOWN)
        p->progress_done = 0;
    if (p->channel_open)
        channel_close(&p->channel);
    p->channel_open = false;
    process_close_fds(process);
    process_signal(process, SIGKILL);
    process_end_all(&process, 1, 2000, 100);
    p->state = PEER_DOWN;
    p->broken = p->deaf = false;
    cards_peer_down(e, p);
}

void peer_send(struct peer *p, const char *line, size_t n_bytes)
{
    if (p->channel_open && !p->broken && !p->deaf && channel_send(&p->channel, line, n_bytes) != 0)
        p->deaf = true;
}

void peers_send(struct engine *e, const char *line, size_t n_bytes)
{
    for (uint32_t i = 0; i < e->n_peers; i++)
        peer_send(&e->peers[i], line, n_bytes);
}

static void said_error(struct engine *e, struct peer *p, const char *tag, const struct error *said)
{
    if (strncmp(tag, "step:", 5) == 0 || strncmp(tag, "fork:", 5) == 0 ||
        strncmp(tag, "drop:", 5) == 0) {
        steps_refused(e, p, tag, said);
    } else if (p->state == PEER_LOADING) {
        p->state = PEER_REFUSED;
        p->load_error = *said;
    } else if (p->state == PEER_READY && p->vram != NULL) {
        cards_refused(e, p, said);
    } else if (p->state != PEER_READY || e->phase != PHASE_SERVING) {
        peer_break(p, said->code, "%s", said->text);
    } else {
        engine_log(e, "warn", "card %s: %s: %s", p->label, error_code_name(said->code), said->text);
    }
}

static void said_loaded(struct engine *e, struct peer *p, const struct message *m)
{
    (void)m;
    bringup_loaded(e, p);
}

static void said_released(struct engine *e, struct peer *p, const struct message *m)
{
    (void)e;
    (void)m;
    if (p->state == PEER_RELEASING)
        p->state = PEER_GREETED;
}

static void said_pong(struct engine *e, struct peer *p, const struct message *m)
{
    (void)e;
    (void)m;
    p->pinged_us = 0;
}

static const struct said {
    const char *verb;
    void (*take)(struct engine *e, struct peer *p, const struct message *m);
} table[] = {
    {"RAN", steps_ran},
    {"TOK", steps_tokens},
    {"LOGITS", steps_logits},
    {"PROB", steps_prob},
    {"HELLO", bringup_hello},
    {"HELD", bringup_held},
    {"LINKED", bringup_linked},
    {"LOADED", said_loaded},
    {"PROGRESS", bringup_progress},
    {"RELEASED", said_released},
    {"FORKED", steps_ordered},
    {"DROPPED", steps_ordered},
    {"VRAM", cards_receipt},
    {"PONG", said_pong},
    {"CREDITED", steps_credited},
    {"CHUNKED", steps_chunked},
    {"EVENT", steps_event},
    {"HOLDER", vacancy_holder},
    {"HOLDERS-DONE", vacancy_holders_done},
};

static bool verb_is_one(const char *verb)
{
    return verb[0] != '\0' && verb[strspn(verb, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-")] == '\0';
}

/* STAT and LEDGER lines are passed on as they are, so they are looked at before parsing cuts
 * them. */
static bool passed_on(struct engine *e, const char *line)
{
    bool is_stat = strncmp(line, "STAT ", 5) == 0;
    if (!is_stat && strncmp(line, "LEDGER ", 7) != 0)
        return false;
    (void)snprintf(e->scratch, LINE_BYTES_MAX, "%s", line);
    return true;
}

static void line_take(struct engine *e, struct peer *p, char *line, size_t n_bytes)
{
    struct message *m = &e->message;
    struct error err = {0}, said;
    const char *tag;
    uint64_t device;
    bool pass = passed_on(e, line);
    if (message_parse(m, line, n_bytes, &err) != 0) {
        peer_break(p, EBB_EPEER, "it wrote what is no line: %s", err.text);
        return;
    }
    if (m->verb[0] == '\0')
        return;
    if (!verb_is_one(m->verb)) {
        peer_break(p, EBB_EPEER, "it wrote what is no line: \"%.40s\" is no verb", m->verb);
        return;
    }
    if (pass) {
        if (message_u64(m, "device", p->index, p->index, &device, &err) != 0)
            peer_break(p, EBB_EPEER, "%s", err.text);
        else
            cards_answer(e, p, e->scratch, m->verb[0] == 'S' ? REPLY_STAT : REPLY_LEDGER);
        return;
    }
    if (message_error(m, &tag, &said)) {
        said_error(e, p, tag, &said);
        return;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].verb, m->verb) == 0) {
            table[i].take(e, p, m);
            return;
        }
}

static void lines_take(struct engine *e, struct peer *p)
{
    char *line;
    size_t n_bytes;
    while (!p->broken && p->channel_open) {
        enum line_status got = channel_next(&p->channel, &line, &n_bytes);
        if (got == LINE_NEED_MORE)
            return;
        if (got == LINE_TOO_LONG)
            peer_break(p, EBB_EPEER, "it wrote a line of more than %d bytes", LINE_BYTES_MAX);
        else
            line_take(e, p, line, n_bytes);
    }
}

void peer_readable(struct engine *e, struct peer *p)
{
    struct error err = {0};
    int code = channel_read(&p->channel, &err);
    p->heard_us = now_us();
    p->warned = false;
    lines_take(e, p);
    if (code == EBB_EGONE || code == EBB_EIO)
        peer_exited(e, p);
}

/* What a stage calls a warning is for the user, not only for who looks for a cause. */
static void stderr_line(struct engine *e, struct peer *p)
{
    p->err_line[p->n_err_line] = '\0';
    p->n_err_line = 0;
    if (p->err_line[0] == '\0')
        return;
    (void)snprintf(p->words, sizeof p->words, "%.*s", (int)sizeof p->words - 1, p->err_line);
    bool warns = strncmp(p->err_line, "warning: ", 9) == 0;
    engine_log(e, warns ? "warn" : "info", "%s: %s", p->label, p->err_line);
}

bool peer_stderr_readable(struct engine *e, struct peer *p)
{
    char bytes[1024];
    ssize_t n = read(p->process.fd_err, bytes, sizeof bytes);
    for (ssize_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\n' || p->n_err_line == sizeof p->err_line - 1)
            stderr_line(e, p);
        if (c >= 0x20 && c != 0x7f)
            p->err_line[p->n_err_line++] = (char)c;
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        stderr_line(e, p);
        (void)close(p->process.fd_err);
        p->process.fd_err = -1;
    }
    return n > 0;
}

void peer_stderr_drain(struct engine *e, struct peer *p)
{
    for (int i = 0; i < 64 && p->process.fd_err >= 0 && peer_stderr_readable(e, p); i++)
        ;
}

void peer_exited(struct engine *e, struct peer *p)
{
    char how[80];
    struct error err = {0};
    struct process *process = &p->process;
    (void)snprintf(how, sizeof how,
                   p->deaf ? "does not take what is sent to it" : "closed its output");
    while (!p->broken && channel_read(&p->channel, &err) == 0)
        lines_take(e, p);
    lines_take(e, p);
    if (p->broken)
        return;
    /* One that closed its output but lives is ended, so that its last words and its status are
     * there. */
    for (int i = 0; i < 50 && !process_is_dead(process, how, sizeof how); i++) {
        struct timespec pause = {.tv_nsec = 2000000};
        (void)nanosleep(&pause, NULL);
    }
    peer_stderr_drain(e, p);
    peer_break(p, EBB_EPEER, "its stage %s%s%s", how,
               p->words[0] != '\0' ? "; its last words: " : "", p->words);
}

void peer_watch(struct engine *e, struct peer *p, uint64_t now)
{
    if (p->deaf && !p->broken)
        peer_exited(e, p);
    bool owes = e->scheduler != NULL && scheduler_counts(e->scheduler).n_steps > 0;
    owes = owes || p->credit_owed || p->chunk_owed || p->vram != NULL || p->stat.first != NULL ||
           p->ledger.first != NULL;
    if (p->broken || now - p->heard_us < SILENT_US)
        return;
    if (p->state == PEER_STARTED) {
        if (now - p->heard_us > HELLO_US)
            peer_break(p, EBB_EPEER, "its stage was started and said nothing for %d s",
                       (int)(HELLO_US / 1000000));
        return;
    }
    if (p->state != PEER_READY || !owes)
        return;
    if (p->pinged_us == 0) {
        peer_send(p, "PING watch\n", 11);
        p->pinged_us = now;
    } else if (now - p->pinged_us > STALLED_US) {
        peer_break(p, EBB_EPEER, "its stage (layers %u-%u) stalled: no answer to PING for %d s",
                   e->plan.stages[p->index].layer_first, e->plan.stages[p->index].layer_last,
                   (int)(STALLED_US / 1000000));
    } else if (!p->warned && now - p->pinged_us > SILENT_US) {
        p->warned = true;
        engine_log(e, "warn",
                   "card %s: its stage (layers %u-%u) is silent and does not answer PING", p->label,
                   e->plan.stages[p->index].layer_first, e->plan.stages[p->index].layer_last);
    }
}
