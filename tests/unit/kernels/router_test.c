/* router_test.c - routing and unquantised products: exact across sets, right by definition. */
#include "inputs.h"

/* F32, F16 or BF16 weights, finite, and the same as fp32. */
static void *plain_weights(uint32_t type, size_t n, float *wide, uint64_t *state)
{
    void *w = bytes_of(n * tensor_row_bytes(type, 1));
    for (size_t i = 0; i < n; i++) {
        wide[i] = random_value(state);
        if (type == TENSOR_F16) {
            _Float16 half = (_Float16)wide[i];
            memcpy((uint16_t *)w + i, &half, sizeof half);
            wide[i] = (float)half;
        } else if (type == TENSOR_BF16) {
            uint32_t bits;
            memcpy(&bits, &wide[i], sizeof bits);
            ((uint16_t *)w)[i] = (uint16_t)(bits >> 16);
            bits &= 0xffff0000u;
            memcpy(&wide[i], &bits, sizeof bits);
        } else {
            ((float *)w)[i] = wide[i];
        }
    }
    return w;
}

static void product_compare(struct card *card, uint32_t type, size_t n_in, size_t n_rows,
                            enum input_kind kind)
{
    enum { N_OUT = 13 };
    uint64_t state = 31 + n_in;
    float *wide = bytes_of(N_OUT * n_in * sizeof(float));
    void *w = plain_weights(type, N_OUT * n_in, wide, &state);
    float *x = values_of(n_rows * n_in, kind, &state),
          *bias = values_of(N_OUT, INPUT_RANDOM, &state);
    float *before = values_of(n_rows * N_OUT, INPUT_RANDOM, &state), *y[N_SETS];
    size_t bytes = n_rows * N_OUT * sizeof(float);
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        y[s] = memcpy(bytes_of(bytes), before, bytes);
        struct product_args args = {type, w, n_in, N_OUT, n_rows, x, NULL, bias, y[s], true};
        cr_assert_eq((set != NULL ? set : set_named("reference"))->product(&args, card->stream), 0);
        card_wait(card);
    }
    for (size_t s = 1; s < N_EXACT; s++)
        cr_assert_eq(memcmp(y[0], y[s], bytes), 0, "%s type %u n_in %zu rows %zu kind %d",
                     set_names[s], type, n_in, n_rows, (int)kind);
    for (size_t i = 0; i < n_rows * N_OUT; i++) {
        double sum = 0, size = 0;
        for (size_t j = 0; j < n_in; j++) {
            double term = (double)wide[i % N_OUT * n_in + j] * x[i / N_OUT * n_in + j];
            sum += term;
            size += fabs(term);
        }
        double want = before[i] + (sum + bias[i % N_OUT]);
        for (size_t s = 0; s < N_SETS && size < 1e38; s++)
            cr_assert_float_eq(y[s][i], want, 1e-6 * (size + fabs(want)) + 1e-30);
    }
    free(wide), free(w), free(x), free(bias), free(before);
    for (size_t s = 0; s < N_SETS; s++)
        free(y[s]);
}

Test(product, unquantised_weights_give_the_same_bits_in_every_exact_set)
{
    static const size_t widths[] = {1, 15, 16, 31, 64, 100, 768}, rows[] = {1, 3, 4, 9};
    struct card card = card_open(2);
    for (size_t t = 0; t < N_PLAIN_TYPES; t++)
        for (size_t i = 0; i < 7; i++)
            for (size_t r = 0; r < 4; r++)
                for (int kind = 0; kind < INPUT_KINDS; kind++)
                    product_compare(&card, plain_types[t], widths[i], rows[r],
                                    (enum input_kind)kind);
    card_close(&card);
}

struct routing {
    int32_t ids[64][16];
    float mix[64][16];
};

static struct routing route(const struct kernel_set *set, struct card *card,
                            struct router_args args)
{
    struct routing out;
    memset(&out, 0x55, sizeof out);
    args.ids = &out.ids[0][0];
    args.mix = &out.mix[0][0];
    cr_assert_eq(set->router(&args, card->stream), 0);
    card_wait(card);
    return out;
}

