/* experts_tiles_test.c - the experts of many rows on the tensor cores: the bits, heat and hits of the CPU, whatever the types,
 * shapes, routing and addresses; ids and addresses are read when the work runs. */
#include "kernels/ops_cuda.h"
#include "pair.h"
#include "bits.h"

enum { N_EXPERTS = 9, N_USED = 4, ROWS_MAX = 300 };

struct layer {
    struct pair pair;
    uint32_t types[3]; /* gate, up, down */
    size_t d_model, d_expert;
    struct expert_address *addresses;
    float *x;
    int32_t *ids;
    void *a[2], *scratch[2]; /* CPU, CUDA; so are all below */
    float *outputs[2];
    uint32_t *heat[2], *hits[2];
};

static const void *matrix_at(struct layer *l, int which, size_t offset, uint64_t *state)
{
    size_t n_in = which < 2 ? l->d_model : l->d_expert,
           n_out = which < 2 ? l->d_expert : l->d_model;
    size_t bytes = tensor_row_bytes(l->types[which], n_in) * n_out;
    uint8_t *to = pair_new(&l->pair, bytes + offset);
    void *made = weights_of(l->types[which], n_in, n_out, INPUT_RANDOM, state);
    memcpy(to + offset, made, bytes);
    free(made);
    return to + offset;
}

/* Every matrix `offset` bytes past a multiple of 256. */
static struct layer layer_open(const uint32_t types[3], size_t d_model, size_t d_expert,
                               size_t offset)
{
    struct layer l = {.pair = pair_open(), .d_model = d_model, .d_expert = d_expert};
    const struct kernel_set *sets[] = {l.pair.fast, l.pair.cuda};
    uint64_t state = 78 + types[0] + 100 * types[2];
    memcpy(l.types, types, sizeof l.types);
    l.addresses = pair_new(&l.pair, N_EXPERTS * sizeof *l.addresses);
    for (size_t e = 0; e < N_EXPERTS; e++)
        l.addresses[e] = (struct expert_address){matrix_at(&l, 0, offset, &state),
                                                 matrix_at(&l, 1, offset, &state),
                                                 matrix_at(&l, 2, offset, &state), e % 2, 0};
    l.x = pair_take(&l.pair, values_of(ROWS_MAX * d_model, INPUT_RANDOM, &state),
                    ROWS_MAX * d_model * sizeof(float));
    for (size_t i = 0; i < ROWS_MAX * d_model; i++)
        l.x[i] *= 0.02f; /* keeps SwiGLU in the range where it bends */
    l.ids = pair_new(&l.pair, ROWS_MAX * N_USED * sizeof *l.ids);
    for (int i = 0; i < 2; i++) {
        l.a[i] = pair_new(&l.pair, ROWS_MAX * sets[i]->activation_bytes(d_model));
        l.scratch[i] = pair_new(&l.pair, sets[i]->experts_scratch_bytes(ROWS_MAX, N_USED, N_EXPERTS,
                                                                        d_model, d_expert));
        l.outputs[i] = pair_new(&l.pair, ROWS_MAX * N_USED * d_model * sizeof(float));
        l.heat[i] = pair_new(&l.pair, N_EXPERTS * sizeof(uint32_t));
        l.hits[i] = pair_new(&l.pair, ROWS_MAX * sizeof(uint32_t));
    }
    return l;
}

/* Different experts for each rank of a row, expert 8 rare; every eighth row has none, and now and then an id is out of range. */
static void route(struct layer *l, size_t turn)
{
    for (size_t r = 0; r < ROWS_MAX; r++)
        for (size_t rank = 0; rank < N_USED; rank++)
            l->ids[r * N_USED + rank] = r % 8 == 3     ? -1
                                        : r % 64 == 33 ? 8 - (int32_t)rank
                                                       : (int32_t)((r * r + 3 * rank + turn) % 8);
    l->ids[5 * N_USED + 2] = -1;
    l->ids[6 * N_USED + 1] = N_EXPERTS;
}

static struct experts_args args_of(const struct layer *l, int i, size_t n_rows)
{
    return (struct experts_args){.gate_type = l->types[0],
                                 .up_type = l->types[1],
                                 .down_type = l->types[2],
                                 .addresses = l->addresses,
                                 .d_model = l->d_model,
                                 .d_expert = l->d_expert,
                                 .n_experts = N_EXPERTS,
                                 .n_used = N_USED,
                                 .n_rows = n_rows,
                                 .x = l->x,
                                 .a = l->a[i],
                                 .ids = l->ids,
                                 .scratch = l->scratch[i],
                                 .outputs = l->outputs[i],
                                 .heat = l->heat[i],
                                 .hits = l->hits[i]};
}

static void results_clear(struct layer *l)
{
    for (int i = 0; i < 2; i++) {
        memset(l->outputs[i], 0xcd, ROWS_MAX * N_USED * l->d_model * sizeof(float));
        memset(l->heat[i], 0, N_EXPERTS * sizeof(uint32_t));
        memset(l->hits[i], 0, ROWS_MAX * sizeof(uint32_t));
    }
}

static void run_cpu(struct layer *l, size_t n_rows)
{
    struct experts_args args = args_of(l, 0, n_rows);
    struct quantize_args q = {l->x, l->a[0], n_rows, l->d_model};
    cr_assert_eq(l->pair.fast->quantize(&q, l->pair.cpu.stream), 0);
    cr_assert_eq(l->pair.fast->experts(&args, l->pair.cpu.stream), 0);
}

