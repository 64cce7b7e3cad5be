/* product_few_test.c - products of a few rows on the tensor cores have the bits of the CPU sets (NUMERICS tier 1). */
#include "kernels/ops_cuda.h"
#include "pair.h"
#include "bits.h"

enum { IN_MAX = 8192, OUT_MAX = 20000, ROWS_MAX = 40, BYTES_MAX = 24 << 20 };

/* Buffers for any of these shapes. */
struct product {
    struct pair pair;
    uint8_t *weights;
    float *x, *bias, *y[2]; /* CPU, CUDA; so is a */
    void *a[2];
};

struct shape {
    uint32_t type;
    size_t n_in, n_out, n_rows;
    enum input_kind kind;
    size_t offset; /* of the weights from a multiple of 256 */
    bool bias, accumulate;
};

static struct product product_open(void)
{
    struct product p = {.pair = pair_open()};
    const struct kernel_set *sets[] = {p.pair.fast, p.pair.cuda};
    p.weights = pair_new(&p.pair, BYTES_MAX + 16);
    p.x = pair_new(&p.pair, ROWS_MAX * IN_MAX * sizeof(float));
    p.bias = pair_new(&p.pair, OUT_MAX * sizeof(float));
    for (int i = 0; i < 2; i++) {
        p.y[i] = pair_new(&p.pair, ROWS_MAX * OUT_MAX * sizeof(float));
        p.a[i] = pair_new(&p.pair, ROWS_MAX * sets[i]->activation_bytes(IN_MAX));
    }
    return p;
}

/* New inputs for the shape, the same old y for both. The weights end where the buffer does. */
static struct product_args product_fill(struct product *p, const struct shape *s)
{
    uint64_t state = 11 + s->type * 7919 + s->n_in * 31 + s->n_out * 17 + s->n_rows;
    const size_t bytes = tensor_row_bytes(s->type, s->n_in) * s->n_out, n_y = s->n_rows * s->n_out;
    void *w = weights_of(s->type, s->n_in, s->n_out, s->kind, &state);
    float *x = values_of(s->n_rows * s->n_in, s->kind, &state);
    float *y = values_of(n_y, INPUT_RANDOM, &state);
    float *bias = values_of(s->n_out, INPUT_RANDOM, &state);
    cr_assert(bytes <= BYTES_MAX && s->n_in <= IN_MAX && s->n_out <= OUT_MAX);
    memcpy(p->weights + s->offset, w, bytes);
    memcpy(p->x, x, s->n_rows * s->n_in * sizeof *x);
    memcpy(p->bias, bias, s->n_out * sizeof *bias);
    for (int i = 0; i < 2; i++)
        memcpy(p->y[i], y, n_y * sizeof *y);
    free(w), free(x), free(y), free(bias);
    return (struct product_args){.type = s->type,
                                 .weights = p->weights + s->offset,
                                 .n_in = s->n_in,
                                 .n_out = s->n_out,
                                 .n_rows = s->n_rows,
                                 .x = p->x,
                                 .bias = s->bias ? p->bias : NULL,
                                 .accumulate = s->accumulate};
}

static void product_compare(struct product *p, const struct shape *s)
{
    struct product_args args = product_fill(p, s);
    struct quantize_args q = {p->x, p->a[0], s->n_rows, s->n_in};
    args.a = p->a[0], args.y = p->y[0];
    cr_assert_eq(p->pair.fast->quantize(&q, p->pair.cpu.stream), 0);
    cr_assert_eq(p->pair.fast->product(&args, p->pair.cpu.stream), 0);
    args.a = q.a = p->a[1], args.y = p->y[1];
    cr_assert_eq(p->pair.cuda->quantize(&q, p->pair.stream), 0);
    cr_assert_eq(product_few_cuda(&args, p->pair.stream), 0, "type %u, %zu x %zu, %zu rows",
                 s->type, s->n_out, s->n_in, s->n_rows);
    pair_wait(&p->pair);
    cr_assert(bits_agree(p->y[0], p->y[1], s->n_rows * s->n_out),
              "type %u, %zu x %zu, %zu rows, inputs %d, offset %zu", s->type, s->n_out, s->n_in,
              s->n_rows, s->kind, s->offset);
}

