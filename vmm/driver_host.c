/* vmm/driver_host.c - a CPU card: the driver table over memfd and mmap.
 *
 *   reserve     a PROT_NONE anonymous mapping
 *   create      a memfd of that size, booked in the card's account; destroy closes it
 *   map         the memfd over a part of a range; set_access makes it readable and writable
 *   unmap       PROT_NONE anonymous memory over it again
 *
 * As with CUDA, memory lives until it is destroyed AND unmapped: destroying mapped memory is
 * allowed, takes its handle away and frees (and un-books) the bytes with the last unmap. One piece
 * may be mapped at several places, always whole. A range with anything mapped in it cannot be given
 * back.
 *
 * Refuses, with a driver's words (EBB_EDRIVER): unknown handles and ranges, sizes and addresses off
 * the granularity, maps that overlap, unmapping or opening what is not mapped exactly there.
 * EBB_ENOMEM: over the card's capacity, counting what other living processes hold (vmm/account.h).
 * Lifetimes: `struct host` owns every descriptor, mapping and range and ends them all in close,
 * whatever the callers forgot; memfds are close-on-exec. Threads: one owner.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "vmm/account.h"
#include "vmm/driver.h"

#define SHARED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct host_memory {
    vmm_handle handle;
    int fd; /* owned; -1 = destroyed, but mapped still */
    size_t bytes, n_mappings;
    bool imported; /* booked by who made it */
};

struct host_span { /* a reserved range, or a mapping inside one */
    unsigned char *base;
    size_t bytes;
    vmm_handle handle; /* of a mapping */
};

struct host {
    struct account account;
    uint64_t capacity_bytes;
    size_t granularity;
    vmm_handle handle_next; /* never used twice */
    struct host_memory *memories;
    struct host_span *ranges, *mappings;
    size_t n_memories, n_ranges, n_mappings;
    size_t memories_capacity, ranges_capacity, mappings_capacity;
};

static struct host *host_of(struct vmm_driver *d)
{
    return d->ctx;
}

/* Room for one more item. The lists are as long as the most that ever lived at once, so a steady
 * state allocates nothing. */
static int list_room(void **items, size_t n, size_t *capacity, size_t item_bytes, struct error *err)
{
    if (n < *capacity)
        return 0;
    size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL)
        return error_set(err, EBB_ENOMEM, "host driver: no memory for %zu list entries", wanted);
    *items = grown;
    *capacity = wanted;
    return 0;
}

static struct host_memory *memory_find(struct host *h, vmm_handle handle)
{
    for (size_t i = 0; i < h->n_memories; i++)
        if (h->memories[i].handle == handle)
            return &h->memories[i];
    return NULL;
}

/* The span that starts at base with exactly these bytes, or NULL. */
static struct host_span *span_find(struct host_span *spans, size_t n, const void *base,
                                   size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (spans[i].base == base && spans[i].bytes == bytes)
            return &spans[i];
    return NULL;
}

static bool span_overlaps(const struct host_span *s, const unsigned char *base, size_t bytes)
{
    return (uintptr_t)base < (uintptr_t)s->base + s->bytes &&
           (uintptr_t)s->base < (uintptr_t)base + bytes;
}

static bool span_overlaps_any(const struct host_span *spans, size_t n, const void *base,
                              size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (span_overlaps(&spans[i], base, bytes))
            return true;
    return false;
}

static bool range_contains(const struct host *h, const unsigned char *base, size_t bytes)
{
    for (size_t i = 0; i < h->n_ranges; i++) {
        uintptr_t start = (uintptr_t)h->ranges[i].base;
        uintptr_t offset = (uintptr_t)base - start;
        if ((uintptr_t)base >= start && offset <= h->ranges[i].bytes &&
            bytes <= h->ranges[i].bytes - offset)
            return true;
    }
    return false;
}

static int size_check(const struct host *h, const char *call, size_t bytes, struct error *err)
{
    if (bytes == 0 || bytes % h->granularity != 0 || bytes > (size_t)PTRDIFF_MAX)
        return error_set(err, EBB_EDRIVER,
                         "cpu:%d: %s: invalid value: wants a multiple of %zu bytes, got %zu",
                         h->account.device, call, h->granularity, bytes);
    return 0;
}

