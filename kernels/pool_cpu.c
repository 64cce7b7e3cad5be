/* pool_cpu.c - a fixed set of worker threads and the few places where loops are open to them.
 *
 * A loop lies in a slot of the pool, so that a late worker never looks at memory that is gone. A slot's word `state` counts
 * the workers inside and tells whether more may come; joining is one compare-and-swap on it, leaving one subtraction, and
 * no lock is taken on either side as long as everybody is awake. The owner fills a slot while it is shut and empty, opens
 * it, takes pieces like everybody else, shuts it and waits until nobody is inside.
 * `epoch` counts opened loops: it is what a waiting worker looks at. Sleeping and waking cost more than most loops of a
 * decode step take, so a worker stays awake between the loops of a busy stream; it yields its core at every look, and so
 * takes no time from whoever else wants it. The lock is for going to sleep and for waking alone.
 * Refuses: nothing at run time; a pool without workers, or with every slot in use, runs a loop on the caller.
 */
#include "kernels/pool_cpu.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Pieces per thread: enough that a slow thread does not hold up the rest, few enough to be cheap. */
#define PIECES_PER_THREAD 4

/* Loops open at once: a stage computes on one stream and copies on another. */
#define SLOTS 4
#define LINE  64

/* `state` of a slot: workers inside, and flags. */
#define SLOT_OPEN    (UINT32_C(1) << 31) /* workers may come in */
#define SLOT_SLEEPER (UINT32_C(1) << 30) /* the owner sleeps until the last has left */
#define SLOT_INSIDE  (SLOT_SLEEPER - 1)

struct slot {
    alignas(LINE) _Atomic uint32_t state;
    _Atomic bool taken; /* by an owner, from before it opens until after it is empty again */
    alignas(LINE) _Atomic size_t piece_next;
    alignas(LINE) exec_cpu_range *body; /* from here on written while shut and empty */
    void *ctx;
    size_t n, n_pieces;
};

struct pool_cpu {
    struct slot slots[SLOTS];
    alignas(LINE) _Atomic uint64_t epoch;
    _Atomic bool stopping;
    alignas(LINE) _Atomic size_t n_sleeping, n_spinning;
    _Atomic size_t n_busy; /* streams that are running operations */
    pthread_mutex_t lock;
    pthread_cond_t posted, left;
    void *memory; /* owned: what this lies in, at a line's border */
    size_t n_workers;
    unsigned long threads[];
};

/* The processor is an attribute, so that the thread never runs (and touches memory) elsewhere. */
static int place_set(pthread_attr_t *attr, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu >= CPU_SETSIZE)
        return EINVAL;
    CPU_SET((size_t)cpu, &set);
    return pthread_attr_setaffinity_np(attr, sizeof set, &set);
}

int cpu_thread_start(void *(*run)(void *), void *arg, const char *name, int cpu,
                     unsigned long *thread)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t started;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    if (cpu >= 0)
        rc = place_set(&attr, cpu);
    if (rc == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rc = pthread_create(&started, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    (void)pthread_attr_destroy(&attr);
    if (rc != 0)
        return rc;
    (void)pthread_setname_np(started, name);
    *thread = started;
    return 0;
}

int cpu_thread_code(int rc)
{
    return rc == EINVAL ? EBB_EINVAL : EBB_ENOMEM;
}

void cpu_thread_join(unsigned long thread)
{
    (void)pthread_join(thread, NULL);
}

static void loop_run(struct slot *loop)
{
    size_t n = loop->n, pieces = loop->n_pieces;
    size_t wide = n / pieces, n_longer = n % pieces; /* the first n_longer pieces hold one more */
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&loop->piece_next, 1, memory_order_relaxed);
        if (i >= pieces)
            return;
        size_t first = i * wide + (i < n_longer ? i : n_longer);
        loop->body(loop->ctx, first, first + wide + (i < n_longer));
    }
}

