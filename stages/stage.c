/* stages/stage.c - the program of a stage: options, the protocol's descriptors, the loop, and which line goes where.
 *
 * The loop polls the protocol, the links and the exec's wake descriptor, reads what came, and pushes the work on: load, steps, VRAM. Where
 * the exec has no descriptor to wake by, it polls without sleeping while work is out, and for a while when a step waits for its input:
 * to be woken would cost such a step a good part of what its rows take on their way. Only here does the process talk to the world
 * outside its lines: fd 1 is kept for the protocol before any library starts and points at stderr afterwards.
 * End: QUIT or end of input, exit 0; a failed card, exit 1. Everything is given back on the way out.
 */
#include "stages/stage.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define CONTROL_QUEUE_BYTES (64u << 20)
#define REFILL_POLL_MS      10
#define TURN_POLL_MS        1 /* nothing tells of another process' unlocking */

uint64_t now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void stage_log(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(stderr, "%s\n", text);
}

void stage_say(struct stage *s, struct line_writer *w)
{
    int n = line_end(w);
    if (n < 0)
        stage_log("stage %u: a line of more than %d bytes was not sent", s->load.stage,
                  LINE_BYTES_MAX);
    else if (channel_send(&s->control, s->line, (size_t)n) != 0)
        s->quitting = true;
}

void stage_refuse(struct stage *s, const char *tag, const struct error *err)
{
    if (channel_send_error(&s->control, tag, err) != 0)
        s->quitting = true;
}

void stage_fail(struct stage *s, const struct error *err)
{
    stage_refuse(s, "-", err);
    stage_log("stage %u (%s): %s", s->load.stage, s->card_name, err->text);
    s->quitting = true;
    s->exit_status = 1;
}

static void say_hello(struct stage *s)
{
    struct vmm_memory mem = {0};
    struct error err;
    (void)s->memory.memory(&s->memory, &mem, &err);
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "HELLO");
    line_bare(&w, "ebbtide-stage");
    line_u64(&w, "protocol", 1);
    line_key(&w, "version", EBBTIDE_VERSION);
    line_u64(&w, "device", (uint64_t)s->card_setting.device);
    line_key(&w, "kind", s->platform->kind);
    line_text(&w, "name", s->card_name, strlen(s->card_name));
    line_text(&w, "uuid", s->card_uuid, strlen(s->card_uuid));
    line_u64(&w, "free_mib", mem.free_bytes / MIB);
    line_u64(&w, "total_mib", mem.total_bytes / MIB);
    stage_say(s, &w);
}

static void ping_command(struct stage *s, const struct message *m)
{
    struct line_writer w;
    const char *token = message_bare(m, 0);
    line_begin(&w, s->line, sizeof s->line, "PONG");
    if (token != NULL)
        line_bare(&w, token);
    stage_say(s, &w);
}

static void quit_command(struct stage *s, const struct message *m)
{
    (void)m;
    s->quitting = true;
}

static void go_command(struct stage *s, const struct message *m)
{
    (void)m;
    load_go(s);
}

static void release_command(struct stage *s, const struct message *m)
{
    struct line_writer w;
    (void)m;
    load_release(s);
    line_begin(&w, s->line, sizeof s->line, "RELEASED");
    stage_say(s, &w);
}

static void stat_line(struct stage *s, const struct message *m)
{
    (void)m;
    stat_command(s);
}

static void ledger_line(struct stage *s, const struct message *m)
{
    (void)m;
    ledger_command(s);
}

#define IN_EMPTY   (1u << STAGE_EMPTY)
#define IN_HELD    (1u << STAGE_HELD)
#define IN_LOADING (1u << STAGE_LOADING)
#define IN_SERVING (1u << STAGE_SERVING)
#define IN_ANY     (IN_EMPTY | IN_HELD | IN_LOADING | IN_SERVING)

