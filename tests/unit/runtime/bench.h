/* tests/unit/runtime/bench.h - an engine in a thread, over fake stages, with a controller at the
 * other end of a socketpair.
 *
 * Every line the controller gets is kept in order; tests look for lines by their beginning.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "protocol/channel.h"
#include "protocol/client.h"
#include "runtime/engine.h"

#define BENCH_LINES_MAX 200000

struct bench {
    struct settings s;
    struct engine *_Atomic engine;
    pthread_t thread;
    struct channel c;
    char **lines; /* without LF */
    size_t n_lines;
    int code;
    struct error err;
    int pair[2];
    atomic_bool ended;
    pthread_mutex_t stop_lock; /* the engine stays while it is held and `engine` is set */
    pthread_mutex_t log_lock;
    char log[8192];
};

/* Settings for n cards whose stages are fakes with these options; change b->s before
 * bench_start(). */
void bench_init(struct bench *b, uint32_t n_cards, const char *options);
void bench_start(
    struct bench *b); /* waits for READY; fails the test when the engine does not come up */
void bench_launch(struct bench *b); /* the same without waiting */
int bench_end(
    struct bench *b); /* QUIT, waits for the end: what engine_open or engine_loop returned */
int bench_join(struct bench *b);  /* waits only */
void bench_stop(struct bench *b); /* engine_stop(), if it still runs */
void bench_send(struct bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The index of the first line from `from` on that begins with this; fails the test after 20 s. */
size_t bench_wait(struct bench *b, size_t from, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool bench_reads(struct bench *b,
                 int timeout_ms); /* takes what comes; false: the connection has ended */
/* Ids of all T lines of a tag so far. */
size_t bench_tokens(const struct bench *b, const char *tag, int32_t *ids, size_t max);
uint64_t bench_number(const char *line,
                      const char *key); /* key=<n>; fails the test if it is not there */
/* What a fake stage generates after a prompt. */
void expected_tokens(const int32_t *prompt, size_t n_prompt, int32_t *out, size_t n);
/* "GEN <tag> <n> ids=…" with n_prompt ids that begin with `first`; the ids go to prompt. */
void bench_generate(struct bench *b, const char *tag, uint32_t max_new, int32_t first,
                    size_t n_prompt, int32_t *prompt, const char *more);
void bench_expect(struct bench *b, const char *tag, const int32_t *prompt, size_t n_prompt,
                  size_t n);
bool bench_logged(struct bench *b, const char *text);
void temp_path(char *path, size_t capacity,
               const char *name); /* of this test's own, nothing there */