static int system_refused(const struct host *h, const char *call, size_t bytes, struct error *err)
{
    return error_set(err, EBB_EDRIVER, "cpu:%d: %s of %zu bytes: %s", h->account.device, call,
                     bytes, strerror(errno));
}

static int host_reserve(struct vmm_driver *d, size_t bytes, void **base, struct error *err)
{
    struct host *h = host_of(d);
    int code = size_check(h, "reserve", bytes, err);
    if (code == 0)
        code = list_room((void **)&h->ranges, h->n_ranges, &h->ranges_capacity, sizeof *h->ranges,
                         err);
    if (code != 0)
        return code;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return system_refused(h, "reserve", bytes, err);
    h->ranges[h->n_ranges++] = (struct host_span){.base = at, .bytes = bytes};
    *base = at;
    return 0;
}

static int host_unreserve(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct host *h = host_of(d);
    struct host_span *range = span_find(h->ranges, h->n_ranges, base, bytes);
    if (range == NULL)
        return error_set(err, EBB_EDRIVER, "cpu:%d: unreserve: range %p + %zu is not reserved",
                         h->account.device, base, bytes);
    if (span_overlaps_any(h->mappings, h->n_mappings, base, bytes))
        return error_set(err, EBB_EDRIVER, "cpu:%d: unreserve: range %p + %zu has memory mapped",
                         h->account.device, base, bytes);
    if (munmap(base, bytes) != 0)
        return system_refused(h, "unreserve", bytes, err);
    *range = h->ranges[--h->n_ranges];
    return 0;
}

static int memory_add(struct host *h, int fd, size_t bytes, bool imported, vmm_handle *handle)
{
    *handle = ++h->handle_next;
    h->memories[h->n_memories++] =
        (struct host_memory){.handle = *handle, .fd = fd, .bytes = bytes, .imported = imported};
    return 0;
}

static int memory_room(struct host *h, const char *call, size_t bytes, struct error *err)
{
    int code = size_check(h, call, bytes, err);
    return code != 0 ? code
                     : list_room((void **)&h->memories, h->n_memories, &h->memories_capacity,
                                 sizeof *h->memories, err);
}

static int memory_make(struct host *h, size_t bytes, bool shared, vmm_handle *handle,
                       struct error *err)
{
    char name[32];
    int code = memory_room(h, "create", bytes, err);
    if (code == 0)
        code = account_take(&h->account, bytes, h->capacity_bytes, err);
    if (code != 0)
        return code;
    (void)snprintf(name, sizeof name, "ebbtide-cpu%d", h->account.device);
    int fd = memfd_create(name, MFD_CLOEXEC | (shared ? MFD_ALLOW_SEALING : 0u));
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        (shared && fcntl(fd, F_ADD_SEALS, SHARED_SEALS) != 0)) {
        code = system_refused(h, "create", bytes, err);
        if (fd >= 0)
            (void)close(fd);
        account_give(&h->account, bytes);
        return code;
    }
    return memory_add(h, fd, bytes, false, handle);
}

static int host_create(struct vmm_driver *d, size_t bytes, vmm_handle *handle, struct error *err)
{
    return memory_make(host_of(d), bytes, false, handle, err);
}

/* Un-books memory that is neither held by a handle nor mapped. */
static void memory_end(struct host *h, struct host_memory *m)
{
    if (m->fd >= 0 || m->n_mappings > 0)
        return;
    size_t booked_bytes = m->imported ? 0 : m->bytes;
    *m = h->memories[--h->n_memories];
    if (booked_bytes > 0)
        account_give(&h->account, booked_bytes);
}

static int host_destroy(struct vmm_driver *d, vmm_handle handle, struct error *err)
{
    struct host *h = host_of(d);
    struct host_memory *m = memory_find(h, handle);
    if (m == NULL || m->fd < 0)
        return error_set(err, EBB_EDRIVER, "cpu:%d: destroy: unknown handle %llu",
                         h->account.device, (unsigned long long)handle);
    (void)close(m->fd);
    m->fd = -1;
    memory_end(h, m);
    return 0;
}