static const struct verb_entry {
    const char *verb;
    unsigned states; /* in which it may come */
    void (*run)(struct stage *s, const struct message *m);
} verbs[] = {
    {"PING", IN_ANY, ping_command},
    {"QUIT", IN_ANY, quit_command},
    {"LOAD", IN_EMPTY, load_command},
    {"GO", IN_HELD, go_command},
    {"RELEASE", IN_HELD, release_command},
    {"ROWS", IN_SERVING, queue_rows},
    {"STEP", IN_SERVING, queue_step},
    {"CANCEL", IN_SERVING, queue_cancel},
    {"FORK", IN_SERVING, queue_fork},
    {"DROP", IN_SERVING, queue_drop},
    {"CREDIT", IN_SERVING, queue_credit},
    {"CHUNK", IN_SERVING, queue_chunk},
    {"VRAM", IN_ANY & ~IN_EMPTY, vram_command},
    {"STAT", IN_ANY, stat_line},
    {"LEDGER", IN_ANY, ledger_line},
    {"HOLDERS", IN_ANY, holders_command},
};

static void line_run(struct stage *s, const struct message *m, const char *raw)
{
    struct error err = {0};
    static const char *const state_words[] = {"nothing is loaded", "GO has not come",
                                              "weights are loading", "it is serving"};
    if (strcmp(m->verb, "LINK") == 0 && s->state != STAGE_EMPTY) {
        link_command(s, m, raw);
        return;
    }
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(m->verb, verbs[i].verb) == 0 && (verbs[i].states & 1u << s->state) != 0) {
            verbs[i].run(s, m);
            return;
        }
    error_set(&err, EBB_EBUSY, "%s: not now, %s", m->verb, state_words[s->state]);
    stage_refuse(s, message_tag(m), &err);
}

static void line_handle(struct stage *s, char *line, size_t n_bytes)
{
    struct message m;
    struct error err = {0};
    char raw[1024] = ""; /* LINK lines may have to wait; parsing takes a line apart */
    if (n_bytes < sizeof raw)
        memcpy(raw, line, n_bytes + 1);
    int rc = message_parse(&m, line, n_bytes, &err);
    if (rc == 0 && m.verb[0] == '\0')
        return;
    if (rc == 0)
        rc = message_check(&m, DIALECT_STAGE, &err);
    if (rc != 0)
        stage_refuse(s, message_tag(&m), &err);
    else
        line_run(s, &m, raw);
}

static void lines_handle(struct stage *s)
{
    char *line;
    size_t n_bytes;
    enum line_status status;
    while (!s->quitting &&
           (status = channel_next(&s->control, &line, &n_bytes)) != LINE_NEED_MORE) {
        struct error err;
        if (status == LINE_READY) {
            line_handle(s, line, n_bytes);
            continue;
        }
        error_set(&err, EBB_ELINE_TOO_LONG, "a line may have %d bytes", LINE_BYTES_MAX);
        stage_refuse(s, "-", &err);
    }
    if (s->control.at_end)
        s->quitting = true;
}

static bool work_is_out(const struct stage *s)
{
    return s->run.busy || s->experts.n_uploading > 0 || links_are_copying(s);
}

static void sooner(int *timeout, int ms)
{
    if (ms >= 0 && (*timeout < 0 || *timeout > ms))
        *timeout = ms;
}

/* How long the loop may sleep where no descriptor would wake it, in ms; -1: for ever. */
static int loop_timeout(const struct stage *s, bool wakes)
{
    /* Loading with nothing out: the next piece can go. */
    bool ready = s->state == STAGE_LOADING && !s->run.busy && s->experts.n_uploading == 0;
    if (ready || (!wakes && (work_is_out(s) || run_awaits_input(s))))
        return 0;
    int timeout = yield_timeout(s);
    sooner(&timeout, links_due_ms(s));
    if (s->refill.limited && experts_is_filling(&s->experts))
        sooner(&timeout, REFILL_POLL_MS); /* nothing else would tell that the bus may be had */
    if (s->turn.asked_us != 0)
        sooner(&timeout, TURN_POLL_MS);
    return timeout;
}

