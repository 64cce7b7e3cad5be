/* product_plain_test.c - products with unquantised weights on the card: near the CPU's, the same bits in any batch. */
#include "pair.h"

struct shape {
    size_t n_in, n_out, n_rows;
    bool biased, accumulate;
    size_t shift; /* bytes that the weights are moved by */
};

/* Rows [first, first + n) of the product by the card. */
static void rows_compute(struct pair *p, struct product_args args, float *y, size_t first, size_t n)
{
    args.x += first * args.n_in;
    args.y = y + first * args.n_out;
    args.n_rows = n;
    cr_assert_eq(p->cuda->product(&args, p->stream), 0);
}

/* |difference| <= 4e-6 * sum |w x|: far above 32 short sums' roundings, far below a missing value. */
static void near_check(struct pair *p, const struct product_args *args, const float *want,
                       const float *got)
{
    struct product_args size = *args;
    size_t n_weights = args->n_in * args->n_out, n_x = args->n_rows * args->n_in;
    size_t bytes = args->n_rows * args->n_out * sizeof(float);
    int32_t *tokens = bytes_of(args->n_out * sizeof *tokens);
    float *magnitudes = bytes_of(n_weights * sizeof *magnitudes), *x = bytes_of(n_x * sizeof *x);
    float *bound = bytes_of(bytes);
    for (size_t o = 0; o < args->n_out; o++)
        tokens[o] = (int32_t)o;
    struct embed_args wide = {args->type,  args->weights, args->n_out, args->n_in,
                              args->n_out, tokens,        magnitudes};
    cr_assert_eq(p->reference->embed(&wide, p->cpu.stream), 0);
    card_wait(&p->cpu);
    for (size_t i = 0; i < n_weights; i++)
        magnitudes[i] = fabsf(magnitudes[i]);
    for (size_t i = 0; i < n_x; i++)
        x[i] = fabsf(args->x[i]);
    size.type = TENSOR_F32, size.weights = magnitudes, size.x = x, size.y = bound;
    size.bias = NULL, size.accumulate = false;
    cr_assert_eq(p->fast->product(&size, p->cpu.stream), 0);
    card_wait(&p->cpu);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        cr_assert(fabs((double)want[i] - got[i]) <= 4e-6 * bound[i] + 1e-6 * fabs((double)want[i]),
                  "type %u, element %zu: %g, got %g", args->type, i, want[i], got[i]);
    free(tokens), free(magnitudes), free(x), free(bound);
}

static void product_check(struct pair *p, uint32_t type, const struct shape *s)
{
    uint64_t state = 51 + s->n_in + s->n_out;
    size_t w_bytes = tensor_row_bytes(type, s->n_in) * s->n_out,
           y_bytes = s->n_rows * s->n_out * sizeof(float);
    void *made = weights_of(type, s->n_in, s->n_out, INPUT_RANDOM, &state);
    uint8_t *weights = (uint8_t *)pair_new(p, w_bytes + s->shift) + s->shift;
    memcpy(weights, made, w_bytes);
    free(made);
    float *x = pair_take(p, values_of(s->n_rows * s->n_in, INPUT_RANDOM, &state),
                         s->n_rows * s->n_in * sizeof(float));
    float *bias = pair_take(p, values_of(s->n_out, INPUT_RANDOM, &state), s->n_out * sizeof(float));
    float *y[6];
    y[0] = pair_take(p, values_of(s->n_rows * s->n_out, INPUT_RANDOM, &state), y_bytes);
    for (int i = 1; i < 6; i++) {
        y[i] = pair_new(p, y_bytes);
        memcpy(y[i], y[0], y_bytes);
    }
    struct product_args args = {.type = type,
                                .weights = weights,
                                .n_in = s->n_in,
                                .n_out = s->n_out,
                                .n_rows = s->n_rows,
                                .x = x,
                                .bias = s->biased ? bias : NULL,
                                .y = y[0],
                                .accumulate = s->accumulate};
    static const size_t batches[5] = {SIZE_MAX, 1, 2, 3, 8};
    cr_assert_eq(p->fast->product(&args, p->cpu.stream), 0);
    for (int b = 0; b < 5; b++)
        for (size_t r = 0; r < s->n_rows; r += batches[b] < s->n_rows ? batches[b] : s->n_rows)
            rows_compute(p, args, y[b + 1], r,
                         s->n_rows - r < batches[b] ? s->n_rows - r : batches[b]);
    pair_wait(p);
    for (int b = 1; b < 5; b++)
        cr_assert_eq(memcmp(y[1], y[b + 1], y_bytes), 0,
                     "type %u, %zu x %zu: other bits by %zu rows", type, s->n_out, s->n_in,
                     batches[b]);
    near_check(p, &args, y[0], y[1]);
}

Test(cuda_product_plain, is_near_the_cpu_and_the_same_in_any_batch)
{
    static const struct shape shapes[] = {
        {2048, 100, 21, false, false, 0}, {768, 257, 9, true, true, 0},
        {36, 33, 70, true, false, 0},     {101, 17, 12, false, true, 0},
        {4096, 3, 4, false, false, 0},    {1, 1, 3, true, true, 0},
        {130, 64, 64, false, false, 0},   {256, 40, 11, true, false, 2},
        {256, 40, 11, false, false, 4},
    };
    struct pair p = pair_open();
    for (size_t t = 0; t < N_PLAIN_TYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            if (shapes[i].shift != 2 || plain_types[t] != TENSOR_F32)
                product_check(&p, plain_types[t], &shapes[i]);
    pair_close(&p);
}
