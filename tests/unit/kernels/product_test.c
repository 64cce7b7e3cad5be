/* product_test.c - quantised products: the bits of NUMERICS tier 1 in every set, batch, shape and
 * number of threads. */
#include "inputs.h"
#include "kernels/activation.h"

/* One product's memory: everything random from one start. */
struct product {
    struct product_args args;
    float *x, *y;
    void *weights, *a;
    size_t y_bytes;
};

static struct product product_make(uint32_t type, size_t n_in, size_t n_out, size_t n_rows,
                                   enum input_kind kind)
{
    struct product p = {0};
    uint64_t state = 1 + type * 7919 + n_in * 31 + n_out * 17 + n_rows + (uint64_t)kind * 104729;
    p.weights = weights_of(type, n_in, n_out, kind, &state);
    p.x = values_of(n_rows * n_in, kind, &state);
    p.a = bytes_of(n_rows * activation_row_bytes(n_in));
    p.y_bytes = n_rows * n_out * sizeof(float);
    p.y = bytes_of(p.y_bytes);
    p.args = (struct product_args){.type = type,
                                   .weights = p.weights,
                                   .n_in = n_in,
                                   .n_out = n_out,
                                   .n_rows = n_rows,
                                   .x = p.x,
                                   .a = p.a,
                                   .y = p.y};
    return p;
}

static void product_free(struct product *p)
{
    free(p->weights), free(p->x), free(p->a), free(p->y);
}

static void product_run(const char *name, struct card *card, struct product *p)
{
    const struct kernel_set *set = set_named(name);
    struct quantize_args q = {p->x, p->a, p->args.n_rows, p->args.n_in};
    cr_assert_eq(set->quantize(&q, card->stream), 0);
    cr_assert_eq(set->product(&p->args, card->stream), 0);
    card_wait(card);
}

/* One case: what both sets get. */
struct shape {
    uint32_t type;
    size_t n_in, n_out, n_rows;
    enum input_kind kind;
};

/* Runs the reference and a set on the same inputs and compares every bit. */
static void sets_compare(const char *name, struct card *card, struct shape s)
{
    struct product p = product_make(s.type, s.n_in, s.n_out, s.n_rows, s.kind);
    float *first = bytes_of(p.y_bytes);
    product_run("reference", card, &p);
    memcpy(first, p.y, p.y_bytes);
    memset(p.y, 0xcd, p.y_bytes);
    product_run(name, card, &p);
    cr_assert_eq(memcmp(first, p.y, p.y_bytes), 0, "%s, type %u, %zu x %zu, %zu rows, inputs %d",
                 name, s.type, s.n_out, s.n_in, s.n_rows, s.kind);
    free(first);
    product_free(&p);
}

/* Every type, shape and kind of input. */
static void set_compare(const char *name)
{
    static const size_t widths[] = {32, 64, 96, 256, 288, 512, 768, 2048};
    static const size_t outs[] = {1, 2, 7, 8, 9, 16, 33, 67}, rows[] = {1, 2, 3, 4, 5, 7, 8, 33};
    struct card card = card_open(2);
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (size_t i = 0; i < 64; i++) {
                struct shape s = {quantised_types[t], widths[w], outs[i / 8], rows[i % 8], 0};
                if (tensor_row_bytes(s.type, s.n_in) == 0 || (s.n_in == 2048 && i % 8 != i / 8))
                    continue;
                for (int kind = 0; kind < INPUT_KINDS; kind++) {
                    s.kind = (enum input_kind)kind;
                    if (kind == INPUT_RANDOM || (i + w) % INPUT_KINDS == (size_t)kind)
                        sets_compare(name, &card, s);
                }
            }
    card_close(&card);
}

Test(product, has_the_same_bits_in_the_reference_and_avx2_for_every_type_shape_and_input)
{
    if (set_named("avx2") == NULL)
        cr_skip("this processor has no AVX2");
    set_compare("avx2");
}

Test(product, has_the_same_bits_in_the_reference_and_avx512_for_every_type_shape_and_input)
{
    if (set_named("avx512") == NULL)
        cr_skip("this processor has no AVX-512 with VNNI");
    set_compare("avx512");
}

Test(product, has_the_same_bits_with_one_two_and_three_threads)
{
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t s = 0; s < N_EXACT; s++) {
            struct product p = product_make(quantised_types[t], 512, 203, 11, INPUT_RANDOM);
            float *first = bytes_of(p.y_bytes);
            if (set_named(set_names[s]) != NULL)
                for (int n_threads = 1; n_threads <= 3; n_threads++) {
                    struct card card = card_open(n_threads);
                    memset(p.y, 0xcd, p.y_bytes);
                    product_run(set_names[s], &card, &p);
                    if (n_threads == 1)
                        memcpy(first, p.y, p.y_bytes);
                    cr_assert_eq(memcmp(first, p.y, p.y_bytes), 0);
                    card_close(&card);
                }
            free(first);
            product_free(&p);
        }
}

