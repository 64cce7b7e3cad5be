/* kernels/pool_cpu.h - internal to the room: the workers that share the loops inside CPU operations.
 *
 * A pool holds a fixed number of threads. A stream's thread posts one loop at a time and takes part in it; idle workers
 * join whatever loops are open and take pieces by a shared counter. Who computes a piece never matters to the result: a
 * body writes only what belongs to the items of its piece.
 * Threads: pool_cpu_for() from any number of stream threads at once; not from inside a body.
 * Workers without a loop spin for a few microseconds, then sleep: other processes share these cores. While a stream is
 * busy they first go on looking for some hundred microseconds, yielding their core each time.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "kernels/exec.h"

struct pool_cpu;

/* How often to look before sleeping: some microseconds of pause instructions. */
#define CPU_SPINS 128

/* How often to look after that, where another thread is known to be at work: a yield is some tenths of a microsecond. */
#define CPU_YIELDS 1000

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Starts a thread that no signal is delivered to: signals belong to the process's main thread. cpu >= 0: on that
 * processor from its first instruction to its last. 0 or an errno (EINVAL: not a processor that may be used). */
int cpu_thread_start(void *(*run)(void *), void *arg, const char *name, int cpu,
                     unsigned long *thread);
int cpu_thread_code(int rc); /* that errno as a code of this room's */
void cpu_thread_join(unsigned long thread);

/* n_workers >= 0 threads; worker i is thread i + 1 of `settings` for its cpus. 0, EBB_ENOMEM (memory or a thread
 * refused), EBB_EINVAL (a processor that may not be used); nothing is left behind. */
int pool_cpu_open(struct pool_cpu **p, int n_workers, const struct exec_settings *settings,
                  struct error *err);
void pool_cpu_close(struct pool_cpu *p); /* NULL is fine; no loop may be open */

/* A stream says that it begins (true) or ends running operations; loops are expected in between. */
void pool_cpu_busy(struct pool_cpu *p, bool busy);

/* body over [0, n) in pieces of at least `grain` items (grain 0 counts as 1); returns when all ran. */
void pool_cpu_for(struct pool_cpu *p, size_t n, size_t grain, exec_cpu_range *body, void *ctx);
