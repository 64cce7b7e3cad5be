/* vmm/driver.h - what the segment pool asks of a card's memory: reserve addresses, create physical
 * memory, map it there, and give it all back; the shape of the CUDA driver's virtual memory calls,
 * filled by driver_host.c (a CPU card: memfd + mmap + an account shared between processes) and
 * driver_cuda.c.
 *
 * Sizes are multiples of `granularity`. A range is reserved once and keeps its address for life.
 * Nothing is unmapped that was not mapped, segment by segment. Memory that is destroyed while it is
 * mapped lives until it is unmapped. Threads: one owner. Failure: the call did nothing; err has the
 * driver's words. fail_nth in tests wraps this table and refuses the Nth call.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

typedef uint64_t vmm_handle; /* one piece of physical memory; 0 is none */

struct vmm_memory {
    uint64_t total_bytes;   /* of the card: its capacity */
    uint64_t free_bytes;    /* what could still be created now */
    uint64_t own_bytes;     /* created by this process and not destroyed */
    uint64_t foreign_bytes; /* held by other, living processes */
    uint64_t
        beside_bytes; /* of drivers with adopt(): in use on the card and not own, whosever, whatever the capacity */
    uint64_t
        context_bytes; /* what the driver itself took when this process came to the card; CPU: 0 */
};

#define VMM_HOLDERS_MAX 16

/* A process that holds memory of a card. */
struct vmm_holder {
    int64_t pid;
    char name[64];  /* as /proc/<pid>/comm has it; "" where it cannot be read */
    uint64_t bytes; /* 0: not told */
};

struct vmm_driver {
    const char *name;   /* "host" | "cuda" */
    size_t granularity; /* of sizes and map addresses */
    void *ctx;          /* the driver's own, freed by close */

    int (*reserve)(struct vmm_driver *d, size_t bytes, void **base, struct error *err);
    int (*unreserve)(struct vmm_driver *d, void *base, size_t bytes, struct error *err);
    /* EBB_ENOMEM: over capacity. */
    int (*create)(struct vmm_driver *d, size_t bytes, vmm_handle *handle, struct error *err);
    int (*destroy)(struct vmm_driver *d, vmm_handle handle, struct error *err);
    int (*map)(struct vmm_driver *d, void *base, size_t bytes, vmm_handle handle,
               struct error *err);
    /* Readable and writable by the card. */
    int (*set_access)(struct vmm_driver *d, void *base, size_t bytes, struct error *err);
    int (*unmap)(struct vmm_driver *d, void *base, size_t bytes, struct error *err);
    int (*memory)(struct vmm_driver *d, struct vmm_memory *out, struct error *err);
    /* Other living processes that hold memory of the card, the largest first, at most VMM_HOLDERS_MAX. NULL: this driver never
     * knows; *n = 0: nobody, or there is nobody to ask. Best effort: what they hold need not add up to foreign_bytes. */
    int (*holders)(struct vmm_driver *d, struct vmm_holder *out, size_t *n, struct error *err);
    void (*close)(struct vmm_driver *d);
    /* Counts bytes of the card that a library of this process took (negative: gave back) behind the driver's back as this process' own,
     * no longer as foreign. NULL: nobody takes memory of this kind of card but by this table. */
    void (*adopt)(struct vmm_driver *d, int64_t bytes);
    /* Both or neither; NULL: the driver cannot share. create_shared: as create, and *fd, the caller's, names the memory to
     * whoever it is sent to. */
    int (*create_shared)(struct vmm_driver *d, size_t bytes, vmm_handle *handle, int *fd,
                         struct error *err);
    /* Memory that another process made with create_shared; fd stays the caller's. It counts for who made it, here not at all.
     * EBB_EDRIVER: it is something else, or another card's that this one cannot reach. */
    int (*import)(struct vmm_driver *d, int fd, size_t bytes, vmm_handle *handle,
                  struct error *err);
};

/* A CPU card `device` of `capacity_bytes`. Cards of one `name_space` (letters, digits, '-', '_';
 * NULL = "default") on one host and user share an account by card number: every process's bytes, by
 * pid and start time, in a lock file of `runtime_dir` (NULL: $XDG_RUNTIME_DIR/ebbtide, else
 * /tmp/ebbtide-<uid>), so that free memory counts what others hold and forgets the dead.
 * capacity_bytes 0 = half of the machine's memory. */
struct vmm_host_settings {
    int device;
    uint64_t capacity_bytes;
    const char *name_space;
    const char *runtime_dir;
};
int vmm_driver_host_open(struct vmm_driver *d, const struct vmm_host_settings *settings,
                         struct error *err);

/* A CUDA card, `device` as the driver counts, its primary context made; capacity_bytes 0 = the whole card, else this
 * process behaves as if the card had no more. In programs linked with the room's CUDA half. EBB_EDRIVER: no driver;
 * EBB_ENOENT: no such card; EBB_EUNSUPPORTED: the card has no virtual memory management, or no kernels are made for it. */
struct vmm_cuda_settings {
    int device;
    uint64_t capacity_bytes;
};
int vmm_driver_cuda_open(struct vmm_driver *d, const struct vmm_cuda_settings *settings,
                         struct error *err);
/* A CUDA card as its driver shows it, without a context made on it. */
struct vmm_cuda_card {
    char name[256], uuid[64]; /* the UUID as nvidia-smi prints it: "GPU-…" */
    int major, minor;         /* compute capability */
    uint64_t total_bytes;
    uint64_t free_bytes; /* as NVML tells it; total_bytes where there is no NVML */
};
/* How many cards the driver shows. EBB_EDRIVER: no driver, no card, or a driver that is too old for this program. */
int vmm_cuda_count(int *n, struct error *err);
/* EBB_ENOENT: no such card. */
int vmm_cuda_look(int device, struct vmm_cuda_card *card, struct error *err);
/* Whether kernels are made for it. EBB_EUNSUPPORTED: err says what it lacks. */
int vmm_cuda_check(int device, const struct vmm_cuda_card *card, struct error *err);
