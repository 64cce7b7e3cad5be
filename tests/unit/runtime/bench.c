/* tests/unit/runtime/bench.c - the engine under test in its thread, and the controller's side. */
#include "bench.h"
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void keep_log(void *ctx, const char *level, const char *text)
{
    struct bench *b = ctx;
    (void)pthread_mutex_lock(&b->log_lock);
    size_t n = strlen(b->log);
    (void)snprintf(b->log + n, sizeof b->log - n, "%s: %s\n", level, text);
    (void)pthread_mutex_unlock(&b->log_lock);
}

static void set_text(char **at, const char *text)
{
    free(*at);
    *at = strdup(text);
}

bool bench_logged(struct bench *b, const char *text)
{
    (void)pthread_mutex_lock(&b->log_lock);
    bool is_there = strstr(b->log, text) != NULL;
    (void)pthread_mutex_unlock(&b->log_lock);
    return is_there;
}

void bench_init(struct bench *b, uint32_t n_cards, const char *options)
{
    char launch[1024];
    memset(b, 0, sizeof *b);
    (void)pthread_mutex_init(&b->stop_lock, NULL);
    (void)pthread_mutex_init(&b->log_lock, NULL);
    settings_default(&b->s);
    (void)snprintf(launch, sizeof launch, "%s --card {card} %s", EBBTIDE_FAKE_STAGE, options);
    set_text(&b->s.launch, launch);
    set_text(&b->s.model, EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf");
    set_text(&b->s.control, "none");
    b->s.n_cards = n_cards;
    for (uint32_t i = 0; i < n_cards; i++)
        b->s.cards[i] = (struct card_setting){.kind = CARD_CPU, .ordinal = i};
    b->lines = calloc(BENCH_LINES_MAX, sizeof *b->lines);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b->pair), 0);
}

static void *engine_main(void *argument)
{
    struct bench *b = argument;
    struct engine_events events = {.ctx = b, .log = keep_log};
    struct engine *e = NULL;
    b->code = engine_open(&e, &b->s, &events, &b->err);
    if (b->code == 0) {
        atomic_store(&b->engine, e);
        b->code = engine_attach(e, b->pair[0], b->pair[0], true, &b->err);
    } else {
        (void)close(b->pair[0]);
    }
    if (b->code == 0)
        b->code = engine_loop(e, &b->err);
    (void)pthread_mutex_lock(&b->stop_lock);
    atomic_store(&b->engine, NULL);
    (void)pthread_mutex_unlock(&b->stop_lock);
    engine_close(e);
    atomic_store(&b->ended, true);
    return NULL;
}

void bench_launch(struct bench *b)
{
    cr_assert_eq(channel_open(&b->c, b->pair[1], b->pair[1], false, 64u << 20, &b->err), 0);
    cr_assert_eq(pthread_create(&b->thread, NULL, engine_main, b), 0);
}

void bench_start(struct bench *b)
{
    bench_launch(b);
    (void)bench_wait(b, 0, "READY ");
}

void bench_stop(struct bench *b)
{
    (void)pthread_mutex_lock(&b->stop_lock);
    struct engine *e = atomic_load(&b->engine);
    if (e != NULL)
        engine_stop(e);
    (void)pthread_mutex_unlock(&b->stop_lock);
}

int bench_join(struct bench *b)
{
    for (int i = 0; i < 2000 && bench_reads(b, 10); i++)
        ;
    (void)pthread_join(b->thread, NULL);
    channel_close(&b->c);
    settings_free(&b->s);
    for (size_t i = 0; i < b->n_lines; i++)
        free(b->lines[i]);
    free(b->lines);
    b->lines = NULL;
    b->n_lines = 0;
    return b->code;
}

int bench_end(struct bench *b)
{
    bench_send(b, "QUIT");
    return bench_join(b);
}

void bench_send(struct bench *b, const char *format, ...)
{
    static char line[LINE_BYTES_MAX + 2];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[n] = '\n';
    (void)channel_send(&b->c, line, (size_t)n + 1);
}

