/* vmm/nvml.c - NVML behind two questions (see nvml.h). Owns the library's handle, for the process' life. */
#include "vmm/nvml.h"

#include <dlfcn.h>
#include "vmm/holders.h"

#define PROCESSES_MAX 128
#define NOT_TOLD      (~0ULL)

struct nvml_process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
};

typedef int (*process_list)(void *device, unsigned int *n, struct nvml_process *all);

static struct {
    bool asked;
    int (*card_find)(const char *uuid, void **device); /* NULL: there is no NVML */
    int (*memory)(void *device, struct nvml_memory *memory);
    process_list compute, graphics;
} nvml;

/* The first of two names that this NVML has: both have the same structures. */
static process_list list_find(void *library, const char *name, const char *older)
{
    process_list list = NULL;
    *(void **)&list = dlsym(library, name);
    if (list == NULL)
        *(void **)&list = dlsym(library, older);
    return list;
}

static void nvml_open(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = NULL;
    nvml.asked = true;
    if (library != NULL)
        *(void **)&init = dlsym(library, "nvmlInit_v2");
    if (init == NULL || init() != 0)
        return;
    *(void **)&nvml.card_find = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    nvml.compute = list_find(library, "nvmlDeviceGetComputeRunningProcesses_v3",
                             "nvmlDeviceGetComputeRunningProcesses_v2");
    nvml.graphics = list_find(library, "nvmlDeviceGetGraphicsRunningProcesses_v3",
                              "nvmlDeviceGetGraphicsRunningProcesses_v2");
}

/* NULL: nobody knows the card. */
static void *card_find(const char *uuid)
{
    void *device = NULL;
    if (!nvml.asked)
        nvml_open();
    return nvml.card_find != NULL && nvml.card_find(uuid, &device) == 0 ? device : NULL;
}

bool nvml_memory_read(const char *uuid, struct nvml_memory *memory)
{
    void *device = card_find(uuid);
    return device != NULL && nvml.memory != NULL && nvml.memory(device, memory) == 0;
}

static void list_add(process_list ask, void *device, struct vmm_holder *list, size_t *n)
{
    struct nvml_process all[PROCESSES_MAX];
    unsigned int count = PROCESSES_MAX;
    if (ask == NULL || ask(device, &count, all) != 0)
        return;
    for (unsigned int i = 0; i < count && i < PROCESSES_MAX; i++) {
        size_t known =
            0; /* a process that computes and draws stands in both lists, with the same sum */
        while (known < *n && list[known].pid != (int64_t)all[i].pid)
            known++;
        if (known == *n)
            holders_add(list, n, all[i].pid, all[i].used == NOT_TOLD ? 0 : all[i].used);
    }
}

void nvml_holders_read(const char *uuid, struct vmm_holder *list, size_t *n)
{
    void *device = card_find(uuid);
    *n = 0;
    if (device == NULL)
        return;
    list_add(nvml.compute, device, list, n);
    list_add(nvml.graphics, device, list, n);
    holders_finish(list, *n);
}
