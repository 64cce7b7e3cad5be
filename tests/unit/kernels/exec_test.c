/* exec_test.c - streams run in order, events and doorbells tell the truth, graphs repeat what was recorded. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>
#include "card.h"

struct step_args {
    int *log;
    _Atomic int *n;
    int value;
};

static void step_job(const void *args, struct exec_cpu_worker *w)
{
    (void)w;
    const struct step_args *a = args;
    a->log[atomic_fetch_add(a->n, 1)] = a->value;
}

static void step_push(struct exec_stream *s, int *log, _Atomic int *n, int value)
{
    struct step_args a = {log, n, value};
    cr_assert_eq(exec_cpu_push(s, step_job, &a, sizeof a), 0);
}

/* A job that waits until the test opens the gate. */
struct gate_args {
    _Atomic bool *open;
};

static void gate_job(const void *args, struct exec_cpu_worker *w)
{
    (void)w;
    const struct gate_args *a = args;
    while (!atomic_load(a->open))
        usleep(100);
}

static void gate_push(struct exec_stream *s, _Atomic bool *open)
{
    struct gate_args a = {open};
    cr_assert_eq(exec_cpu_push(s, gate_job, &a, sizeof a), 0);
}

static bool readable_within(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

Test(exec, a_stream_runs_thousands_of_operations_in_their_order)
{
    enum { N = 5000 };
    static int log[N];
    static _Atomic int n;
    struct card card = card_open(2);
    for (int i = 0; i < N; i++)
        step_push(card.stream, log, &n, i);
    card_wait(&card);
    cr_assert_eq(atomic_load(&n), N);
    for (int i = 0; i < N; i++)
        cr_assert_eq(log[i], i);
    card_close(&card);
}

Test(exec, args_are_copied_and_too_many_are_refused)
{
    static int log[2];
    static _Atomic int n;
    struct card card = card_open(1);
    struct step_args a = {log, &n, 7};
    char big[EXEC_CPU_ARGS_MAX + 1] = {0};
    cr_assert_eq(exec_cpu_push(card.stream, step_job, &a, sizeof a), 0);
    a.value = 8;
    a.log = NULL;
    cr_assert_eq(exec_cpu_push(card.stream, step_job, big, sizeof big), EBB_EINVAL);
    card_wait(&card);
    cr_assert_eq(atomic_load(&n), 1);
    cr_assert_eq(log[0], 7);
    card_close(&card);
}

Test(exec, a_fresh_event_is_done_and_a_recorded_one_is_not_until_the_work_is)
{
    static _Atomic bool open;
    struct card card = card_open(1);
    cr_assert_eq(exec_cpu.event_query(card.event), 1);
    gate_push(card.stream, &open);
    cr_assert_eq(exec_cpu.event_record(card.event, card.stream), 0);
    usleep(3000);
    cr_assert_eq(exec_cpu.event_query(card.event), 0);
    atomic_store(&open, true);
    card_wait(&card);
    cr_assert_eq(exec_cpu.event_query(card.event), 1);
    card_close(&card);
}

Test(exec, a_wait_holds_one_stream_until_the_event_of_another)
{
    static _Atomic bool open;
    static int log[4];
    static _Atomic int n;
    struct card card = card_open(2);
    struct exec_stream *other;
    struct error err;
    cr_assert_eq(exec_cpu.stream_open(card.exec, &other, &err), 0);
    gate_push(card.stream, &open);
    step_push(card.stream, log, &n, 1);
    cr_assert_eq(exec_cpu.event_record(card.event, card.stream), 0);
    cr_assert_eq(exec_cpu.stream_wait(other, card.event), 0);
    step_push(other, log, &n, 2);
    /* A later record elsewhere must not let the waiter go. */
    cr_assert_eq(exec_cpu.event_record(card.event, other), 0);
    usleep(3000);
    cr_assert_eq(atomic_load(&n), 0);
    atomic_store(&open, true);
    while (exec_cpu.event_query(card.event) == 0)
        usleep(100);
    cr_assert_eq(log[0], 1);
    cr_assert_eq(log[1], 2);
    exec_cpu.stream_close(other);
    card_close(&card);
}

Test(exec, a_record_on_a_free_stream_does_not_pass_a_wait_for_an_earlier_record)
{
    static _Atomic bool open;
    static int log[4];
    static _Atomic int n;
    struct card card = card_open(1);
    struct exec_stream *waiting, *idle;
    struct error err;
    cr_assert_eq(exec_cpu.stream_open(card.exec, &waiting, &err), 0);
    cr_assert_eq(exec_cpu.stream_open(card.exec, &idle, &err), 0);
    gate_push(card.stream, &open);
    cr_assert_eq(exec_cpu.event_record(card.event, card.stream), 0);
    cr_assert_eq(exec_cpu.stream_wait(waiting, card.event), 0);
    step_push(waiting, log, &n, 2);
    cr_assert_eq(exec_cpu.event_record(card.event, idle), 0);
    usleep(5000);
    cr_assert_eq(atomic_load(&n), 0);
    atomic_store(&open, true);
    exec_cpu.stream_close(waiting);
    cr_assert_eq(atomic_load(&n), 1);
    exec_cpu.stream_close(idle);
    card_close(&card);
}

Test(exec, the_wake_fd_is_readable_once_for_many_and_again_after_a_clear)
{
    struct card card = card_open(1);
    int fd = exec_cpu.wake_fd(card.exec);
    cr_assert_geq(fd, 0);
    cr_assert_not(readable_within(fd, 0));
    for (int round = 0; round < 200; round++) {
        cr_assert_eq(exec_cpu.event_record(card.event, card.stream), 0);
        cr_assert(readable_within(fd, 2000), "round %d", round);
        exec_cpu.wake_clear(card.exec);
        cr_assert_eq(exec_cpu.event_query(card.event), 1);
        cr_assert_not(readable_within(fd, 0));
    }
    card_close(&card);
}

Test(exec, a_doorbell_rings_in_stream_order_and_wakes)
{
    static _Atomic bool open;
    struct card card = card_open(1);
    struct exec_doorbell *bell;
    struct error err;
    cr_assert_eq(exec_cpu.doorbell_open(card.exec, &bell, &err), 0);
    cr_assert_eq(exec_cpu.doorbell_read(bell), 0);
    gate_push(card.stream, &open);
    cr_assert_eq(exec_cpu.doorbell_ring(bell, card.stream, 41), 0);
    cr_assert_eq(exec_cpu.doorbell_ring(bell, card.stream, 42), 0);
    cr_assert_eq(exec_cpu.doorbell_read(bell), 0);
    atomic_store(&open, true);
    cr_assert(readable_within(exec_cpu.wake_fd(card.exec), 2000));
    card_wait(&card);
    cr_assert_eq(exec_cpu.doorbell_read(bell), 42);
    exec_cpu.doorbell_close(bell);
    card_close(&card);
}

Test(exec, copies_and_fills_move_every_byte)
{
    enum { N = (5 << 20) + 13 };
    struct card card = card_open(3);
    unsigned char *from = bytes_of(N), *to = bytes_of(N);
    for (size_t i = 0; i < N; i++)
        from[i] = (unsigned char)(i * 7 >> 3);
    cr_assert_eq(exec_cpu.copy(card.stream, to, from, N), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(to, from, N), 0);
    cr_assert_eq(exec_cpu.fill(card.stream, to, 0x5a, N), 0);
    cr_assert_eq(exec_cpu.fill(card.stream, to, 0, 0), 0);
    card_wait(&card);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(to[i], 0x5a);
    free(from), free(to);
    card_close(&card);
}

Test(exec, a_graph_runs_what_was_recorded_as_often_as_it_is_launched)
{
    enum { N = 150, TIMES = 3 };
    static int log[N * TIMES];
    static _Atomic int n;
    struct card card = card_open(2);
    struct exec_graph *graph;
    struct error err;
    cr_assert_eq(exec_cpu.capture_begin(card.stream), 0);
    cr_assert_eq(exec_cpu.capture_begin(card.stream), EBB_EINVAL);
    for (int i = 0; i < N; i++)
        step_push(card.stream, log, &n, i);
    cr_assert_eq(exec_cpu.capture_end(card.stream, &graph, &err), 0);
    card_wait(&card);
    cr_assert_eq(atomic_load(&n), 0, "nothing runs while it is recorded");
    for (int i = 0; i < TIMES; i++)
        cr_assert_eq(exec_cpu.graph_launch(graph, card.stream), 0);
    exec_cpu.graph_close(graph); /* launched work keeps it */
    card_wait(&card);
    cr_assert_eq(atomic_load(&n), N * TIMES);
    for (int i = 0; i < N * TIMES; i++)
        cr_assert_eq(log[i], i % N);
    card_close(&card);
}

Test(exec, a_capture_refuses_what_cannot_be_repeated)
{
    struct card card = card_open(1);
    struct exec_graph *graph, *inner;
    struct exec_doorbell *bell;
    struct error err;
    cr_assert_eq(exec_cpu.doorbell_open(card.exec, &bell, &err), 0);
    cr_assert_eq(exec_cpu.capture_end(card.stream, &graph, &err), EBB_EINVAL);
    cr_assert_eq(exec_cpu.capture_begin(card.stream), 0);
    cr_assert_eq(exec_cpu.capture_end(card.stream, &inner, &err), 0);
    cr_assert_eq(exec_cpu.capture_begin(card.stream), 0);
    cr_assert_eq(exec_cpu.event_record(card.event, card.stream), EBB_EUNSUPPORTED);
    cr_assert_eq(exec_cpu.stream_wait(card.stream, card.event), EBB_EUNSUPPORTED);
    cr_assert_eq(exec_cpu.doorbell_ring(bell, card.stream, 1), EBB_EUNSUPPORTED);
    cr_assert_eq(exec_cpu.graph_launch(inner, card.stream), EBB_EUNSUPPORTED);
    cr_assert_eq(exec_cpu.capture_end(card.stream, &graph, &err), 0);
    cr_assert_eq(exec_cpu.graph_launch(graph, card.stream), 0, "an empty graph is a graph");
    card_wait(&card);
    cr_assert_eq(exec_cpu.event_query(card.event), 1);
    exec_cpu.graph_close(graph);
    exec_cpu.graph_close(inner);
    exec_cpu.doorbell_close(bell);
    card_close(&card);
}

Test(exec, closing_lets_queued_work_finish_even_when_its_events_are_closed_first)
{
    enum { N = 300 };
    static _Atomic bool open;
    static int log[N];
    static _Atomic int n;
    struct card card = card_open(2);
    struct exec_doorbell *bell;
    struct error err;
    cr_assert_eq(exec_cpu.doorbell_open(card.exec, &bell, &err), 0);
    gate_push(card.stream, &open);
    for (int i = 0; i < N; i++)
        step_push(card.stream, log, &n, i);
    cr_assert_eq(exec_cpu.event_record(card.event, card.stream), 0);
    cr_assert_eq(exec_cpu.doorbell_ring(bell, card.stream, 1), 0);
    exec_cpu.event_close(card.event);
    exec_cpu.doorbell_close(bell);
    atomic_store(&open, true);
    exec_cpu.close(card.exec); /* closes the stream too */
    cr_assert_eq(atomic_load(&n), N);
    exec_cpu.close(NULL);
}

struct count_args {
    _Atomic unsigned char *seen;
    size_t n, grain;
    _Atomic size_t *n_short;
};

static void count_range(void *ctx, size_t first, size_t last)
{
    const struct count_args *a = ctx;
    if (last - first < a->grain)
        atomic_fetch_add(a->n_short, 1);
    for (size_t i = first; i < last; i++)
        atomic_fetch_add(&a->seen[i], 1);
}

static void count_job(const void *args, struct exec_cpu_worker *w)
{
    struct count_args a = *(const struct count_args *)args;
    exec_cpu_parallel_for(w, a.n, a.grain, count_range, &a);
}

Test(exec, a_parallel_loop_covers_every_item_once_in_pieces_no_smaller_than_the_grain)
{
    static const size_t ns[] = {0, 1, 2, 7, 63, 64, 65, 1000}, grains[] = {0, 1, 3, 64, 5000};
    for (int threads = 1; threads <= 4; threads++) {
        struct card card = card_open(threads);
        for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++)
            for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++) {
                _Atomic unsigned char seen[1000] = {0};
                _Atomic size_t n_short = 0;
                struct count_args a = {seen, ns[i], grains[g], &n_short};
                cr_assert_eq(exec_cpu_push(card.stream, count_job, &a, sizeof a), 0);
                card_wait(&card);
                for (size_t j = 0; j < 1000; j++)
                    cr_assert_eq(atomic_load(&seen[j]), j < ns[i]);
                cr_assert_eq(atomic_load(&n_short), ns[i] > 0 && ns[i] < grains[g]);
            }
        card_close(&card);
    }
}