static void loop_once(struct stage *s)
{
    struct pollfd fds[3 + LINK_N_WAYS * LINK_POLL_FDS_MAX];
    size_t n = 0;
    struct error err;
    int wake = s->card != NULL ? s->platform->exec->wake_fd(s->card) : -1;
    fds[n++] = (struct pollfd){.fd = s->control.fd_in, .events = POLLIN};
    if (channel_wants_write(&s->control))
        fds[n++] = (struct pollfd){.fd = s->control.fd_out, .events = POLLOUT};
    if (wake >= 0)
        fds[n++] = (struct pollfd){.fd = wake, .events = POLLIN};
    n += links_poll_fds(s, fds + n, sizeof fds / sizeof fds[0] - n);
    if (s->run.phase == RUN_IDLE && queue_first(&s->queue) == NULL && s->trace.n_used > 0)
        trace_flush(&s->trace);
    int timeout = loop_timeout(s, wake >= 0);
    if (poll(fds, (nfds_t)n, timeout) < 0 && errno != EINTR) {
        error_set(&err, EBB_EIO, "poll: %s", strerror(errno));
        stage_fail(s, &err);
        return;
    }
    if (wake >= 0)
        s->platform->exec->wake_clear(s->card);
    if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
        channel_read(&s->control, &err) == EBB_EIO)
        s->quitting = true;
    if (channel_wants_write(&s->control) && channel_flush(&s->control) != 0)
        s->quitting = true;
    lines_handle(s);
    if (s->quitting || s->state == STAGE_EMPTY)
        return;
    links_service(s);
    run_advance(s);
    links_service(s); /* what the last piece of work put on its way */
    run_advance(s);   /* and what came in meanwhile: no descriptor will tell of it again */
    load_advance(s);
}

static void usage(FILE *out, const struct platform *p)
{
    (void)fprintf(
        out,
        "%s - one card of an ebbtide run; usually started by ebbtide\n\n"
        "usage: %s [--device N] [--vram-mib N] [--namespace NAME]\n"
        "       %s --list\n\n"
        "  --device N        the card's number (default 0; %s:N is accepted)\n"
        "  --vram-mib N      memory of the card that may be used (default: the driver's)\n"
        "  --namespace NAME  CPU cards of one namespace share their account (default: default)\n"
        "  --list            this machine's cards, a line each, and the end\n"
        "  --version, --help\n\n"
        "Reads lines on stdin, answers on stdout, logs on stderr. By hand:\n"
        "  LOAD model=model.gguf     answers HELD: all memory is made\n"
        "  GO                        reads the weights, answers LOADED\n"
        "  ROWS epoch=0 step=1 seq=0 pos=0 ids=1,2,3 want=last\n"
        "  STEP epoch=0 step=1 rows=3  answers TOK and RAN\n"
        "  VRAM 100, STAT, LEDGER, HOLDERS, PING x, QUIT\n\n"
        "exit status: 0 ended as asked, 1 the card or its driver failed or there is none, 2 bad "
        "usage\n",
        p->program, p->program, p->program, p->kind);
}

static int number_option(const char *text, const char *name, uint64_t max, uint64_t *value)
{
    if (parse_u64(text, 0, max, value) == 0)
        return 0;
    stage_log("--%s: a number from 0 to %llu wanted, got %s", name, (unsigned long long)max, text);
    return EBB_EINVAL;
}

static void card_line(const struct platform_listed *card)
{
    char line[2048];
    struct line_writer w;
    line_begin(&w, line, sizeof line, "CARD");
    line_u64(&w, "device", (uint64_t)card->device);
    line_text(&w, "name", card->name, strlen(card->name));
    line_text(&w, "uuid", card->uuid, strlen(card->uuid));
    if (card->compute[0] != '\0')
        line_key(&w, "compute", card->compute);
    line_u64(&w, "total_mib", card->total_bytes / MIB);
    line_u64(&w, "free_mib", card->free_bytes / MIB);
    line_u64(&w, "usable", card->why[0] == '\0');
    if (card->why[0] != '\0')
        line_text(&w, "why", card->why, strlen(card->why));
    if (line_end(&w) > 0)
        (void)fputs(line, stdout);
}

