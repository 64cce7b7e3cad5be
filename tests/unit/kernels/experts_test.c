/* experts_test.c - routed experts: the bits of single products put together, whatever the batch,
 * set and threads. */
#include "inputs.h"
#include "kernels/activation.h"

enum { D_MODEL = 512, D_EXPERT = 256, N_EXPERTS = 9, N_USED = 4, ROWS_MAX = 41 };

/* Weights of all experts and a batch of routed rows. */
struct layer {
    uint32_t types[3]; /* gate, up, down */
    void *weights[N_EXPERTS][3];
    struct expert_address addresses[N_EXPERTS];
    float *x;
    void *a;
    int32_t ids[ROWS_MAX * N_USED];
    uint32_t heat[N_EXPERTS], hits[ROWS_MAX];
    float *outputs;
};

static struct layer *layer_make(uint32_t gate, uint32_t up, uint32_t down)
{
    struct layer *l = calloc(1, sizeof *l);
    uint64_t state = 77 + gate + 100 * down;
    cr_assert_not_null(l);
    l->types[0] = gate, l->types[1] = up, l->types[2] = down;
    for (size_t e = 0; e < N_EXPERTS; e++) {
        l->weights[e][0] = weights_of(gate, D_MODEL, D_EXPERT, INPUT_RANDOM, &state);
        l->weights[e][1] = weights_of(up, D_MODEL, D_EXPERT, INPUT_RANDOM, &state);
        l->weights[e][2] = weights_of(down, D_EXPERT, D_MODEL, INPUT_RANDOM, &state);
        l->addresses[e] =
            (struct expert_address){l->weights[e][0], l->weights[e][1], l->weights[e][2], e % 2, 0};
    }
    l->x = values_of(ROWS_MAX * D_MODEL, INPUT_RANDOM, &state);
    for (size_t i = 0; i < ROWS_MAX * D_MODEL; i++)
        l->x[i] *= 0.02f; /* keeps SwiGLU in the range where it bends */
    l->a = bytes_of(ROWS_MAX * activation_row_bytes(D_MODEL));
    l->outputs = bytes_of(ROWS_MAX * N_USED * D_MODEL * sizeof(float));
    /* Each row: N_USED different experts; expert 8 is rare; row 3 is inert, row 5 has one rank
     * less. */
    for (size_t r = 0; r < ROWS_MAX; r++)
        for (size_t rank = 0; rank < N_USED; rank++)
            l->ids[r * N_USED + rank] = r == 3                 ? -1
                                        : r == 40 && rank == 0 ? 8
                                                               : (int32_t)((r * r + 3 * rank) % 8);
    l->ids[5 * N_USED + 2] = -1;
    return l;
}

static void layer_free(struct layer *l)
{
    for (size_t e = 0; e < N_EXPERTS; e++)
        free(l->weights[e][0]), free(l->weights[e][1]), free(l->weights[e][2]);
    free(l->x), free(l->a), free(l->outputs), free(l);
}

/* Runs rows [first, first + n_rows); outputs, heat and hits start from 0xcd bytes and zeros. */
static void layer_run(struct layer *l, const char *name, struct card *card, size_t first,
                      size_t n_rows)
{
    const struct kernel_set *set = set_named(name);
    void *scratch =
        bytes_of(set->experts_scratch_bytes(n_rows, N_USED, N_EXPERTS, D_MODEL, D_EXPERT));
    struct quantize_args q = {l->x + first * D_MODEL, l->a, n_rows, D_MODEL};
    struct experts_args args = {.gate_type = l->types[0],
                                .up_type = l->types[1],
                                .down_type = l->types[2],
                                .addresses = l->addresses,
                                .d_model = D_MODEL,
                                .d_expert = D_EXPERT,
                                .n_experts = N_EXPERTS,
                                .n_used = N_USED,
                                .n_rows = n_rows,
                                .x = l->x + first * D_MODEL,
                                .a = l->a,
                                .ids = l->ids + first * N_USED,
                                .scratch = scratch,
                                .outputs = l->outputs,
                                .heat = l->heat,
                                .hits = l->hits};
    memset(l->outputs, 0xcd, ROWS_MAX * N_USED * D_MODEL * sizeof(float));
    memset(l->heat, 0, sizeof l->heat);
    memset(l->hits, 0, sizeof l->hits);
    cr_assert_eq(set->quantize(&q, card->stream), 0);
    cr_assert_eq(set->experts(&args, card->stream), 0);
    card_wait(card);
    free(scratch);
}

