/* attention_test.c - attention on a CUDA card: near the CPU's, and the same bits however the rows are asked. */
#include "pair.h"

/* |q|, |k|, |v| are below 8. A score is off by what q as half floats loses (2^-12 of it), an exponential by another 2^-12; over
 * softmax and 8 as the largest value that stays below this. */
#define TOLERANCE 0.02f

/* A KV store on pinned memory; blocks of a sequence lie in an order of their own. */
struct world {
    struct pair *p;
    size_t n_heads, n_kv_heads, head_dim, n_sequences, max_tokens, table_stride, block_bytes;
    int32_t *tables, *row_sequence, *positions;
    unsigned char *blocks; /* every byte 0xff until stored: NaN to whoever reads too far */
    float *k, *v, *q;      /* [max_tokens][..]: the same for all sequences */
    float *rows_q;         /* the queries of a call, gathered */
    void *scratch;
    size_t n_positions;
};

enum { ROWS_MAX = 640 };

static void world_shuffle(struct world *w, uint64_t *state)
{
    size_t n = w->n_sequences * w->table_stride;
    for (size_t i = 0; i < n; i++)
        w->tables[i] = (int32_t)i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = random_bits(state) % (i + 1);
        int32_t swap = w->tables[i];
        w->tables[i] = w->tables[j];
        w->tables[j] = swap;
    }
}

static void world_clear(struct world *w)
{
    memset(w->blocks, 0xff, w->n_sequences * w->table_stride * w->block_bytes);
}

struct shape {
    size_t n_heads, n_kv_heads, head_dim;
};

static struct world world_of(struct pair *p, struct shape s, size_t n_sequences, size_t max_tokens)
{
    struct world w = {.p = p,
                      .n_heads = s.n_heads,
                      .n_kv_heads = s.n_kv_heads,
                      .head_dim = s.head_dim,
                      .n_sequences = n_sequences,
                      .max_tokens = max_tokens};
    uint64_t state = 61 + s.head_dim;
    size_t keys = max_tokens * s.n_kv_heads * s.head_dim, row = s.n_heads * s.head_dim;
    w.n_positions = max_tokens;
    w.table_stride = (max_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    w.block_bytes = 2 * KV_BLOCK_TOKENS * s.n_kv_heads * s.head_dim * 2 + 64;
    w.tables = pair_new(p, n_sequences * w.table_stride * sizeof *w.tables);
    w.row_sequence = pair_new(p, ROWS_MAX * sizeof *w.row_sequence);
    w.positions = pair_new(p, ROWS_MAX * sizeof *w.positions);
    w.blocks = pair_new(p, n_sequences * w.table_stride * w.block_bytes);
    w.k = pair_take(p, values_of(keys, INPUT_RANDOM, &state), keys * sizeof(float));
    w.v = pair_take(p, values_of(keys, INPUT_RANDOM, &state), keys * sizeof(float));
    w.q = values_of(max_tokens * row, INPUT_RANDOM, &state);
    w.rows_q = pair_new(p, ROWS_MAX * row * sizeof(float));
    w.scratch =
        pair_new(p, p->cuda->attention_scratch_bytes(ROWS_MAX, s.n_heads, s.head_dim, max_tokens));
    world_shuffle(&w, &state);
    world_clear(&w);
    return w;
}

static struct kv_view world_view(const struct world *w)
{
    return (struct kv_view){w->blocks, w->block_bytes,  KV_F16,          w->n_kv_heads, w->head_dim,
                            w->tables, w->table_stride, w->row_sequence, w->positions};
}

/* Stores positions [first, first + n) of a sequence. */
static void store(struct world *w, int32_t sequence, size_t first, size_t n)
{
    for (size_t at = 0; at < n; at += ROWS_MAX) {
        size_t rows = n - at < ROWS_MAX ? n - at : ROWS_MAX,
               from = (first + at) * w->n_kv_heads * w->head_dim;
        struct kv_store_args args = {world_view(w), w->k + from, w->v + from, rows};
        for (size_t r = 0; r < rows; r++) {
            w->row_sequence[r] = sequence;
            w->positions[r] = (int32_t)(first + at + r);
        }
        cr_assert_eq(w->p->cuda->kv_store(&args, w->p->stream), 0);
        pair_wait(w->p);
    }
}

/* The rows that w->row_sequence and w->positions name; the query of a row is that of its position. */
static void attend(struct world *w, const struct kernel_set *set, size_t n, float *out)
{
    size_t row = w->n_heads * w->head_dim;
    for (size_t r = 0; r < n; r++)
        memcpy(w->rows_q + r * row,
               w->q + (w->positions[r] < 0 ? 0 : (size_t)w->positions[r]) * row,
               row * sizeof(float));
    struct attention_args args = {
        world_view(w),  w->rows_q, out, n, w->n_heads, 1.0f / sqrtf((float)w->head_dim),
        w->n_positions, w->scratch};
    cr_assert_eq(set->attention(&args, set == w->p->cuda ? w->p->stream : w->p->cpu.stream), 0);
    pair_wait(w->p);
}

static void rows_of(struct world *w, int32_t sequence, size_t first, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        w->row_sequence[r] = sequence;
        w->positions[r] = (int32_t)(first + r);
    }
}

