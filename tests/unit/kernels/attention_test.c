/* attention_test.c - stored keys and values, and attention over them: the same bits however the rows are asked. */
#include "inputs.h"

enum { N_SEQUENCES = 2, MAX_TOKENS = 600, TABLE = (MAX_TOKENS + 31) / 32 };

/* A KV store with two sequences whose blocks lie in an order of their own, and rows over them. */
struct world {
    size_t n_heads, n_kv_heads, head_dim, n_blocks;
    enum kv_type type;
    int32_t tables[N_SEQUENCES][TABLE], row_sequence[MAX_TOKENS], positions[MAX_TOKENS];
    size_t block_bytes;
    unsigned char *blocks;  /* every byte 0xff until stored: NaN to whoever reads too far */
    float *k, *v, *q;       /* [N_SEQUENCES][MAX_TOKENS][..] */
    float *k_kept, *v_kept; /* k and v as the type keeps them */
};

static void world_shuffle(struct world *w, uint64_t *state)
{
    int32_t order[N_SEQUENCES * TABLE];
    for (int32_t i = 0; i < N_SEQUENCES * TABLE; i++)
        order[i] = i;
    for (size_t i = N_SEQUENCES * TABLE - 1; i > 0; i--) {
        size_t j = random_bits(state) % (i + 1);
        int32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    memcpy(w->tables, order, sizeof order);
}

/* Quants of 32 values by the definition: what is multiplied again, and the parts. */
static void quants_by_definition(const float *x, int8_t *q, _Float16 *d, float *kept)
{
    float amax = 0;
    for (size_t i = 0; i < KV_QUANTS; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    *d = amax < 0x1p-100f ? 0 : (_Float16)(amax / 127.0f);
    for (size_t i = 0; i < KV_QUANTS; i++) {
        float scaled = amax < 0x1p-100f ? 0 : nearbyintf(x[i] * (127.0f / amax));
        q[i] = (int8_t)fminf(fmaxf(scaled, -127), 127);
        kept[i] = (float)*d * (float)q[i];
    }
}

static float *as_kept(const float *x, size_t n, enum kv_type type)
{
    float *kept = bytes_of(n * sizeof *kept);
    for (size_t i = 0; i < n; i++)
        kept[i] = type == KV_F16 ? (float)(_Float16)x[i] : x[i];
    for (size_t i = 0; type == KV_Q8_0 && i < n; i += KV_QUANTS) {
        int8_t q[KV_QUANTS];
        _Float16 d;
        quants_by_definition(x + i, q, &d, kept + i);
    }
    return kept;
}

static struct world world_of(size_t n_heads, size_t n_kv_heads, size_t head_dim, enum kv_type type)
{
    struct world w = {n_heads, n_kv_heads, head_dim, N_SEQUENCES * TABLE, type, .blocks = NULL};
    uint64_t state = 21 + head_dim;
    size_t rows = N_SEQUENCES * MAX_TOKENS;
    world_shuffle(&w, &state);
    w.block_bytes = 2 * kv_values_bytes(type, KV_BLOCK_TOKENS * n_kv_heads * head_dim) + 64;
    w.blocks = bytes_of(w.n_blocks * w.block_bytes);
    memset(w.blocks, 0xff, w.n_blocks * w.block_bytes);
    w.k = values_of(rows * n_kv_heads * head_dim, INPUT_RANDOM, &state);
    w.v = values_of(rows * n_kv_heads * head_dim, INPUT_RANDOM, &state);
    w.q = values_of(rows * n_heads * head_dim, INPUT_RANDOM, &state);
    w.k_kept = as_kept(w.k, rows * n_kv_heads * head_dim, type);
    w.v_kept = as_kept(w.v, rows * n_kv_heads * head_dim, type);
    return w;
}

static void world_free(struct world *w)
{
    free(w->blocks), free(w->k), free(w->v), free(w->q), free(w->k_kept), free(w->v_kept);
}

static struct kv_view world_view(struct world *w)
{
    return (struct kv_view){w->blocks,     w->block_bytes,  w->type,
                            w->n_kv_heads, w->head_dim,     w->tables[0],
                            TABLE,         w->row_sequence, w->positions};
}

/* Rows [first, first + n) of one sequence. */
static void rows_of(struct world *w, int sequence, size_t first, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        w->row_sequence[r] = sequence;
        w->positions[r] = (int32_t)(first + r);
    }
}

static void store(struct world *w, const struct kernel_set *set, struct card *card, int sequence,
                  size_t first, size_t n)
{
    size_t at = ((size_t)sequence * MAX_TOKENS + first) * w->n_kv_heads * w->head_dim;
    struct kv_store_args args = {world_view(w), w->k + at, w->v + at, n};
    rows_of(w, sequence, first, n);
    cr_assert_eq(set->kv_store(&args, card->stream), 0);
    card_wait(card);
}

static void attend(struct world *w, const struct kernel_set *set, struct card *card, int sequence,
                   size_t first, size_t n, float *out)
{
    size_t at = ((size_t)sequence * MAX_TOKENS + first) * w->n_heads * w->head_dim;
    struct attention_args args = {
        world_view(w), w->q + at, out, n, w->n_heads, 1.0f / sqrtf((float)w->head_dim),
        first + n,     NULL};
    rows_of(w, sequence, first, n);
    cr_assert_eq(set->attention(&args, card->stream), 0);
    card_wait(card);
}

/* One head of one row by the definition, in fp64. */
static void naive(const struct world *w, int sequence, size_t position, size_t head, double *out)
{
    size_t d = w->head_dim, kv_head = head / (w->n_heads / w->n_kv_heads);
    const float *q = w->q + (((size_t)sequence * MAX_TOKENS + position) * w->n_heads + head) * d;
    double score[MAX_TOKENS], max = -INFINITY, sum = 0;
    for (size_t t = 0; t <= position; t++) {
        size_t at = (((size_t)sequence * MAX_TOKENS + t) * w->n_kv_heads + kv_head) * d;
        score[t] = 0;
        for (size_t i = 0; i < d; i++)
            score[t] += (double)q[i] * w->k_kept[at + i];
        score[t] /= sqrt((double)d);
        max = fmax(max, score[t]);
    }
    memset(out, 0, d * sizeof *out);
    for (size_t t = 0; t <= position; t++) {
        size_t at = (((size_t)sequence * MAX_TOKENS + t) * w->n_kv_heads + kv_head) * d;
        double e = exp(score[t] - max);
        sum += e;
        for (size_t i = 0; i < d; i++)
            out[i] += e * w->v_kept[at + i];
    }
    for (size_t i = 0; i < d; i++)
        out[i] /= sum;
}

static const struct shape {
    size_t n_heads, n_kv_heads, head_dim;
} shapes[] = {{8, 2, 64},  {4, 4, 16}, {3, 3, 80}, {4, 2, 96}, {7, 1, 128},
              {2, 1, 256}, {6, 1, 20}, {1, 1, 1},  {5, 1, 32}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

Test(attention, every_set_is_near_the_definition_and_the_exact_ones_agree_on_the_bits)
{
    static const size_t asked[] = {0, 1, 31, 32, 255, 256, 300, 511, 512, 599};
    struct card card = card_open(2);
    for (size_t shape = 0; shape < 3 * N_SHAPES; shape++) {
        const struct shape *sh = &shapes[shape / 3];
        static const enum kv_type types[] = {KV_F16, KV_F32, KV_Q8_0};
        if (shape % 3 == 2 && sh->head_dim % KV_QUANTS != 0)
            continue;
        struct world w = world_of(sh->n_heads, sh->n_kv_heads, sh->head_dim, types[shape % 3]);
        size_t n = w.n_heads * w.head_dim;
        float *out[N_SETS];
        for (size_t s = 0; s < N_SETS; s++) {
            const struct kernel_set *set = set_named(set_names[s]);
            out[s] = bytes_of(n * sizeof(float) * 10);
            if (set == NULL)
                set = set_named("reference");
            memset(w.blocks, 0xff, w.n_blocks * w.block_bytes);
            for (size_t i = 0, stored = 0; i < 10; i++) {
                /* only what the row may read is stored: the rest is NaN */
                store(&w, set, &card, 1, stored, asked[i] + 1 - stored);
                stored = asked[i] + 1;
                attend(&w, set, &card, 1, asked[i], 1, out[s] + i * n);
            }
        }
        for (size_t s = 1; s < N_EXACT; s++)
            cr_assert_eq(memcmp(out[0], out[s], 10 * n * sizeof(float)), 0, "%s, shape %zu",
                         set_names[s], shape);
        for (size_t i = 0; i < 10; i++)
            for (size_t h = 0; h < w.n_heads; h++) {
                double want[HEAD_DIM_MAX];
                naive(&w, 1, asked[i], h, want);
                for (size_t d = 0; d < w.head_dim; d++)
                    for (size_t s = 0; s < N_SETS; s++)
                        cr_assert_float_eq(out[s][i * n + h * w.head_dim + d], want[d],
                                           s == N_EXACT ? 1e-5 : 1e-4);
            }
        for (size_t s = 0; s < N_SETS; s++)
            free(out[s]);
        world_free(&w);
    }
    card_close(&card);
}

static void prefill_and_decode_compare(const char *name, int threads, enum kv_type type)
{
    enum { N = 512 };
    struct card card = card_open(threads);
    const struct kernel_set *set = set_named(name);
    if (set != NULL) {
        struct world w = world_of(8, 2, 64, type);
        size_t n = w.n_heads * w.head_dim;
        float *all = bytes_of(N * n * sizeof(float)), *one = bytes_of(n * sizeof(float));
        store(&w, set, &card, 0, 0, MAX_TOKENS);
        attend(&w, set, &card, 0, 0, N, all);
        for (size_t r = 0; r < N; r += r < 300 ? 43 : 1 + r / 8) {
            attend(&w, set, &card, 0, r, 1, one);
            cr_assert_eq(memcmp(one, all + r * n, n * sizeof(float)), 0, "%s row %zu", name, r);
        }
        free(all), free(one);
        world_free(&w);
    }
    card_close(&card);
}

Test(attention, a_decoded_row_has_the_bits_of_the_prefilled_one_with_any_number_of_threads)
{
    for (int threads = 1; threads <= 3; threads++)
        for (size_t s = 1; s < N_EXACT; s++)
            prefill_and_decode_compare(set_names[s], threads, threads == 2 ? KV_F32 : KV_F16);
    for (size_t s = 1; s < N_EXACT; s++)
        prefill_and_decode_compare(set_names[s], 3, KV_Q8_0);
    prefill_and_decode_compare("reference", 2, KV_F16);
    prefill_and_decode_compare("reference", 2, KV_Q8_0);
}

Test(attention, where_the_blocks_lie_never_shows)
{
    struct card card = card_open(2);
    const struct kernel_set *set = kernel_set_cpu("auto", NULL);
    struct world w = world_of(8, 2, 64, KV_F16);
    uint64_t state = 22;
    size_t bytes = 64 * w.n_heads * w.head_dim * sizeof(float);
    float *first = bytes_of(bytes), *then = bytes_of(bytes);
    store(&w, set, &card, 0, 0, MAX_TOKENS);
    attend(&w, set, &card, 0, 500, 64, first);
    memset(w.blocks, 0xff, w.n_blocks * w.block_bytes);
    world_shuffle(&w, &state);
    store(&w, set, &card, 0, 0, MAX_TOKENS);
    attend(&w, set, &card, 0, 500, 64, then);
    cr_assert_eq(memcmp(first, then, bytes), 0);
    free(first), free(then);
    world_free(&w);
    card_close(&card);
}

Test(attention, inert_rows_touch_no_kv_and_no_output)
{
    struct card card = card_open(2);
    const struct kernel_set *set = kernel_set_cpu("auto", NULL);
    struct world w = world_of(2, 1, 64, KV_F16);
    float out[3][2][64], before[2][64];
    memset(out, 0x77, sizeof out);
    memset(before, 0x77, sizeof before);
    unsigned char *kept = bytes_of(w.n_blocks * w.block_bytes);
    store(&w, set, &card, 0, 0, 1);
    memcpy(kept, w.blocks, w.n_blocks * w.block_bytes);
    int32_t sequences[3] = {1 << 30, 0, 1 << 30}, positions[3] = {-1, 0, -7};
    memcpy(w.row_sequence, sequences, sizeof sequences);
    memcpy(w.positions, positions, sizeof positions);
    struct kv_store_args stored = {world_view(&w), w.k - 64, w.v - 64,
                                   3}; /* row 1 again as it is */
    struct attention_args args = {world_view(&w), w.q, &out[0][0][0], 3, 2, 0.125f, 1, NULL};
    cr_assert_eq(set->kv_store(&stored, card.stream), 0);
    cr_assert_eq(set->attention(&args, card.stream), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(kept, w.blocks, w.n_blocks * w.block_bytes), 0);
    cr_assert_eq(memcmp(out[0], before, sizeof before), 0);
    cr_assert_neq(memcmp(out[1], before, sizeof before), 0);
    cr_assert_eq(memcmp(out[2], before, sizeof before), 0);
    free(kept);
    world_free(&w);
    card_close(&card);
}

Test(attention, half_floats_are_rounded_to_nearest_even_in_every_set)
{
    static const float edges[] = {0.0f,     -0.0f,        65504.0f,  65519.996f,   65520.0f,
                                  -1e30f,   0x1p-24f,     0x1p-25f,  0x1.8p-25f,   0x1.8p-24f,
                                  0x1p-14f, 0x1.ffcp-15f, 1.000488f, 0x1.00201p0f, 0x1.0060p0f,
                                  1e-45f,   INFINITY,     -INFINITY};
    enum { N = 65536 };
    struct card card = card_open(1);
    uint64_t state = 23;
    float *x = bytes_of(N * sizeof *x);
    uint16_t *blocks;
    int32_t table[1] = {0}, zero[1] = {0};
    for (size_t i = 0; i < N; i++) {
        uint32_t bits =
            random_bits(&state) & 0xbfffffffu; /* below 2: a half's whole range of rounding */
        memcpy(&x[i], &bits, sizeof bits);
        if (i < sizeof edges / sizeof edges[0])
            x[i] = edges[i];
    }
    for (size_t s = 0; s < N_EXACT; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        blocks = bytes_of(2 * 32 * 256 * sizeof(uint16_t));
        if (set == NULL)
            set = set_named("reference");
        for (size_t at = 0; at < N; at += 256) {
            struct kv_view kv = {blocks, 0, KV_F16, 1, 256, table, 1, zero, zero};
            struct kv_store_args args = {kv, x + at, x + at, 1};
            cr_assert_eq(set->kv_store(&args, card.stream), 0);
            card_wait(&card);
            for (size_t i = 0; i < 256; i++) {
                _Float16 want = (_Float16)x[at + i];
                cr_assert_eq(memcmp(&want, &blocks[i], sizeof want), 0, "%a", x[at + i]);
            }
        }
        free(blocks);
    }
    free(x);
    card_close(&card);
}

/* Values that are hard for a block: of any magnitude, ties, none at all, too small, too large, no numbers. */
static void hard_values(float *x, size_t n, uint64_t *state)
{
    static const float edges[] = {0.0f,   -0.0f, 0x1p-100f, 0x1.fp-101f, 1e-45f, 8388608.0f,
                                  1.06e7, 3e38f, INFINITY,  -INFINITY,   NAN};
    for (size_t i = 0; i < n; i++) {
        size_t block = i / KV_QUANTS;
        x[i] = ldexpf(random_value(state), (int)(block % 60) - 30);
        if (block % 8 == 5)
            x[i] = (float)((int)(random_bits(state) % 255) - 127) / 2; /* ties */
        if (block % 8 == 5 && i % KV_QUANTS == 0)
            x[i] = 127;
        if (block % 8 == 6)
            x[i] = block % 16 == 6 ? 0 : x[i] * 0x1p-75f;
        if (block % 8 == 7 && i % KV_QUANTS == block % KV_QUANTS)
            x[i] = edges[block / 8 % (sizeof edges / sizeof edges[0])];
    }
}

Test(attention, quants_of_keys_and_values_follow_the_definition_and_are_the_same_in_every_set)
{
    enum { N = 96 * KV_QUANTS, SCALES = N / KV_QUANTS, TOKEN = 7 };
    struct card card = card_open(1);
    uint64_t state = 24;
    float *x = bytes_of(2 * N * sizeof *x);
    const size_t half = kv_values_bytes(KV_Q8_0, KV_BLOCK_TOKENS * N);
    hard_values(x, 2 * N, &state);
    int32_t table[1] = {0}, zero[1] = {0}, position[1] = {TOKEN};
    unsigned char *blocks[N_SETS] = {NULL};
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        blocks[s] = bytes_of(2 * half);
        if (set == NULL)
            set = set_named("reference");
        memset(blocks[s], 0x5a, 2 * half);
        struct kv_view kv = {blocks[s], 0, KV_Q8_0, N / 64, 64, table, 1, zero, position};
        struct kv_store_args args = {kv, x, x + N, 1};
        cr_assert_eq(set->kv_store(&args, card.stream), 0);
        card_wait(&card);
        cr_assert_eq(memcmp(blocks[s], blocks[0], 2 * half), 0, "%s", set_names[s]);
    }
    for (size_t b = 0; b < 2 * SCALES; b++) {
        const unsigned char *at = blocks[0] + b / SCALES * half;
        int8_t q[KV_QUANTS];
        float kept[KV_QUANTS];
        _Float16 d, stored;
        memcpy(&stored, at + KV_BLOCK_TOKENS * N + (TOKEN * SCALES + b % SCALES) * 2, 2);
        bool is_finite = true;
        for (size_t i = 0; i < KV_QUANTS; i++)
            is_finite = is_finite && isfinite(x[b * KV_QUANTS + i]);
        quants_by_definition(x + b * KV_QUANTS, q, &d, kept);
        if (is_finite)
            cr_assert_eq(memcmp(q, at + TOKEN * N + b % SCALES * KV_QUANTS, KV_QUANTS), 0, "%zu",
                         b);
        if (is_finite)
            cr_assert_eq(memcmp(&stored, &d, sizeof d), 0, "%zu", b);
        else
            cr_assert_not(isfinite((float)stored), "what is no number shows");
    }
    for (size_t i = 0; i < 2 * half; i++) {
        size_t in = i % half, quants = (size_t)KV_BLOCK_TOKENS * N;
        bool is_ours = in < quants ? in / N == TOKEN : (in - quants) / (2 * SCALES) == TOKEN;
        cr_assert(is_ours || blocks[0][i] == 0x5a, "byte %zu is another token's", i);
    }
    for (size_t s = 0; s < N_SETS; s++)
        free(blocks[s]);
    free(x);
    card_close(&card);
}

Test(attention, shapes_without_kernels_are_refused)
{
    struct card card = card_open(1);
    const struct kernel_set *set = kernel_set_cpu("auto", NULL);
    struct attention_args args = {
        .kv = {.n_kv_heads = 2, .head_dim = 64}, .n_rows = 1, .n_heads = 3};
    cr_assert_eq(set->attention(&args, card.stream), EBB_EUNSUPPORTED);
    args.n_heads = 4;
    args.kv.head_dim = HEAD_DIM_MAX + 1;
    cr_assert_eq(set->attention(&args, card.stream), EBB_EUNSUPPORTED);
    args.kv.head_dim = 80;
    args.kv.type = KV_Q8_0;
    cr_assert_eq(set->attention(&args, card.stream), EBB_EUNSUPPORTED);
    struct kv_store_args stored = {.kv = args.kv, .n_rows = 1};
    cr_assert_eq(set->kv_store(&stored, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}
