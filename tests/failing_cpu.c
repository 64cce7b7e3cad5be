/* tests/failing_cpu.c - failing-stage's card is a CPU card. */
#include "tests/failing_stage.h"

static int memory_open(struct vmm_driver *d, const struct platform_card *card, struct error *err)
{
    struct vmm_host_settings settings = {.device = card->device,
                                         .capacity_bytes = card->capacity_bytes,
                                         .name_space = card->name_space};
    return vmm_driver_host_open(d, &settings, err);
}

const struct platform *failing_card(void)
{
    static const struct link_driver *const links[] = {&link_socket, &link_ipc, NULL};
    static const struct platform card = {.kind = "cpu",
                                         .memory_open = memory_open,
                                         .exec = &exec_cpu,
                                         .kernels = kernel_set_cpu,
                                         .links = links};
    return &card;
}
