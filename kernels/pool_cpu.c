/* pool_cpu.c - a fixed set of worker threads and the list of loops that are open to them.
 *
 * One lock guards the list, the sleepers and the joining and leaving of loops; the pieces themselves are handed out
 * by an atomic counter. A worker joins a loop only while it is in the list, and the owner takes it out before it
 * waits for those inside, so a loop's memory is never touched after pool_cpu_for() returns. The last worker to leave
 * reads what it needs before it lowers n_inside: after that the loop belongs to its owner again.
 * `epoch` counts posted loops: it is what a spinning worker looks at without the lock. Sleeping and waking cost more
 * than most loops of a decode step take, so a worker stays awake between the loops of a busy stream; it yields its
 * core at every look, and so takes no time from whoever else wants it.
 * Refuses: nothing at run time; a pool without workers runs every loop on the caller.
 */
#include "kernels/pool_cpu.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Pieces per thread: enough that a slow thread does not hold up the rest, few enough to be cheap. */
#define PIECES_PER_THREAD 4

struct pool_cpu {
    pthread_mutex_t lock;
    pthread_cond_t posted, left;
    struct pool_cpu_loop *open; /* the lock */
    _Atomic uint64_t epoch;
    size_t n_sleeping, n_spinning; /* the lock */
    _Atomic bool stopping;
    _Atomic size_t n_busy; /* streams that are running operations */
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

static void loop_run(struct pool_cpu_loop *loop)
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

static struct pool_cpu_loop *loop_find(struct pool_cpu *p)
{
    for (struct pool_cpu_loop *loop = p->open; loop != NULL; loop = loop->next)
        if (atomic_load_explicit(&loop->piece_next, memory_order_relaxed) < loop->n_pieces)
            return loop;
    return NULL;
}

/* Called with the lock; gives it up while the pieces run. */
static void loop_help(struct pool_cpu *p, struct pool_cpu_loop *loop)
{
    atomic_fetch_add_explicit(&loop->n_inside, 1, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    loop_run(loop);
    pthread_mutex_lock(&p->lock);
    bool owner_sleeps = loop->owner_sleeps;
    if (atomic_fetch_sub_explicit(&loop->n_inside, 1, memory_order_acq_rel) == 1 && owner_sleeps)
        pthread_cond_broadcast(&p->left);
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

/* Called and left with the lock: looks for a new loop for a while without it, then sleeps. */
static void worker_idle(struct pool_cpu *p)
{
    uint64_t seen = atomic_load(&p->epoch);
    p->n_spinning++;
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < worker_looks(p) && atomic_load(&p->epoch) == seen; i++)
        look_pause(i);
    pthread_mutex_lock(&p->lock);
    p->n_spinning--;
    while (atomic_load(&p->epoch) == seen && !atomic_load(&p->stopping)) {
        p->n_sleeping++;
        pthread_cond_wait(&p->posted, &p->lock);
        p->n_sleeping--;
    }
}

static void *worker_main(void *arg)
{
    struct pool_cpu *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!atomic_load(&p->stopping)) {
        struct pool_cpu_loop *loop = loop_find(p);
        if (loop != NULL)
            loop_help(p, loop);
        else
            worker_idle(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int worker_cpu(const struct exec_settings *s, size_t worker)
{
    return s->n_cpus > 0 ? s->cpus[(worker + 1) % s->n_cpus] : -1;
}

int pool_cpu_open(struct pool_cpu **out, int n_workers, const struct exec_settings *settings,
                  struct error *err)
{
    struct pool_cpu *p = calloc(1, sizeof *p + (size_t)n_workers * sizeof p->threads[0]);
    if (p == NULL)
        return error_set(err, EBB_ENOMEM, "cpu workers: no memory for %d", n_workers);
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
    free(p);
}

static void loop_post(struct pool_cpu *p, struct pool_cpu_loop *loop)
{
    pthread_mutex_lock(&p->lock);
    loop->next = p->open;
    p->open = loop;
    atomic_fetch_add(&p->epoch, 1);
    size_t wanted = loop->n_pieces - 1; /* one piece is the caller's */
    wanted -= wanted < p->n_spinning ? wanted : p->n_spinning;
    if (wanted > p->n_sleeping)
        wanted = p->n_sleeping;
    while (wanted-- > 0)
        pthread_cond_signal(&p->posted);
    pthread_mutex_unlock(&p->lock);
}

static void loop_withdraw(struct pool_cpu *p, struct pool_cpu_loop *loop)
{
    pthread_mutex_lock(&p->lock);
    struct pool_cpu_loop **link = &p->open;
    while (*link != loop)
        link = &(*link)->next;
    *link = loop->next;
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < CPU_SPINS + CPU_YIELDS; i++) {
        if (atomic_load_explicit(&loop->n_inside, memory_order_acquire) == 0)
            return;
        look_pause(i);
    }
    pthread_mutex_lock(&p->lock);
    loop->owner_sleeps = true;
    while (atomic_load_explicit(&loop->n_inside, memory_order_acquire) != 0)
        pthread_cond_wait(&p->left, &p->lock);
    loop->owner_sleeps = false;
    pthread_mutex_unlock(&p->lock);
}

void pool_cpu_busy(struct pool_cpu *p, bool busy)
{
    if (busy)
        atomic_fetch_add_explicit(&p->n_busy, 1, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&p->n_busy, 1, memory_order_relaxed);
}

void pool_cpu_for(struct pool_cpu *p, struct pool_cpu_loop *loop, size_t n, size_t grain,
                  exec_cpu_range *body, void *ctx)
{
    size_t pieces = n / (grain > 0 ? grain : 1);
    if (pieces <= 1 || p->n_workers == 0) {
        if (n > 0)
            body(ctx, 0, n);
        return;
    }
    size_t most = (p->n_workers + 1) * PIECES_PER_THREAD;
    loop->body = body;
    loop->ctx = ctx;
    loop->n = n;
    loop->n_pieces = pieces < most ? pieces : most;
    atomic_store_explicit(&loop->piece_next, 0, memory_order_relaxed);
    loop_post(p, loop);
    loop_run(loop);
    loop_withdraw(p, loop);
}