bool bench_reads(struct bench *b, int timeout_ms)
{
    struct pollfd fd = {.fd = b->c.fd_in, .events = POLLIN};
    char *line;
    size_t n;
    struct error err;
    if (channel_wants_write(&b->c))
        fd.events |= POLLOUT;
    (void)poll(&fd, 1, timeout_ms);
    (void)channel_flush(&b->c);
    int code = channel_read(&b->c, &err);
    while (channel_next(&b->c, &line, &n) == LINE_READY) {
        cr_assert_lt(b->n_lines, BENCH_LINES_MAX);
        b->lines[b->n_lines++] = strdup(line);
    }
    return code == 0 || code == EBB_EAGAIN;
}

size_t bench_wait(struct bench *b, size_t from, const char *format, ...)
{
    char start[256];
    struct timespec began, now;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(start, sizeof start, format, args);
    va_end(args);
    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    for (size_t at = from;;) {
        for (; at < b->n_lines; at++)
            if (strncmp(b->lines[at], start, (size_t)n) == 0)
                return at;
        bool goes_on = bench_reads(b, 100);
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        if (at == b->n_lines && (!goes_on || now.tv_sec - began.tv_sec > 20))
            cr_assert_fail("no line \"%s\"%s; last: %s\nengine: %d %s\n%s", start,
                           goes_on ? "" : " and the engine has gone",
                           b->n_lines > 0 ? b->lines[b->n_lines - 1] : "(none)", b->code,
                           b->err.text, b->log);
    }
}

size_t bench_tokens(const struct bench *b, const char *tag, int32_t *ids, size_t max)
{
    char start[80];
    size_t n = 0;
    int n_start = snprintf(start, sizeof start, "T %s ", tag);
    for (size_t i = 0; i < b->n_lines && n < max; i++)
        if (strncmp(b->lines[i], start, (size_t)n_start) == 0)
            ids[n++] = (int32_t)strtol(b->lines[i] + n_start, NULL, 10);
    return n;
}

uint64_t bench_number(const char *line, const char *key)
{
    char start[64];
    (void)snprintf(start, sizeof start, " %s=", key);
    const char *at = strstr(line, start);
    cr_assert_not_null(at, "no %s= in %s", key, line);
    return strtoull(at + strlen(start), NULL, 10);
}

static uint64_t mix(uint64_t h, uint64_t token)
{
    h = (h ^ (token + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    return h ^ (h >> 29);
}

void expected_tokens(const int32_t *prompt, size_t n_prompt, int32_t *out, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n_prompt; i++)
        h = mix(h, (uint64_t)prompt[i]);
    for (size_t i = 0; i < n; i++) {
        out[i] = (int32_t)(300 + h % 1500);
        h = mix(h, (uint64_t)out[i]);
    }
}

void bench_generate(struct bench *b, const char *tag, uint32_t max_new, int32_t first,
                    size_t n_prompt, int32_t *prompt, const char *more)
{
    static char list[LINE_BYTES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < n_prompt; i++) {
        prompt[i] = (int32_t)((uint32_t)first + i * 7 % 1000);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", i > 0 ? "," : "", prompt[i]);
    }
    bench_send(b, "GEN %s %u%s%s ids=%s", tag, max_new, more[0] != '\0' ? " " : "", more, list);
}

void bench_expect(struct bench *b, const char *tag, const int32_t *prompt, size_t n_prompt,
                  size_t n)
{
    int32_t wanted[2048], got[2048];
    expected_tokens(prompt, n_prompt, wanted, n);
    size_t n_got = bench_tokens(b, tag, got, 2048);
    cr_assert_eq(n_got, n, "%s: %zu tokens wanted, got %zu", tag, n, n_got);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(got[i], wanted[i], "%s: token %zu: %d wanted, got %d", tag, i, wanted[i],
                     got[i]);
}

void temp_path(char *path, size_t capacity, const char *name)
{
    const char *dir = getenv("TMPDIR");
    (void)snprintf(path, capacity, "%s/ebbtide-test-%d-%s", dir != NULL ? dir : "/tmp",
                   (int)getpid(), name);
    (void)unlink(path);
}
