/* experts_layer.h - a layer's experts held on a CUDA card against the CPU's: inputs that both see, results of both, and the checks that
 * every launcher of quantised experts has to pass, for a handful of rows and for hundreds alike.
 *
 * A test names what differs (struct experts_way) and calls the checks. All memory lives as long as the test's process.
 */
#pragma once
#include "pair.h"
#include "bits.h"

enum { N_EXPERTS = 9, N_USED = 4 };

struct layer;

struct experts_way {
    size_t rows_max;
    const size_t *counts; /* of rows, that are checked; [n_counts] */
    size_t n_counts;
    bool against_fast; /* the quickest CPU set; else the plain reference */
    uint64_t seed;
    int (*experts)(const struct experts_args *,
                   struct exec_stream *); /* on the card; NULL: its set's */
    /* Fills l->ids, in another way each turn. */
    void (*route)(struct layer *l, size_t turn);
};

struct layer {
    const struct experts_way *way;
    struct pair pair;
    const struct kernel_set *cpu;
    uint32_t types[3]; /* gate, up, down */
    size_t d_model, d_expert;
    struct expert_address *addresses;
    float *x;
    int32_t *ids;            /* [rows_max][N_USED] */
    void *a[2], *scratch[2]; /* CPU, CUDA; so are all below */
    float *outputs[2];
    uint32_t *heat[2], *hits[2];
};

static inline const void *matrix_at(struct layer *l, int which, size_t offset, uint64_t *state)
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
static inline struct layer layer_open(const struct experts_way *way, const uint32_t types[3],
                                      size_t d_model, size_t d_expert, size_t offset)
{
    struct layer l = {.way = way, .pair = pair_open(), .d_model = d_model, .d_expert = d_expert};
    l.cpu = way->against_fast ? l.pair.fast : l.pair.reference;
    const struct kernel_set *sets[] = {l.cpu, l.pair.cuda};
    const size_t rows_max = way->rows_max;
    uint64_t state = way->seed + types[0] + 100 * types[2];
    memcpy(l.types, types, sizeof l.types);
    l.addresses = pair_new(&l.pair, N_EXPERTS * sizeof *l.addresses);
    for (size_t e = 0; e < N_EXPERTS; e++)
        l.addresses[e] = (struct expert_address){matrix_at(&l, 0, offset, &state),
                                                 matrix_at(&l, 1, offset, &state),
                                                 matrix_at(&l, 2, offset, &state), e % 2, 0};
    l.x = pair_take(&l.pair, values_of(rows_max * d_model, INPUT_RANDOM, &state),
                    rows_max * d_model * sizeof(float));
    for (size_t i = 0; i < rows_max * d_model; i++)
        l.x[i] *= 0.02f; /* keeps SwiGLU in the range where it bends */
    l.ids = pair_new(&l.pair, rows_max * N_USED * sizeof *l.ids);
    for (int i = 0; i < 2; i++) {
        l.a[i] = pair_new(&l.pair, rows_max * sets[i]->activation_bytes(d_model));
        l.scratch[i] = pair_new(&l.pair, sets[i]->experts_scratch_bytes(rows_max, N_USED, N_EXPERTS,
                                                                        d_model, d_expert));
        l.outputs[i] = pair_new(&l.pair, rows_max * N_USED * d_model * sizeof(float));
        l.heat[i] = pair_new(&l.pair, N_EXPERTS * sizeof(uint32_t));
        l.hits[i] = pair_new(&l.pair, rows_max * sizeof(uint32_t));
    }
    return l;
}

static inline struct experts_args args_of(const struct layer *l, int i, size_t n_rows)
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

static inline void results_clear(struct layer *l)
{
    for (int i = 0; i < 2; i++) {
        memset(l->outputs[i], 0xcd, l->way->rows_max * N_USED * l->d_model * sizeof(float));
        memset(l->heat[i], 0, N_EXPERTS * sizeof(uint32_t));
        memset(l->hits[i], 0, l->way->rows_max * sizeof(uint32_t));
    }
}

static inline void run_cpu(struct layer *l, size_t n_rows)
{
    struct experts_args args = args_of(l, 0, n_rows);
    struct quantize_args q = {l->x, l->a[0], n_rows, l->d_model};
    cr_assert_eq(l->cpu->quantize(&q, l->pair.cpu.stream), 0);
    cr_assert_eq(l->cpu->experts(&args, l->pair.cpu.stream), 0);
}

