/* stages/bin/stage_cpu.c - ebbtide-stage-cpu: the stage linked with the CPU's four tables. */
#include "stages/bin/processors.h"
#include "stages/platform.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int cpu_memory_open(struct vmm_driver *d, const struct platform_card *card,
                           struct error *err)
{
    struct vmm_host_settings settings = {.device = card->device,
                                         .capacity_bytes = card->capacity_bytes,
                                         .name_space = card->name_space};
    return vmm_driver_host_open(d, &settings, err);
}

/* The processor's model name and a name that is one card's on one host. */
static int cpu_describe(const struct platform_card *card, char *name, size_t name_max, char *uuid,
                        size_t uuid_max, struct error *err)
{
    char line[256], host[64] = "localhost";
    (void)err;
    (void)snprintf(name, name_max, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        colon[strcspn(colon, "\n")] = '\0';
        (void)snprintf(name, name_max, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f != NULL)
        (void)fclose(f);
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(uuid, uuid_max, "CPU-%.40s-%d", host, card->device);
    return 0;
}

/* CPU cards are as many as are asked for; the first of them stands for all. */
static int cpu_list(struct platform_listed *cards, size_t *n, struct error *err)
{
    const struct platform_card first = {.device = 0};
    struct vmm_driver memory;
    struct vmm_memory now = {0};
    *n = 0;
    int code = cpu_memory_open(&memory, &first, err);
    if (code != 0)
        return code;
    code = memory.memory(&memory, &now, err);
    memory.close(&memory);
    *cards = (struct platform_listed){.total_bytes = now.total_bytes, .free_bytes = now.free_bytes};
    if (code == 0)
        code = cpu_describe(&first, cards->name, sizeof cards->name, cards->uuid,
                            sizeof cards->uuid, err);
    *n = code == 0 ? 1 : 0;
    return code;
}

int main(int argc, char **argv)
{
    static const struct link_driver *const links[] = {&link_socket, &link_ipc, NULL};
    const struct platform cpu = {.kind = "cpu",
                                 .program = "ebbtide-stage-cpu",
                                 .memory_open = cpu_memory_open,
                                 .describe = cpu_describe,
                                 .list = cpu_list,
                                 .processors = processors_read,
                                 .host_memory = true,
                                 .exec = &exec_cpu,
                                 .kernels = kernel_set_cpu,
                                 .links = links};
    return stage_main(&cpu, argc, argv);
}
