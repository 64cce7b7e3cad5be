/* tools/bench/card_products.c - products and experts on one card, in graphs, beside the speed of copying its memory.
 *
 * Weights of one type fill a buffer that no cache of the card holds, as matrix behind matrix. A graph runs the product of one
 * matrix after the other, once round the buffer: that is how a token's launches follow one another, so a launch's own time is in
 * the figure. Runs of the graph and copies of as many bytes take turns. A copy counts what it reads and writes, so a product that
 * reaches it reads as fast as the card's memory gives. With many rows a product is bound by arithmetic: those are told in
 * multiply-adds a second.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/bench/card.h"
#include "tools/make-model/fill.h"

#define MIB        ((size_t)1 << 20)
#define RUNS_MAX   15
#define COUNT(a)   (sizeof(a) / sizeof(a)[0])
#define ROWS_MAX   512
#define N_IN_MAX   4096
#define OUT_VALUES ((size_t)ROWS_MAX * 4096) /* also of one row of the widest shape */
#define N_EXPERTS  128
#define N_USED     8
#define N_LAUNCHES (N_EXPERTS / N_USED)

struct matrix_shape {
    size_t n_out, n_in;
};

static const struct matrix_shape shapes[] = {
    {4096, 2048},   /* the queries' projection, Qwen3-30B-A3B */
    {2048, 4096},   /* what follows attention */
    {512, 2048},    /* keys */
    {151936, 2048}, /* its output */
    {4096, 4096},   /* Mixtral's */
};
static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q5_K,
                                 TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                                 TENSOR_F16,  TENSOR_BF16, TENSOR_F32};
static const size_t few_rows[] = {2, 8}, many_rows[] = {64, 512};

/* What the card holds; all of it is given back with the card. */
struct place {
    struct card card;
    const struct bench_settings *settings;
    unsigned char *weights, *elsewhere; /* [capacity] each: copies go from the first to the other */
    size_t capacity;
    float *x, *y;
    void *a, *staging; /* staging: ours, STAGING_BYTES */
    int n_runs;
    struct error
        uncomputed; /* the first that the kernels do not compute: noted, and told at the end */
};
#define STAGING_BYTES (32 * MIB)

/* A graph of products, what it reads, and how often it runs in one measurement. */
struct lap {
    struct exec_graph *graph;
    size_t bytes, n_repeats;
    double macs;
};

static void lap_close(struct place *p, struct lap *lap)
{
    if (lap->graph != NULL)
        p->card.driver->graph_close(lap->graph);
    lap->graph = NULL;
}

/* Median and best seconds of one lap, and of copying as many bytes. */
struct lap_times {
    double lap, copy, best_lap, best_copy;
};

static int lap_run(struct place *p, const struct lap *lap, double *seconds, struct error *err)
{
    double begin = bench_now();
    int code = 0;
    for (size_t i = 0; i < lap->n_repeats && code == 0; i++)
        code = p->card.driver->graph_launch(lap->graph, p->card.stream);
    if (code != 0)
        return error_set(err, code, "the card takes no graph");
    code = card_wait(&p->card, err);
    *seconds = (bench_now() - begin) / (double)lap->n_repeats;
    return code;
}

static int lap_measure(struct place *p, struct lap *lap, struct lap_times *t, struct error *err)
{
    double laps[RUNS_MAX], copies[RUNS_MAX], once = 1;
    size_t copied = p->capacity / 2; /* read and written: as many bytes as the buffer has */
    lap->n_repeats = 1;
    int code = lap_run(p, lap, &once, err);
    if (code == 0)
        code = lap_run(p, lap, &once, err);
    lap->n_repeats = once < 5e-3 ? (size_t)(5e-3 / once) + 1 : 1;
    for (int i = -1; i < p->n_runs && code == 0; i++) { /* the first warms up */
        code = lap_run(p, lap, &laps[i < 0 ? 0 : i], err);
        if (code == 0)
            code = card_copy_time(&p->card, p->elsewhere, p->weights, copied,
                                  &copies[i < 0 ? 0 : i], err);
    }
    if (code != 0)
        return code;
    t->lap = bench_median(laps, p->n_runs);
    t->copy = bench_median(copies, p->n_runs) * (double)lap->bytes / (2.0 * (double)copied);
    t->best_lap = laps[0]; /* sorted by now */
    t->best_copy = copies[0] * (double)lap->bytes / (2.0 * (double)copied);
    return 0;
}

