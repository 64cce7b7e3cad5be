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

/* Maps memory at an address of a reserved range, accessible. Nothing is left of a failure. */
static int map_for_life(struct vmm_driver *driver, void *base, size_t bytes, vmm_handle handle,
                        struct error *err)
{
    int code = driver->map(driver, base, bytes, handle, err);
    if (code != 0)
        return code;
    code = driver->set_access(driver, base, bytes, err);
    if (code != 0)
        (void)give_back_mapping(driver, base, bytes);
    return code;
}

/* To the driver's granularity; 0: more than a size can say. */
static size_t rounded_up(const struct vmm_driver *driver, size_t bytes)
{
    size_t beyond = bytes % driver->granularity;
    size_t missing = beyond == 0 ? 0 : driver->granularity - beyond;
    return bytes > SIZE_MAX - missing ? 0 : bytes + missing;
}

int region_open(struct region *r, struct pool *pool, size_t n_indexes, struct error *err)
{
    return region_open_headed(r, pool, 0, n_indexes, err);
}

static size_t range_bytes(const struct region *r)
{
    return r->head_bytes + r->n_indexes * r->pool->segment_bytes;
}

int region_open_headed(struct region *r, struct pool *pool, size_t head_bytes, size_t n_indexes,
                       struct error *err)
{
    *r = (struct region){0};
    void *base = NULL;
    struct region made = {
        .pool = pool, .head_bytes = rounded_up(pool->driver, head_bytes), .n_indexes = n_indexes};
    if (n_indexes == 0 || (head_bytes > 0 && made.head_bytes == 0) ||
        n_indexes > (SIZE_MAX - made.head_bytes) / pool->segment_bytes)
        return error_set(err, EBB_EINVAL,
                         "region: wants room for segments, got %zu of %zu bytes behind %zu",
                         n_indexes, pool->segment_bytes, head_bytes);
    made.segment = calloc(n_indexes, sizeof *made.segment);
    if (made.segment == NULL)
        return error_set(err, EBB_ENOMEM, "region: no memory for a table of %zu", n_indexes);
    int code = pool->driver->reserve(pool->driver, range_bytes(&made), &base, err);
    if (code != 0)
        goto fail_reserve;
    made.base = base;
    if (made.head_bytes > 0)
        code = pool->driver->create(pool->driver, made.head_bytes, &made.head, err);
    if (code != 0)
        goto fail_create;
    if (made.head_bytes > 0)
        code = map_for_life(pool->driver, base, made.head_bytes, made.head, err);
    if (code != 0)
        goto fail_map;
    *r = made;
    return 0;
fail_map:
    give_back_memory(pool->driver, made.head);
fail_create:
    give_back_range(pool->driver, base, range_bytes(&made));
fail_reserve:
    free(made.segment);
    return code;
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
    if (r->head_bytes > 0) {
        (void)give_back_mapping(driver, r->base, r->head_bytes);
        give_back_memory(driver, r->head);
    }
    give_back_range(driver, r->base, range_bytes(r));
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
    int code =
        pool_lend(r->pool, r->base + r->head_bytes + index * r->pool->segment_bytes, &segment, err);
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
    struct fixed_block block = {.driver = driver, .bytes = rounded_up(driver, bytes)};
    if (block.bytes == 0)
        return error_set(err, EBB_EINVAL, "fixed block: wants memory, got %zu bytes", bytes);
    if (of != OWN_MEMORY && driver->create_shared == NULL)
        return error_set(err, EBB_EUNSUPPORTED, "fixed block: the %s driver shares no memory",
                         driver->name);
    int code = driver->reserve(driver, block.bytes, &block.base, err);
    if (code != 0)
        return code;
    code = block_memory(&block, of, fd, err);
    if (code != 0)
        goto fail_create;
    code = map_for_life(driver, block.base, block.bytes, block.handle, err);
    if (code != 0)
        goto fail_map;
    *b = block;
    return 0;
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