Test(product_few, have_the_bits_of_the_cpu_for_every_type_shape_and_input, .timeout = 300)
{
    static const size_t widths[] = {32, 64, 96, 224, 256, 288, 512, 768, 1056, 2048, 4096};
    static const size_t outs[] = {1, 7, 15, 16, 17, 33, 64, 131, 260};
    static const size_t rows[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, ROWS_MAX};
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t w = 0, n = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (size_t i = 0; i < 108; i++) {
                struct shape s = {.type = quantised_types[t], .n_in = widths[w]};
                s.n_out = outs[i % 9], s.n_rows = rows[i / 9];
                s.kind = (enum input_kind)(n % INPUT_KINDS);
                if (tensor_row_bytes(s.type, s.n_in) == 0 || (i + 5 * w) % 4 != 0)
                    continue;
                product_compare(&p, &s);
                n++;
            }
    pair_close(&p.pair);
}

/* Enough outputs for a reading of weights to serve 32 rows. */
Test(product_few, have_the_bits_of_the_cpu_in_tall_and_in_wide_matrices, .timeout = 300)
{
    static const size_t shapes[][3] = {
        {256, 20000, 9}, {288, 16384, 40}, {768, 16389, 24}, {8192, 150, 8}, {8192, 67, 17}};
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t i = 0; i < 5; i++) {
            struct shape s = {.type = quantised_types[t], .n_in = shapes[i][0]};
            s.n_out = shapes[i][1], s.n_rows = shapes[i][2];
            if (tensor_row_bytes(s.type, s.n_in) != 0)
                product_compare(&p, &s);
        }
    pair_close(&p.pair);
}

Test(product_few, have_the_bits_of_the_cpu_wherever_weights_begin, .timeout = 300)
{
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t offset = 2; offset < 16; offset += 2)
            for (size_t n_in = 256; n_in <= 1024; n_in += 256) {
                struct shape s = {.type = quantised_types[t], .n_in = n_in, .n_out = 43};
                s.n_rows = 11, s.offset = offset;
                product_compare(&p, &s);
            }
    pair_close(&p.pair);
}

Test(product_few, add_the_bias_then_the_old_y)
{
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (int i = 0; i < 4; i++) {
            struct shape s = {.type = quantised_types[t], .n_in = 512, .n_out = 77, .n_rows = 19};
            s.bias = i % 2 != 0, s.accumulate = i / 2 != 0;
            product_compare(&p, &s);
        }
    pair_close(&p.pair);
}

Test(product_few, refuse_what_they_do_not_compute_without_a_launch)
{
    struct pair p = pair_open();
    struct product_args args = {.type = TENSOR_Q4_K, .n_in = 128, .n_out = 1, .n_rows = 9};
    cr_assert_eq(product_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_in = 256, args.type = TENSOR_F16;
    cr_assert_eq(product_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.type = 99;
    cr_assert_eq(product_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.type = TENSOR_Q8_0, args.n_in = 1 << 16; /* eight rows of activations: half a MiB */
    cr_assert_eq(product_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_in = 32, args.n_rows = 0;
    cr_assert_eq(product_few_cuda(&args, p.stream), 0);
    pair_close(&p);
}

/* The set serves rows of activations that this form has no room for by another. */
Test(product_few, leave_wide_rows_to_the_other_forms)
{
    enum { IN = 1 << 16, OUT = 9, ROWS = 9 };
    struct pair p = pair_open();
    const struct kernel_set *sets[] = {p.fast, p.cuda};
    uint64_t state = 5;
    float *x = pair_take(&p, values_of(ROWS * IN, INPUT_RANDOM, &state), ROWS * IN * sizeof *x);
    void *w = pair_take(&p, weights_of(TENSOR_Q4_K, IN, OUT, INPUT_RANDOM, &state),
                        OUT * tensor_row_bytes(TENSOR_Q4_K, IN));
    float *y[2];
    for (int i = 0; i < 2; i++) {
        struct exec_stream *stream = i == 0 ? p.cpu.stream : p.stream;
        void *a = pair_new(&p, ROWS * sets[i]->activation_bytes(IN));
        struct quantize_args q = {x, a, ROWS, IN};
        y[i] = pair_new(&p, ROWS * OUT * sizeof(float));
        struct product_args args = {.type = TENSOR_Q4_K, .weights = w, .n_in = IN, .n_out = OUT};
        args.n_rows = ROWS, args.x = x, args.a = a, args.y = y[i];
        cr_assert_eq(sets[i]->quantize(&q, stream), 0);
        cr_assert_eq(sets[i]->product(&args, stream), 0);
    }
    pair_wait(&p);
    cr_assert(bits_agree(y[0], y[1], ROWS * OUT));
    pair_close(&p);
}
