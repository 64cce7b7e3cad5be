/* protocol/vram.c - the VRAM request as values, and its receipt as values and as a line.
 *
 * One table gives the receipt's keys their order and their places in the struct, so that what is
 * written and what is read cannot drift apart. A receipt is a promise about memory: one that lacks
 * a number is refused, one that says more than is known here is read. Pure functions on the
 * caller's memory, any thread. Refuses: to know cards; totals and floors are checked by who does.
 */
#include "protocol/vram.h"

#include <inttypes.h>
#include <string.h>

#include "protocol/excerpt.h"

#define MIB_MAX (UINT64_MAX >> 20) /* so that a reserve in bytes is a number too */

static int reserve_parse(const char *text, struct vram_request *out, struct error *err)
{
    uint64_t mib;
    int rc = parse_u64(text, 0, MIB_MAX, &mib);

    if (rc == EBB_ERANGE)
        return error_set(err, rc, "VRAM: the reserve wants at most %" PRIu64 " MiB, got %s",
                         (uint64_t)MIB_MAX, excerpt_of_text(text).text);
    if (rc < 0)
        return error_set(err, rc,
                         "VRAM: the reserve wants whole MiB without a unit (12000), or \"-\" for "
                         "the start's, got \"%s\"",
                         excerpt_of_text(text).text);
    out->to_start = false;
    out->reserve_mib = mib;
    return 0;
}

static int device_parse(const char *text, uint32_t n_devices, struct vram_request *out,
                        struct error *err)
{
    uint64_t device;
    int rc = parse_u64(text, 0, UINT64_MAX, &device);

    if (rc == EBB_EINVAL)
        return error_set(err, rc, "VRAM: the device wants the number of a card, got \"%s\"",
                         excerpt_of_text(text).text);
    if (rc < 0 || device >= n_devices)
        return error_set(err, EBB_ENOENT,
                         "VRAM: there is no device %s; this engine has %" PRIu32
                         " (the first is 0)",
                         excerpt_of_text(text).text, n_devices);
    out->every_card = false;
    out->device = (uint32_t)device;
    return 0;
}

static int lease_name_parse(const char *name, struct vram_request *out, struct error *err)
{
    if (out->term == LEASE_NONE)
        return error_set(err, EBB_EINVAL,
                         "VRAM: lease= names a lease; it wants for=, pid= or conn=1 beside it, "
                         "which says when that ends");
    if (!tag_is_valid(name))
        return error_set(err, EBB_EINVAL,
                         "VRAM: lease= wants 1 to %d characters A-Z a-z 0-9 . _ : -, got \"%s\"",
                         LEASE_NAME_MAX, excerpt_of_text(name).text);
    (void)snprintf(out->lease, sizeof out->lease, "%s", name);
    return 0;
}

/* for=, pid= or conn=1, at most one of them, and lease=. */
static int lease_parse(const struct message *m, struct vram_request *out, struct error *err)
{
    static const char *const terms[] = {"for", "pid", "conn"};
    const char *given = NULL, *name = message_key(m, "lease");
    uint64_t value = 0;
    int rc = 0;

    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++) {
        if (message_key(m, terms[i]) == NULL)
            continue;
        if (given != NULL)
            return error_set(err, EBB_EINVAL,
                             "VRAM: %s= and %s= exclude each other: one thing ends a lease", given,
                             terms[i]);
        given = terms[i];
        out->term = LEASE_TIME + (enum lease_term)i;
    }
    if (given != NULL && message_bare(m, 0) == NULL)
        return error_set(
            err, EBB_EINVAL,
            "VRAM: a lease (%s=) wants its reserve: whole MiB, or \"-\" for the start's", given);
    if (out->term == LEASE_TIME) {
        rc = message_u64(m, "for", 1, LEASE_SECONDS_MAX, &value, err);
        out->seconds = (uint32_t)value;
    } else if (out->term == LEASE_PROCESS) {
        rc = message_u64(m, "pid", 1, INT32_MAX, &value, err);
        out->pid = (int32_t)value;
    } else if (out->term == LEASE_CONNECTION) {
        rc = message_u64(m, "conn", 1, 1, &value, err);
    }
    return rc == 0 && name != NULL ? lease_name_parse(name, out, err) : rc;
}

