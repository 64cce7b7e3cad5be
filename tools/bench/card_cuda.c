/* tools/bench/card_cuda.c - the tables of a CUDA card; only in programs linked with the CUDA halves of kernels/ and vmm/. */
#include "tools/bench/card.h"

#include <stdio.h>

static int cuda_memory_open(struct vmm_driver *d, int device, uint64_t bytes, struct error *err)
{
    struct vmm_cuda_settings settings = {.device = device, .capacity_bytes = bytes};
    return vmm_driver_cuda_open(d, &settings, err);
}

static int cuda_describe(int device, char *name, size_t name_max, struct error *err)
{
    struct vmm_cuda_card card;
    int code = vmm_cuda_look(device, &card, err);
    if (code == 0)
        code = vmm_cuda_check(device, &card, err);
    if (code == 0)
        (void)snprintf(name, name_max, "%s", card.name);
    return code;
}

const struct card_tables *card_tables_cuda(void)
{
    static const struct card_tables tables = {&exec_cuda, kernel_set_cuda, cuda_memory_open,
                                              cuda_describe, true};
    return &tables;
}
