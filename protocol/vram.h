/* protocol/vram.h - the VRAM request and its receipt, as values. */
#pragma once
#include "protocol/line.h"
#include "protocol/message.h"

struct vram_request {
    bool to_start;        /* the reserve of the start ("-" or no number) */
    uint64_t reserve_mib; /* else this */
    bool every_card;
    uint32_t device; /* else this one */
};

/* `VRAM`, `VRAM <reserve>`, `VRAM <reserve> <dev>`, `VRAM - <dev>`. n_devices bounds dev. Totals
 * are checked by the caller, who knows the cards. EBB_EINVAL, EBB_ERANGE, EBB_ENOENT (unknown
 * device). Leases (for=, pid=, conn=) are EBB_EUNSUPPORTED so far. */
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