/* One expert of one row out of single launches: two products, SwiGLU, quantisation, a product. */
static void pair_by_parts(const struct layer *l, const struct kernel_set *set, struct card *card,
                          size_t row, size_t expert, float *y)
{
    void *a = bytes_of(activation_row_bytes(D_MODEL)),
         *b = bytes_of(activation_row_bytes(D_EXPERT));
    float gate[D_EXPERT], up[D_EXPERT];
    struct quantize_args first = {l->x + row * D_MODEL, a, 1, D_MODEL},
                         second = {gate, b, 1, D_EXPERT};
    struct swiglu_args swiglu = {gate, up, gate, 1, D_EXPERT};
    struct product_args p = {.type = l->types[0],
                             .weights = l->weights[expert][0],
                             .n_in = D_MODEL,
                             .n_out = D_EXPERT,
                             .n_rows = 1,
                             .x = l->x + row * D_MODEL,
                             .a = a,
                             .y = gate};
    cr_assert_eq(set->quantize(&first, card->stream), 0);
    cr_assert_eq(set->product(&p, card->stream), 0);
    p.type = l->types[1], p.weights = l->weights[expert][1], p.y = up;
    cr_assert_eq(set->product(&p, card->stream), 0);
    cr_assert_eq(set->swiglu(&swiglu, card->stream), 0);
    cr_assert_eq(set->quantize(&second, card->stream), 0);
    p.type = l->types[2], p.weights = l->weights[expert][2], p.n_in = D_EXPERT, p.n_out = D_MODEL;
    p.x = gate, p.a = b, p.y = y;
    cr_assert_eq(set->product(&p, card->stream), 0);
    card_wait(card);
    free(a), free(b);
}

static void layer_check(struct layer *l, const char *name, struct card *card, size_t n_rows)
{
    uint32_t heat[N_EXPERTS] = {0};
    float y[D_MODEL];
    for (size_t r = 0; r < n_rows; r++) {
        uint32_t hits = 0;
        for (size_t rank = 0; rank < N_USED; rank++) {
            const float *output = l->outputs + (r * N_USED + rank) * D_MODEL;
            int32_t id = l->ids[r * N_USED + rank];
            memset(y, 0xcd, sizeof y);
            if (id >= 0) {
                pair_by_parts(l, set_named(name), card, r, (size_t)id, y);
                heat[id]++;
                hits += l->addresses[id].resident;
            }
            cr_assert_eq(memcmp(y, output, sizeof y), 0, "%s: row %zu rank %zu", name, r, rank);
        }
        cr_assert_eq(l->hits[r], hits);
    }
    cr_assert_eq(memcmp(l->heat, heat, sizeof heat), 0);
}

static const uint32_t mixes[][3] = {
    {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K}, {TENSOR_Q6_K, TENSOR_Q8_0, TENSOR_Q4_K},
    {TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q8_0}, {TENSOR_F16, TENSOR_F16, TENSOR_F16},
    {TENSOR_BF16, TENSOR_F32, TENSOR_Q8_0},  {TENSOR_F32, TENSOR_Q6_K, TENSOR_BF16},
    {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0}, {TENSOR_Q5_1, TENSOR_Q2_K, TENSOR_Q3_K},
    {TENSOR_Q3_K, TENSOR_Q5_K, TENSOR_Q2_K}, {TENSOR_Q5_K, TENSOR_Q5_0, TENSOR_Q4_1}};

