/* stages/bin/stage_cuda.c - ebbtide-stage-cuda: the stage linked with the CUDA card's tables. */
#include "stages/platform.h"

static int cuda_memory_open(struct vmm_driver *d, const struct platform_card *card,
                            struct error *err)
{
    struct vmm_cuda_settings settings = {.device = card->device,
                                         .capacity_bytes = card->capacity_bytes};
    return vmm_driver_cuda_open(d, &settings, err);
}

static int cuda_describe(const struct platform_card *card, char *name, size_t name_max, char *uuid,
                         size_t uuid_max, struct error *err)
{
    return vmm_cuda_describe(card->device, name, name_max, uuid, uuid_max, err);
}

int main(int argc, char **argv)
{
    static const struct link_driver *const links[] = {&link_socket, NULL};
    const struct platform cuda = {.kind = "cuda",
                                  .program = "ebbtide-stage-cuda",
                                  .memory_open = cuda_memory_open,
                                  .describe = cuda_describe,
                                  .exec = &exec_cuda,
                                  .kernels = kernel_set_cuda,
                                  .links = links};
    return stage_main(&cuda, argc, argv);
}
