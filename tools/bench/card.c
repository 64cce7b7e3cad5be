/* tools/bench/card.c - opens a card by its tables, takes memory of it, waits, and measures its copies. */
#include "tools/bench/card.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol/message.h"

#define MIB ((size_t)1 << 20)

static int cpu_memory_open(struct vmm_driver *d, int device, uint64_t bytes, struct error *err)
{
    char name_space[32];
    struct vmm_host_settings settings = {
        .device = device, .capacity_bytes = bytes, .name_space = name_space};
    (void)snprintf(name_space, sizeof name_space, "bench-%ld", (long)getpid());
    return vmm_driver_host_open(d, &settings, err);
}

static int cpu_describe(int device, char *name, size_t name_max, struct error *err)
{
    (void)device, (void)err;
    report_cpu_name(name, name_max);
    return 0;
}

const struct card_tables *card_tables_cpu(void)
{
    static const struct card_tables tables = {&exec_cpu, kernel_set_cpu, cpu_memory_open,
                                              cpu_describe, false};
    return &tables;
}

int card_find(const char *cards, const struct card_tables **tables, int *device, struct error *err)
{
    char number[16];
    uint64_t n;
    size_t n_kind = strcspn(cards, ":"), n_all = strcspn(cards, ",@");
    bool is_cuda = n_kind == 4 && memcmp(cards, "cuda", 4) == 0;
    bool is_cpu = n_kind == 3 && memcmp(cards, "cpu", 3) == 0;
    if (n_all > n_kind)
        (void)snprintf(number, sizeof number, "%.*s", (int)(n_all - n_kind - 1),
                       cards + n_kind + 1);
    if (n_all <= n_kind || cards[n_all] == '@' || (!is_cuda && !is_cpu) ||
        parse_u64(number, 0, 1023, &n) != 0)
        return error_set(err, EBB_EINVAL,
                         "--cards: wanted cards of this machine such as cuda:0, got '%.128s'",
                         cards);
    *tables = is_cuda ? card_tables_cuda() : card_tables_cpu();
    *device = (int)n;
    if (*tables == NULL)
        return error_set(err, EBB_EUNSUPPORTED,
                         "--cards: %.128s: this program was built without CUDA", cards);
    return 0;
}

int card_open(struct card *c, const struct bench_settings *s, struct error *err)
{
    memset(c, 0, sizeof *c);
    int code = card_find(s->cards, &c->tables, &c->device, err);
    if (code != 0)
        return code;
    struct exec_settings settings = {.device = c->device, .n_threads = s->n_threads};
    c->driver = c->tables->exec;
    c->set = c->tables->kernels(s->kernels, err);
    if (c->set == NULL)
        return err->code;
    code = c->tables->memory_open(&c->memory, c->device, 0, err);
    if (code == 0)
        code = c->driver->open(&c->exec, &settings, err);
    if (code == 0)
        code = c->driver->stream_open(c->exec, &c->stream, err);
    if (code == 0)
        code = c->driver->event_open(c->exec, &c->event, err);
    return code;
}

static void block_give_back(struct card *c, const struct card_block *b)
{
    if (b->mapped)
        (void)c->memory.unmap(&c->memory, b->base, b->bytes, NULL);
    if (b->handle != 0)
        (void)c->memory.destroy(&c->memory, b->handle, NULL);
    (void)c->memory.unreserve(&c->memory, b->base, b->bytes, NULL);
}

void card_close(struct card *c)
{
    if (c->event != NULL)
        c->driver->event_close(c->event);
    if (c->stream != NULL)
        c->driver->stream_close(c->stream);
    if (c->driver != NULL)
        c->driver->close(c->exec);
    while (c->n_blocks > 0)
        block_give_back(c, &c->blocks[--c->n_blocks]);
    if (c->memory.close != NULL)
        c->memory.close(&c->memory);
    memset(c, 0, sizeof *c);
}