static bool loop_join(struct slot *loop)
{
    uint32_t state = atomic_load_explicit(&loop->state, memory_order_relaxed);
    while ((state & SLOT_OPEN) != 0)
        if (atomic_compare_exchange_weak_explicit(&loop->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void loop_leave(struct pool_cpu *p, struct slot *loop)
{
    uint32_t before = atomic_fetch_sub_explicit(&loop->state, 1, memory_order_acq_rel);
    if ((before & SLOT_INSIDE) != 1 || (before & SLOT_SLEEPER) == 0)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->left);
    pthread_mutex_unlock(&p->lock);
}

/* Takes part in every open loop that has pieces left. False: there was none. */
static bool loops_help(struct pool_cpu *p)
{
    bool helped = false;
    for (size_t i = 0; i < SLOTS; i++) {
        struct slot *loop = &p->slots[i];
        if (!loop_join(loop))
            continue;
        if (atomic_load_explicit(&loop->piece_next, memory_order_relaxed) < loop->n_pieces)
            helped = true;
        loop_run(loop);
        loop_leave(p, loop);
    }
    return helped;
}

/* One look of a thread that waits for another: at first it keeps its core, then it offers it at every look. */
static void look_pause(int i)
{
    if (i < CPU_SPINS)
        cpu_relax();
    else
        sched_yield();
}

/* How often a worker looks for a new loop. */
static int worker_looks(struct pool_cpu *p)
{
    bool busy = atomic_load_explicit(&p->n_busy, memory_order_relaxed) > 0;
    return busy ? CPU_SPINS + CPU_YIELDS : CPU_SPINS;
}

/* Looks for a loop opened after `seen` for a while, then sleeps until there is one. */
static void worker_idle(struct pool_cpu *p, uint64_t seen)
{
    atomic_fetch_add(&p->n_spinning, 1);
    for (int i = 0; i < worker_looks(p) && atomic_load(&p->epoch) == seen; i++)
        look_pause(i);
    atomic_fetch_sub(&p->n_spinning, 1);
    if (atomic_load(&p->epoch) != seen)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_sleeping,
                     1); /* before the last look: whoever posts after it sees a sleeper */
    while (atomic_load(&p->epoch) == seen && !atomic_load(&p->stopping))
        pthread_cond_wait(&p->posted, &p->lock);
    atomic_fetch_sub(&p->n_sleeping, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct pool_cpu *p = arg;
    while (!atomic_load(&p->stopping)) {
        uint64_t seen = atomic_load(&p->epoch); /* before the slots are looked at */
        if (!loops_help(p))
            worker_idle(p, seen);
    }
    return NULL;
}

static int worker_cpu(const struct exec_settings *s, size_t worker)
{
    return s->n_cpus > 0 ? s->cpus[(worker + 1) % s->n_cpus] : -1;
}

int pool_cpu_open(struct pool_cpu **out, int n_workers, const struct exec_settings *settings,
                  struct error *err)
{
    size_t bytes = sizeof(struct pool_cpu) + (size_t)n_workers * sizeof(unsigned long);
    void *memory = calloc(1, bytes + LINE - 1);
    if (memory == NULL)
        return error_set(err, EBB_ENOMEM, "cpu workers: no memory for %d", n_workers);
    struct pool_cpu *p = (struct pool_cpu *)(((uintptr_t)memory + LINE - 1) / LINE * LINE);
    p->memory = memory;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->posted, NULL);
    pthread_cond_init(&p->left, NULL);
    for (; p->n_workers < (size_t)n_workers; p->n_workers++) {
        int rc = cpu_thread_start(worker_main, p, "ebb-worker", worker_cpu(settings, p->n_workers),
                                  &p->threads[p->n_workers]);
        if (rc != 0) {
            int code = error_set(err, cpu_thread_code(rc),
                                 "cpu workers: thread %zu of %d could not start: %s",
                                 p->n_workers + 1, n_workers, strerror(rc));
            pool_cpu_close(p);
            return code;
        }
    }
    *out = p;
    return 0;
}

void pool_cpu_close(struct pool_cpu *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, true);
    pthread_cond_broadcast(&p->posted);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n_workers; i++)
        cpu_thread_join(p->threads[i]);
    pthread_cond_destroy(&p->left);
    pthread_cond_destroy(&p->posted);
    pthread_mutex_destroy(&p->lock);
    free(p->memory);
}

/* Wakes as many sleepers as there are pieces for, beyond the caller and those who look anyway. */
static void sleepers_wake(struct pool_cpu *p, size_t wanted)
{
    size_t awake = atomic_load(&p->n_spinning);
    if (wanted <= awake)
        return;
    pthread_mutex_lock(&p->lock);
    for (wanted -= awake; wanted > 0; wanted--)
        pthread_cond_signal(&p->posted);
    pthread_mutex_unlock(&p->lock);
}

/* Shut: nobody comes in any more. Returns when the last has left. */
static void loop_close(struct pool_cpu *p, struct slot *loop)
{
    atomic_fetch_and_explicit(&loop->state, ~SLOT_OPEN, memory_order_acq_rel);
    for (int i = 0; i < CPU_SPINS + CPU_YIELDS; i++) {
        if ((atomic_load_explicit(&loop->state, memory_order_acquire) & SLOT_INSIDE) == 0)
            return;
        look_pause(i);
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_or(&loop->state, SLOT_SLEEPER);
    while ((atomic_load(&loop->state) & SLOT_INSIDE) != 0)
        pthread_cond_wait(&p->left, &p->lock);
    atomic_fetch_and(&loop->state, ~SLOT_SLEEPER);
    pthread_mutex_unlock(&p->lock);
}

static struct slot *slot_take(struct pool_cpu *p)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (!atomic_exchange_explicit(&p->slots[i].taken, true, memory_order_acquire))
            return &p->slots[i];
    return NULL;
}

void pool_cpu_busy(struct pool_cpu *p, bool busy)
{
    if (busy)
        atomic_fetch_add_explicit(&p->n_busy, 1, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&p->n_busy, 1, memory_order_relaxed);
}

void pool_cpu_for(struct pool_cpu *p, size_t n, size_t grain, exec_cpu_range *body, void *ctx)
{
    size_t pieces = n / (grain > 0 ? grain : 1), most = (p->n_workers + 1) * PIECES_PER_THREAD;
    struct slot *loop = pieces > 1 && p->n_workers > 0 ? slot_take(p) : NULL;
    if (loop == NULL) {
        if (n > 0)
            body(ctx, 0, n);
        return;
    }
    loop->body = body;
    loop->ctx = ctx;
    loop->n = n;
    loop->n_pieces = pieces < most ? pieces : most;
    atomic_store_explicit(&loop->piece_next, 0, memory_order_relaxed);
    atomic_store_explicit(&loop->state, SLOT_OPEN, memory_order_release);
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->n_sleeping) > 0)
        sleepers_wake(p, loop->n_pieces - 1);
    loop_run(loop);
    loop_close(p, loop);
    atomic_store_explicit(&loop->taken, false, memory_order_release);
}
