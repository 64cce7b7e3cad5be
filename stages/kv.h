/* stages/kv.h - the paged key/value memory of one stage: blocks of KV_BLOCK_TOKENS positions for all its layers, sequences as
 * tables of blocks, shared by reference count.
 *
 * A block number stands for the same positions in every layer of the stage, so one table serves them all. A forked sequence shares
 * the blocks of its prefix; a block that is shared is copied before it is written (copy on write). The tables live in a fixed-address
 * buffer that kernels read, so they change only while no step runs. The coordinator counts blocks for every stage and never sends
 * a step that lacks them; a stage still checks. Threads: the control thread. Failure: nothing changed.
 *
 * The memory is one range whose base is fixed for life: a head for the blocks of the start, then segments lent by the card's pool,
 * always from the front on, so that a block may lie across the border of two. kv_grow() takes free segments of the pool; a shrink
 * moves the blocks in use to the front, tables and references with them, and gives the last segments back:
 *
 *   kv_shrink_begin()  plans; from here on the tables name the new places and only what remains is given out: copy moves[], wait
 *   kv_shrink_end()    returns the segments to the pool
 */
#pragma once
#include "kernels/kernels.h"
#include "vmm/region.h"

struct kv_shape {
    size_t n_layers, n_kv_heads, head_dim;
    enum kv_type type;
    size_t n_blocks, n_sequences, table_stride; /* table_stride: blocks of the longest sequence */
    size_t n_blocks_max; /* it may grow to; 0 = n_blocks, those of the start */
};

struct kv_sequence {
    uint32_t id;
    bool live;
    uint32_t length;   /* positions stored */
    uint32_t n_blocks; /* in its table */
};

struct kv_copy { /* a block that a step writes and others share: copied before the step */
    int32_t from, to;
};

struct kv {
    struct kv_shape shape;
    unsigned char *base;           /* [n_blocks][n_layers], each as in kernels.h's kv_view */
    struct fixed_block memory;     /* where it cannot grow */
    struct region region;          /* where it can */
    size_t n_blocks;               /* backed, usable */
    size_t layer_bytes;            /* of a block in one layer */
    int32_t *tables;               /* borrowed: [n_sequences][table_stride], read by kernels */
    bool changed;                  /* the tables, since the owner of their copy last cleared this */
    struct kv_sequence *sequences; /* owned [n_sequences] */
    uint32_t *references;          /* owned [n_blocks_max] */
    int32_t *free_blocks;          /* owned stack */
    size_t n_free;
    struct kv_copy *moves; /* owned [n_blocks_max]: of the shrink that runs */
    int32_t *moved_to;     /* owned [n_blocks_max]: scratch */
    size_t n_moves, n_segments_after;
};

size_t kv_block_bytes(const struct kv_shape *shape);
/* tables: memory of shape.n_sequences * shape.table_stride entries that outlives the kv. pool: what it grows from, borrowed, closed
 * after it; NULL: it has n_blocks for life. */
int kv_open(struct kv *kv, struct vmm_driver *driver, struct pool *pool,
            const struct kv_shape *shape, int32_t *tables, struct error *err);
void kv_close(struct kv *kv);

size_t kv_segments_for(const struct kv *kv, size_t n_blocks); /* of the pool, beside the head */
static inline size_t kv_n_segments(const struct kv *kv)
{
    return kv->region.n_backed;
}
size_t kv_blocks_max(const struct kv *kv);
size_t kv_head_bytes(const struct kv *kv); /* what it holds for life */
/* Takes free segments of the pool until it has n_segments. What was had before an error stays in use. EBB_EBUSY: none is free. */
int kv_grow(struct kv *kv, size_t n_segments, struct error *err);
/* At a boundary. Fills kv->moves. EBB_EBUSY: the blocks in use do not fit, nothing changed. */
int kv_shrink_begin(struct kv *kv, size_t n_segments, struct error *err);
/* What the driver will not unmap now stays in use. */
int kv_shrink_end(struct kv *kv, struct error *err);

/* Makes room for positions [pos, pos + n) of sequence id, cutting it back to pos first; a new id begins at pos 0. *slot is its row of
 * tables. At most one copy has to be made before the positions are written: it is appended to copies[*n_copies].
 * EBB_EINVAL (pos beyond its length, beyond the context), EBB_EBUSY (no free block or sequence). */
int kv_extend(struct kv *kv, uint32_t id, uint32_t pos, uint32_t n, uint32_t *slot,
              struct kv_copy *copies, size_t *n_copies, struct error *err);
/* new shares the first n positions of old. EBB_ENOENT, EBB_EINVAL, EBB_EBUSY. */
int kv_fork(struct kv *kv, uint32_t new_id, uint32_t old_id, uint32_t n, struct error *err);
int kv_drop(struct kv *kv, uint32_t id);                       /* EBB_ENOENT */
int kv_slot(const struct kv *kv, uint32_t id, uint32_t *slot); /* its row of tables; EBB_ENOENT */
void kv_drop_all(struct kv *kv);
size_t kv_n_sequences(const struct kv *kv);

/* The view of one of the stage's layers, for kernels: tables, row_sequence and positions are where they read them. */
struct kv_view kv_layer(const struct kv *kv, size_t layer, const int32_t *tables,
                        const int32_t *row_sequence, const int32_t *positions);
