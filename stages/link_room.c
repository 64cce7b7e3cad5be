/* stages/link_room.c - the card's memory that NCCL takes for a link: kept free for it, and counted.
 *
 * NCCL allocates by itself, when a communicator is made: long after LOAD has shared the card out. So LOAD holds a block as large as
 * NCCL is known to take; it is given up while communicators are made or ended, and afterwards as much of it is taken again as NCCL left.
 * What NCCL took is what more of the card is in use by then; from then on it is the stage's, owner `link`. So a link that is made
 * anew finds its memory, and the card's free memory is the same before and after. Threads: the control thread.
 */
#include "stages/stage.h"

static uint64_t beside_now(struct stage *s)
{
    struct vmm_memory mem = {0};
    struct error err;
    if (s->memory.memory(&s->memory, &mem, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    return mem.beside_bytes;
}

static void adopt(struct stage *s, int64_t bytes)
{
    struct link_room *r = &s->link_room;
    if (bytes < 0 && (uint64_t)-bytes > r->taken_bytes)
        bytes = -(int64_t)r->taken_bytes;
    r->taken_bytes += (uint64_t)bytes;
    s->memory.adopt(&s->memory, bytes);
}

static int hold(struct stage *s, struct error *err)
{
    struct link_room *r = &s->link_room;
    uint64_t bytes = r->bytes > r->taken_bytes ? r->bytes - r->taken_bytes : 0;
    bytes -= bytes % s->memory.granularity;
    return bytes > 0 ? fixed_block_open(&r->block, &s->memory, (size_t)bytes, err) : 0;
}

int link_room_open(struct stage *s, uint64_t bytes, struct error *err)
{
    s->link_room = (struct link_room){.bytes = s->memory.adopt != NULL ? bytes : 0};
    return hold(s, err);
}

void link_room_give(struct stage *s)
{
    struct link_room *r = &s->link_room;
    if (r->bytes == 0 || r->is_given)
        return;
    fixed_block_close(&r->block);
    r->beside_bytes = beside_now(s);
    r->is_given = true;
}

void link_room_settle(struct stage *s)
{
    struct link_room *r = &s->link_room;
    struct error err = {0};
    if (!r->is_given)
        return;
    r->is_given = false;
    adopt(s, (int64_t)(beside_now(s) - r->beside_bytes));
    if (r->taken_bytes > r->bytes)
        stage_log("warning: card %u: NCCL took %llu MiB, %llu were kept for it", s->load.device,
                  (unsigned long long)(r->taken_bytes / MIB), (unsigned long long)(r->bytes / MIB));
    if (hold(s, &err) != 0)
        stage_log("card %u: the rest of NCCL's room is not held: %s", s->load.device, err.text);
}

void link_room_close(struct stage *s)
{
    if (s->link_room.bytes > 0)
        adopt(s, -(int64_t)s->link_room.taken_bytes);
    fixed_block_close(&s->link_room.block);
    s->link_room = (struct link_room){0};
}
