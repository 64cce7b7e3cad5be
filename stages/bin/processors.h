/* stages/bin/processors.h - of ebbtide-stage-cpu alone: the host's processors, their cores and memory nodes, from hwloc. */
#pragma once
#include "stages/pin.h"

/* Those that this process may use, in hwloc's order, at most `max` into `all`. EBB_EIO. */
int processors_read(struct processor *all, size_t max, size_t *n, struct error *err);
