/* stages/kv.c - blocks, tables and reference counts of the paged key/value memory (see kv.h).
 *
 * References count tables that name a block; the free stack holds exactly the blocks with none. Blocks beyond what a sequence's length
 * needs are given back at once, so a cut sequence never keeps what it cannot read. Segments are backed from index 0 on without a gap,
 * so n_blocks is what the backed bytes hold; blocks from there on are in no table and not on the stack.
 */
#include "stages/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t blocks_for(size_t positions)
{
    return (positions + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

static size_t layer_block_bytes(const struct kv_shape *s)
{
    return 2 * kv_values_bytes(s->type, (size_t)KV_BLOCK_TOKENS * s->n_kv_heads * s->head_dim);
}

size_t kv_block_bytes(const struct kv_shape *shape)
{
    return layer_block_bytes(shape) * shape->n_layers;
}

size_t kv_blocks_max(const struct kv *kv)
{
    return kv->region.pool != NULL ? kv->shape.n_blocks_max : kv->shape.n_blocks;
}

size_t kv_head_bytes(const struct kv *kv)
{
    return kv->region.pool != NULL ? kv->region.head_bytes : kv->memory.bytes;
}

size_t kv_segments_for(const struct kv *kv, size_t n_blocks)
{
    if (kv->region.pool == NULL || n_blocks <= kv->shape.n_blocks)
        return 0;
    if (n_blocks > kv->shape.n_blocks_max)
        n_blocks = kv->shape.n_blocks_max;
    size_t bytes = n_blocks * kv_block_bytes(&kv->shape), segment = kv->region.pool->segment_bytes;
    return bytes <= kv->region.head_bytes ? 1
                                          : (bytes - kv->region.head_bytes + segment - 1) / segment;
}

/* Blocks that lie wholly in the head and the first n_segments; those of the start, where there are none. */
static size_t blocks_within(const struct kv *kv, size_t n_segments)
{
    const struct region *r = &kv->region;
    if (r->pool == NULL || n_segments == 0)
        return kv->shape.n_blocks;
    size_t n = (r->head_bytes + n_segments * r->pool->segment_bytes) / kv_block_bytes(&kv->shape);
    return n < kv->shape.n_blocks_max ? n : kv->shape.n_blocks_max;
}

static int memory_open(struct kv *kv, struct vmm_driver *driver, struct pool *pool,
                       struct error *err)
{
    const struct kv_shape *s = &kv->shape;
    size_t block = kv_block_bytes(s), head = block * s->n_blocks;
    if (pool == NULL || s->n_blocks_max == s->n_blocks) {
        int rc = fixed_block_open(&kv->memory, driver, head, err);
        kv->base = kv->memory.base;
        return rc;
    }
    /* As if the head were not rounded up: a segment too many costs addresses only. */
    size_t more = (s->n_blocks_max - s->n_blocks) * block;
    int rc = region_open_headed(&kv->region, pool, head,
                                (more + pool->segment_bytes - 1) / pool->segment_bytes, err);
    kv->base = kv->region.base;
    return rc;
}

int kv_open(struct kv *kv, struct vmm_driver *driver, struct pool *pool,
            const struct kv_shape *shape, int32_t *tables, struct error *err)
{
    memset(kv, 0, sizeof *kv);
    kv->shape = *shape;
    if (kv->shape.n_blocks_max < shape->n_blocks)
        kv->shape.n_blocks_max = shape->n_blocks;
    size_t most = kv->shape.n_blocks_max;
    kv->n_blocks = shape->n_blocks;
    kv->tables = tables;
    kv->layer_bytes = layer_block_bytes(shape);
    kv->sequences = calloc(shape->n_sequences, sizeof *kv->sequences);
    kv->references = calloc(most, sizeof *kv->references);
    kv->free_blocks = calloc(most, sizeof *kv->free_blocks);
    kv->moves = calloc(most, sizeof *kv->moves);
    kv->moved_to = calloc(most, sizeof *kv->moved_to);
    if (kv->sequences == NULL || kv->references == NULL || kv->free_blocks == NULL ||
        kv->moves == NULL || kv->moved_to == NULL) {
        kv_close(kv);
        return error_set(err, EBB_ENOMEM, "kv: no memory for the tables of %zu blocks", most);
    }
    for (size_t i = 0; i < shape->n_blocks; i++)
        kv->free_blocks[i] = (int32_t)(shape->n_blocks - 1 - i); /* low numbers are taken first */
    kv->n_free = shape->n_blocks;
    int rc = memory_open(kv, driver, pool, err);
    if (rc != 0)
        kv_close(kv);
    return rc;
}

void kv_close(struct kv *kv)
{
    fixed_block_close(&kv->memory);
    region_close(&kv->region);
    free(kv->moved_to);
    free(kv->moves);
    free(kv->free_blocks);
    free(kv->references);
    free(kv->sequences);
    memset(kv, 0, sizeof *kv);
}

static struct kv_sequence *find(const struct kv *kv, uint32_t id)
{
    for (size_t i = 0; i < kv->shape.n_sequences; i++)
        if (kv->sequences[i].live && kv->sequences[i].id == id)
            return &kv->sequences[i];
    return NULL;
}

static struct kv_sequence *find_unused(const struct kv *kv)
{
    for (size_t i = 0; i < kv->shape.n_sequences; i++)
        if (!kv->sequences[i].live)
            return &kv->sequences[i];
    return NULL;
}

static int32_t *table_of(const struct kv *kv, const struct kv_sequence *s)
{
    return kv->tables + (size_t)(s - kv->sequences) * kv->shape.table_stride;
}

static int32_t block_take(struct kv *kv)
{
    assert(kv->n_free > 0);
    int32_t block = kv->free_blocks[--kv->n_free];
    kv->references[block] = 1;
    return block;
}

static void block_release(struct kv *kv, int32_t block)
{
    assert(kv->references[block] > 0);
    if (--kv->references[block] == 0)
        kv->free_blocks[kv->n_free++] = block;
}

static void cut(struct kv *kv, struct kv_sequence *s, uint32_t length)
{
    size_t keep = blocks_for(length);
    int32_t *table = table_of(kv, s);
    while (s->n_blocks > keep)
        block_release(kv, table[--s->n_blocks]);
    s->length = length;
}

int kv_extend(struct kv *kv, uint32_t id, uint32_t pos, uint32_t n, uint32_t *slot,
              struct kv_copy *copies, size_t *n_copies, struct error *err)
{
    struct kv_sequence *s = find(kv, id);
    uint32_t length = s != NULL ? s->length : 0;
    if (pos > length)
        return error_set(err, EBB_EINVAL, "sequence %u: position %u wanted, it has %u", id, pos,
                         length);
    if ((uint64_t)pos + n > kv->shape.table_stride * (uint64_t)KV_BLOCK_TOKENS)
        return error_set(err, EBB_EINVAL,
                         "sequence %u: positions %u-%u are beyond the context of %zu", id, pos,
                         pos + n - 1, kv->shape.table_stride * KV_BLOCK_TOKENS);
    size_t kept = blocks_for(pos), wanted = blocks_for((size_t)pos + n), freed = 0;
    /* The block that holds `pos`, if the sequence keeps it and others share it, must become its own. */
    bool copy = s != NULL && pos % KV_BLOCK_TOKENS != 0 && n > 0 &&
                kv->references[table_of(kv, s)[pos / KV_BLOCK_TOKENS]] > 1;
    for (size_t b = kept; s != NULL && b < s->n_blocks; b++)
        freed += kv->references[table_of(kv, s)[b]] == 1;
    size_t fresh = wanted > kept ? wanted - kept : 0;
    if (fresh + copy > kv->n_free + freed)
        return error_set(err, EBB_EBUSY, "sequence %u: %zu KV blocks wanted, %zu free", id,
                         fresh + copy, kv->n_free + freed);
    if (s == NULL) {
        s = find_unused(kv);
        if (s == NULL)
            return error_set(err, EBB_EBUSY, "sequence %u: all %zu sequences are in use", id,
                             kv->shape.n_sequences);
        *s = (struct kv_sequence){.id = id, .live = true};
    }
    cut(kv, s, pos);
    kv->changed = kv->changed || copy || s->n_blocks < wanted;
    int32_t *table = table_of(kv, s);
    if (copy) {
        int32_t *entry = &table[pos / KV_BLOCK_TOKENS];
        struct kv_copy c = {.from = *entry, .to = block_take(kv)};
        block_release(kv, c.from);
        *entry = c.to;
        copies[(*n_copies)++] = c;
    }
    while (s->n_blocks < wanted)
        table[s->n_blocks++] = block_take(kv);
    s->length = pos + n;
    *slot = (uint32_t)(s - kv->sequences);
    return 0;
}

int kv_fork(struct kv *kv, uint32_t new_id, uint32_t old_id, uint32_t n, struct error *err)
{
    struct kv_sequence *old = find(kv, old_id);
    if (old == NULL)
        return error_set(err, EBB_ENOENT, "sequence %u: no such sequence to fork", old_id);
    if (find(kv, new_id) != NULL)
        return error_set(err, EBB_EINVAL, "sequence %u: is there already", new_id);
    if (n > old->length)
        return error_set(err, EBB_EINVAL, "sequence %u: %u positions wanted, it has %u", old_id, n,
                         old->length);
    struct kv_sequence *s = find_unused(kv);
    if (s == NULL)
        return error_set(err, EBB_EBUSY, "sequence %u: all %zu sequences are in use", new_id,
                         kv->shape.n_sequences);
    *s = (struct kv_sequence){
        .id = new_id, .live = true, .length = n, .n_blocks = (uint32_t)blocks_for(n)};
    kv->changed = true;
    memcpy(table_of(kv, s), table_of(kv, old), s->n_blocks * sizeof(int32_t));
    for (uint32_t b = 0; b < s->n_blocks; b++)
        kv->references[table_of(kv, s)[b]]++;
    return 0;
}

int kv_drop(struct kv *kv, uint32_t id)
{
    struct kv_sequence *s = find(kv, id);
    if (s == NULL)
        return EBB_ENOENT;
    cut(kv, s, 0);
    s->live = false;
    return 0;
}

/* The stack anew: the free ones of the blocks that are usable, low numbers on top. */
static void free_blocks_rebuild(struct kv *kv)
{
    kv->n_free = 0;
    for (size_t b = kv->n_blocks; b-- > 0;)
        if (kv->references[b] == 0)
            kv->free_blocks[kv->n_free++] = (int32_t)b;
}

int kv_grow(struct kv *kv, size_t n_segments, struct error *err)
{
    struct region *r = &kv->region;
    int rc = 0;
    if (n_segments > r->n_indexes)
        return error_set(err, EBB_EINVAL, "kv: %zu segments wanted, it has room for %zu",
                         n_segments, r->n_indexes);
    while (rc == 0 && r->n_backed < n_segments)
        rc = region_back(r, r->n_backed, err);
    kv->n_blocks = blocks_within(kv, r->n_backed);
    free_blocks_rebuild(kv);
    return rc;
}

/* Every table's entries, from where blocks were to where they are now. */
static void tables_follow(struct kv *kv, size_t n_after)
{
    for (size_t i = 0; i < kv->shape.n_sequences; i++) {
        const struct kv_sequence *s = &kv->sequences[i];
        int32_t *table = table_of(kv, s);
        for (uint32_t b = 0; s->live && b < s->n_blocks; b++)
            if ((size_t)table[b] >= n_after)
                table[b] = kv->moved_to[table[b]];
    }
}

int kv_shrink_begin(struct kv *kv, size_t n_segments, struct error *err)
{
    assert(n_segments <= kv->region.n_backed);
    size_t n_after = blocks_within(kv, n_segments), n_used = kv->n_blocks - kv->n_free, to = 0;
    if (n_used > n_after)
        return error_set(err, EBB_EBUSY, "kv: %zu blocks in use, %zu would remain", n_used,
                         n_after);
    kv->n_moves = 0;
    kv->n_segments_after = n_segments;
    for (size_t from = n_after; from < kv->n_blocks; from++) {
        if (kv->references[from] == 0)
            continue;
        while (kv->references[to] != 0)
            to++;
        kv->moved_to[from] = (int32_t)to;
        kv->references[to] = kv->references[from];
        kv->references[from] = 0;
        kv->moves[kv->n_moves++] = (struct kv_copy){.from = (int32_t)from, .to = (int32_t)to};
    }
    if (kv->n_moves > 0) {
        tables_follow(kv, n_after);
        kv->changed = true;
    }
    kv->n_blocks = n_after;
    free_blocks_rebuild(kv);
    return 0;
}

int kv_shrink_end(struct kv *kv, struct error *err)
{
    struct region *r = &kv->region;
    int rc = 0;
    while (rc == 0 && r->n_backed > kv->n_segments_after)
        rc = region_unback(r, r->n_backed - 1, err);
    kv->n_moves = 0;
    kv->n_blocks = blocks_within(kv, r->n_backed);
    free_blocks_rebuild(kv);
    return rc;
}

int kv_slot(const struct kv *kv, uint32_t id, uint32_t *slot)
{
    const struct kv_sequence *s = find(kv, id);
    if (s == NULL)
        return EBB_ENOENT;
    *slot = (uint32_t)(s - kv->sequences);
    return 0;
}

void kv_drop_all(struct kv *kv)
{
    for (size_t i = 0; i < kv->shape.n_sequences; i++)
        if (kv->sequences[i].live)
            (void)kv_drop(kv, kv->sequences[i].id);
}

size_t kv_n_sequences(const struct kv *kv)
{
    size_t n = 0;
    for (size_t i = 0; i < kv->shape.n_sequences; i++)
        n += kv->sequences[i].live;
    return n;
}

struct kv_view kv_layer(const struct kv *kv, size_t layer, const int32_t *tables,
                        const int32_t *row_sequence, const int32_t *positions)
{
    return (struct kv_view){
        .base = kv->base + layer * kv->layer_bytes,
        .block_stride = kv->layer_bytes * kv->shape.n_layers,
        .type = kv->shape.type,
        .n_kv_heads = kv->shape.n_kv_heads,
        .head_dim = kv->shape.head_dim,
        .tables = tables,
        .table_stride = kv->shape.table_stride,
        .row_sequence = row_sequence,
        .positions = positions,
    };
}
