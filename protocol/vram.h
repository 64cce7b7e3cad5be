/* protocol/vram.h - the VRAM request, with its lease if it asks for one, and its receipt, as values. */
#pragma once
#include "protocol/line.h"
#include "protocol/message.h"

#define LEASE_NAME_MAX    MESSAGE_TAG_MAX
#define LEASE_SECONDS_MAX (30u * 24 * 3600)

/* What ends a lease by itself. LEASE_NONE: the request asks for no lease, it changes the base. */
enum lease_term { LEASE_NONE, LEASE_TIME, LEASE_PROCESS, LEASE_CONNECTION };

struct vram_request {
    bool to_start;        /* the reserve of the start ("-" or no number) */
    uint64_t reserve_mib; /* else this */
    bool every_card;
    uint32_t device; /* else this one */
    enum lease_term term;
    uint32_t seconds;               /* LEASE_TIME: 1 to LEASE_SECONDS_MAX */
    int32_t pid;                    /* LEASE_PROCESS */
    char lease[LEASE_NAME_MAX + 1]; /* "": none given */
};

/* `VRAM`, `VRAM <reserve>`, `VRAM <reserve> <dev>`, `VRAM - <dev>`; all but the first with one of
 * for=, pid=, conn=1 and, if it likes, lease=. n_devices bounds dev. Totals and processes are checked by the
 * caller, who knows the cards and the host. EBB_EINVAL (also: several terms, a name without one),
 * EBB_ERANGE, EBB_ENOENT (unknown device). */
int vram_request_parse(const struct message *m, uint32_t n_devices, struct vram_request *out,
                       struct error *err);

struct vram_receipt {
    uint32_t device;
    uint64_t reserve_mib, cache_mib, cache_full_mib, slots, slots_full, before_mib, free_mib;
    int64_t freed_mib;
    uint64_t shortfall_mib, foreign_mib, prompt_chunk, wait_us, us;
    char reason[16]; /* "ok", "floor", "loan", "foreign", "driver" */
};
/* A whole line; its bytes, or EBB_ELINE_TOO_LONG. */
int vram_receipt_write(const struct vram_receipt *r, char *buffer, size_t capacity);
/* Unknown keys are ignored; one that is missing is EBB_EINVAL. */
int vram_receipt_read(const struct message *m, struct vram_receipt *r, struct error *err);