Test(exec, streams_share_the_workers_without_losing_an_item)
{
    enum { STREAMS = 6, LOOPS = 400, N = 100 }; /* more than may have loops open at once */
    static _Atomic unsigned char seen[STREAMS][LOOPS][N];
    static _Atomic size_t n_short;
    struct card card = card_open(3);
    struct exec_stream *s[STREAMS];
    struct error err;
    for (int i = 0; i < STREAMS; i++)
        cr_assert_eq(exec_cpu.stream_open(card.exec, &s[i], &err), 0);
    for (int loop = 0; loop < LOOPS; loop++)
        for (int i = 0; i < STREAMS; i++) {
            struct count_args a = {seen[i][loop], N, 1, &n_short};
            cr_assert_eq(exec_cpu_push(s[i], count_job, &a, sizeof a), 0);
        }
    for (int i = 0; i < STREAMS; i++)
        exec_cpu.stream_close(s[i]);
    for (size_t i = 0; i < sizeof seen; i++)
        cr_assert_eq(atomic_load(&seen[0][0][0] + i), 1);
    card_close(&card);
}

Test(exec, settings_out_of_range_are_refused_with_words)
{
    struct exec *e;
    struct error err = {0};
    struct exec_settings settings = {.device = 3, .n_threads = 0};
    cr_assert_eq(exec_cpu.open(&e, &settings, &err), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "cpu:3"));
    settings.n_threads = 1 << 20;
    cr_assert_eq(exec_cpu.open(&e, &settings, &err), EBB_EINVAL);
}