int vram_request_parse(const struct message *m, uint32_t n_devices, struct vram_request *out,
                       struct error *err)
{
    struct vram_request request = {.to_start = true, .every_card = true};
    const char *reserve = message_bare(m, 0), *device = message_bare(m, 1);
    int rc = 0;

    if (m->n_bare > 2)
        return error_set(err, EBB_EINVAL,
                         "VRAM wants [<reserve_mib>|-] [<dev>] and no more, got \"%s\" as field 3",
                         excerpt_of_text(message_bare(m, 2)).text);
    if (reserve != NULL && strcmp(reserve, "-") != 0)
        rc = reserve_parse(reserve, &request, err);
    if (rc == 0 && device != NULL)
        rc = device_parse(device, n_devices, &request, err);
    if (rc == 0)
        rc = lease_parse(m, &request, err);
    if (rc == 0)
        *out = request;
    return rc;
}

static const struct receipt_number {
    const char *key;
    size_t offset; /* of a uint64_t, or of an int64_t if may_be_negative */
    bool may_be_negative;
} receipt_numbers[] = {
    {"reserve_mib", offsetof(struct vram_receipt, reserve_mib), false},
    {"cache_mib", offsetof(struct vram_receipt, cache_mib), false},
    {"cache_full_mib", offsetof(struct vram_receipt, cache_full_mib), false},
    {"slots", offsetof(struct vram_receipt, slots), false},
    {"slots_full", offsetof(struct vram_receipt, slots_full), false},
    {"before_mib", offsetof(struct vram_receipt, before_mib), false},
    {"free_mib", offsetof(struct vram_receipt, free_mib), false},
    {"freed_mib", offsetof(struct vram_receipt, freed_mib), true},
    {"shortfall_mib", offsetof(struct vram_receipt, shortfall_mib), false},
    {"foreign_mib", offsetof(struct vram_receipt, foreign_mib), false},
    {"prompt_chunk", offsetof(struct vram_receipt, prompt_chunk), false},
    {"wait_us", offsetof(struct vram_receipt, wait_us), false},
    {"us", offsetof(struct vram_receipt, us), false},
};
#define N_RECEIPT_NUMBERS (sizeof receipt_numbers / sizeof receipt_numbers[0])

int vram_receipt_write(const struct vram_receipt *r, char *buffer, size_t capacity)
{
    struct line_writer w;

    line_begin(&w, buffer, capacity, "VRAM");
    line_u64(&w, "device", r->device);
    for (size_t i = 0; i < N_RECEIPT_NUMBERS; i++) {
        const struct receipt_number *n = &receipt_numbers[i];
        const char *at = (const char *)r + n->offset;
        if (n->may_be_negative)
            line_i64(&w, n->key, *(const int64_t *)at);
        else
            line_u64(&w, n->key, *(const uint64_t *)at);
    }
    line_text(&w, "reason", r->reason, strnlen(r->reason, sizeof r->reason));
    return line_end(&w);
}

int vram_receipt_read(const struct message *m, struct vram_receipt *r, struct error *err)
{
    struct vram_receipt read = {0};
    uint64_t device = 0;
    size_t n_reason = 0;
    int rc;

    if (strcmp(m->verb, "VRAM") != 0)
        return error_set(err, EBB_EINVAL, "a receipt begins with VRAM, got \"%s\"",
                         excerpt_of_text(m->verb).text);
    rc = message_u64(m, "device", 0, UINT32_MAX, &device, err);
    for (size_t i = 0; i < N_RECEIPT_NUMBERS && rc == 0; i++) {
        const struct receipt_number *n = &receipt_numbers[i];
        char *at = (char *)&read + n->offset;
        if (n->may_be_negative)
            rc = message_i64(m, n->key, INT64_MIN, INT64_MAX, (int64_t *)at, err);
        else
            rc = message_u64(m, n->key, 0, UINT64_MAX, (uint64_t *)at, err);
    }
    if (rc == 0)
        rc = message_text(m, "reason", read.reason, sizeof read.reason - 1, &n_reason, err);
    if (rc == EBB_ENOENT)
        rc = error_set(err, EBB_EINVAL, "VRAM: the receipt is not whole: a key of it is not given");
    if (rc < 0)
        return rc;
    read.device = (uint32_t)device;
    *r = read;
    return 0;
}