static inline void run_cuda(struct layer *l, size_t n_rows)
{
    struct experts_args args = args_of(l, 1, n_rows);
    struct quantize_args q = {l->x, l->a[1], n_rows, l->d_model};
    cr_assert_eq(l->pair.cuda->quantize(&q, l->pair.stream), 0);
    int (*experts)(const struct experts_args *, struct exec_stream *) =
        l->way->experts != NULL ? l->way->experts : l->pair.cuda->experts;
    cr_assert_eq(experts(&args, l->pair.stream), 0);
}

/* Pairs without an expert keep their 0xcd bytes in both. */
static inline void results_compare(struct layer *l, size_t n_rows)
{
    pair_wait(&l->pair);
    for (size_t pair = 0; pair < n_rows * N_USED; pair++)
        cr_assert(bits_agree(l->outputs[0] + pair * l->d_model, l->outputs[1] + pair * l->d_model,
                             l->d_model),
                  "types %u %u %u, %zu rows, pair %zu", l->types[0], l->types[1], l->types[2],
                  n_rows, pair);
    cr_assert_eq(memcmp(l->heat[0], l->heat[1], N_EXPERTS * sizeof(uint32_t)), 0);
    cr_assert_eq(memcmp(l->hits[0], l->hits[1], l->way->rows_max * sizeof(uint32_t)), 0);
}

static inline void layer_check(const struct experts_way *way, const uint32_t types[3],
                               size_t d_model, size_t d_expert, size_t offset)
{
    struct layer l = layer_open(way, types, d_model, d_expert, offset);
    for (size_t i = 0; i < way->n_counts; i++) {
        way->route(&l, i);
        results_clear(&l);
        run_cpu(&l, way->counts[i]);
        run_cuda(&l, way->counts[i]);
        results_compare(&l, way->counts[i]);
    }
    pair_close(&l.pair);
}

static inline void check_every_type(const struct experts_way *way, size_t d_model,
                                    bool odd_addresses)
{
    for (size_t t = 0; t < N_QUANTISED_TYPES; t++) {
        const uint32_t types[] = {quantised_types[t], quantised_types[t], quantised_types[t]};
        layer_check(way, types, d_model, 256, odd_addresses ? 2 + 4 * (t % 4) : 0);
    }
}

static inline void check_mixed_types(const struct experts_way *way)
{
    static const uint32_t mixes[][3] = {
        {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K}, {TENSOR_Q6_K, TENSOR_Q8_0, TENSOR_Q4_K},
        {TENSOR_Q3_K, TENSOR_Q2_K, TENSOR_Q5_0}, {TENSOR_Q2_K, TENSOR_Q4_K, TENSOR_Q8_0},
        {TENSOR_Q5_1, TENSOR_Q4_0, TENSOR_Q3_K}, {TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q2_K},
        {TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q4_1}};
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
        layer_check(way, mixes[i], 256, 512, 0);
}

static inline void check_real_shape(const struct experts_way *way)
{
    static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K};
    layer_check(way, types, 2048, 768, 0);
}

static inline void check_odd_widths(const struct experts_way *way)
{
    static const uint32_t types[][3] = {{TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0},
                                        {TENSOR_Q5_1, TENSOR_Q4_0, TENSOR_Q5_0}};
    for (size_t i = 0; i < 2; i++)
        layer_check(way, types[i], 288, 96, 0);
}

/* A recorded launch reads routing and addresses when it runs. */
static inline void check_recorded(const struct experts_way *way)
{
    static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K};
    struct layer l = layer_open(way, types, 512, 256, 0);
    struct exec_graph *graph = NULL;
    struct error err = {0};
    cr_assert_eq(exec_cuda.capture_begin(l.pair.stream), 0);
    run_cuda(&l, way->rows_max);
    cr_assert_eq(exec_cuda.capture_end(l.pair.stream, &graph, &err), 0, "%s", err.text);
    for (size_t turn = 0; turn < 5; turn++) {
        struct expert_address first = l.addresses[0];
        way->route(&l, turn);
        results_clear(&l);
        memmove(l.addresses, l.addresses + 1, (N_EXPERTS - 1) * sizeof first);
        l.addresses[N_EXPERTS - 1] = first;
        run_cpu(&l, way->rows_max);
        cr_assert_eq(exec_cuda.graph_launch(graph, l.pair.stream), 0);
        results_compare(&l, way->rows_max);
    }
    exec_cuda.graph_close(graph);
    pair_close(&l.pair);
}