Test(experts, are_their_single_products_bit_for_bit_and_count_heat_and_hits)
{
    struct card card = card_open(2);
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        struct layer *l = layer_make(mixes[i][0], mixes[i][1], mixes[i][2]);
        layer_run(l, "reference", &card, 0, 7);
        layer_check(l, "reference", &card, 7);
        for (size_t s = 1; s < N_EXACT; s++)
            if (set_named(set_names[s]) != NULL) {
                layer_run(l, set_names[s], &card, 0, ROWS_MAX);
                layer_check(l, set_names[s], &card, ROWS_MAX);
            }
        layer_free(l);
    }
    card_close(&card);
}

Test(experts, have_the_same_bits_in_every_exact_set_with_any_threads_and_batch)
{
    enum { ROW_VALUES = N_USED * D_MODEL, BYTES = ROWS_MAX * ROW_VALUES * (int)sizeof(float) };
    float *first = bytes_of(BYTES);
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        struct layer *l = layer_make(mixes[i][0], mixes[i][1], mixes[i][2]);
        struct card one = card_open(1);
        layer_run(l, "reference", &one, 0, ROWS_MAX);
        memcpy(first, l->outputs, BYTES);
        for (size_t c = 0; c < 3 * N_EXACT; c++) {
            const char *name = set_names[c / 3];
            if (set_named(name) == NULL || (c / 3 == 0 && i % 4 != 0)) /* the reference is slow */
                continue;
            struct card card = card_open(1 + (int)(c % 3));
            layer_run(l, name, &card, 0, ROWS_MAX);
            cr_assert_eq(memcmp(first, l->outputs, BYTES), 0);
            for (size_t r = 0, n = 1; r + n <= ROWS_MAX; r += n, n = n % 3 + 1) {
                layer_run(l, name, &card, r, n);
                cr_assert_eq(
                    memcmp(first + r * ROW_VALUES, l->outputs, n * ROW_VALUES * sizeof(float)), 0);
            }
            card_close(&card);
        }
        card_close(&one);
        layer_free(l);
    }
    free(first);
}

Test(experts, of_the_float_set_are_close_to_the_reference_and_independent_of_the_batch)
{
    enum { ROW_VALUES = N_USED * D_MODEL, BYTES = ROWS_MAX * ROW_VALUES * (int)sizeof(float) };
    struct card card = card_open(2);
    struct layer *l = layer_make(TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K);
    float *reference = bytes_of(BYTES), *all = bytes_of(BYTES);
    layer_run(l, "reference", &card, 0, ROWS_MAX);
    memcpy(reference, l->outputs, BYTES);
    layer_run(l, "float", &card, 0, ROWS_MAX);
    memcpy(all, l->outputs, BYTES);
    for (size_t pair = 0; pair < ROWS_MAX * N_USED; pair++) {
        double error = 0.0, size = 0.0;
        if (l->ids[pair] < 0) {
            cr_assert_eq(
                memcmp(all + pair * D_MODEL, reference + pair * D_MODEL, D_MODEL * sizeof(float)),
                0);
            continue;
        }
        for (size_t i = pair * D_MODEL; i < (pair + 1) * D_MODEL; i++) {
            error += pow((double)all[i] - (double)reference[i], 2.0);
            size += pow((double)all[i], 2.0);
        }
        cr_assert_lt(error, 0.06 * 0.06 * size, "pair %zu: %g of %g", pair, sqrt(error),
                     sqrt(size));
    }
    for (size_t r = 0; r < ROWS_MAX; r++) {
        layer_run(l, "float", &card, r, 1);
        cr_assert_eq(memcmp(all + r * ROW_VALUES, l->outputs, ROW_VALUES * sizeof(float)), 0);
    }
    free(reference), free(all);
    layer_free(l);
    card_close(&card);
}

Test(experts, refuse_types_without_kernels)
{
    struct card card = card_open(1);
    struct experts_args args = {.gate_type = TENSOR_Q4_K,
                                .up_type = 99,
                                .down_type = TENSOR_Q4_K,
                                .d_model = 256,
                                .d_expert = 256,
                                .n_experts = 1,
                                .n_used = 1,
                                .n_rows = 1};
    for (size_t s = 0; s < N_SETS; s++)
        if (set_named(set_names[s]) != NULL)
            cr_assert_eq(set_named(set_names[s])->experts(&args, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}
