/* tools/comfy-handoff/hold.h - memory of one card of a running engine, held as long as this process lives.
 *
 * Where the engine has leases, the reserve is bound to a connection that is kept open (conn=1): whatever ends this process
 * gives the memory back. An older engine's plain reserve is put back to what it was by hold_give_back() alone, and
 * hold_take() says that it is so. Owns the connection. Threads: one owner.
 */
#pragma once
#include "protocol/client.h"
#include "protocol/vram.h"

struct hold {
    char path[4096]; /* the engine's socket */
    struct channel channel;
    bool is_open, is_held, is_lease;
    char lease[MESSAGE_TAG_MAX + 1];
    uint64_t reserve_before_mib; /* of a plain reserve: what it was */
    uint32_t device;
};

/* Finds the engine and connects. EBB_ENOENT, EBB_EBUSY: none, or several. */
int hold_open(struct hold *h, const char *control, const char *name, struct error *err);
/* Which of its cards another program means: by `uuid` ("": not known) where the engine tells those, else by the only card whose name is
 * part of `name`. EBB_ENOENT, EBB_EBUSY (err says which there are): --device has to say. */
int hold_card_find(struct hold *h, const char *name, const char *uuid, uint32_t *device,
                   struct error *err);
/* Leaves reserve_mib free on the device. After a failure nothing is held. */
int hold_take(struct hold *h, uint32_t device, uint64_t reserve_mib, struct vram_receipt *receipt,
              struct error *err);
/* Gives it back, once, and closes. freed_mib of the receipt: below 0, the engine took so much again. An engine that is gone
 * is EBB_EGONE: nothing is held then either. */
int hold_give_back(struct hold *h, struct vram_receipt *receipt, struct error *err);
