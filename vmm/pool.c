/* vmm/pool.c - segments: created and destroyed in pool_hold, mapped and unmapped in between.
 *
 * Owns the table of segments; the driver is borrowed and outlives the pool. A driver may refuse any
 * call. Most refusals undo themselves; one cannot: mapped, but neither made accessible nor unmapped
 * again. Such a segment is `owed`: it counts as lent, nobody uses it, and every later call starts
 * by asking the driver for it again. No call here waits, allocates (except open) or touches the
 * bytes of a segment. Threads: one owner.
 */
#include "vmm/pool.h"

#include <assert.h>
#include <stdlib.h>
#include "vmm/give_back.h"

int pool_open(struct pool *p, struct vmm_driver *driver, size_t segment_bytes, size_t n_capacity,
              struct error *err)
{
    *p = (struct pool){.driver = driver};
    size_t granularity = driver->granularity;
    if (segment_bytes == 0 || n_capacity == 0)
        return error_set(err, EBB_EINVAL, "pool: wants segments, got %zu of %zu bytes", n_capacity,
                         segment_bytes);
    size_t beyond = segment_bytes % granularity;
    size_t missing = beyond == 0 ? 0 : granularity - beyond;
    if (segment_bytes > SIZE_MAX - missing)
        return error_set(err, EBB_EINVAL, "pool: a segment of %zu bytes", segment_bytes);
    p->segment_bytes = segment_bytes + missing;
    p->segments = calloc(n_capacity, sizeof *p->segments);
    if (p->segments == NULL)
        return error_set(err, EBB_ENOMEM, "pool: no memory for a table of %zu segments",
                         n_capacity);
    p->n_capacity = n_capacity;
    return 0;
}

static bool segment_is_free(const struct pool_segment *s)
{
    return s->handle != 0 && s->mapped_at == NULL;
}

static void segment_set_free(struct pool *p, struct pool_segment *s)
{
    s->mapped_at = NULL;
    p->n_free++;
}

void pool_collect(struct pool *p)
{
    for (size_t i = 0; i < p->n_capacity && p->n_owed > 0; i++) {
        struct pool_segment *s = &p->segments[i];
        if (!s->is_owed || p->driver->unmap(p->driver, s->mapped_at, p->segment_bytes, NULL) != 0)
            continue;
        p->n_owed--;
        s->is_owed = false;
        segment_set_free(p, s);
    }
}

void pool_close(struct pool *p)
{
    if (p->segments == NULL)
        return;
    pool_collect(p);
    for (size_t i = 0; i < p->n_capacity; i++) {
        const struct pool_segment *s = &p->segments[i];
        assert(s->mapped_at == NULL || s->is_owed);
        /* Still owed: destroyed all the same, the driver frees it when it is unmapped or closed. */
        if (s->handle != 0)
            give_back_memory(p->driver, s->handle);
    }
    free(p->segments);
    *p = (struct pool){0};
}

/* The last free segment, so that those in use gather at the front of the table. */
static int hold_one_less(struct pool *p, struct error *err)
{
    if (p->n_free == 0)
        return error_set(err, EBB_EBUSY, "pool: all %zu segments held are lent", p->n_held);
    size_t i = p->n_capacity - 1;
    while (!segment_is_free(&p->segments[i]))
        i--;
    int code = p->driver->destroy(p->driver, p->segments[i].handle, err);
    if (code != 0)
        return code;
    p->segments[i].handle = 0;
    p->n_held--;
    p->n_free--;
    return 0;
}

static int hold_one_more(struct pool *p, struct error *err)
{
    size_t i = 0;
    while (p->segments[i].handle != 0)
        i++;
    vmm_handle handle = 0;
    int code = p->driver->create(p->driver, p->segment_bytes, &handle, err);
    if (code != 0)
        return code;
    p->segments[i].handle = handle;
    p->n_held++;
    p->n_free++;
    return 0;
}

int pool_hold(struct pool *p, size_t n_wanted, size_t *reached, struct error *err)
{
    int code = 0;
    *reached = p->n_held;
    if (n_wanted > p->n_capacity)
        return error_set(err, EBB_EINVAL, "pool: wants at most %zu segments, got %zu",
                         p->n_capacity, n_wanted);
    pool_collect(p);
    while (code == 0 && p->n_held > n_wanted)
        code = hold_one_less(p, err);
    while (code == 0 && p->n_held < n_wanted)
        code = hold_one_more(p, err);
    *reached = p->n_held;
    return code;
}

int pool_lend(struct pool *p, void *base, size_t *segment, struct error *err)
{
    pool_collect(p);
    if (p->n_free == 0)
        return error_set(err, EBB_EBUSY, "pool: no free segment, %zu held", p->n_held);
    size_t i = 0;
    while (!segment_is_free(&p->segments[i]))
        i++;
    struct pool_segment *s = &p->segments[i];
    int code = p->driver->map(p->driver, base, p->segment_bytes, s->handle, err);
    if (code != 0)
        return code;
    s->mapped_at = base;
    p->n_free--;
    code = p->driver->set_access(p->driver, base, p->segment_bytes, err);
    if (code != 0) {
        pool_take_back_later(p, i);
        return code;
    }
    *segment = i;
    return 0;
}

int pool_take_back(struct pool *p, size_t segment, struct error *err)
{
    if (segment >= p->n_capacity || p->segments[segment].mapped_at == NULL ||
        p->segments[segment].is_owed)
        return error_set(err, EBB_EINVAL, "pool: segment %zu is not lent", segment);
    pool_collect(p);
    struct pool_segment *s = &p->segments[segment];
    int code = p->driver->unmap(p->driver, s->mapped_at, p->segment_bytes, err);
    if (code == 0)
        segment_set_free(p, s);
    return code;
}

void pool_take_back_later(struct pool *p, size_t segment)
{
    struct pool_segment *s = &p->segments[segment];
    assert(segment < p->n_capacity && s->mapped_at != NULL);
    if (p->driver->unmap(p->driver, s->mapped_at, p->segment_bytes, NULL) == 0) {
        segment_set_free(p, s);
    } else {
        s->is_owed = true;
        p->n_owed++;
    }
}

size_t pool_segments_to_release(uint64_t reserve_bytes, uint64_t free_bytes, size_t segment_bytes)
{
    assert(segment_bytes > 0);
    if (free_bytes >= reserve_bytes)
        return 0;
    uint64_t missing = reserve_bytes - free_bytes;
    return (size_t)(missing / segment_bytes + (missing % segment_bytes != 0));
}

size_t pool_segments_to_take(uint64_t reserve_bytes, uint64_t free_bytes, size_t segment_bytes)
{
    assert(segment_bytes > 0);
    if (free_bytes <= reserve_bytes)
        return 0;
    return (size_t)((free_bytes - reserve_bytes) / segment_bytes);
}
