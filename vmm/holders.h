/* vmm/holders.h - the list of processes that hold memory of a card, as drivers fill it: one entry a process, names from /proc.
 *
 * The list is the caller's, VMM_HOLDERS_MAX long. More processes than that: the smallest are left out.
 */
#pragma once
#include "vmm/driver.h"

/* `bytes` more of process `pid`; this process itself is left out. */
void holders_add(struct vmm_holder *list, size_t *n, int64_t pid, uint64_t bytes);
/* Largest first, each with its name. */
void holders_finish(struct vmm_holder *list, size_t n);