/* The exit status. */
static int cards_list(const struct platform *p)
{
    struct platform_listed *cards = calloc(PLATFORM_LISTED_MAX, sizeof *cards);
    struct error err = {0};
    size_t n = 0;
    int code;
    if (cards == NULL || p->list == NULL)
        code = error_set(&err, EBB_EUNSUPPORTED, "cannot list cards");
    else
        code = p->list(cards, &n, &err);
    for (size_t i = 0; code == 0 && i < n; i++)
        card_line(&cards[i]);
    if (code != 0)
        stage_log("%s: %s", p->program, err.text);
    free(cards);
    return code == 0 && fflush(stdout) == 0 ? 0 : 1;
}

/* 0 = go on, 1 = done, 2 = the cards are wanted, < 0 = bad usage. */
static int options_read(struct stage *s, int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"vram-mib", required_argument, NULL, 'v'},
                                            {"namespace", required_argument, NULL, 'n'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"version", no_argument, NULL, 'V'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    size_t kind_bytes = strlen(s->platform->kind);
    int c, rc = 0;
    bool list = false;
    while (rc == 0 && (c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        uint64_t value = 0;
        if (c == 'd') {
            bool named =
                strncmp(optarg, s->platform->kind, kind_bytes) == 0 && optarg[kind_bytes] == ':';
            rc = number_option(named ? optarg + kind_bytes + 1 : optarg, "device", 1023, &value);
            s->card_setting.device = (int)value;
        } else if (c == 'v') {
            rc = number_option(optarg, "vram-mib", UINT64_C(1) << 40, &value);
            s->card_setting.capacity_bytes = value * MIB;
        } else if (c == 'n') {
            s->card_setting.name_space = optarg;
        } else if (c == 'l') {
            list = true;
        } else if (c == 'V') {
            (void)printf("%s %s\n", s->platform->program, EBBTIDE_VERSION);
            return 1;
        } else {
            usage(c == 'h' ? stdout : stderr, s->platform);
            return c == 'h' ? 1 : EBB_EINVAL;
        }
    }
    if (rc == 0 && optind < argc) {
        stage_log("%s: no arguments wanted, got %s", s->platform->program, argv[optind]);
        rc = EBB_EINVAL;
    }
    return rc == 0 && list ? 2 : rc;
}

/* The protocol keeps its descriptor to itself; whatever a library prints goes to the log. */
static int protocol_open(struct stage *s, struct error *err)
{
    int out = dup(STDOUT_FILENO);
    if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return error_set(err, EBB_EIO, "cannot keep stdout for the protocol: %s", strerror(errno));
    return channel_open(&s->control, STDIN_FILENO, out, false, CONTROL_QUEUE_BYTES, err);
}

static int stage_open(struct stage *s, struct error *err)
{
    int rc = protocol_open(s, err);
    if (rc == 0)
        rc = s->platform->describe(&s->card_setting, s->card_name, sizeof s->card_name,
                                   s->card_uuid, sizeof s->card_uuid, err);
    if (rc == 0)
        rc = s->platform->memory_open(&s->memory, &s->card_setting, err);
    s->link_driver = s->platform->links[0];
    s->load.device = (uint32_t)s->card_setting.device;
    if (rc == 0)
        turn_open(s);
    return rc;
}

int stage_main(const struct platform *platform, int argc, char **argv)
{
    struct stage *s = calloc(1, sizeof *s);
    struct error err = {0};
    if (s == NULL)
        return 1;
    s->platform = platform;
    s->turn.lock.fd = -1;
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = options_read(s, argc, argv);
    if (rc != 0) {
        free(s);
        return rc == 2 ? cards_list(platform) : rc > 0 ? 0 : 2;
    }
    rc = stage_open(s, &err);
    if (rc == 0)
        say_hello(s);
    while (rc == 0 && !s->quitting)
        loop_once(s);
    if (rc != 0)
        stage_log("%s: %s", platform->program, err.text);
    load_heat_save(s);
    load_release(s);
    turn_close(s);
    if (s->memory.close != NULL)
        s->memory.close(&s->memory);
    (void)channel_flush(&s->control);
    channel_close(&s->control);
    rc = rc != 0 ? 1 : s->exit_status;
    free(s);
    return rc;
}
