/* tests/fake_nvml.c - an NVML that knows one card, GPU-fake, and counts how often it is opened. */
#include <string.h>

struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
};

unsigned int fake_nvml_n_init;
int fake_nvml_refuses;
static int card;

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]);
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned int *n, struct process *all);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *n, struct process *all);

int nvmlInit_v2(void)
{
    fake_nvml_n_init++;
    return fake_nvml_refuses;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = &card;
    return strcmp(uuid, "GPU-fake") == 0 ? 0 : 6; /* not found */
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
    memory[0] = 1000;
    memory[1] = 300;
    memory[2] = 700;
    return device == &card ? 0 : 2; /* no such argument */
}

static int list(unsigned int *n, struct process *all, const struct process *have,
                unsigned int n_have)
{
    if (*n < n_have)
        return 7; /* too small */
    memcpy(all, have, n_have * sizeof *have);
    *n = n_have;
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned int *n, struct process *all)
{
    static const struct process have[] = {
        {1, 10, 0, 0}, {2000000001, ~0ULL, 0, 0}, {2000000002, 500, 0, 0}};
    return device == &card ? list(n, all, have, 3) : 2;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *n, struct process *all)
{
    static const struct process have[] = {{2000000002, 500, 0, 0}, {2000000003, 70, 0, 0}};
    return device == &card ? list(n, all, have, 2) : 2;
}