static void bytes_row(struct row *row, const struct place *p, const struct lap *lap,
                      const struct lap_times *t)
{
    double gb = (double)lap->bytes * 1e-9;
    row->unit = "GB/s";
    row->n_runs = p->n_runs;
    row->value = gb / t->lap;
    row->against = gb / t->copy;
    row->best = gb / t->best_lap;
    row->best_against = gb / t->best_copy;
}

static int capture_end(struct place *p, struct lap *lap, int launched, const char *what,
                       struct error *err)
{
    struct error ignored = {0};
    int code =
        p->card.driver->capture_end(p->card.stream, &lap->graph, launched == 0 ? err : &ignored);
    return launched != 0 ? error_set(err, launched, "%s: the kernels %s do not compute it", what,
                                     p->card.set->name)
                         : code;
}

/* Quantises rows of x, then records. */
static int capture_start(struct place *p, size_t n_rows, size_t n_in, struct error *err)
{
    struct quantize_args args = {p->x, p->a, n_rows, n_in};
    int code = p->card.set->quantize(&args, p->card.stream);
    if (code != 0)
        return error_set(err, code, "rows of %zu values are not quantised", n_in);
    code = card_wait(&p->card, err);
    if (code == 0 && p->card.driver->capture_begin(p->card.stream) != 0)
        code = error_set(err, EBB_EDRIVER, "the card records no graph");
    return code;
}

/* Products of n_rows rows by n matrices behind one another. */
static int product_lap(struct place *p, uint32_t type, struct matrix_shape shape, size_t n_rows,
                       size_t n, struct lap *lap, struct error *err)
{
    const struct kernel_set *set = p->card.set;
    size_t matrix_bytes = tensor_row_bytes(type, shape.n_in) * shape.n_out;
    struct product_args args = {.type = type,
                                .n_in = shape.n_in,
                                .n_out = shape.n_out,
                                .n_rows = n_rows,
                                .x = p->x,
                                .a = tensor_type_find(type)->block_values > 1 ? p->a : NULL,
                                .y = p->y};
    *lap = (struct lap){.bytes = n * matrix_bytes,
                        .macs = (double)(n * shape.n_out * shape.n_in * n_rows)};
    int code = capture_start(p, n_rows, shape.n_in, err);
    if (code != 0)
        return code;
    for (size_t i = 0; i < n && code == 0; i++) {
        args.weights = p->weights + i * matrix_bytes;
        code = set->product(&args, p->card.stream);
    }
    return capture_end(p, lap, code, tensor_type_find(type)->name, err);
}

static void row_name(struct row *row, uint32_t type, struct matrix_shape shape, size_t n_rows)
{
    (void)snprintf(row->type, sizeof row->type, "%s", tensor_type_find(type)->name);
    if (n_rows == 1)
        (void)snprintf(row->shape, sizeof row->shape, "%zu x %zu", shape.n_out, shape.n_in);
    else
        (void)snprintf(row->shape, sizeof row->shape, "%zu x %zu; %zu rows", shape.n_out,
                       shape.n_in, n_rows);
}

/* Bound by bytes: one row, or a few. */
static int few_measure(struct place *p, uint32_t type, struct matrix_shape shape, size_t n_rows,
                       struct report *r, struct error *err)
{
    struct lap lap = {0};
    struct lap_times t;
    struct row row = {.what = n_rows == 1 ? "matrix-vector" : "matrix-few-rows"};
    size_t n = p->capacity / (tensor_row_bytes(type, shape.n_in) * shape.n_out);
    if (n == 0)
        return 0;
    int code = product_lap(p, type, shape, n_rows, n, &lap, err);
    if (code == 0)
        code = lap_measure(p, &lap, &t, err);
    if (code == 0) {
        bytes_row(&row, p, &lap, &t);
        row_name(&row, type, shape, n_rows);
        report_row(r, &row);
    }
    lap_close(p, &lap);
    return code;
}

/* Bound by arithmetic. */
static int many_measure(struct place *p, uint32_t type, size_t n_rows, struct row *row,
                        struct error *err)
{
    struct matrix_shape shape = {4096, 2048};
    struct lap lap = {0};
    struct lap_times t;
    *row = (struct row){.what = "matrix-rows", .unit = "GMAC/s", .n_runs = p->n_runs};
    size_t n_stored = p->capacity / (tensor_row_bytes(type, shape.n_in) * shape.n_out);
    int code = product_lap(p, type, shape, n_rows, n_stored < 8 ? n_stored : 8, &lap, err);
    if (code == 0)
        code = lap_measure(p, &lap, &t, err);
    if (code == 0) {
        row->value = lap.macs * 1e-9 / t.lap;
        row_name(row, type, shape, n_rows);
    }
    lap_close(p, &lap);
    return code;
}

