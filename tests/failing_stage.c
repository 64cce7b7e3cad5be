/* tests/failing_stage.c - a stage whose card refuses what it is told to: stages/ linked with a driver table that wraps a card's own
 * (failing_stage.h says whose).
 *
 * Its first option names a file of orders: `<call> <nth> [for-ever]`, with call one of reserve, unreserve, create, destroy, map,
 * set_access, unmap, memory. The Nth such call from the moment the order was written is refused, or all from that one on. The
 * file is read before every call, so that one process can be failed again and again at any point of its life; another order, or
 * an empty file, ends the one before. Every refusal is told on stderr. All other options are a stage's own.
 * Threads: the stage's control thread.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/failing_stage.h"

static struct failing {
    struct vmm_driver inner;
    const char *orders;
    char order[64], call[32];
    size_t nth, n_calls;
    bool for_ever;
} f;

/* What the file says now; a new order starts a new count. */
static void order_read(void)
{
    char order[sizeof f.order] = "";
    int fd = open(f.orders, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, order, sizeof order - 1) : 0;
    if (fd >= 0)
        (void)close(fd);
    order[n > 0 ? n : 0] = '\0';
    if (strcmp(order, f.order) == 0)
        return;
    memcpy(f.order, order, sizeof order);
    f.n_calls = f.nth = 0;
    f.for_ever = strstr(order, "for-ever") != NULL;
    if (sscanf(order, "%31s %zu", f.call, &f.nth) != 2)
        f.nth = 0;
}

/* 0, or the refusal. */
static int ask(const char *call, int code, struct error *err)
{
    order_read();
    if (f.nth == 0 || strcmp(call, f.call) != 0)
        return 0;
    f.n_calls++;
    if (f.n_calls != f.nth && !(f.for_ever && f.n_calls > f.nth))
        return 0;
    (void)fprintf(stderr, "refused: %s %zu\n", call, f.n_calls);
    return error_set(err, code, "%s: told to fail", call);
}

static int failing_reserve(struct vmm_driver *d, size_t bytes, void **base, struct error *err)
{
    (void)d;
    int rc = ask("reserve", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.reserve(&f.inner, bytes, base, err);
}

static int failing_unreserve(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    (void)d;
    int rc = ask("unreserve", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.unreserve(&f.inner, base, bytes, err);
}

static int failing_create(struct vmm_driver *d, size_t bytes, vmm_handle *handle, struct error *err)
{
    (void)d;
    int rc = ask("create", EBB_ENOMEM, err);
    return rc != 0 ? rc : f.inner.create(&f.inner, bytes, handle, err);
}

static int failing_destroy(struct vmm_driver *d, vmm_handle handle, struct error *err)
{
    (void)d;
    int rc = ask("destroy", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.destroy(&f.inner, handle, err);
}

static int failing_map(struct vmm_driver *d, void *base, size_t bytes, vmm_handle handle,
                       struct error *err)
{
    (void)d;
    int rc = ask("map", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.map(&f.inner, base, bytes, handle, err);
}

static int failing_set_access(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    (void)d;
    int rc = ask("set_access", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.set_access(&f.inner, base, bytes, err);
}

static int failing_unmap(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    (void)d;
    int rc = ask("unmap", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.unmap(&f.inner, base, bytes, err);
}

static int failing_memory(struct vmm_driver *d, struct vmm_memory *out, struct error *err)
{
    (void)d;
    int rc = ask("memory", EBB_EDRIVER, err);
    return rc != 0 ? rc : f.inner.memory(&f.inner, out, err);
}

static void failing_close(struct vmm_driver *d)
{
    f.inner.close(&f.inner);
    *d = (struct vmm_driver){0};
}

static int memory_open(struct vmm_driver *d, const struct platform_card *card, struct error *err)
{
    int rc = failing_card()->memory_open(&f.inner, card, err);
    if (rc != 0)
        return rc;
    *d = (struct vmm_driver){.name = "failing",
                             .granularity = f.inner.granularity,
                             .reserve = failing_reserve,
                             .unreserve = failing_unreserve,
                             .create = failing_create,
                             .destroy = failing_destroy,
                             .map = failing_map,
                             .set_access = failing_set_access,
                             .unmap = failing_unmap,
                             .memory = failing_memory,
                             .close = failing_close};
    return 0;
}

static int describe(const struct platform_card *card, char *name, size_t name_max, char *uuid,
                    size_t uuid_max, struct error *err)
{
    (void)err;
    (void)snprintf(name, name_max, "failing card");
    (void)snprintf(uuid, uuid_max, "failing-%d", card->device);
    return 0;
}

int main(int argc, char **argv)
{
    struct platform failing = *failing_card();
    failing.program = "failing-stage";
    failing.memory_open = memory_open;
    failing.describe = describe;
    if (argc < 3 || strcmp(argv[1], "--orders") != 0) {
        (void)fprintf(stderr, "usage: failing-stage --orders FILE [a stage's options]\n");
        return 2;
    }
    f.orders = argv[2];
    argv[2] = argv[0];
    return stage_main(&failing, argc - 2, argv + 2);
}
