/* card.h - a CPU card for tests: one executor, one stream, and a way to wait for what was put on
 * it. */
#pragma once
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include "kernels/kernels.h"

struct card {
    struct exec *exec;
    struct exec_stream *stream;
    struct exec_event *event;
};

static inline struct card card_open(int n_threads)
{
    struct card c = {0};
    struct error err = {0};
    struct exec_settings settings = {.n_threads = n_threads};
    cr_assert_eq(exec_cpu.open(&c.exec, &settings, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cpu.stream_open(c.exec, &c.stream, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cpu.event_open(c.exec, &c.event, &err), 0, "%s", err.text);
    return c;
}

/* Returns when all work put on the stream is done. */
static inline void card_wait(struct card *c)
{
    int done;
    cr_assert_eq(exec_cpu.event_record(c->event, c->stream), 0);
    while ((done = exec_cpu.event_query(c->event)) == 0) {
        struct pollfd wake = {.fd = exec_cpu.wake_fd(c->exec), .events = POLLIN};
        exec_cpu.wake_clear(c->exec);
        if ((done = exec_cpu.event_query(c->event)) != 0)
            break;
        poll(&wake, 1, 1);
    }
    cr_assert_eq(done, 1);
}

static inline void card_close(struct card *c)
{
    exec_cpu.event_close(c->event);
    exec_cpu.stream_close(c->stream);
    exec_cpu.close(c->exec);
}

/* Every set; the first N_EXACT have the same bits. */
static const char *const set_names[] = {"reference", "avx2", "avx512", "float"};
#define N_SETS  4
#define N_EXACT 3

/* Memory aligned to 64 bytes, filled with 0xcd, with a byte past the end that a sanitizer
 * guards. */
static inline void *bytes_of(size_t n)
{
    size_t rounded = (n + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, rounded == 0 ? 64 : rounded);
    cr_assert_not_null(p);
    return memset(p, 0xcd, rounded);
}

/* A set by name, or NULL where this processor does not run it. */
static inline const struct kernel_set *set_named(const char *name)
{
    struct error err = {0};
    const struct kernel_set *set = kernel_set_cpu(name, &err);
    if (set == NULL)
        cr_assert_eq(err.code, EBB_EUNSUPPORTED, "%s", err.text);
    return set;
}
