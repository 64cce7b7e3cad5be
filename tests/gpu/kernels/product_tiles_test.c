/* product_tiles_test.c - products on the tensor cores have the bits of the CPU sets (NUMERICS tier 1). */
#include "kernels/ops_cuda.h"
#include "pair.h"
#include "bits.h"

/* One product's memory, seen by both cards: everything random from one start. */
struct product {
    struct product_args args;
    struct quantize_args quantize;
    void *a_cuda, *a_cpu;
    float *y_cuda, *y_cpu;
    size_t n_y;
};

/* Weights begin `shift` bytes past a multiple of 256. */
static struct product product_make(struct pair *p, uint32_t type, size_t n_in, size_t n_out,
                                   size_t n_rows, enum input_kind kind, size_t shift)
{
    struct product m = {0};
    uint64_t state = 3 + type * 7919 + n_in * 31 + n_out * 17 + n_rows + (uint64_t)kind * 104729;
    size_t bytes = tensor_row_bytes(type, n_in) * n_out;
    uint8_t *weights = pair_new(p, bytes + shift);
    void *made = weights_of(type, n_in, n_out, kind, &state);
    memcpy(weights + shift, made, bytes);
    free(made);
    m.n_y = n_rows * n_out;
    float *x = pair_take(p, values_of(n_rows * n_in, kind, &state), n_rows * n_in * sizeof *x);
    m.a_cuda = pair_new(p, n_rows * p->cuda->activation_bytes(n_in));
    m.a_cpu = pair_new(p, n_rows * p->fast->activation_bytes(n_in));
    m.y_cuda = pair_take(p, values_of(m.n_y, INPUT_RANDOM, &state), m.n_y * sizeof(float));
    m.y_cpu = pair_new(p, m.n_y * sizeof(float));
    memcpy(m.y_cpu, m.y_cuda, m.n_y * sizeof(float));
    m.quantize = (struct quantize_args){.x = x, .n_rows = n_rows, .n = n_in};
    m.args = (struct product_args){.type = type,
                                   .weights = weights + shift,
                                   .n_in = n_in,
                                   .n_out = n_out,
                                   .n_rows = n_rows,
                                   .x = x};
    return m;
}

static void product_compare(struct pair *p, struct product *m, const char *what)
{
    struct quantize_args q = m->quantize;
    struct product_args args = m->args;
    q.a = m->a_cpu, args.a = m->a_cpu, args.y = m->y_cpu;
    cr_assert_eq(p->fast->quantize(&q, p->cpu.stream), 0);
    cr_assert_eq(p->fast->product(&args, p->cpu.stream), 0);
    q.a = m->a_cuda, args.a = m->a_cuda, args.y = m->y_cuda;
    cr_assert_eq(p->cuda->quantize(&q, p->stream), 0);
    cr_assert_eq(product_tiles_cuda(&args, p->stream), 0);
    pair_wait(p);
    cr_assert(bits_agree(m->y_cuda, m->y_cpu, m->n_y), "%s: type %u, %zu x %zu, %zu rows", what,
              args.type, args.n_out, args.n_in, args.n_rows);
}

static void product_free(struct pair *p, struct product *m, size_t shift)
{
    void *const all[] = {(uint8_t *)(uintptr_t)m->args.weights - shift,
                         (void *)(uintptr_t)m->args.x,
                         m->a_cuda,
                         m->a_cpu,
                         m->y_cuda,
                         m->y_cpu};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        exec_cuda.shared_free(p->gpu, all[i]);
}

static void shapes_compare(struct pair *p, uint32_t type)
{
    static const size_t widths[] = {32, 64, 96, 160, 256, 288, 512, 768, 2048};
    static const size_t outs[] = {1, 7, 33, 64, 67, 128, 130, 260};
    static const size_t rows[] = {1, 2, 5, 8, 9, 17, 33, 64, 65, 100, 128, 131};
    size_t n = 0;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; i < 96; i++) {
            if (tensor_row_bytes(type, widths[w]) == 0 || (i + 5 * w) % 4 != 0)
                continue;
            enum input_kind kind = (enum input_kind)(n++ % INPUT_KINDS);
            struct product m = product_make(p, type, widths[w], outs[i % 8], rows[i / 8], kind, 0);
            product_compare(p, &m, "shapes");
            product_free(p, &m, 0);
        }
}