static int host_create_shared(struct vmm_driver *d, size_t bytes, vmm_handle *handle, int *fd,
                              struct error *err)
{
    struct host *h = host_of(d);
    int code = memory_make(h, bytes, true, handle, err);
    if (code != 0)
        return code;
    *fd = fcntl(memory_find(h, *handle)->fd, F_DUPFD_CLOEXEC, 0);
    if (*fd >= 0)
        return 0;
    code = system_refused(h, "create_shared", bytes, err);
    (void)host_destroy(d, *handle, NULL);
    *handle = 0;
    return code;
}

static int host_import(struct vmm_driver *d, int fd, size_t bytes, vmm_handle *handle,
                       struct error *err)
{
    struct host *h = host_of(d);
    struct stat st;
    int code = memory_room(h, "import", bytes, err);
    if (code != 0)
        return code;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SHARED_SEALS) != SHARED_SEALS || fstat(fd, &st) != 0)
        return error_set(err, EBB_EDRIVER, "cpu:%d: import: not the memory of a CPU card",
                         h->account.device);
    if (st.st_size != (off_t)bytes)
        return error_set(err, EBB_EDRIVER, "cpu:%d: import: wants %zu bytes, the memory has %lld",
                         h->account.device, bytes, (long long)st.st_size);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return own < 0 ? system_refused(h, "import", bytes, err)
                   : memory_add(h, own, bytes, true, handle);
}

static int map_check(struct host *h, void *base, size_t bytes, vmm_handle handle, struct error *err)
{
    const struct host_memory *m = memory_find(h, handle);
    int device = h->account.device;
    if (m == NULL || m->fd < 0)
        return error_set(err, EBB_EDRIVER, "cpu:%d: map: unknown handle %llu", device,
                         (unsigned long long)handle);
    if (bytes != m->bytes)
        return error_set(err, EBB_EDRIVER, "cpu:%d: map: handle %llu has %zu bytes, got %zu",
                         device, (unsigned long long)handle, m->bytes, bytes);
    if ((uintptr_t)base % h->granularity != 0)
        return error_set(err, EBB_EDRIVER, "cpu:%d: map: address %p is no multiple of %zu", device,
                         base, h->granularity);
    if (!range_contains(h, base, bytes))
        return error_set(err, EBB_EDRIVER, "cpu:%d: map: %p + %zu is not in a reserved range",
                         device, base, bytes);
    if (span_overlaps_any(h->mappings, h->n_mappings, base, bytes))
        return error_set(err, EBB_EDRIVER, "cpu:%d: map: %p + %zu is already mapped", device, base,
                         bytes);
    return 0;
}

static int host_map(struct vmm_driver *d, void *base, size_t bytes, vmm_handle handle,
                    struct error *err)
{
    struct host *h = host_of(d);
    int code = map_check(h, base, bytes, handle, err);
    if (code == 0)
        code = list_room((void **)&h->mappings, h->n_mappings, &h->mappings_capacity,
                         sizeof *h->mappings, err);
    if (code != 0)
        return code;
    struct host_memory *m = memory_find(h, handle);
    if (mmap(base, bytes, PROT_NONE, MAP_FIXED | MAP_SHARED, m->fd, 0) == MAP_FAILED)
        return system_refused(h, "map", bytes, err);
    h->mappings[h->n_mappings++] =
        (struct host_span){.base = base, .bytes = bytes, .handle = handle};
    m->n_mappings++;
    return 0;
}

static struct host_span *mapping_find(struct host *h, const char *call, void *base, size_t bytes,
                                      struct error *err)
{
    struct host_span *mapping = span_find(h->mappings, h->n_mappings, base, bytes);
    if (mapping == NULL)
        (void)error_set(err, EBB_EDRIVER, "cpu:%d: %s: %p + %zu is not mapped", h->account.device,
                        call, base, bytes);
    return mapping;
}

