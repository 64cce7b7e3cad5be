/* tests/device_stage.c - a CPU card that says it is a device of its own.
 *
 * The stage then keeps copies of a step's values on "the card", registers the model's pages and records its short steps, all as on a
 * GPU, while the CPU's kernels compute: so what is the stage's own in these paths is held to the same tokens on any machine.
 * DEVICE_STAGE_MOVE_US makes moves of experts between slots take that long.
 * DEVICE_STAGE_WAKES=0 also takes the wake descriptor away, so that the stage polls. DEVICE_STAGE_KV_F16=1: keys and values are half
 * floats or the card is refused, as on a GPU. DEVICE_STAGE_WAIT_US makes every wait for the host's share of a layer's experts that long. NCCL
 * is tests/fake_nccl.c; what it says that it takes of the card is missing there, and the card's driver calls it foreign until it is adopted.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "stages/platform.h"

#define NCCL_BYTES      ((uint64_t)2 << 20) /* kept for it, and for each of its links */
#define NCCL_LINK_BYTES ((uint64_t)1 << 20)

static struct exec_driver device;
static struct vmm_driver host;
static _Atomic long library_bytes; /* that the library holds */
static int64_t adopted_bytes;

/* For the library to tell. */
void device_stage_library_bytes(long bytes);
void device_stage_library_bytes(long bytes)
{
    atomic_fetch_add(&library_bytes, bytes);
}

static int memory(struct vmm_driver *d, struct vmm_memory *out, struct error *err)
{
    int rc = host.memory(d, out, err);
    int64_t taken = atomic_load(&library_bytes);
    if (rc == 0) {
        out->free_bytes -= (uint64_t)taken;
        out->own_bytes += (uint64_t)adopted_bytes;
        out->foreign_bytes += (uint64_t)(taken - adopted_bytes);
        out->beside_bytes = (uint64_t)(taken - adopted_bytes);
    }
    return rc;
}

static void adopt(struct vmm_driver *d, int64_t bytes)
{
    (void)d;
    adopted_bytes += bytes;
}

static void wait_job(const void *args, struct exec_cpu_worker *w)
{
    (void)w;
    (void)usleep(*(const useconds_t *)args);
}

static int (*move)(const struct move_args *args, struct exec_stream *s);

static int slow_move(const struct move_args *args, struct exec_stream *s)
{
    const char *us = getenv("DEVICE_STAGE_MOVE_US");
    useconds_t wait = us != NULL ? (useconds_t)atoi(us) : 0;
    int rc = wait > 0 ? exec_cpu_push(s, wait_job, &wait, sizeof wait) : 0;
    return rc == 0 ? move(args, s) : rc;
}

static const struct kernel_set *kernels(const char *name, struct error *err)
{
    static struct kernel_set slow;
    const struct kernel_set *set = kernel_set_cpu(name, err);
    if (set == NULL)
        return NULL;
    slow = *set;
    move = set->move;
    slow.move = slow_move;
    return &slow;
}

static int slow_wait(const uint32_t *flag, uint32_t value, struct exec_stream *s)
{
    useconds_t us = (useconds_t)atoi(getenv("DEVICE_STAGE_WAIT_US"));
    int rc = exec_cpu_push(s, wait_job, &us, sizeof us);
    return rc == 0 ? miss_ops_cpu.wait(flag, value, s) : rc;
}

static int no_wake_fd(struct exec *e)
{
    (void)e;
    return -1;
}

static int memory_open(struct vmm_driver *d, const struct platform_card *card, struct error *err)
{
    struct vmm_host_settings settings = {.device = card->device,
                                         .capacity_bytes = card->capacity_bytes,
                                         .name_space = card->name_space};
    int rc = vmm_driver_host_open(d, &settings, err);
    host = *d;
    if (rc == 0) {
        d->memory = memory;
        d->adopt = adopt;
    }
    return rc;
}

static int describe(const struct platform_card *card, char *name, size_t name_max, char *uuid,
                    size_t uuid_max, struct error *err)
{
    (void)err;
    (void)snprintf(name, name_max, "device");
    (void)snprintf(uuid, uuid_max, "device-%d", card->device);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct link_driver *const links[] = {&link_socket, &link_ipc, &link_nccl, NULL};
    const char *wakes = getenv("DEVICE_STAGE_WAKES"), *f16 = getenv("DEVICE_STAGE_KV_F16");
    struct miss_ops misses = miss_ops_cpu;
    if (getenv("DEVICE_STAGE_WAIT_US") != NULL)
        misses.wait = slow_wait;
    device = exec_cpu;
    device.is_device = true;
    if (wakes != NULL && strcmp(wakes, "0") == 0)
        device.wake_fd = no_wake_fd;
    const struct platform pretended = {.kind = "cpu",
                                       .program = "device-stage",
                                       .memory_open = memory_open,
                                       .describe = describe,
                                       .kv_f16_only = f16 != NULL && strcmp(f16, "1") == 0,
                                       .exec = &device,
                                       .kernels = kernels,
                                       .misses = &misses,
                                       .links = links,
                                       .nccl_bytes = NCCL_BYTES,
                                       .nccl_link_bytes = NCCL_LINK_BYTES};
    return stage_main(&pretended, argc, argv);
}
