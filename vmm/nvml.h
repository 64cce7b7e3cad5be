/* vmm/nvml.h - what NVML tells of an NVIDIA card: its memory, and the processes that hold some.
 *
 * The library is looked for at run time, never required, and opened once a process, at the first question; it stays, because unloading
 * it is known to leave threads behind. Structures and names are of its public interface. In a container it may show numbers of the host's
 * namespace, which have no name here. Threads: one.
 */
#pragma once
#include <stdbool.h>
#include "vmm/driver.h"

struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
};
/* Of the card with this UUID ("GPU-…"); false: there is no NVML, or it does not know the card. */
bool nvml_memory_read(const char *uuid, struct nvml_memory *memory);
/* Fills list[VMM_HOLDERS_MAX] as holders.h says; *n = 0 where nobody can be asked. */
void nvml_holders_read(const char *uuid, struct vmm_holder *list, size_t *n);
