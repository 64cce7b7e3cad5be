/* vmm/region.c - ranges backed segment by segment, and blocks backed for life.
 *
 * A region owns its address range and the table that says which pool segment lies at which index;
 * it unmaps only what the table says is mapped. A fixed block owns its range and its memory. Pool
 * and driver are borrowed and outlive both. Refuses: an index outside, backing what is backed,
 * giving back what is not. Closing never fails: what the driver will not take now stays with the
 * pool (segments) or with the driver until its close (address ranges). Threads: one owner.
 */
#include "vmm/region.h"

#include <stdlib.h>
#include <unistd.h>
#include "vmm/give_back.h"

int region_open(struct region *r, struct pool *pool, size_t n_indexes, struct error *err)
{
    *r = (struct region){0};
    void *base = NULL;
    if (n_indexes == 0 || n_indexes > SIZE_MAX / pool->segment_bytes)
        return error_set(err, EBB_EINVAL, "region: wants room for segments, got %zu of %zu bytes",
                         n_indexes, pool->segment_bytes);
    size_t *segment = calloc(n_indexes, sizeof *segment);
    if (segment == NULL)
        return error_set(err, EBB_ENOMEM, "region: no memory for a table of %zu", n_indexes);
    int code = pool->driver->reserve(pool->driver, n_indexes * pool->segment_bytes, &base, err);
    if (code != 0) {
        free(segment);
        return code;
    }
    *r = (struct region){.pool = pool, .base = base, .n_indexes = n_indexes, .segment = segment};
    return 0;
}

void region_close(struct region *r)
{
    if (r->pool == NULL)
        return;
    struct vmm_driver *driver = r->pool->driver;
    for (size_t i = 0; i < r->n_indexes; i++)
        if (r->segment[i] != 0)
            pool_take_back_later(r->pool, r->segment[i] - 1);
    pool_collect(r->pool); /* once more: a range goes back only when nothing is mapped in it */
    give_back_range(driver, r->base, r->n_indexes * r->pool->segment_bytes);
    free(r->segment);
    *r = (struct region){0};
}

int region_back(struct region *r, size_t index, struct error *err)
{
    size_t segment = 0;
    if (index >= r->n_indexes)
        return error_set(err, EBB_EINVAL, "region: index %zu of %zu", index, r->n_indexes);
    if (region_is_backed(r, index))
        return error_set(err, EBB_EINVAL, "region: index %zu is backed already", index);
    int code = pool_lend(r->pool, r->base + index * r->pool->segment_bytes, &segment, err);
    if (code != 0)
        return code;
    r->segment[index] = segment + 1;
    r->n_backed++;
    return 0;
}

int region_unback(struct region *r, size_t index, struct error *err)
{
    if (index >= r->n_indexes)
        return error_set(err, EBB_EINVAL, "region: index %zu of %zu", index, r->n_indexes);
    if (!region_is_backed(r, index))
        return error_set(err, EBB_EINVAL, "region: index %zu is not backed", index);
    int code = pool_take_back(r->pool, r->segment[index] - 1, err);
    if (code != 0)
        return code;
    r->segment[index] = 0;
    r->n_backed--;
    return 0;
}

enum block_of { OWN_MEMORY, SHARED_MEMORY, IMPORTED_MEMORY };

static int block_memory(struct fixed_block *b, enum block_of of, int *fd, struct error *err)
{
    struct vmm_driver *driver = b->driver;
    if (of == SHARED_MEMORY)
        return driver->create_shared(driver, b->bytes, &b->handle, fd, err);
    if (of == IMPORTED_MEMORY)
        return driver->import(driver, *fd, b->bytes, &b->handle, err);
    return driver->create(driver, b->bytes, &b->handle, err);
}

static int block_open(struct fixed_block *b, struct vmm_driver *driver, size_t bytes,
                      enum block_of of, int *fd, struct error *err)
{
    *b = (struct fixed_block){0};
    size_t beyond = bytes % driver->granularity;
    size_t missing = beyond == 0 ? 0 : driver->granularity - beyond;
    if (bytes == 0 || bytes > SIZE_MAX - missing)
        return error_set(err, EBB_EINVAL, "fixed block: wants memory, got %zu bytes", bytes);
    if (of != OWN_MEMORY && driver->create_shared == NULL)
        return error_set(err, EBB_EUNSUPPORTED, "fixed block: the %s driver shares no memory",
                         driver->name);
    struct fixed_block block = {.driver = driver, .bytes = bytes + missing};
    int code = driver->reserve(driver, block.bytes, &block.base, err);
    if (code != 0)
        return code;
    code = block_memory(&block, of, fd, err);
    if (code != 0)
        goto fail_create;
    code = driver->map(driver, block.base, block.bytes, block.handle, err);
    if (code != 0)
        goto fail_map;
    code = driver->set_access(driver, block.base, block.bytes, err);
    if (code != 0)
        goto fail_access;
    *b = block;
    return 0;
fail_access:
    (void)give_back_mapping(driver, block.base, block.bytes);
fail_map:
    give_back_memory(driver, block.handle);
    if (of == SHARED_MEMORY) {
        (void)close(*fd);
        *fd = -1;
    }
fail_create:
    give_back_range(driver, block.base, block.bytes);
    return code;
}

int fixed_block_open(struct fixed_block *b, struct vmm_driver *driver, size_t bytes,
                     struct error *err)
{
    return block_open(b, driver, bytes, OWN_MEMORY, NULL, err);
}

int fixed_block_open_shared(struct fixed_block *b, struct vmm_driver *driver, size_t bytes, int *fd,
                            struct error *err)
{
    *fd = -1;
    return block_open(b, driver, bytes, SHARED_MEMORY, fd, err);
}

int fixed_block_open_imported(struct fixed_block *b, struct vmm_driver *driver, size_t bytes,
                              int fd, struct error *err)
{
    return block_open(b, driver, bytes, IMPORTED_MEMORY, &fd, err);
}

void fixed_block_close(struct fixed_block *b)
{
    if (b->driver == NULL)
        return;
    (void)give_back_mapping(b->driver, b->base, b->bytes);
    give_back_memory(b->driver, b->handle);
    give_back_range(b->driver, b->base, b->bytes);
    *b = (struct fixed_block){0};
}
