/* experts_plain_test.c - experts with unquantised matrices on the card: near the CPU's, the same bits in any batch, heat and hits
 * exact; where a mixture's inexact steps cannot show, the CPU's bits. */
#include "pair.h"

enum { EXPERTS = 11, USED = 3, ROWS = 40 };

struct shape {
    uint32_t types[3]; /* gate, up, down */
    size_t d_model, d_expert;
};

struct world {
    struct shape shape;
    struct expert_address *addresses;
    float *x;
    int32_t *ids;
};

static bool quantised(uint32_t type)
{
    return tensor_type_find(type)->block_values > 1;
}

/* A matrix, now and then at an address that is only even. */
static void *matrix_new(struct pair *p, uint32_t type, size_t n_in, size_t n_out, size_t expert,
                        uint64_t *state)
{
    size_t bytes = tensor_row_bytes(type, n_in) * n_out, shift = type == TENSOR_F32 ? 4 : 2;
    void *made = weights_of(type, n_in, n_out, INPUT_RANDOM, state);
    uint8_t *to = (uint8_t *)pair_new(p, bytes + shift) + (expert % 3 == 1 ? shift : 0);
    memcpy(to, made, bytes);
    free(made);
    return to;
}

static struct world world_new(struct pair *p, struct shape shape)
{
    struct world w = {.shape = shape};
    uint64_t state = 61 + shape.d_model;
    const size_t model = shape.d_model, hidden = shape.d_expert;
    w.addresses = pair_new(p, EXPERTS * sizeof *w.addresses);
    for (size_t e = 0; e < EXPERTS; e++)
        w.addresses[e] = (struct expert_address){
            matrix_new(p, shape.types[0], model, hidden, e, &state),
            matrix_new(p, shape.types[1], model, hidden, e, &state),
            matrix_new(p, shape.types[2], hidden, model, e, &state), e % 4 != 0, 0};
    w.x = pair_take(p, values_of(ROWS * model, INPUT_RANDOM, &state), ROWS * model * sizeof(float));
    w.ids = pair_new(p, ROWS * USED * sizeof *w.ids);
    for (int i = 0; i < ROWS * USED; i++)
        w.ids[i] = i / USED % 9 == 4 ? -1 : (i / USED * (i / USED) + 4 * (i % USED)) % EXPERTS;
    return w;
}

struct result {
    float *outputs;
    uint32_t *heat, *hits;
};

/* All rows by steps of `batch`. */
static struct result world_run(struct pair *p, const struct world *w, const struct kernel_set *set,
                               struct exec_stream *s, size_t batch)
{
    const size_t model = w->shape.d_model, hidden = w->shape.d_expert;
    struct result r = {pair_new(p, ROWS * USED * model * sizeof(float)), pair_new(p, EXPERTS * 4),
                       pair_new(p, ROWS * 4)};
    void *scratch = pair_new(p, set->experts_scratch_bytes(batch, USED, EXPERTS, model, hidden));
    void *a = pair_new(p, batch * set->activation_bytes((model + 31) / 32 * 32));
    for (size_t row = 0; row < ROWS; row += batch) {
        size_t n = ROWS - row < batch ? ROWS - row : batch;
        bool reads_a = quantised(w->shape.types[0]) || quantised(w->shape.types[1]);
        struct quantize_args quantize = {w->x + row * model, a, n, model};
        struct experts_args args = {.gate_type = w->shape.types[0],
                                    .up_type = w->shape.types[1],
                                    .down_type = w->shape.types[2],
                                    .addresses = w->addresses,
                                    .d_model = model,
                                    .d_expert = hidden,
                                    .n_experts = EXPERTS,
                                    .n_used = USED,
                                    .n_rows = n,
                                    .x = w->x + row * model,
                                    .a = reads_a ? a : NULL,
                                    .ids = w->ids + row * USED,
                                    .scratch = scratch,
                                    .outputs = r.outputs + row * USED * model,
                                    .heat = r.heat,
                                    .hits = r.hits + row};
        if (reads_a)
            cr_assert_eq(set->quantize(&quantize, s), 0);
        cr_assert_eq(set->experts(&args, s), 0);
    }
    pair_wait(p);
    return r;
}