static float *out_of(struct world *w, size_t n_rows)
{
    return pair_new(w->p, n_rows * w->n_heads * w->head_dim * sizeof(float));
}

static const struct shape shapes[] = {
    {8, 2, 64},  {32, 4, 128}, {4, 2, 96},   {2, 1, 256}, {3, 3, 64},  {7, 1, 128},
    {40, 1, 64}, {6, 2, 32},   {20, 1, 256}, {4, 4, 16},  {4, 2, 48},  {3, 3, 80},
    {6, 1, 112}, {2, 1, 144},  {4, 2, 160},  {3, 1, 192}, {5, 1, 208}, {17, 1, 240}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static const size_t lengths[] = {1, 31, 32, 33, 255, 256, 257, 1000, 4097};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0], ROWS_EACH = 16 };

static double largest_difference(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double apart = fabs((double)a[i] - b[i]);
        if (!(apart <= most)) /* a NaN stays */
            most = apart;
    }
    return most;
}

Test(attention, odd_lengths_mixed_in_one_launch_are_near_the_cpu_in_both_forms)
{
    struct pair p = pair_open();
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct world w = world_of(&p, shapes[i], N_LENGTHS, 4097);
        size_t row = w.n_heads * w.head_dim, n = ROWS_EACH * N_LENGTHS;
        float *gpu = out_of(&w, n), *few = out_of(&w, n), *cpu = out_of(&w, n);
        for (size_t j = 0; j < N_LENGTHS; j++)
            store(&w, (int32_t)j, 0, lengths[j]);
        /* the last rows of every sequence; inert where it is shorter */
        for (size_t r = 0; r < n; r++) {
            w.row_sequence[r] = (int32_t)(r / ROWS_EACH);
            w.positions[r] = (int32_t)lengths[r / ROWS_EACH] - ROWS_EACH + (int32_t)(r % ROWS_EACH);
        }
        attend(&w, p.cuda, n, gpu);
        attend(&w, p.fast, n, cpu);
        double apart = largest_difference(gpu, cpu, n * row);
        cr_log_info("%zu heads of %zu: at most %g off", w.n_heads, w.head_dim, apart);
        cr_assert(apart <= TOLERANCE, "%zu heads of %zu: %g off", w.n_heads, w.head_dim, apart);
        for (size_t r = 0; r < N_LENGTHS; r++) {
            w.row_sequence[r] = (int32_t)r;
            w.positions[r] = (int32_t)lengths[r] - 1;
        }
        attend(&w, p.cuda, N_LENGTHS, few);
        for (size_t r = 0; r < N_LENGTHS; r++)
            cr_assert_eq(memcmp(few + r * row, gpu + (r * ROWS_EACH + ROWS_EACH - 1) * row,
                                row * sizeof(float)),
                         0, "%zu heads of %zu, length %zu", w.n_heads, w.head_dim, lengths[r]);
    }
    pair_close(&p);
}

/* What decode computes, row by row, with NaN in memory behind every row. */
static float *decoded(struct world *w, int32_t sequence, size_t n)
{
    size_t row = w->n_heads * w->head_dim;
    float *out = out_of(w, n);
    for (size_t r = 0; r < n; r++) {
        store(w, sequence, r, 1);
        rows_of(w, sequence, r, 1);
        attend(w, w->p->cuda, 1, out + r * row);
    }
    return out;
}

static void invariance(struct pair *p, struct shape shape)
{
    enum { N = 600 };
    static const size_t chunks[] = {2, 8, 33, 64, 65, 128, 129, 200, 512};
    struct world w = world_of(p, shape, 2, N);
    size_t row = w.n_heads * w.head_dim;
    float *one = decoded(&w, 1, N), *many = out_of(&w, 512);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
        for (size_t first = 0; first + chunks[i] <= N; first += chunks[i] < 33 ? 71 : 88) {
            rows_of(&w, 1, first, chunks[i]);
            attend(&w, p->cuda, chunks[i], many);
            cr_assert_eq(memcmp(many, one + first * row, chunks[i] * row * sizeof(float)), 0,
                         "%zu heads of %zu: %zu rows from %zu on", w.n_heads, w.head_dim, chunks[i],
                         first);
        }
}

Test(attention, a_decoded_row_has_the_bits_of_the_prefilled_one_in_any_chunk)
{
    struct pair p = pair_open();
    for (size_t i = 0; i < N_SHAPES; i++)
        invariance(&p, shapes[i]);
    pair_close(&p);
}

