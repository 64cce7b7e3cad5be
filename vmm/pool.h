/* vmm/pool.h - the physical memory of one card's elastic side, in segments of one size.
 *
 * A pool owns every elastic byte of a card. It hands segments to regions and takes them back and
 * never knows what is in them. held = free + lent, held <= capacity.
 *
 *   pool_hold()      creates or destroys until `held` is the number asked for: the only place that
 *                    asks the driver for memory or gives any back
 *   pool_lend()      moves a free segment to an address of a region (maps it there)
 *   pool_take_back() unmaps it there; it is free again
 *
 * Threads: one owner thread; nothing here locks. Lifetime: open before the first region, close
 * after the last. Failure: every call leaves the pool as it was, or says in *reached how far it
 * got.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "vmm/driver.h"

struct pool_segment {
    vmm_handle handle; /* 0 = not held */
    void *mapped_at;   /* NULL = free */
    bool is_owed;      /* nobody uses it, the driver would not unmap it; asked again later */
};

struct pool {
    struct vmm_driver *driver;     /* borrowed */
    size_t segment_bytes;          /* rounded up to the driver's granularity, fixed at open */
    size_t n_held, n_free;         /* segments */
    struct pool_segment *segments; /* owned, n_capacity entries */
    size_t n_capacity;
    size_t n_owed; /* of those lent */
};

/* An empty pool for at most n_capacity segments. EBB_EINVAL (a size or count of 0), EBB_ENOMEM. */
int pool_open(struct pool *p, struct vmm_driver *driver, size_t segment_bytes, size_t n_capacity,
              struct error *err);
/* Gives everything back. Lent segments are a bug of the caller (assert). */
void pool_close(struct pool *p);

/* Brings `held` to n_wanted (<= capacity), destroying free segments only. *reached is what is held
 * afterwards, always true. EBB_EBUSY when lent segments stand in the way, EBB_ENOMEM or EBB_EDRIVER
 * when the driver refused. */
int pool_hold(struct pool *p, size_t n_wanted, size_t *reached, struct error *err);

/* Maps a free segment at `base` (reserved by the caller). *segment is its number. EBB_EBUSY when
 * none is free. */
int pool_lend(struct pool *p, void *base, size_t *segment, struct error *err);
int pool_take_back(struct pool *p, size_t segment, struct error *err);
/* For a borrower that ends: never fails. Where the driver refuses to unmap now, the segment counts
 * as lent and the pool asks again at every later call. */
void pool_take_back_later(struct pool *p, size_t segment);

/* Asks again for what is owed: hardly ever anything. */
void pool_collect(struct pool *p);

/* How many segments must leave so that at least `reserve` bytes are free, rounded up; and how many
 * may come so that `reserve` stays free, rounded down. 12000 MiB asked with 8292 free and 512 MiB
 * segments: 8 leave, never 7. */
size_t pool_segments_to_release(uint64_t reserve_bytes, uint64_t free_bytes, size_t segment_bytes);
size_t pool_segments_to_take(uint64_t reserve_bytes, uint64_t free_bytes, size_t segment_bytes);
