/* vmm/region.h - a virtual range of one purpose, backed by pool segments where and when it holds
 * any.
 *
 * The range is reserved once; its base address never changes. Index i covers bytes [i *
 * segment_bytes, …). Any index may be backed or not. A region may begin with a head: memory of its own
 * outside the pool, there for life, so that what starts small and grows stays one range; index 0
 * follows it. fixed_block_open() serves what is not elastic (dense weights, link buffers): created
 * outside the pool, backed whole, for life.
 */
#pragma once
#include "vmm/pool.h"

struct region {
    struct pool *pool;   /* borrowed */
    unsigned char *base; /* of the head, if there is one */
    size_t head_bytes;   /* rounded up to the driver's granularity */
    vmm_handle head;
    size_t n_indexes; /* segments the range has room for */
    size_t n_backed;
    size_t *segment; /* owned [n_indexes]: the pool's segment number + 1, 0 = not backed */
};

int region_open(struct region *r, struct pool *pool, size_t n_indexes, struct error *err);
/* As region_open(), behind a head of at least head_bytes. EBB_ENOMEM, EBB_EDRIVER: there is no region. */
int region_open_headed(struct region *r, struct pool *pool, size_t head_bytes, size_t n_indexes,
                       struct error *err);
/* Returns what is backed, gives the range back; a zeroed region is fine. */
void region_close(struct region *r);
/* Borrows a free segment of the pool; returns it. */
int region_back(struct region *r, size_t index, struct error *err);
int region_unback(struct region *r, size_t index, struct error *err);
static inline bool region_is_backed(const struct region *r, size_t index)
{
    return r->segment[index] != 0;
}

/* Memory for life: reserve + create + map + access of `bytes` rounded up to the granularity. */
struct fixed_block {
    struct vmm_driver *driver; /* borrowed; NULL = empty */
    void *base;
    size_t bytes;
    vmm_handle handle;
};
int fixed_block_open(struct fixed_block *b, struct vmm_driver *driver, size_t bytes,
                     struct error *err);
/* The same, of memory that another process can map: *fd, the caller's, is what to send it. EBB_EUNSUPPORTED: not on this driver. */
int fixed_block_open_shared(struct fixed_block *b, struct vmm_driver *driver, size_t bytes, int *fd,
                            struct error *err);
/* Such memory of another process, which made it with exactly these bytes; fd stays the caller's. */
int fixed_block_open_imported(struct fixed_block *b, struct vmm_driver *driver, size_t bytes,
                              int fd, struct error *err);
void fixed_block_close(struct fixed_block *b);
