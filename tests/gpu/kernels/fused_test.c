/* fused_test.c - launches that do several operations' work: the bits are those of the operations one by one. */
#include "pair.h"
#include "kernels/ops_cuda.h"

Test(fused, a_norm_that_quantises_has_the_bits_of_norm_and_quantize)
{
    static const size_t widths[] = {32, 96, 768, 2048, 4096, 5120, 12288};
    enum { ROWS = 5 };
    struct pair p = pair_open();
    uint64_t state = 71;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            size_t n = widths[i], bytes = ROWS * n * sizeof(float);
            size_t a_bytes = ROWS * p.cuda->activation_bytes(n);
            float *x = pair_take(&p, values_of(ROWS * n, (enum input_kind)kind, &state), bytes);
            float *weight = pair_take(&p, values_of(n, INPUT_RANDOM, &state), n * sizeof(float));
            float *y[2] = {pair_new(&p, bytes), pair_new(&p, bytes)};
            void *a[2] = {pair_new(&p, a_bytes), pair_new(&p, a_bytes)};
            struct rmsnorm_args norm = {x, weight, y[0], ROWS, n, 1e-6f};
            struct quantize_args quantize = {y[0], a[0], ROWS, n};
            struct rmsnorm_quantize_args both = {{x, weight, y[1], ROWS, n, 1e-6f}, a[1]};
            cr_assert_eq(p.cuda->rmsnorm(&norm, p.stream), 0);
            cr_assert_eq(p.cuda->quantize(&quantize, p.stream), 0);
            cr_assert_eq(rmsnorm_quantize_cuda(&both, p.stream), 0);
            pair_wait(&p);
            cr_assert_eq(memcmp(y[0], y[1], bytes), 0, "width %zu, kind %d", n, kind);
            cr_assert_eq(memcmp(a[0], a[1], a_bytes), 0, "width %zu, kind %d", n, kind);
        }
    pair_close(&p);
}

enum { SEQUENCES = 3, TABLE = 12, BLOCKS = SEQUENCES * TABLE, MAX_ROWS = 140 };

/* q, k and v of a launch, and KV blocks that begin alike. */
struct heads {
    size_t n_rows, n_heads, n_kv_heads, head_dim, block_bytes;
    float *q, *k, *v, *angles, *weight, *out;
    int32_t *tables, *row_sequence, *positions;
    unsigned char *blocks;
};

static float *floats(struct pair *p, size_t n, uint64_t *state)
{
    return pair_take(p, values_of(n, INPUT_RANDOM, state), n * sizeof(float));
}

static struct heads heads_of(struct pair *p, size_t n_rows, const size_t shape[3])
{
    struct heads h = {
        .n_rows = n_rows, .n_heads = shape[0], .n_kv_heads = shape[1], .head_dim = shape[2]};
    uint64_t state = 72 + n_rows;
    size_t kv = n_rows * h.n_kv_heads * h.head_dim, q = n_rows * h.n_heads * h.head_dim;
    h.q = floats(p, q, &state);
    h.k = floats(p, kv, &state);
    h.v = floats(p, kv, &state);
    h.angles = floats(p, n_rows * h.head_dim, &state);
    h.weight = floats(p, h.head_dim, &state);
    h.out = pair_new(p, q * sizeof(float));
    h.tables = pair_new(p, BLOCKS * sizeof(int32_t));
    h.row_sequence = pair_new(p, MAX_ROWS * sizeof(int32_t));
    h.positions = pair_new(p, MAX_ROWS * sizeof(int32_t));
    h.block_bytes = 2 * KV_BLOCK_TOKENS * h.n_kv_heads * h.head_dim * 2 + 32;
    h.blocks = pair_new(p, BLOCKS * h.block_bytes);
    for (int32_t i = 0; i < BLOCKS; i++)
        h.tables[i] = (i * 7 + 5) % BLOCKS;
    for (int32_t r = 0; r < MAX_ROWS; r++) {
        h.row_sequence[r] = r % 5 == 4 ? 1 << 30 : r % SEQUENCES;
        h.positions[r] = r % 5 == 4 ? -1 : 290 + r / SEQUENCES;
    }
    return h;
}

static struct kv_view view_of(const struct heads *h)
{
    return (struct kv_view){h->blocks, h->block_bytes, KV_F16,          h->n_kv_heads, h->head_dim,
                            h->tables, TABLE,          h->row_sequence, h->positions};
}

static struct head_rope_args rope_of(const struct heads *h, float *x, size_t n_heads)
{
    return (struct head_rope_args){x,         h->n_rows, n_heads,   h->head_dim, h->head_dim / 2,
                                   h->weight, 1e-6f,     h->angles, true};
}