Test(product_tiles, have_the_bits_of_the_cpu_for_every_type_shape_and_input, .timeout = 300)
{
    struct pair p = pair_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        shapes_compare(&p, quantised_types[t]);
    pair_close(&p);
}

Test(product_tiles, have_the_bits_of_the_cpu_wherever_weights_begin, .timeout = 300)
{
    struct pair p = pair_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (size_t shift = 2; shift < 16; shift += 2) {
            struct product m =
                product_make(&p, quantised_types[t], 768, 131, 40, INPUT_RANDOM, shift);
            product_compare(&p, &m, "shifted");
            product_free(&p, &m, shift);
        }
    pair_close(&p);
}

Test(product_tiles, add_the_bias_then_the_old_y)
{
    struct pair p = pair_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++)
        for (int which = 1; which < 4; which++) {
            uint64_t state = 5;
            struct product m = product_make(&p, quantised_types[t], 512, 77, 19, INPUT_RANDOM, 0);
            if (which & 1)
                m.args.bias =
                    pair_take(&p, values_of(77, INPUT_RANDOM, &state), 77 * sizeof(float));
            m.args.accumulate = (which & 2) != 0;
            product_compare(&p, &m, "added");
        }
    pair_close(&p);
}

/* Enough tiles for the larger tile size to be chosen on any card. */
Test(product_tiles, have_the_bits_of_the_cpu_in_large_products, .timeout = 300)
{
    struct pair p = pair_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        struct product m = product_make(&p, quantised_types[t], 512, 20000, 70, INPUT_RANDOM, 0);
        product_compare(&p, &m, "large");
        product_free(&p, &m, 0);
    }
    pair_close(&p);
}

Test(product_tiles, give_a_row_the_same_bits_in_any_batch_and_in_a_graph)
{
    enum { ROWS = 70, OUT = 200, IN = 512 };
    struct pair p = pair_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        struct error err = {0};
        struct exec_graph *graph = NULL;
        struct product m = product_make(&p, quantised_types[t], IN, OUT, ROWS, INPUT_RANDOM, 0);
        product_compare(&p, &m, "together");
        struct quantize_args q = m.quantize;
        struct product_args args = m.args;
        args.a = q.a = m.a_cuda, args.y = m.y_cuda;
        for (size_t n = 1; n <= 65; n += 16) {
            memset(m.y_cuda, 0xcd, m.n_y * sizeof(float));
            q.n_rows = args.n_rows = n;
            cr_assert_eq(exec_cuda.capture_begin(p.stream), 0);
            cr_assert_eq(p.cuda->quantize(&q, p.stream), 0);
            cr_assert_eq(product_tiles_cuda(&args, p.stream), 0);
            cr_assert_eq(exec_cuda.capture_end(p.stream, &graph, &err), 0, "%s", err.text);
            cr_assert_eq(exec_cuda.graph_launch(graph, p.stream), 0);
            pair_wait(&p);
            exec_cuda.graph_close(graph);
            cr_assert(bits_agree(m.y_cuda, m.y_cpu, n * OUT), "type %u, %zu rows", args.type, n);
        }
        product_free(&p, &m, 0);
    }
    pair_close(&p);
}

Test(product_tiles, refuse_types_and_widths_without_kernels)
{
    struct pair p = pair_open();
    struct product m = product_make(&p, TENSOR_Q4_K, 256, 8, 9, INPUT_RANDOM, 0);
    m.args.a = m.a_cuda, m.args.y = m.y_cuda;
    m.args.n_in = 128;
    cr_assert_eq(product_tiles_cuda(&m.args, p.stream), EBB_EUNSUPPORTED);
    m.args.n_in = 256, m.args.type = TENSOR_F16;
    cr_assert_eq(product_tiles_cuda(&m.args, p.stream), EBB_EUNSUPPORTED);
    m.args.type = 99;
    cr_assert_eq(product_tiles_cuda(&m.args, p.stream), EBB_EUNSUPPORTED);
    m.args.type = TENSOR_Q4_K, m.args.n_rows = 0;
    cr_assert_eq(product_tiles_cuda(&m.args, p.stream), 0);
    pair_close(&p);
}