/* Blocks of the type all over the buffer. */
static int weights_put(struct place *p, uint32_t type, struct error *err)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    size_t n_blocks = STAGING_BYTES / info->block_bytes / 4 * 4;
    struct fill fill;
    fill_open(&fill, type, 0, 0.02, type + 1);
    fill_blocks(&fill, 0, n_blocks, p->staging);
    return card_put(&p->card, p->weights, p->capacity, p->staging, n_blocks * info->block_bytes,
                    err);
}

/* The experts of a layer of Qwen3-30B-A3B for one row: their matrices in the buffer, eight others at every launch. */
struct experts_place {
    size_t d_model, d_expert, expert_bytes;
    struct expert_address *addresses; /* [N_EXPERTS], the card's */
    int32_t *ids;                     /* [N_LAUNCHES][N_USED], the card's */
    uint32_t *heat, *hits;
    void *scratch;
    float *outputs;
};

static int experts_take(struct place *p, uint32_t type, struct experts_place *e, struct error *err)
{
    struct expert_address addresses[N_EXPERTS];
    int32_t ids[N_EXPERTS];
    unsigned char *base;
    *e = (struct experts_place){.d_model = 2048, .d_expert = 768};
    size_t in_bytes = tensor_row_bytes(type, e->d_model) * e->d_expert;
    size_t out_bytes = tensor_row_bytes(type, e->d_expert) * e->d_model;
    size_t scratch =
        p->card.set->experts_scratch_bytes(1, N_USED, N_EXPERTS, e->d_model, e->d_expert);
    e->expert_bytes = (2 * in_bytes + out_bytes + 255) / 256 * 256;
    size_t n_stored = p->capacity / e->expert_bytes;
    for (size_t i = 0; i < N_EXPERTS; i++) {
        const unsigned char *at = p->weights + i % n_stored * e->expert_bytes;
        addresses[i] = (struct expert_address){at, at + in_bytes, at + 2 * in_bytes, 1, 0};
        ids[i] = (int32_t)i;
    }
    int code = card_take(&p->card, MIB + scratch, (void **)&base, err);
    if (code != 0)
        return code;
    e->addresses = (struct expert_address *)base;
    e->ids = (int32_t *)(base + sizeof addresses);
    e->heat = (uint32_t *)(base + 16384);
    e->hits = (uint32_t *)(base + 32768);
    e->outputs = (float *)(base + 65536);
    e->scratch = base + MIB;
    code = card_put(&p->card, e->addresses, sizeof addresses, addresses, sizeof addresses, err);
    return code == 0 ? card_put(&p->card, e->ids, sizeof ids, ids, sizeof ids, err) : code;
}

static int experts_lap(struct place *p, uint32_t type, const struct experts_place *e,
                       struct lap *lap, struct error *err)
{
    bool is_quantised = tensor_type_find(type)->block_values > 1;
    struct experts_args args = {.gate_type = type,
                                .up_type = type,
                                .down_type = type,
                                .addresses = e->addresses,
                                .d_model = e->d_model,
                                .d_expert = e->d_expert,
                                .n_experts = N_EXPERTS,
                                .n_used = N_USED,
                                .n_rows = 1,
                                .x = p->x,
                                .a = is_quantised ? p->a : NULL,
                                .scratch = e->scratch,
                                .outputs = e->outputs,
                                .heat = e->heat,
                                .hits = e->hits};
    *lap = (struct lap){.bytes = N_EXPERTS * e->expert_bytes};
    int code = capture_start(p, 1, e->d_model, err);
    if (code != 0)
        return code;
    for (size_t i = 0; i < N_LAUNCHES && code == 0; i++) {
        args.ids = e->ids + i * N_USED;
        code = p->card.set->experts(&args, p->card.stream);
    }
    return capture_end(p, lap, code, "experts", err);
}

static int experts_measure(struct place *p, uint32_t type, struct report *r, struct error *err)
{
    struct experts_place e;
    struct lap lap = {0};
    struct lap_times t;
    struct row row = {.what = "experts"};
    int code = experts_take(p, type, &e, err);
    if (code == 0)
        code = experts_lap(p, type, &e, &lap, err);
    if (code == 0)
        code = lap_measure(p, &lap, &t, err);
    if (code == 0) {
        bytes_row(&row, p, &lap, &t);
        (void)snprintf(row.type, sizeof row.type, "%s", tensor_type_find(type)->name);
        (void)snprintf(row.shape, sizeof row.shape, "8 of 128; %zu x %zu", e.d_expert, e.d_model);
        report_row(r, &row);
    }
    lap_close(p, &lap);
    return code;
}

