/* tests/unit/vmm/fake_driver.c - see fake_driver.h. The fake hands out addresses that nobody may
 * touch; the failing table counts before it refuses; the host card cleans up behind itself.
 */
#include "tests/unit/vmm/fake_driver.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fake_span *find(struct fake_span *list, size_t n, uintptr_t base, size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].base == base && list[i].bytes == bytes)
            return &list[i];
    return NULL;
}

static bool overlaps(const struct fake_span *list, size_t n, uintptr_t base, size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (base < list[i].base + list[i].bytes && list[i].base < base + bytes)
            return true;
    return false;
}

static int refuse(struct error *err, const char *what)
{
    return error_set(err, EBB_EDRIVER, "fake card: %s", what);
}

static int fake_reserve(struct vmm_driver *d, size_t bytes, void **base, struct error *err)
{
    struct fake_card *c = d->ctx;
    if (bytes == 0 || bytes % d->granularity != 0 || c->n_ranges == FAKE_LIST_MAX)
        return refuse(err, "reserve: invalid value");
    c->ranges[c->n_ranges++] = (struct fake_span){.base = c->address_next, .bytes = bytes};
    *base = (void *)c->address_next;
    c->address_next += bytes + d->granularity;
    return 0;
}

static int fake_unreserve(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct fake_card *c = d->ctx;
    struct fake_span *range = find(c->ranges, c->n_ranges, (uintptr_t)base, bytes);
    if (range == NULL || overlaps(c->mappings, c->n_mappings, (uintptr_t)base, bytes))
        return refuse(err, "unreserve: not reserved, or mapped");
    *range = c->ranges[--c->n_ranges];
    return 0;
}

static int fake_create(struct vmm_driver *d, size_t bytes, vmm_handle *handle, struct error *err)
{
    struct fake_card *c = d->ctx;
    if (bytes == 0 || bytes % d->granularity != 0 || c->n_handles == FAKE_LIST_MAX)
        return refuse(err, "create: invalid value");
    if (c->own_bytes + c->foreign_bytes + bytes > c->total_bytes)
        return error_set(err, EBB_ENOMEM, "fake card: out of memory");
    *handle = ++c->handle_next;
    c->handles[c->n_handles++] =
        (struct fake_span){.base = (uintptr_t)*handle, .bytes = bytes, .handle = *handle};
    c->own_bytes += bytes;
    return 0;
}

static struct fake_span *handle_find(struct fake_card *c, vmm_handle handle)
{
    for (size_t i = 0; i < c->n_handles; i++)
        if (c->handles[i].handle == handle)
            return &c->handles[i];
    return NULL;
}

static int fake_destroy(struct vmm_driver *d, vmm_handle handle, struct error *err)
{
    struct fake_card *c = d->ctx;
    struct fake_span *h = handle_find(c, handle);
    if (h == NULL)
        return refuse(err, "destroy: unknown handle");
    c->own_bytes -= h->bytes;
    *h = c->handles[--c->n_handles];
    return 0;
}

static int fake_map(struct vmm_driver *d, void *base, size_t bytes, vmm_handle handle,
                    struct error *err)
{
    struct fake_card *c = d->ctx;
    const struct fake_span *h = handle_find(c, handle);
    uintptr_t at = (uintptr_t)base;
    bool is_inside = false;
    for (size_t i = 0; i < c->n_ranges; i++)
        is_inside = is_inside || (at >= c->ranges[i].base &&
                                  at + bytes <= c->ranges[i].base + c->ranges[i].bytes);
    if (h == NULL || h->bytes != bytes || !is_inside || c->n_mappings == FAKE_LIST_MAX)
        return refuse(err, "map: unknown handle or range not reserved");
    if (overlaps(c->mappings, c->n_mappings, at, bytes))
        return refuse(err, "map: already mapped");
    c->mappings[c->n_mappings++] = (struct fake_span){.base = at, .bytes = bytes, .handle = handle};
    return 0;
}

static int fake_set_access(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct fake_card *c = d->ctx;
    struct fake_span *m = find(c->mappings, c->n_mappings, (uintptr_t)base, bytes);
    if (m == NULL)
        return refuse(err, "set_access: not mapped");
    m->is_accessible = true;
    return 0;
}

static int fake_unmap(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct fake_card *c = d->ctx;
    struct fake_span *m = find(c->mappings, c->n_mappings, (uintptr_t)base, bytes);
    if (m == NULL)
        return refuse(err, "unmap: not mapped");
    *m = c->mappings[--c->n_mappings];
    return 0;
}

static int fake_memory(struct vmm_driver *d, struct vmm_memory *out, struct error *err)
{
    const struct fake_card *c = d->ctx;
    (void)err;
    *out = (struct vmm_memory){.total_bytes = c->total_bytes,
                               .own_bytes = c->own_bytes,
                               .foreign_bytes = c->foreign_bytes};
    if (c->own_bytes + c->foreign_bytes < c->total_bytes)
        out->free_bytes = c->total_bytes - c->own_bytes - c->foreign_bytes;
    return 0;
}

static void fake_close(struct vmm_driver *d)
{
    struct fake_card *c = d->ctx;
    c->n_handles = c->n_mappings = c->n_ranges = 0;
    c->own_bytes = 0;
}