int card_take(struct card *c, size_t bytes, void **base, struct error *err)
{
    struct vmm_driver *d = &c->memory;
    if (c->n_blocks == CARD_BLOCKS_MAX)
        return error_set(err, EBB_EBUSY, "a card has %d blocks already", CARD_BLOCKS_MAX);
    struct card_block *b = &c->blocks[c->n_blocks];
    *b = (struct card_block){.bytes =
                                 (bytes + d->granularity - 1) / d->granularity * d->granularity};
    int code = d->reserve(d, b->bytes, &b->base, err);
    if (code != 0)
        return code;
    c->n_blocks++;
    code = d->create(d, b->bytes, &b->handle, err);
    if (code == 0)
        code = d->map(d, b->base, b->bytes, b->handle, err);
    b->mapped = code == 0;
    if (code == 0)
        code = d->set_access(d, b->base, b->bytes, err);
    *base = b->base;
    return code;
}

int card_put(struct card *c, void *to, size_t bytes, const void *from, size_t n_from,
             struct error *err)
{
    for (size_t at = 0; at < bytes; at += n_from) {
        size_t n = bytes - at < n_from ? bytes - at : n_from;
        if (c->driver->copy(c->stream, (unsigned char *)to + at, from, n) != 0)
            return error_set(err, EBB_EDRIVER, "a copy to the card was refused");
    }
    return card_wait(c, err);
}

int card_wait(struct card *c, struct error *err)
{
    int done, fd = c->driver->wake_fd(c->exec);
    if (c->driver->event_record(c->event, c->stream) != 0)
        return error_set(err, EBB_EDRIVER, "the card takes no more work");
    while ((done = c->driver->event_query(c->event)) == 0) {
        struct pollfd wake = {.fd = fd, .events = POLLIN};
        c->driver->wake_clear(c->exec);
        if (fd >= 0 && c->driver->event_query(c->event) == 0)
            (void)poll(&wake, 1, 10);
    }
    return done == 1 ? 0 : error_set(err, EBB_EDRIVER, "an operation on the card failed");
}

int card_copy_time(struct card *c, void *to, const void *from, size_t bytes, double *seconds,
                   struct error *err)
{
    double begin = bench_now();
    if (c->driver->copy(c->stream, to, from, bytes) != 0)
        return error_set(err, EBB_EDRIVER, "a copy on the card was refused");
    int code = card_wait(c, err);
    *seconds = bench_now() - begin;
    return code;
}

/* Median seconds of copies of `bytes`; the first warms up. */
static int copies_measure(struct card *c, void *to, const void *from, size_t bytes, double *seconds,
                          struct error *err)
{
    double runs[CARD_SPEED_RUNS];
    int code = card_copy_time(c, to, from, bytes, &runs[0], err);
    for (int i = 0; i < CARD_SPEED_RUNS && code == 0; i++)
        code = card_copy_time(c, to, from, bytes, &runs[i], err);
    if (code == 0)
        *seconds = bench_median(runs, CARD_SPEED_RUNS);
    return code;
}

int card_speeds_measure(const struct bench_settings *s, struct card_speeds *to, struct error *err)
{
    struct card c;
    void *base = NULL, *host = NULL;
    double copying = 1, uploading = 1;
    int code = card_open(&c, s, err);
    size_t bytes = (s->quick ? 64 : 256) * MIB * (c.tables != NULL && c.tables->is_cuda ? 4 : 1);
    size_t host_bytes = bytes / 4;
    if (code == 0)
        code = card_take(&c, bytes, &base, err);
    if (code == 0)
        code = c.driver->shared_alloc(c.exec, host_bytes, &host, err);
    if (code == 0) {
        memset(host, 1, host_bytes);
        code =
            copies_measure(&c, base, (unsigned char *)base + bytes / 2, bytes / 2, &copying, err);
    }
    if (code == 0)
        code = copies_measure(&c, base, host, host_bytes, &uploading, err);
    to->copy = (double)bytes / copying;
    to->upload = (double)host_bytes / uploading;
    if (host != NULL)
        c.driver->shared_free(c.exec, host);
    card_close(&c);
    return code;
}
