/* product_rows_test.c - quantised products of up to eight rows: the bits of the reference for every type, shape, input, alignment
 * and batch. */
#include "pair.h"
#include "bits.h"

enum { IN_MAX = 16384, OUT_MAX = 152000, ROWS_MAX = 8, BYTES_MAX = 20 << 20 };

/* Buffers for any of these shapes. */
struct product {
    struct pair pair;
    uint8_t *weights;
    float *x, *bias, *gpu_y, *cpu_y;
    void *gpu_a, *cpu_a;
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
    p.weights = pair_new(&p.pair, BYTES_MAX + 4096);
    p.x = pair_new(&p.pair, ROWS_MAX * IN_MAX * sizeof(float));
    p.bias = pair_new(&p.pair, OUT_MAX * sizeof(float));
    p.gpu_y = pair_new(&p.pair, ROWS_MAX * OUT_MAX * sizeof(float));
    p.cpu_y = pair_new(&p.pair, ROWS_MAX * OUT_MAX * sizeof(float));
    p.gpu_a = pair_new(&p.pair, ROWS_MAX * p.pair.cuda->activation_bytes(IN_MAX));
    p.cpu_a = pair_new(&p.pair, ROWS_MAX * p.pair.reference->activation_bytes(IN_MAX));
    return p;
}

/* New inputs for the shape, the same old y for both. */
static struct product_args product_fill(struct product *p, const struct shape *s)
{
    uint64_t state = 1 + s->type * 7919 + s->n_in * 31 + s->n_out * 17 + s->n_rows;
    size_t n_y = s->n_rows * s->n_out, bytes = tensor_row_bytes(s->type, s->n_in) * s->n_out;
    void *w = weights_of(s->type, s->n_in, s->n_out, s->kind, &state);
    float *x = values_of(s->n_rows * s->n_in, s->kind, &state);
    float *y = values_of(n_y, INPUT_RANDOM, &state),
          *bias = values_of(s->n_out, INPUT_RANDOM, &state);
    cr_assert(bytes <= BYTES_MAX && s->n_in <= IN_MAX && s->n_out <= OUT_MAX);
    memcpy(p->weights + s->offset, w, bytes);
    memcpy(p->x, x, s->n_rows * s->n_in * sizeof *x);
    memcpy(p->bias, bias, s->n_out * sizeof *bias);
    memcpy(p->gpu_y, y, n_y * sizeof *y);
    memcpy(p->cpu_y, y, n_y * sizeof *y);
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

static void product_check(struct product *p, const struct shape *s)
{
    struct pair *pair = &p->pair;
    struct product_args args = product_fill(p, s);
    const struct kernel_set *cpu = s->n_out > 200 ? pair->fast : pair->reference;
    struct quantize_args q = {p->x, p->cpu_a, s->n_rows, s->n_in};
    args.a = p->cpu_a, args.y = p->cpu_y;
    cr_assert_eq(cpu->quantize(&q, pair->cpu.stream), 0);
    cr_assert_eq(cpu->product(&args, pair->cpu.stream), 0);
    q.a = p->gpu_a, args.a = p->gpu_a, args.y = p->gpu_y;
    cr_assert_eq(pair->cuda->quantize(&q, pair->stream), 0);
    cr_assert_eq(pair->cuda->product(&args, pair->stream), 0);
    pair_wait(pair);
    cr_assert(bits_agree(p->cpu_y, p->gpu_y, s->n_rows * s->n_out),
              "type %u, %zu x %zu, %zu rows, inputs %d, offset %zu", s->type, s->n_out, s->n_in,
              s->n_rows, s->kind, s->offset);
}

Test(product_rows, has_the_bits_of_the_reference_for_every_type_shape_and_input)
{
    static const size_t widths[] = {32, 64, 96, 256, 288, 768, 1056, 2048, 2560, 4096};
    static const size_t outs[] = {1, 2, 7, 9, 33, 131}, rows[] = {1, 2, 3, 5, 8};
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (size_t i = 0; i < 30; i++) {
                struct shape s = {.type = quantised_types[t], .n_in = widths[w]};
                s.n_out = outs[i / 5], s.n_rows = rows[i % 5];
                if (tensor_row_bytes(s.type, s.n_in) == 0 || (s.n_in > 768 && i % 6 != w % 6))
                    continue;
                for (int kind = 0; kind < INPUT_KINDS; kind++)
                    if (kind == INPUT_RANDOM || (i + w) % INPUT_KINDS == (size_t)kind) {
                        s.kind = (enum input_kind)kind;
                        product_check(&p, &s);
                    }
            }
    pair_close(&p.pair);
}

Test(product_rows, has_the_bits_of_the_reference_in_tall_and_in_wide_matrices)
{
    static const size_t shapes[][2] = {{32, 151936}, {256, 70001}, {8192, 150}, {16384, 67}};
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t i = 0; i < 4; i++)
            for (size_t n_rows = 1; n_rows <= 8; n_rows += 7) {
                struct shape s = {
                    .type = quantised_types[t], .n_in = shapes[i][0], .n_out = shapes[i][1]};
                s.n_rows = n_rows;
                if (tensor_row_bytes(s.type, s.n_in) != 0)
                    product_check(&p, &s);
            }
    pair_close(&p.pair);
}

Test(product_rows, reads_weights_at_any_even_address)
{
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t offset = 0; offset < 16; offset += 2)
            for (size_t n_in = 256; n_in <= 768; n_in += 512) {
                struct shape s = {.type = quantised_types[t], .n_in = n_in, .n_out = 13};
                s.n_rows = 2, s.offset = offset;
                product_check(&p, &s);
            }
    pair_close(&p.pair);
}

Test(product_rows, adds_the_bias_and_then_the_old_value)
{
    struct product p = product_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (int i = 0; i < 4; i++) {
            struct shape s = {.type = quantised_types[t], .n_in = 512, .n_out = 77, .n_rows = 3};
            s.bias = i % 2 != 0, s.accumulate = i / 2 != 0;
            product_check(&p, &s);
        }
    pair_close(&p.pair);
}

Test(product_rows, refuses_unknown_types_and_broken_widths_without_a_launch)
{
    struct pair p = pair_open();
    struct product_args args = {.type = TENSOR_Q4_K, .n_in = 128, .n_out = 1, .n_rows = 1};
    cr_assert_eq(p.cuda->product(&args, p.stream), EBB_EUNSUPPORTED);
    args.type = TENSOR_Q8_0, args.n_in = 48;
    cr_assert_eq(p.cuda->product(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