static void run_cuda(struct layer *l, size_t n_rows)
{
    struct experts_args args = args_of(l, 1, n_rows);
    struct quantize_args q = {l->x, l->a[1], n_rows, l->d_model};
    cr_assert_eq(l->pair.cuda->quantize(&q, l->pair.stream), 0);
    cr_assert_eq(experts_tiles_cuda(&args, l->pair.stream), 0);
}

/* Pairs without an expert keep their 0xcd bytes in both. */
static void results_compare(struct layer *l, size_t n_rows)
{
    pair_wait(&l->pair);
    for (size_t pair = 0; pair < n_rows * N_USED; pair++)
        cr_assert(bits_agree(l->outputs[0] + pair * l->d_model, l->outputs[1] + pair * l->d_model,
                             l->d_model),
                  "types %u %u %u, %zu rows, pair %zu", l->types[0], l->types[1], l->types[2],
                  n_rows, pair);
    cr_assert_eq(memcmp(l->heat[0], l->heat[1], N_EXPERTS * sizeof(uint32_t)), 0);
    cr_assert_eq(memcmp(l->hits[0], l->hits[1], ROWS_MAX * sizeof(uint32_t)), 0);
}

static void layer_check(struct layer *l)
{
    static const size_t counts[] = {1, 3, 8, 9, 16, 40, 77, ROWS_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        route(l, i);
        results_clear(l);
        run_cpu(l, counts[i]);
        run_cuda(l, counts[i]);
        results_compare(l, counts[i]);
    }
    pair_close(&l->pair);
}

Test(experts_tiles, have_the_bits_and_counts_of_the_cpu_for_every_type, .timeout = 300)
{
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        const uint32_t types[] = {quantised_types[t], quantised_types[t], quantised_types[t]};
        struct layer l = layer_open(types, 512, 256, 0);
        layer_check(&l);
    }
}

Test(experts_tiles, may_have_matrices_of_different_types, .timeout = 300)
{
    static const uint32_t mixes[][3] = {
        {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K}, {TENSOR_Q6_K, TENSOR_Q8_0, TENSOR_Q4_K},
        {TENSOR_Q3_K, TENSOR_Q2_K, TENSOR_Q5_0}, {TENSOR_Q2_K, TENSOR_Q4_K, TENSOR_Q8_0},
        {TENSOR_Q5_1, TENSOR_Q4_0, TENSOR_Q3_K}, {TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q2_K},
        {TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q4_1}};
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        struct layer l = layer_open(mixes[i], 256, 512, 0);
        layer_check(&l);
    }
}

Test(experts_tiles, have_the_bits_of_the_cpu_in_a_real_models_shape, .timeout = 300)
{
    static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K};
    struct layer l = layer_open(types, 2048, 768, 0);
    layer_check(&l);
}

Test(experts_tiles, may_be_of_widths_that_are_no_multiple_of_anything_but_a_block, .timeout = 300)
{
    static const uint32_t types[][3] = {{TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0},
                                        {TENSOR_Q5_1, TENSOR_Q4_0, TENSOR_Q5_0}};
    for (size_t i = 0; i < 2; i++) {
        struct layer l = layer_open(types[i], 288, 96, 0);
        layer_check(&l);
    }
}

Test(experts_tiles, may_lie_at_any_even_address, .timeout = 300)
{
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        const uint32_t types[] = {quantised_types[t], quantised_types[t], quantised_types[t]};
        struct layer l = layer_open(types, 256, 256, 2 + 4 * (t % 4));
        layer_check(&l);
    }
}

Test(experts_tiles, read_routing_and_addresses_when_a_recorded_launch_runs)
{
    static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K};
    struct layer l = layer_open(types, 512, 256, 0);
    struct exec_graph *graph = NULL;
    struct error err = {0};
    cr_assert_eq(exec_cuda.capture_begin(l.pair.stream), 0);
    run_cuda(&l, ROWS_MAX);
    cr_assert_eq(exec_cuda.capture_end(l.pair.stream, &graph, &err), 0, "%s", err.text);
    for (size_t turn = 0; turn < 5; turn++) {
        struct expert_address first = l.addresses[0];
        route(&l, turn);
        results_clear(&l);
        memmove(l.addresses, l.addresses + 1, (N_EXPERTS - 1) * sizeof first);
        l.addresses[N_EXPERTS - 1] = first;
        run_cpu(&l, ROWS_MAX);
        cr_assert_eq(exec_cuda.graph_launch(graph, l.pair.stream), 0);
        results_compare(&l, ROWS_MAX);
    }
    exec_cuda.graph_close(graph);
    pair_close(&l.pair);
}

Test(experts_tiles, refuse_what_they_do_not_compute_without_a_launch)
{
    struct pair p = pair_open();
    struct experts_args args = {.gate_type = TENSOR_Q4_K, .up_type = TENSOR_Q4_K};
    args.down_type = TENSOR_Q4_K, args.d_model = 256, args.d_expert = 128;
    args.n_rows = 9, args.n_used = 1;
    cr_assert_eq(experts_tiles_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.d_expert = 256, args.n_used = EXPERTS_USED_MAX + 1;
    cr_assert_eq(experts_tiles_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_used = 1, args.down_type = TENSOR_F16;
    cr_assert_eq(experts_tiles_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