static void first_seen(void *ctx, size_t first, size_t last)
{
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    for (size_t i = first; i < last; i++)
        ((int *)ctx)[i] = CPU_COUNT(&set) == 1 && CPU_ISSET((size_t)sched_getcpu(), &set);
}

struct pinned_op {
    int *alone; /* [n] */
    size_t n;
    _Atomic bool *done;
};

static void pinned_job(const void *args, struct exec_cpu_worker *w)
{
    const struct pinned_op *op = args;
    exec_cpu_parallel_for(w, op->n, 1, first_seen, op->alone);
    atomic_store(op->done, true);
}

Test(exec, threads_keep_to_the_processors_they_were_given)
{
    struct error err = {0};
    struct exec *e;
    struct exec_stream *s, *other;
    cpu_set_t mine;
    int cpus[2] = {0}, alone[64] = {0};
    size_t n = 0;
    _Atomic bool done = false;
    cr_assert_eq(sched_getaffinity(0, sizeof mine, &mine), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET((size_t)i, &mine))
            cpus[n++] = i;
    struct exec_settings settings = {.n_threads = 3, .cpus = cpus, .n_cpus = n};
    cr_assert_eq(exec_cpu.open(&e, &settings, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cpu.stream_open(e, &s, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cpu.stream_open(e, &other, &err), 0, "%s", err.text);
    struct pinned_op op = {alone, 64, &done};
    cr_assert_eq(exec_cpu_push(s, pinned_job, &op, sizeof op), 0);
    exec_cpu.close(e); /* drains */
    cr_assert(atomic_load(&done));
    for (size_t i = 0; i < 64; i++)
        cr_assert(alone[i], "item %zu ran on a thread that was not kept to one processor", i);
    cpus[0] = cpus[1] = CPU_SETSIZE - 1; /* not there */
    cr_assert_eq(exec_cpu.open(&e, &settings, &err), EBB_EINVAL);
    settings.n_threads = 1;
    cr_assert_eq(exec_cpu.open(&e, &settings, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cpu.stream_open(e, &s, &err), EBB_EINVAL);
    exec_cpu.close(e);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/* The sanitizers' own maps need the address space that this test takes away. */
Test(exec, threads_that_cannot_start_are_an_error_and_leave_nothing)
{
    struct rlimit before, none;
    struct exec *e;
    struct exec_stream *s;
    struct error err = {0};
    struct card card = card_open(1);
    struct exec_settings settings = {.n_threads = 64};
    cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
    none = before;
    none.rlim_cur = 1 << 20;
    cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
    int rc_exec = exec_cpu.open(&e, &settings, &err);
    int rc_stream = exec_cpu.stream_open(card.exec, &s, NULL);
    cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
    cr_assert_eq(rc_exec, EBB_ENOMEM);
    cr_assert_eq(err.code, EBB_ENOMEM);
    cr_assert_eq(rc_stream, EBB_ENOMEM);
    cr_assert_eq(exec_cpu.open(&e, &settings, &err), 0, "%s", err.text);
    exec_cpu.close(e);
    card_close(&card);
}
#endif

Test(exec, a_set_is_found_by_name_or_refused_by_name)
{
    struct error err = {0};
    cr_assert_str_eq(kernel_set_cpu("reference", &err)->name, "reference");
    cr_assert_str_eq(kernel_set_cpu("float", &err)->name, "float");
    cr_assert_not_null(kernel_set_cpu("auto", &err));
    cr_assert_null(kernel_set_cpu("avx9", &err));
    cr_assert_eq(err.code, EBB_ENOENT);
    cr_assert_not_null(strstr(err.text, "avx9"));
}

Test(exec, auto_is_avx512_where_the_processor_runs_it)
{
    if (set_named("avx512") == NULL)
        cr_skip("this processor has no AVX-512 with VNNI");
    cr_assert_str_eq(set_named("avx512")->name, "avx512");
    cr_assert_str_eq(set_named("auto")->name, "avx512");
}

Test(exec, shared_memory_comes_zeroed_and_a_size_that_cannot_be_is_refused)
{
    struct card card = card_open(1);
    struct error err = {0};
    void *base = NULL;
    cr_assert_eq(exec_cpu.shared_alloc(card.exec, 1000, &base, &err), 0);
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(((unsigned char *)base)[i], 0);
    exec_cpu.shared_free(card.exec, base);
    exec_cpu.shared_free(card.exec, NULL);
    cr_assert_eq(exec_cpu.shared_alloc(card.exec, SIZE_MAX, &base, &err), EBB_ENOMEM);
    card_close(&card);
}