Test(product, gives_a_row_the_same_bits_alone_and_in_any_batch)
{
    enum { ROWS = 37, OUT = 19, IN = 256 };
    struct card card = card_open(2);
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t s = 0; s < N_SETS; s++) {
            struct product p = product_make(quantised_types[t], IN, OUT, ROWS, INPUT_RANDOM);
            float together[ROWS * OUT];
            if (set_named(set_names[s]) != NULL) {
                product_run(set_names[s], &card, &p);
                memcpy(together, p.y, sizeof together);
                p.args.n_rows = 1;
                for (size_t r = 0; r < ROWS; r++) {
                    p.args.x = p.x + r * IN;
                    p.args.a = (uint8_t *)p.a + r * activation_row_bytes(IN);
                    cr_assert_eq(set_named(set_names[s])->product(&p.args, card.stream), 0);
                    card_wait(&card);
                    cr_assert_eq(memcmp(p.y, together + r * OUT, OUT * sizeof(float)), 0);
                }
            }
            product_free(&p);
        }
    card_close(&card);
}

/* Row `out` of the weights as fp32, through embed(). */
static void row_dequantised(struct card *card, const struct product *p, size_t out, float *w)
{
    int32_t token = (int32_t)out;
    struct embed_args args = {p->args.type, p->weights, p->args.n_out, p->args.n_in, 1, &token, w};
    cr_assert_eq(set_named("reference")->embed(&args, card->stream), 0);
    card_wait(card);
}

/* Compares with plain sums in fp64; `size` is the sum of magnitudes, the natural unit of rounding
 * errors. */
static void check_against_double(struct card *card, struct product *p, bool quantised,
                                 double tolerance)
{
    float *w = bytes_of(p->args.n_in * sizeof *w);
    for (size_t o = 0; o < p->args.n_out; o++) {
        row_dequantised(card, p, o, w);
        for (size_t r = 0; r < p->args.n_rows; r++) {
            struct activation a = activation_at(p->a, p->args.n_in, r);
            double sum = 0.0, size = 0.0;
            for (size_t k = 0; k < p->args.n_in; k++) {
                double x =
                    quantised ? (double)a.d[k / 32] * a.q[k] : (double)p->x[r * p->args.n_in + k];
                sum += x * (double)w[k];
                size += fabs(x * (double)w[k]);
            }
            cr_assert_float_eq(p->y[r * p->args.n_out + o], sum, tolerance * size + 1e-30,
                               "type %u", p->args.type);
        }
    }
    free(w);
}

Test(product, of_the_reference_is_the_plain_sum_of_dequantised_weights_and_activations)
{
    struct card card = card_open(1);
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        struct product p = product_make(quantised_types[t], 1024, 21, 5, INPUT_RANDOM);
        product_run("reference", &card, &p);
        check_against_double(&card, &p, true, 4e-6);
        product_free(&p);
    }
    card_close(&card);
}

Test(product, of_the_float_set_is_the_plain_sum_without_quantised_activations)
{
    struct card card = card_open(2);
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t n_in = 256; n_in <= 768; n_in += 256) {
            struct product p = product_make(quantised_types[t], n_in, 21, 131, INPUT_RANDOM);
            p.args.a = NULL;
            cr_assert_eq(set_named("float")->product(&p.args, card.stream), 0);
            card_wait(&card);
            check_against_double(&card, &p, false, 1e-7);
            product_free(&p);
        }
    card_close(&card);
}

Test(product, adds_the_bias_and_then_the_old_value_to_a_finished_element)
{
    enum { ROWS = 3, OUT = 13 };
    struct card card = card_open(1);
    uint64_t state = 23;
    float *bias = values_of(OUT, INPUT_RANDOM, &state),
          *old = values_of(ROWS * OUT, INPUT_RANDOM, &state);
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t s = 0; s < N_SETS; s++) {
            struct product p = product_make(quantised_types[t], 256, OUT, ROWS, INPUT_RANDOM);
            float plain[ROWS * OUT];
            if (set_named(set_names[s]) != NULL) {
                product_run(set_names[s], &card, &p);
                memcpy(plain, p.y, sizeof plain);
                memcpy(p.y, old, ROWS * OUT * sizeof *old);
                p.args.bias = bias;
                p.args.accumulate = true;
                product_run(set_names[s], &card, &p);
                for (size_t i = 0; i < ROWS * OUT; i++) {
                    float with_bias = plain[i] + bias[i % OUT];
                    cr_assert_eq(p.y[i], old[i] + with_bias);
                }
            }
            product_free(&p);
        }
    free(bias), free(old);
    card_close(&card);
}

Test(product, refuses_unknown_types_and_broken_widths_without_a_launch)
{
    struct card card = card_open(1);
    struct product_args args = {.type = 99, .n_in = 256, .n_out = 1, .n_rows = 1};
    for (size_t s = 0; s < N_SETS; s++) {
        if (set_named(set_names[s]) == NULL)
            continue;
        args.type = 99, args.n_in = 256;
        cr_assert_eq(set_named(set_names[s])->product(&args, card.stream), EBB_EUNSUPPORTED);
        args.type = TENSOR_Q4_K, args.n_in = 128;
        cr_assert_eq(set_named(set_names[s])->product(&args, card.stream), EBB_EUNSUPPORTED);
    }
    card_close(&card);
}
