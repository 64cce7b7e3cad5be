/* stages/bin/stage_cuda.c - ebbtide-stage-cuda: the stage linked with the CUDA card's tables. */
#include "stages/platform.h"

#include <stdio.h>
#include <string.h>

/* Measured on an H200 (kernels/NOTES.md); the plan counts the same. */
#define NCCL_BYTES      ((uint64_t)448 << 20)
#define NCCL_LINK_BYTES ((uint64_t)64 << 20)

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
    struct vmm_cuda_card seen;
    int code = vmm_cuda_look(card->device, &seen, err);
    if (code == 0)
        code = vmm_cuda_check(card->device, &seen, err);
    if (code != 0)
        return code;
    (void)snprintf(name, name_max, "%s", seen.name);
    (void)snprintf(uuid, uuid_max, "%s", seen.uuid);
    return 0;
}

/* A card that cannot be read is listed with the reason, so that the others can be used. */
static int cuda_list(struct platform_listed *cards, size_t *n, struct error *err)
{
    int n_seen = 0;
    int code = vmm_cuda_count(&n_seen, err);
    *n = 0;
    for (int i = 0; code == 0 && i < n_seen && i < PLATFORM_LISTED_MAX; i++) {
        struct platform_listed *card = &cards[(*n)++];
        struct vmm_cuda_card seen = {0};
        struct error why = {0};
        *card = (struct platform_listed){.device = i};
        if (vmm_cuda_look(i, &seen, &why) != 0 || vmm_cuda_check(i, &seen, &why) != 0)
            (void)snprintf(card->why, sizeof card->why, "%.*s", (int)sizeof card->why - 1,
                           why.text);
        memcpy(card->name, seen.name, sizeof card->name);
        memcpy(card->uuid, seen.uuid, sizeof card->uuid);
        (void)snprintf(card->compute, sizeof card->compute, "%d.%d", seen.major, seen.minor);
        card->total_bytes = seen.total_bytes;
        card->free_bytes = seen.free_bytes;
    }
    return code;
}

int main(int argc, char **argv)
{
    static const struct link_driver *const links[] = {&link_socket, &link_ipc, &link_nccl, NULL};
    const struct platform cuda = {.kind = "cuda",
                                  .program = "ebbtide-stage-cuda",
                                  .memory_open = cuda_memory_open,
                                  .describe = cuda_describe,
                                  .list = cuda_list,
                                  .kv_f16_only = true,
                                  .exec = &exec_cuda,
                                  .kernels = kernel_set_cuda,
                                  .misses = &miss_ops_cuda,
                                  .links = links,
                                  .nccl_bytes = NCCL_BYTES,
                                  .nccl_link_bytes = NCCL_LINK_BYTES};
    return stage_main(&cuda, argc, argv);
}
