/* tests/gpu/failing_cuda.c - gpu-failing-stage's card is a CUDA card. */
#include "tests/failing_stage.h"

static int memory_open(struct vmm_driver *d, const struct platform_card *card, struct error *err)
{
    struct vmm_cuda_settings settings = {.device = card->device,
                                         .capacity_bytes = card->capacity_bytes};
    return vmm_driver_cuda_open(d, &settings, err);
}

const struct platform *failing_card(void)
{
    static const struct link_driver *const links[] = {&link_socket, NULL};
    static const struct platform card = {.kind = "cuda",
                                         .memory_open = memory_open,
                                         .exec = &exec_cuda,
                                         .kernels = kernel_set_cuda,
                                         .links = links};
    return &card;
}