static int host_set_access(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct host *h = host_of(d);
    if (mapping_find(h, "set_access", base, bytes, err) == NULL)
        return EBB_EDRIVER;
    if (mprotect(base, bytes, PROT_READ | PROT_WRITE) != 0)
        return system_refused(h, "set_access", bytes, err);
    return 0;
}

static int host_unmap(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct host *h = host_of(d);
    struct host_span *mapping = mapping_find(h, "unmap", base, bytes, err);
    if (mapping == NULL)
        return EBB_EDRIVER;
    /* One call that replaces, so that at no time somebody else's mmap could land in the range. */
    if (mmap(base, bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0) == MAP_FAILED)
        return system_refused(h, "unmap", bytes, err);
    struct host_memory *m = memory_find(h, mapping->handle);
    *mapping = h->mappings[--h->n_mappings];
    m->n_mappings--;
    memory_end(h, m);
    return 0;
}

static int host_memory(struct vmm_driver *d, struct vmm_memory *out, struct error *err)
{
    struct host *h = host_of(d);
    struct account_sums sums;
    int code = account_read(&h->account, &sums, err);
    if (code != 0)
        return code;
    uint64_t free_bytes = h->capacity_bytes;
    free_bytes -= sums.own_bytes < free_bytes ? sums.own_bytes : free_bytes;
    free_bytes -= sums.foreign_bytes < free_bytes ? sums.foreign_bytes : free_bytes;
    *out = (struct vmm_memory){.total_bytes = h->capacity_bytes,
                               .free_bytes = free_bytes,
                               .own_bytes = sums.own_bytes,
                               .foreign_bytes = sums.foreign_bytes};
    return 0;
}

static int host_holders(struct vmm_driver *d, struct vmm_holder *out, size_t *n, struct error *err)
{
    return account_holders(&host_of(d)->account, out, n, err);
}

static void host_close(struct vmm_driver *d)
{
    struct host *h = host_of(d);
    if (h == NULL)
        return;
    for (size_t i = 0; i < h->n_ranges; i++) /* mappings lie inside the ranges */
        (void)munmap(h->ranges[i].base, h->ranges[i].bytes);
    for (size_t i = 0; i < h->n_memories; i++)
        if (h->memories[i].fd >= 0)
            (void)close(h->memories[i].fd);
    account_close(&h->account);
    free(h->memories);
    free(h->ranges);
    free(h->mappings);
    free(h);
    *d = (struct vmm_driver){0};
}

static int capacity_choose(uint64_t asked, size_t granularity, uint64_t *capacity,
                           struct error *err)
{
    long n_pages = sysconf(_SC_PHYS_PAGES);
    *capacity = asked;
    if (asked == 0 && n_pages > 0)
        *capacity = (uint64_t)n_pages / 2 * granularity;
    if (*capacity == 0)
        return error_set(err, EBB_EDRIVER, "cpu card: cannot tell how much memory there is");
    return 0;
}

int vmm_driver_host_open(struct vmm_driver *d, const struct vmm_host_settings *settings,
                         struct error *err)
{
    *d = (struct vmm_driver){0};
    long page_bytes = sysconf(_SC_PAGESIZE);
    struct host *h = calloc(1, sizeof *h);
    if (h == NULL || page_bytes <= 0) {
        free(h);
        return error_set(err, EBB_ENOMEM, "cpu:%d: no memory for the driver", settings->device);
    }
    h->granularity = (size_t)page_bytes;
    int code = capacity_choose(settings->capacity_bytes, h->granularity, &h->capacity_bytes, err);
    if (code == 0)
        code = account_open(&h->account, settings->runtime_dir, settings->name_space,
                            settings->device, err);
    if (code != 0) {
        free(h);
        return code;
    }
    *d = (struct vmm_driver){.name = "host",
                             .granularity = h->granularity,
                             .ctx = h,
                             .reserve = host_reserve,
                             .unreserve = host_unreserve,
                             .create = host_create,
                             .destroy = host_destroy,
                             .map = host_map,
                             .set_access = host_set_access,
                             .unmap = host_unmap,
                             .memory = host_memory,
                             .holders = host_holders,
                             .close = host_close,
                             .create_shared = host_create_shared,
                             .import = host_import};
    return 0;
}