/* All shapes of the types that files mostly have, one of the others. */
static bool is_measured(const struct bench_settings *s, size_t type, size_t shape)
{
    return shape == 0 || (!s->quick && type < 3);
}

/* What the kernels do not compute leaves a note in the table, and the rest goes on. */
static int note_uncomputed(struct place *p, struct report *r, int code, struct error *err)
{
    if (code != EBB_EUNSUPPORTED)
        return code;
    report_note(r, err->text);
    if (p->uncomputed.code == 0)
        p->uncomputed = *err;
    *err = (struct error){0};
    return 0;
}

/* Everything of types[t]; what is bound by arithmetic goes into rows[*n]. */
static int type_measure(struct place *p, size_t t, struct report *r, struct row *rows, size_t *n,
                        struct error *err)
{
    bool is_main = t < 3;
    int code = weights_put(p, types[t], err);
    for (size_t i = 0; i < COUNT(shapes) && code == 0; i++)
        if (is_measured(p->settings, t, i))
            code = note_uncomputed(p, r, few_measure(p, types[t], shapes[i], 1, r, err), err);
    for (size_t i = 0; i < COUNT(few_rows) && code == 0 && is_main; i++)
        code = note_uncomputed(p, r, few_measure(p, types[t], shapes[0], few_rows[i], r, err), err);
    if (code == 0 && is_main)
        code = note_uncomputed(p, r, experts_measure(p, types[t], r, err), err);
    for (size_t i = 0; i < COUNT(many_rows) && code == 0; i++) {
        if (!is_main && i > 0)
            break;
        code = many_measure(p, types[t], many_rows[i], &rows[*n], err);
        *n += code == 0;
        code = note_uncomputed(p, r, code, err);
    }
    return code;
}

static int types_measure(struct place *p, struct report *r, struct error *err)
{
    struct row rows[COUNT(types) * COUNT(many_rows)];
    size_t n = 0;
    int code = 0;
    report_part(r, "products",
                "Products of few rows, in graphs: weights read, beside a copy's read and written",
                "copying", true);
    for (size_t t = 0; t < COUNT(types) && code == 0; t++)
        code = type_measure(p, t, r, rows, &n, err);
    if (code != 0)
        return code;
    report_part(r, "products", "Products of many rows: multiply-adds", NULL, false);
    for (size_t i = 0; i < n; i++)
        report_row(r, &rows[i]);
    if (p->uncomputed.code != 0)
        *err = p->uncomputed;
    return p->uncomputed.code;
}

static int place_open(struct place *p, const struct bench_settings *s, struct error *err)
{
    struct fill fill;
    size_t x_bytes = (size_t)ROWS_MAX * N_IN_MAX * sizeof(float);
    memset(p, 0, sizeof *p);
    p->settings = s;
    p->n_runs = s->quick ? 5 : RUNS_MAX;
    p->staging = malloc(STAGING_BYTES);
    if (p->staging == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for %zu MiB of weights", STAGING_BYTES / MIB);
    int code = card_open(&p->card, s, err);
    if (code != 0)
        return code;
    p->capacity = (p->card.tables->is_cuda ? 1024 : s->quick ? 64 : 512) * MIB;
    code = card_take(&p->card, p->capacity, (void **)&p->weights, err);
    if (code == 0)
        code = card_take(&p->card, p->capacity, (void **)&p->elsewhere, err);
    if (code == 0)
        code = card_take(&p->card, x_bytes, (void **)&p->x, err);
    if (code == 0)
        code = card_take(&p->card, OUT_VALUES * sizeof(float), (void **)&p->y, err);
    if (code == 0)
        code = card_take(&p->card, p->card.set->activation_bytes(N_IN_MAX) * ROWS_MAX, &p->a, err);
    if (code != 0)
        return code;
    fill_open(&fill, TENSOR_F32, 0, 1, 1);
    fill_blocks(&fill, 0, x_bytes / sizeof(float), p->staging);
    return card_put(&p->card, p->x, x_bytes, p->staging, x_bytes, err);
}

int bench_card_products(const struct bench_settings *s, struct report *r, struct error *err)
{
    struct place p;
    int code = place_open(&p, s, err);
    if (code == 0)
        code = types_measure(&p, r, err);
    card_close(&p.card);
    free(p.staging);
    return code;
}
