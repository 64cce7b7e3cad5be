/* runtime/leases.c - the table of leases.
 *
 * Rows are kept in order and found by walking: there are few, and commands about them come seldom. A row leaves by being
 * copied out, so that who drives the table can close what belongs to it. Threads: one owner. Refuses: to know why a lease
 * ends; whoever says so tells it on.
 */
#include "runtime/leases.h"

#include <inttypes.h>
#include <string.h>

#include "protocol/excerpt.h"
#include "runtime/nearest.h"

void leases_init(struct leases *t, const uint64_t *start_mib, uint32_t n_cards)
{
    memset(t, 0, sizeof *t);
    t->n_cards = n_cards;
    memcpy(t->start_mib, start_mib, n_cards * sizeof *start_mib);
    memcpy(t->base_mib, start_mib, n_cards * sizeof *start_mib);
}

void leases_base(struct leases *t, const struct vram_request *r)
{
    for (uint32_t i = 0; i < t->n_cards; i++)
        if (r->every_card || r->device == i)
            t->base_mib[i] = r->to_start ? t->start_mib[i] : r->reserve_mib;
}

uint64_t lease_reserve(const struct leases *t, const struct lease *l, uint32_t device)
{
    if (!l->every_card && l->device != device)
        return 0;
    return l->to_start ? t->start_mib[device] : l->reserve_mib;
}

uint64_t leases_in_force(const struct leases *t, uint32_t device)
{
    uint64_t most = t->base_mib[device];
    for (size_t i = 0; i < t->n; i++) {
        uint64_t mib = lease_reserve(t, &t->rows[i], device);
        most = mib > most ? mib : most;
    }
    return most;
}

/* t->n where there is none. */
static size_t row_of(const struct leases *t, const char *name)
{
    size_t i = 0;
    while (i < t->n && strcmp(t->rows[i].name, name) != 0)
        i++;
    return i;
}

const struct lease *leases_find(const struct leases *t, const char *name)
{
    size_t i = row_of(t, name);
    return i < t->n ? &t->rows[i] : NULL;
}

static void row_remove(struct leases *t, size_t i, struct lease *gone)
{
    *gone = t->rows[i];
    memmove(&t->rows[i], &t->rows[i + 1], (--t->n - i) * sizeof t->rows[0]);
}

static void name_make(struct leases *t, char *name, size_t capacity)
{
    do
        (void)snprintf(name, capacity, "lease-%" PRIu64, ++t->n_named);
    while (row_of(t, name) < t->n);
}

int leases_take(struct leases *t, const struct lease *wanted, const struct lease **taken,
                struct lease *before, struct error *err)
{
    size_t i = wanted->name[0] != '\0' ? row_of(t, wanted->name) : t->n;
    if (i == LEASES_MAX)
        return error_set(err, EBB_EBUSY,
                         "VRAM: there are %d leases, which is as many as there may be", LEASES_MAX);
    *before = (struct lease){.handle = -1};
    if (i < t->n)
        *before = t->rows[i];
    t->rows[i] = *wanted;
    if (i == t->n) {
        if (wanted->name[0] == '\0')
            name_make(t, t->rows[i].name, sizeof t->rows[i].name);
        t->n++;
    }
    *taken = &t->rows[i];
    return 0;
}

int leases_end(struct leases *t, const char *name, struct lease *gone, struct error *err)
{
    struct nearest nearest = {0};
    size_t i = row_of(t, name);
    if (i < t->n) {
        row_remove(t, i, gone);
        return 0;
    }
    for (i = 0; i < t->n; i++)
        nearest_offer(&nearest, name, t->rows[i].name);
    if (nearest.name == NULL)
        return error_set(err, EBB_ENOENT, "UNLEASE: no lease \"%s\"; there is none at all",
                         excerpt_of_text(name).text);
    return error_set(err, EBB_ENOENT, "UNLEASE: no lease \"%s\"; the nearest is %s",
                     excerpt_of_text(name).text, nearest.name);
}

/* The row that ends first by time; of several the one made first. t->n: none. */
static size_t row_next(const struct leases *t)
{
    size_t next = t->n;
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].term == LEASE_TIME &&
            (next == t->n || t->rows[i].until_us < t->rows[next].until_us))
            next = i;
    return next;
}

bool leases_next(const struct leases *t, uint64_t *until_us)
{
    size_t i = row_next(t);
    if (i < t->n)
        *until_us = t->rows[i].until_us;
    return i < t->n;
}

bool leases_expire(struct leases *t, uint64_t now_us, struct lease *gone)
{
    size_t i = row_next(t);
    if (i == t->n || t->rows[i].until_us > now_us)
        return false;
    row_remove(t, i, gone);
    return true;
}

bool leases_end_connection(struct leases *t, uint64_t connection, struct lease *gone)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].term == LEASE_CONNECTION && t->rows[i].connection == connection) {
            row_remove(t, i, gone);
            return true;
        }
    return false;
}

bool leases_end_handle(struct leases *t, int handle, struct lease *gone)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].term == LEASE_PROCESS && t->rows[i].handle == handle) {
            row_remove(t, i, gone);
            return true;
        }
    return false;
}