Test(attention, where_blocks_lie_and_which_rows_are_beside_never_shows)
{
    enum { N = 600 };
    struct pair p = pair_open();
    uint64_t state = 62;
    for (size_t i = 0; i < 4; i++) {
        struct world w = world_of(&p, shapes[i], 3, N);
        size_t row = w.n_heads * w.head_dim;
        for (int32_t s = 0; s < 3; s++)
            store(&w, s, 0, N);
        float *plain = out_of(&w, ROWS_MAX), *mixed = out_of(&w, ROWS_MAX);
        rows_of(&w, 0, 0, N);
        attend(&w, p.cuda, N, plain);
        for (size_t n = 5; n <= N; n *= 3) {
            world_shuffle(&w, &state);
            world_clear(&w);
            for (int32_t s = 0; s < 3; s++)
                store(&w, s, 0, N);
            for (size_t r = 0; r < n; r++) {
                bool inert = random_bits(&state) % 5 == 0;
                w.row_sequence[r] = inert ? 1 << 30 : (int32_t)(random_bits(&state) / 7 % 3);
                w.positions[r] = inert ? -9 : (int32_t)(random_bits(&state) % N);
            }
            memset(mixed, 0x77, n * row * sizeof(float));
            attend(&w, p.cuda, n, mixed);
            for (size_t r = 0; r < n; r++)
                if (w.positions[r] >= 0)
                    cr_assert_eq(memcmp(mixed + r * row, plain + (size_t)w.positions[r] * row,
                                        row * sizeof(float)),
                                 0, "%zu heads of %zu: row %zu of %zu", w.n_heads, w.head_dim, r,
                                 n);
                else
                    for (size_t j = 0; j < row * sizeof(float); j++)
                        cr_assert_eq(((char *)(mixed + r * row))[j], 0x77, "an inert row's output");
        }
    }
    pair_close(&p);
}

Test(attention, more_rows_than_the_scratch_holds_go_in_several_launches_with_the_same_bits)
{
    enum { N = 300, ROWS = 20 };
    struct pair p = pair_open();
    struct world w = world_of(&p, shapes[0], 1, N);
    size_t row = w.n_heads * w.head_dim;
    float *first = out_of(&w, ROWS), *then = out_of(&w, ROWS);
    store(&w, 0, 0, N);
    rows_of(&w, 0, N - ROWS, ROWS);
    attend(&w, p.cuda, ROWS, first);
    w.n_positions = (size_t)1 << 20;
    size_t bytes = p.cuda->attention_scratch_bytes(ROWS, w.n_heads, w.head_dim, w.n_positions);
    cr_assert(bytes <= (size_t)64 << 20);
    cr_assert(bytes < ROWS * row * sizeof(float) * (w.n_positions / KV_PARTITION_TOKENS));
    w.scratch = pair_new(&p, bytes);
    attend(&w, p.cuda, ROWS, then);
    cr_assert_eq(memcmp(first, then, ROWS * row * sizeof(float)), 0);
    pair_close(&p);
}

Test(attention, a_recorded_launch_reads_positions_and_tables_when_it_runs)
{
    enum { N = 520, ROWS = 8 };
    struct pair p = pair_open();
    struct error err = {0};
    struct world w = world_of(&p, shapes[1], 1, N);
    size_t row = w.n_heads * w.head_dim;
    float *direct = out_of(&w, N), *out = out_of(&w, ROWS);
    store(&w, 0, 0, N);
    rows_of(&w, 0, 0, N);
    attend(&w, p.cuda, N, direct);
    struct attention_args args = {world_view(&w), w.rows_q,  out,
                                  ROWS,           w.n_heads, 1.0f / sqrtf((float)w.head_dim),
                                  w.n_positions,  w.scratch};
    struct exec_graph *graph = NULL;
    cr_assert_eq(exec_cuda.capture_begin(p.stream), 0);
    cr_assert_eq(p.cuda->attention(&args, p.stream), 0);
    cr_assert_eq(exec_cuda.capture_end(p.stream, &graph, &err), 0, "%s", err.text);
    for (size_t first = 0; first + ROWS <= N; first += 64) {
        rows_of(&w, 0, first, ROWS);
        w.positions[3] = -1;
        memcpy(w.rows_q, w.q + first * row, ROWS * row * sizeof(float));
        cr_assert_eq(exec_cuda.graph_launch(graph, p.stream), 0);
        pair_wait(&p);
        for (size_t r = 0; r < ROWS; r++)
            if (r != 3)
                cr_assert_eq(memcmp(out + r * row, direct + (first + r) * row, row * sizeof(float)),
                             0);
    }
    exec_cuda.graph_close(graph);
    pair_close(&p);
}

Test(attention, shapes_without_kernels_are_refused)
{
    struct pair p = pair_open();
    struct attention_args args = {
        .kv = {.type = KV_F16, .n_kv_heads = 2, .head_dim = 64}, .n_rows = 1, .n_heads = 3};
    cr_assert_eq(p.cuda->attention(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_heads = 4;
    for (size_t dim = 0; dim <= HEAD_DIM_MAX + 16; dim += 8) {
        args.kv.head_dim = dim;
        if (dim == 0 || dim > HEAD_DIM_MAX || dim % 16 != 0)
            cr_assert_eq(p.cuda->attention(&args, p.stream), EBB_EUNSUPPORTED, "%zu", dim);
    }
    args.kv.head_dim = 64;
    args.kv.type = KV_F32;
    cr_assert_eq(p.cuda->attention(&args, p.stream), EBB_EUNSUPPORTED);
    args.kv.type = KV_Q8_0;
    cr_assert_eq(p.cuda->attention(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