Test(router, sets_agree_choices_follow_the_definition_and_rows_do_not_depend_on_company)
{
    enum { N_IN = 200, N_EXPERTS = 60, N_USED = 16, N_ROWS = 64 };
    uint64_t state = 32;
    int32_t positions[N_ROWS];
    float *wide = bytes_of(N_EXPERTS * N_IN * sizeof(float)), logits[N_ROWS * N_EXPERTS];
    float *x = values_of(N_ROWS * N_IN, INPUT_RANDOM, &state);
    for (int i = 0; i < N_ROWS; i++)
        positions[i] = i == 9 ? -1 : i;
    for (size_t t = 0; t < N_PLAIN_TYPES; t++)
        for (int threads = 1; threads <= 3; threads++) {
            struct card card = card_open(threads);
            void *w = plain_weights(plain_types[t], N_EXPERTS * N_IN, wide, &state);
            struct router_args args = {plain_types[t], w,      x,        N_IN, N_EXPERTS,
                                       N_USED,         N_ROWS, true,     2.5f, logits,
                                       NULL,           NULL,   positions};
            struct routing first = route(set_named("reference"), &card, args);
            for (size_t s = 1; s < N_EXACT; s++)
                if (set_named(set_names[s]) != NULL) {
                    struct routing second = route(set_named(set_names[s]), &card, args);
                    cr_assert_eq(memcmp(&first, &second, sizeof first), 0, "%s", set_names[s]);
                }
            for (int r = 0; r < N_ROWS; r++) {
                double sum = 0;
                for (int i = 0; i < N_USED; i++) {
                    cr_assert_eq(first.ids[r][i] == -1, r == 9);
                    cr_assert(r != 9 || first.mix[r][i] == 0);
                    cr_assert(i == 0 || first.mix[r][i] <= first.mix[r][i - 1]);
                    sum += first.mix[r][i];
                }
                cr_assert_float_eq(sum, r == 9 ? 0 : 2.5, 1e-5);
            }
            struct router_args alone = args;
            alone.n_rows = 1;
            alone.x = x + 40 * N_IN;
            struct routing one = route(kernel_set_cpu("auto", NULL), &card, alone);
            cr_assert_eq(memcmp(one.ids[0], first.ids[40], sizeof one.ids[0]), 0);
            cr_assert_eq(memcmp(one.mix[0], first.mix[40], sizeof one.mix[0]), 0);
            free(w);
            card_close(&card);
        }
    free(wide), free(x);
}

Test(router, probabilities_are_of_all_experts_and_ties_go_to_the_lower_id)
{
    float weights[6] = {1, 3, 2, 3, 1, NAN}, x[1] = {1}, logits[6];
    int32_t positions[1] = {0};
    struct card card = card_open(1);
    struct router_args args = {TENSOR_F32, weights, x,      1,    5,    3,        1,
                               false,      1,       logits, NULL, NULL, positions};
    double sum = 2 * exp(1) + 2 * exp(3) + exp(2);
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        if (set == NULL)
            continue;
        struct routing got = route(set, &card, args);
        cr_assert_eq(got.ids[0][0], 1);
        cr_assert_eq(got.ids[0][1], 3);
        cr_assert_eq(got.ids[0][2], 2);
        cr_assert_float_eq(got.mix[0][0], exp(3) / sum, 1e-6);
        cr_assert_float_eq(got.mix[0][2], exp(2) / sum, 1e-6);
        struct router_args broken =
            args; /* a NaN among the logits: numbers are lost, ids stay valid */
        broken.n_experts = broken.n_used = 6;
        got = route(set, &card, broken);
        unsigned seen = 0;
        for (int i = 0; i < 6; i++)
            seen |= 1u << got.ids[0][i];
        cr_assert_eq(seen, 0x3f);
    }
    args.n_used = EXPERTS_USED_MAX + 1;
    args.n_experts = 64;
    cr_assert_eq(kernel_set_cpu("auto", NULL)->router(&args, card.stream), EBB_EUNSUPPORTED);
    args.n_used = 2;
    args.type = TENSOR_Q8_0;
    cr_assert_eq(kernel_set_cpu("auto", NULL)->router(&args, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}