void fake_driver_open(struct vmm_driver *d, struct fake_card *card, uint64_t total_bytes)
{
    memset(card, 0, sizeof *card);
    card->total_bytes = total_bytes;
    card->address_next = (uintptr_t)1 << 40;
    *d = (struct vmm_driver){.name = "fake",
                             .granularity = 2 * MIB,
                             .ctx = card,
                             .reserve = fake_reserve,
                             .unreserve = fake_unreserve,
                             .create = fake_create,
                             .destroy = fake_destroy,
                             .map = fake_map,
                             .set_access = fake_set_access,
                             .unmap = fake_unmap,
                             .memory = fake_memory,
                             .close = fake_close};
}

static bool refuses(struct failing *f, enum call_kind kind)
{
    size_t n = ++f->n_calls[kind];
    bool does =
        kind == f->kind && f->fail_at != 0 && (n == f->fail_at || (f->for_ever && n > f->fail_at));
    f->n_refused += does;
    return does;
}

static int failing_reserve(struct vmm_driver *d, size_t bytes, void **base, struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_RESERVE) ? refuse(err, "reserve: told to fail")
                                    : f->inner->reserve(f->inner, bytes, base, err);
}

static int failing_unreserve(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_UNRESERVE) ? refuse(err, "unreserve: told to fail")
                                      : f->inner->unreserve(f->inner, base, bytes, err);
}

static int failing_create(struct vmm_driver *d, size_t bytes, vmm_handle *handle, struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_CREATE) ? error_set(err, EBB_ENOMEM, "create: told to fail")
                                   : f->inner->create(f->inner, bytes, handle, err);
}

static int failing_destroy(struct vmm_driver *d, vmm_handle handle, struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_DESTROY) ? refuse(err, "destroy: told to fail")
                                    : f->inner->destroy(f->inner, handle, err);
}

static int failing_map(struct vmm_driver *d, void *base, size_t bytes, vmm_handle handle,
                       struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_MAP) ? refuse(err, "map: told to fail")
                                : f->inner->map(f->inner, base, bytes, handle, err);
}

static int failing_set_access(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_SET_ACCESS) ? refuse(err, "set_access: told to fail")
                                       : f->inner->set_access(f->inner, base, bytes, err);
}

static int failing_unmap(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct failing *f = d->ctx;
    return refuses(f, CALL_UNMAP) ? refuse(err, "unmap: told to fail")
                                  : f->inner->unmap(f->inner, base, bytes, err);
}

static int failing_memory(struct vmm_driver *d, struct vmm_memory *out, struct error *err)
{
    struct failing *f = d->ctx;
    return f->inner->memory(f->inner, out, err);
}

void failing_driver_open(struct vmm_driver *d, struct failing *f, struct vmm_driver *inner)
{
    *f = (struct failing){.inner = inner};
    *d = (struct vmm_driver){.name = "failing",
                             .granularity = inner->granularity,
                             .ctx = f,
                             .reserve = failing_reserve,
                             .unreserve = failing_unreserve,
                             .create = failing_create,
                             .destroy = failing_destroy,
                             .map = failing_map,
                             .set_access = failing_set_access,
                             .unmap = failing_unmap,
                             .memory = failing_memory};
}

void host_card_open_other(const struct host_card *card, struct vmm_driver *d, int device,
                          uint64_t capacity_bytes)
{
    struct error err = {0};
    struct vmm_host_settings settings = {
        .device = device, .capacity_bytes = capacity_bytes, .runtime_dir = card->directory};
    cr_assert_eq(vmm_driver_host_open(d, &settings, &err), 0, "%s", err.text);
}

void host_card_open(struct host_card *card, uint64_t capacity_bytes)
{
    (void)strcpy(card->directory, "/tmp/ebbtide-test-XXXXXX");
    cr_assert_not_null(mkdtemp(card->directory));
    host_card_open_other(card, &card->driver, 0, capacity_bytes);
}

void host_card_close(struct host_card *card)
{
    if (card->driver.close != NULL)
        card->driver.close(&card->driver);
    DIR *directory = opendir(card->directory);
    cr_assert_not_null(directory);
    for (const struct dirent *e = readdir(directory); e != NULL; e = readdir(directory)) {
        char path[400];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        cr_assert(strncmp(e->d_name, "cards-", 6) == 0, "%s was left behind", e->d_name);
        (void)snprintf(path, sizeof path, "%s/%s", card->directory, e->d_name);
        cr_assert_eq(unlink(path), 0);
    }
    (void)closedir(directory);
    cr_assert_eq(rmdir(card->directory), 0);
}

void assert_pool_is_sound(const struct pool *p)
{
    size_t n_held = 0, n_free = 0, n_owed = 0;
    for (size_t i = 0; i < p->n_capacity; i++) {
        const struct pool_segment *s = &p->segments[i];
        n_held += s->handle != 0;
        n_free += s->handle != 0 && s->mapped_at == NULL;
        n_owed += s->is_owed;
        cr_assert(s->handle != 0 || s->mapped_at == NULL);
        cr_assert(!s->is_owed || s->mapped_at != NULL);
    }
    cr_assert_eq(n_held, p->n_held);
    cr_assert_eq(n_free, p->n_free);
    cr_assert_eq(n_owed, p->n_owed);
    cr_assert_leq(n_held, p->n_capacity);
}
