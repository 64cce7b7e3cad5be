/* pair.h - a CUDA card and a CPU card side by side, for tests that hold the one against the other.
 *
 * Buffers come from pair_new(): pinned memory that both see at one address, so that a test fills inputs once, runs an operation by
 * both kernel sets into two outputs, and compares. Without a card every test is skipped, and says so. Each Criterion test is a
 * process of its own: open the pair in the test, not before.
 */
#pragma once
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/kernels/inputs.h"

struct pair {
    struct exec *gpu;
    struct exec_stream *stream;
    struct exec_event *event;
    struct card cpu;
    const struct kernel_set *cuda, *reference, *fast; /* fast: the quickest CPU set */
};

static inline struct pair pair_open(void)
{
    struct pair p = {0};
    struct error err = {0};
    struct exec_settings settings = {0};
    int rc = exec_cuda.open(&p.gpu, &settings, &err);
    if (rc == EBB_EDRIVER)
        cr_skip_test("%s", err.text);
    cr_assert_eq(rc, 0, "%s", err.text);
    cr_assert_eq(exec_cuda.stream_open(p.gpu, &p.stream, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cuda.event_open(p.gpu, &p.event, &err), 0, "%s", err.text);
    p.cpu = card_open(4);
    p.cuda = kernel_set_cuda("auto", &err);
    p.reference = kernel_set_cpu("reference", &err);
    p.fast = kernel_set_cpu("auto", &err);
    return p;
}

static inline void pair_close(struct pair *p)
{
    exec_cuda.event_close(p->event);
    exec_cuda.stream_close(p->stream);
    exec_cuda.close(p->gpu);
    card_close(&p->cpu);
}

/* Zeroed; lives as long as the test's process. */
static inline void *pair_new(struct pair *p, size_t bytes)
{
    void *base = NULL;
    struct error err = {0};
    cr_assert_eq(exec_cuda.shared_alloc(p->gpu, bytes, &base, &err), 0, "%s", err.text);
    return base;
}

/* A copy of `bytes` of what a helper of inputs.h made; frees that. */
static inline void *pair_take(struct pair *p, void *made, size_t bytes)
{
    void *base = pair_new(p, bytes);
    memcpy(base, made, bytes);
    free(made);
    return base;
}

/* Returns when both cards have done all that was put on their streams. */
static inline void pair_wait(struct pair *p)
{
    int done;
    cr_assert_eq(exec_cuda.event_record(p->event, p->stream), 0);
    while ((done = exec_cuda.event_query(p->event)) == 0)
        ;
    cr_assert_eq(done, 1, "a launch failed: %s", error_code_name(done));
    card_wait(&p->cpu);
}
