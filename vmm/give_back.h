/* vmm/give_back.h - what nobody will ask for again: a close gives back what it has, and its caller forgets the handles. A driver that
 * refuses is asked once more; what it refuses twice stays with it until it is closed, and in its own_bytes for everyone to see.
 */
#pragma once
#include "vmm/driver.h"

static inline int give_back_mapping(struct vmm_driver *d, void *base, size_t bytes)
{
    return d->unmap(d, base, bytes, NULL) == 0 ? 0 : d->unmap(d, base, bytes, NULL);
}

static inline void give_back_memory(struct vmm_driver *d, vmm_handle handle)
{
    if (d->destroy(d, handle, NULL) != 0)
        (void)d->destroy(d, handle, NULL);
}

static inline void give_back_range(struct vmm_driver *d, void *base, size_t bytes)
{
    if (d->unreserve(d, base, bytes, NULL) != 0)
        (void)d->unreserve(d, base, bytes, NULL);
}