/* Root of the mean square of the difference against that of the outputs. A quantised down matrix may see a hidden value fall on
 * the other side of a rounding step, which moves an output by a fraction of a hundredth. */
static void results_near(const struct world *w, const struct result *want, const struct result *got)
{
    double limit = quantised(w->shape.types[2]) ? 2e-3 : 5e-6, size = 0, error = 0;
    for (size_t i = 0; i < ROWS * USED * w->shape.d_model; i++) {
        size += pow(want->outputs[i], 2);
        error += pow((double)want->outputs[i] - got->outputs[i], 2);
    }
    cr_assert_leq(sqrt(error), limit * sqrt(size), "types %u %u %u: %g of %g", w->shape.types[0],
                  w->shape.types[1], w->shape.types[2], sqrt(error), sqrt(size));
}

static void world_check(struct pair *p, struct shape shape)
{
    struct world w = world_new(p, shape);
    struct result want = world_run(p, &w, p->fast, p->cpu.stream, ROWS);
    struct result all = world_run(p, &w, p->cuda, p->stream, ROWS);
    static const size_t batches[] = {1, 7};
    for (size_t b = 0; b < 2; b++) {
        struct result part = world_run(p, &w, p->cuda, p->stream, batches[b]);
        cr_assert_eq(memcmp(all.outputs, part.outputs, ROWS * USED * shape.d_model * sizeof(float)),
                     0, "types %u %u %u: other bits by %zu rows", shape.types[0], shape.types[1],
                     shape.types[2], batches[b]);
        cr_assert_eq(memcmp(all.heat, part.heat, EXPERTS * 4), 0);
    }
    cr_assert_eq(memcmp(want.heat, all.heat, EXPERTS * 4), 0);
    cr_assert_eq(memcmp(want.hits, all.hits, ROWS * 4), 0);
    results_near(&w, &want, &all);
}

Test(cuda_experts_plain, are_near_the_cpu_and_the_same_in_any_batch)
{
    static const struct shape shapes[] = {
        {{TENSOR_BF16, TENSOR_BF16, TENSOR_BF16}, 256, 96},
        {{TENSOR_F16, TENSOR_F16, TENSOR_F16}, 100, 36},
        {{TENSOR_F32, TENSOR_F16, TENSOR_BF16}, 18, 2},
        {{TENSOR_F32, TENSOR_F32, TENSOR_F32}, 6, 70},
        {{TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_F16}, 512, 32},
        {{TENSOR_BF16, TENSOR_Q6_K, TENSOR_Q8_0}, 256, 64},
        {{TENSOR_F32, TENSOR_F32, TENSOR_Q2_K}, 128, 256},
        {{TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_F32}, 96, 33},
    };
    struct pair p = pair_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        world_check(&p, shapes[i]);
    pair_close(&p);
}

/* Down is the unit matrix in F32, so its sums have one term and the outputs are the hidden values, which must be the CPU's. */
Test(cuda_experts_plain, keep_the_cpus_bits_in_their_quantised_matrices)
{
    enum { MODEL = 1280 };
    struct pair p = pair_open();
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        struct world w = world_new(
            &p, (struct shape){{quantised_types[t], quantised_types[t], TENSOR_F32}, MODEL, 64});
        float *unit = pair_new(&p, MODEL * 64 * sizeof *unit);
        for (size_t i = 0; i < 64; i++)
            unit[i * 64 + i] = 1;
        for (size_t e = 0; e < EXPERTS; e++)
            w.addresses[e].down = unit;
        struct result want = world_run(&p, &w, p.reference, p.cpu.stream, ROWS);
        struct result got = world_run(&p, &w, p.cuda, p.stream, ROWS);
        for (size_t i = 0; i < ROWS * USED * MODEL; i++)
            cr_assert(want.outputs[i] == got.outputs[i] ||
                          (isnan(want.outputs[i]) && isnan(got.outputs[i])),
                      "type %u, %zu: %a, got %a", quantised_types[t], i, want.outputs[i],
                      got.outputs[i]);
    }
    pair_close(&p);
}
