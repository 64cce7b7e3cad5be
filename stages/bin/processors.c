/* stages/bin/processors.c - asks hwloc which processors there are. The only source that knows it; nothing is kept. */
#include "stages/bin/processors.h"

#include <hwloc.h>

static int node_of(hwloc_topology_t topology, unsigned processor)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL)
        if (hwloc_bitmap_isset(node->cpuset, processor))
            return (int)node->logical_index;
    return 0;
}

static size_t units_list(hwloc_topology_t topology, hwloc_const_cpuset_t allowed,
                         struct processor *all, size_t max)
{
    size_t n = 0;
    hwloc_obj_t unit = NULL;
    while ((unit = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, unit)) != NULL) {
        if (!hwloc_bitmap_isset(allowed, unit->os_index) || unit->os_index >= PIN_PROCESSORS_MAX)
            continue;
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, unit);
        if (n < max)
            all[n++] = (struct processor){
                .number = (int)unit->os_index,
                .core = (int)(core != NULL ? core->logical_index : unit->logical_index),
                .node = node_of(topology, unit->os_index)};
    }
    return n;
}

int processors_read(struct processor *all, size_t max, size_t *n, struct error *err)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    int code = 0;
    *n = 0;
    if (allowed == NULL)
        return error_set(err, EBB_ENOMEM, "pin: no memory for a set of processors");
    if (hwloc_topology_init(&topology) != 0) {
        hwloc_bitmap_free(allowed);
        return error_set(err, EBB_ENOMEM, "pin: no memory for the machine's shape");
    }
    if (hwloc_topology_load(topology) != 0 ||
        hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0)
        code = error_set(err, EBB_EIO, "pin: hwloc cannot tell this machine's processors");
    else
        *n = units_list(topology, allowed, all, max);
    hwloc_topology_destroy(topology);
    hwloc_bitmap_free(allowed);
    return code;
}