Test(fused, heads_that_are_rotated_and_stored_at_once_have_the_bits_of_the_operations)
{
    static const size_t shapes[][3] = {{32, 4, 128}, {3, 3, 64}, {6, 2, 96}, {2, 1, 256},
                                       {4, 4, 16},   {4, 2, 48}, {6, 2, 80}, {2, 1, 240}};
    struct pair p = pair_open();
    for (size_t i = 0; i < 24; i++) {
        size_t n_rows = (size_t[]){1, 8, MAX_ROWS}[i / 8];
        struct heads one = heads_of(&p, n_rows, shapes[i % 8]),
                     all = heads_of(&p, n_rows, shapes[i % 8]);
        struct head_rope_args q = rope_of(&one, one.q, one.n_heads),
                              k = rope_of(&one, one.k, one.n_kv_heads);
        struct kv_store_args store = {view_of(&one), one.k, one.v, n_rows};
        struct heads_store_args at_once = {rope_of(&all, all.q, all.n_heads),
                                           rope_of(&all, all.k, all.n_kv_heads),
                                           {view_of(&all), all.k, all.v, n_rows}};
        cr_assert_eq(p.cuda->head_rope(&q, p.stream), 0);
        cr_assert_eq(p.cuda->head_rope(&k, p.stream), 0);
        cr_assert_eq(p.cuda->kv_store(&store, p.stream), 0);
        cr_assert_eq(heads_store_cuda(&at_once, p.stream), 0);
        pair_wait(&p);
        cr_assert_eq(memcmp(one.q, all.q, n_rows * one.n_heads * one.head_dim * sizeof(float)), 0);
        cr_assert_eq(memcmp(one.blocks, all.blocks, BLOCKS * one.block_bytes), 0, "case %zu", i);
    }
    pair_close(&p);
}

Test(fused, attention_that_quantises_has_the_bits_of_attention_and_quantize)
{
    static const size_t shapes[][3] = {{32, 4, 128}, {3, 3, 64}, {6, 2, 96}, {2, 1, 256},
                                       {4, 4, 16},   {4, 2, 48}, {6, 2, 80}, {2, 1, 240}};
    struct pair p = pair_open();
    for (size_t i = 0; i < 24; i++) {
        size_t n_rows = (size_t[]){1, 8, MAX_ROWS}[i / 8];
        struct heads h = heads_of(&p, n_rows, shapes[i % 8]);
        size_t n = h.n_heads * h.head_dim, a_bytes = p.cuda->activation_bytes(n);
        void *a[2] = {pair_new(&p, n_rows * a_bytes), pair_new(&p, n_rows * a_bytes)};
        for (size_t j = 0; j < BLOCKS * h.block_bytes / 2; j++)
            ((uint16_t *)h.blocks)[j] = (uint16_t)(0x2c00 + j * 2654435761u % 0x1000);
        void *scratch = pair_new(
            &p, p.cuda->attention_scratch_bytes(n_rows, h.n_heads, h.head_dim, TABLE * 32));
        struct attention_quantize_args args = {
            {view_of(&h), h.q, h.out, n_rows, h.n_heads, 0.1f, TABLE * 32, scratch}, a[1]};
        cr_assert_eq(p.cuda->attention(&args.attention, p.stream), 0);
        struct quantize_args quantize = {h.out, a[0], n_rows, n};
        cr_assert_eq(p.cuda->quantize(&quantize, p.stream), 0);
        pair_wait(&p);
        memset(h.out, 0, n_rows * n * sizeof(float));
        cr_assert_eq(attention_quantize_cuda(&args, p.stream), 0);
        pair_wait(&p);
        for (size_t r = 0; r < n_rows; r++)
            if (h.positions[r] >= 0)
                cr_assert_eq(
                    memcmp((char *)a[0] + r * a_bytes, (char *)a[1] + r * a_bytes, a_bytes), 0,
                    "case %zu row %zu", i, r);
    }
    pair_close(&p);
}

Test(fused, what_does_not_fit_one_launch_is_refused)
{
    struct pair p = pair_open();
    struct rmsnorm_quantize_args norm = {{.n_rows = 1, .n = 100}, NULL};
    cr_assert_eq(rmsnorm_quantize_cuda(&norm, p.stream), EBB_EUNSUPPORTED);
    struct heads_store_args heads = {
        .store = {.kv = {.type = KV_F32, .n_kv_heads = 1, .head_dim = 64}}};
    cr_assert_eq(heads_store_cuda(&heads, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
