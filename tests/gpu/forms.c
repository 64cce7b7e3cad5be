/* tests/gpu/forms.c - what every form of a quantised product, and of a layer's experts, takes on this card: the table from which the
 * choice between them (kernels/set_cuda.c) is made.
 *
 *   gpu-forms [--quick]      microseconds an operation, in a graph of many; '-' where a form refuses, '!' behind one whose result
 *                            has not the bits of the row's first form
 *
 * Geometry: Qwen3-30B-A3B. Weights come from memory: an operation's lie behind the last one's in 1 GiB, again and again. Experts
 * are drawn anew for every operation, 8 different ones a row, all alike. Beside them what a copy within the card's memory would take
 * to read the bytes of weights once (an expert that several rows use counts once). Exit: 0, 1 where bits differ or a call
 * fails, 3 without a card.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"

#define COUNT(a)  (sizeof(a) / sizeof *(a))
#define POOL      ((size_t)1 << 30)
#define N_EXPERTS 128
#define N_USED    8
#define D_MODEL   2048
#define D_EXPERT  768
#define ROWS_MAX  64
#define OUT_MAX   151936
#define IN_MAX    4096
#define OPS_MAX   24 /* in a graph */

typedef int product_form(const struct product_args *, struct exec_stream *);
typedef int experts_form(const struct experts_args *, struct exec_stream *);

static const char *const form_names[] = {"rows", "few", "tiles"};
static product_form *const product_forms[] = {product_rows_cuda, product_few_cuda,
                                              product_tiles_cuda};
static experts_form *const experts_forms[] = {experts_rows_cuda, experts_few_cuda,
                                              experts_tiles_cuda};
static const size_t row_counts[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64};

struct bench {
    struct exec *exec;
    struct exec_stream *stream;
    cudaStream_t cuda;
    cudaEvent_t from, to;
    double copy_gbs;
    int n_rounds;
    bool differs;
    unsigned char *pool;
    void *a;
    float *x, *y, *outputs, *first_y; /* first_y: on the host, as is this_y */
    float *this_y;
    int32_t *ids;                     /* [OPS_MAX][ROWS_MAX][N_USED] */
    struct expert_address *addresses; /* [OPS_MAX][N_EXPERTS] */
    void *scratch;
    uint32_t *heat, *hits;
    uint64_t state;
};

static void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "gpu-forms: %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static uint32_t random_bits(uint64_t *state)
{
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545f4914f6cdd1dull >> 32);
}

static void *on_card(size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    check(cudaMemset(p, 0, bytes), "cudaMemset");
    return p;
}

/* Fills the pool with blocks of a type from its beginning: random quants and scales, half floats about 2^-6. */
static void pool_fill(struct bench *b, uint32_t type)
{
    enum { BLOCKS = 1 << 14 };
    const size_t bytes = tensor_type_find(type)->block_bytes, piece = BLOCKS * bytes;
    const bool at_end = type == TENSOR_Q2_K || type == TENSOR_Q3_K || type == TENSOR_Q6_K;
    const bool second = type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q2_K ||
                        type == TENSOR_Q4_K || type == TENSOR_Q5_K;
    const size_t at = at_end ? bytes - (second ? 4 : 2) : 0;
    unsigned char *made = malloc(piece);
    if (made == NULL)
        exit(1);
    for (size_t i = 0; i < piece; i++)
        made[i] = (unsigned char)(random_bits(&b->state) >> 24);
    for (size_t i = 0; i < BLOCKS; i++)
        for (size_t h = 0; h < (second ? 2 : 1); h++) {
            const uint16_t half = (uint16_t)(0x2400 | (random_bits(&b->state) & 0x83ff));
            memcpy(made + i * bytes + at + 2 * h, &half, 2);
        }
    for (size_t to = 0; to < POOL; to += piece)
        check(cudaMemcpy(b->pool + to, made, POOL - to < piece ? POOL - to : piece,
                         cudaMemcpyDefault),
              "cudaMemcpy");
    free(made);
}

static void x_fill(struct bench *b)
{
    const size_t n = (size_t)ROWS_MAX * IN_MAX;
    float *x = malloc(n * sizeof *x);
    if (x == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)random_bits(&b->state) * 0x1p-34f;
    check(cudaMemcpy(b->x, x, n * sizeof *x, cudaMemcpyDefault), "cudaMemcpy");
    free(x);
}

/* What a copy reads a second, in 1e9 bytes, reading alone counted twice as a copy reads and writes. */
static void copy_measure(struct bench *b)
{
    float best = 1e9f;
    for (int i = 0; i < 12; i++) {
        float ms = 0;
        check(cudaEventRecord(b->from, b->cuda), "record");
        check(cudaMemcpyAsync(b->pool, b->pool + POOL / 2, POOL / 2, cudaMemcpyDefault, b->cuda),
              "copy");
        check(cudaEventRecord(b->to, b->cuda), "record");
        check(cudaEventSynchronize(b->to), "wait");
        check(cudaEventElapsedTime(&ms, b->from, b->to), "elapsed");
        best = ms < best ? ms : best;
    }
    b->copy_gbs = (double)POOL / best * 1e-6;
}

static void bench_open(struct bench *b)
{
    struct error err = {0};
    struct exec_settings settings = {0};
    int rc = exec_cuda.open(&b->exec, &settings, &err);
    if (rc == 0)
        rc = exec_cuda.stream_open(b->exec, &b->stream, &err);
    if (rc != 0) {
        fprintf(stderr, "gpu-forms: %s\n", err.text);
        exit(3);
    }
    const size_t n_out = (size_t)ROWS_MAX * N_USED * D_MODEL, n_y = (size_t)ROWS_MAX * OUT_MAX;
    const struct kernel_set *set = kernel_set_cuda("auto", &err);
    b->cuda = exec_cuda_stream(b->stream);
    check(cudaEventCreate(&b->from), "event"), check(cudaEventCreate(&b->to), "event");
    b->pool = on_card(POOL);
    b->x = on_card((size_t)ROWS_MAX * IN_MAX * sizeof(float));
    b->a = on_card(ROWS_MAX * set->activation_bytes(IN_MAX));
    b->y = on_card(n_y * sizeof(float)), b->outputs = on_card(n_out * sizeof(float));
    b->first_y = malloc(n_y * sizeof(float)), b->this_y = malloc(n_y * sizeof(float));
    b->ids = on_card((size_t)OPS_MAX * ROWS_MAX * N_USED * sizeof *b->ids);
    b->addresses = on_card((size_t)OPS_MAX * N_EXPERTS * sizeof *b->addresses);
    b->scratch =
        on_card(set->experts_scratch_bytes(ROWS_MAX, N_USED, N_EXPERTS, D_MODEL, D_EXPERT));
    b->heat = on_card(N_EXPERTS * sizeof *b->heat), b->hits = on_card(ROWS_MAX * sizeof *b->hits);
    if (b->first_y == NULL || b->this_y == NULL)
        exit(1);
    b->state = 12345;
    x_fill(b);
    copy_measure(b);
}

static void quantise(struct bench *b, size_t n_rows, size_t n)
{
    const struct quantize_args q = {b->x, b->a, n_rows, n};
    if (quantize_cuda(&q, b->stream) != 0)
        exit(1);
}

/* Microseconds of one operation of a graph; best of n_rounds launches of it. */
static double graph_time(struct bench *b, struct exec_graph *graph, size_t n_ops)
{
    float best = 1e9f;
    for (int i = 0; i < b->n_rounds; i++) {
        float ms = 0;
        check(cudaEventRecord(b->from, b->cuda), "record");
        if (exec_cuda.graph_launch(graph, b->stream) != 0)
            exit(1);
        check(cudaEventRecord(b->to, b->cuda), "record");
        check(cudaEventSynchronize(b->to), "wait");
        check(cudaEventElapsedTime(&ms, b->from, b->to), "elapsed");
        best = i > 0 && ms < best ? ms : best;
    }
    return 1e3 * best / (double)n_ops;
}

/* A finished result against the first form's. */
static bool result_agrees(struct bench *b, const float *y, size_t n, bool first)
{
    float *to = first ? b->first_y : b->this_y;
    check(cudaStreamSynchronize(b->cuda), "wait");
    check(cudaMemcpy(to, y, n * sizeof *y, cudaMemcpyDefault), "cudaMemcpy");
    check(cudaMemset((void *)(uintptr_t)y, 0, n * sizeof *y), "cudaMemset");
    const bool agrees = first || memcmp(b->first_y, b->this_y, n * sizeof *y) == 0;
    b->differs |= !agrees;
    return agrees;
}

static void graph_end(struct bench *b, struct exec_graph **graph)
{
    struct error err = {0};
    if (exec_cuda.capture_end(b->stream, graph, &err) != 0) {
        fprintf(stderr, "gpu-forms: %s\n", err.text);
        exit(1);
    }
}

static void time_print(double us, bool agrees)
{
    printf(" %9.1f%c", us, agrees ? ' ' : '!');
    fflush(stdout);
}

static void product_row(struct bench *b, uint32_t type, size_t n_out, size_t n_in, size_t n_rows)
{
    const size_t bytes = tensor_row_bytes(type, n_in) * n_out, apart = (bytes + 255) / 256 * 256;
    const size_t fit = POOL / apart, n_ops = fit < OPS_MAX ? fit : OPS_MAX;
    struct product_args args = {.type = type, .n_in = n_in, .n_out = n_out, .n_rows = n_rows};
    bool first = true;
    args.x = b->x, args.a = b->a, args.y = b->y;
    printf("%-5s %6zu x %4zu %4zu %9.1f ", tensor_type_find(type)->name, n_out, n_in, n_rows,
           (double)bytes / b->copy_gbs * 1e-3);
    quantise(b, n_rows, n_in);
    for (size_t f = 0; f < COUNT(product_forms); f++) {
        struct exec_graph *graph = NULL;
        args.weights = b->pool;
        if ((f == 0 && n_rows > CUDA_ROWS_MAX) || product_forms[f](&args, b->stream) != 0) {
            printf(" %9s ", "-");
            continue;
        }
        const bool agrees = result_agrees(b, b->y, n_rows * n_out, first);
        first = false;
        exec_cuda.capture_begin(b->stream);
        for (size_t i = 0; i < n_ops; i++) {
            args.weights = b->pool + i * (fit / n_ops) * apart;
            (void)product_forms[f](&args, b->stream);
        }
        graph_end(b, &graph);
        time_print(graph_time(b, graph, n_ops), agrees);
        exec_cuda.graph_close(graph);
    }
    printf("\n");
}

/* 8 different experts a row for each operation; how many experts an operation has, on average. */
static double route(struct bench *b, size_t n_rows, size_t n_ops)
{
    int32_t *ids = malloc((size_t)OPS_MAX * ROWS_MAX * N_USED * sizeof *ids);
    size_t n_all = 0;
    if (ids == NULL)
        exit(1);
    for (size_t op = 0; op < n_ops; op++) {
        bool used[N_EXPERTS] = {false};
        for (size_t row = 0; row < n_rows; row++) {
            bool taken[N_EXPERTS] = {false};
            for (size_t rank = 0; rank < N_USED; rank++) {
                uint32_t e = random_bits(&b->state) % N_EXPERTS;
                while (taken[e])
                    e = random_bits(&b->state) % N_EXPERTS;
                taken[e] = true;
                n_all += !used[e];
                used[e] = true;
                ids[(op * ROWS_MAX + row) * N_USED + rank] = (int32_t)e;
            }
        }
    }
    check(cudaMemcpy(b->ids, ids, (size_t)OPS_MAX * ROWS_MAX * N_USED * sizeof *ids,
                     cudaMemcpyDefault),
          "cudaMemcpy");
    free(ids);
    return (double)n_all / (double)n_ops;
}

/* Experts of the two types lie one behind the other, gate, up and down; operations' experts, too. The pool holds blocks of one
 * type, which may be other numbers as another: all are finite but for some scales. */
static void addresses_fill(struct bench *b, size_t gate_bytes, size_t down_bytes, size_t n_ops)
{
    struct expert_address *all = calloc((size_t)OPS_MAX * N_EXPERTS, sizeof *all);
    const size_t each = (2 * gate_bytes + down_bytes + 255) / 256 * 256, n_fit = POOL / each;
    if (all == NULL)
        exit(1);
    for (size_t i = 0; i < n_ops * N_EXPERTS; i++) {
        unsigned char *at = b->pool + i % n_fit * each;
        all[i] = (struct expert_address){at, at + gate_bytes, at + 2 * gate_bytes, 1, 0};
    }
    check(
        cudaMemcpy(b->addresses, all, (size_t)OPS_MAX * N_EXPERTS * sizeof *all, cudaMemcpyDefault),
        "cudaMemcpy");
    free(all);
}

static void experts_row(struct bench *b, uint32_t type, uint32_t down, size_t n_rows)
{
    const size_t n_ops = 12, gate_bytes = tensor_row_bytes(type, D_MODEL) * D_EXPERT,
                 down_bytes = tensor_row_bytes(down, D_EXPERT) * D_MODEL;
    const double n_used = route(b, n_rows, n_ops);
    struct experts_args args = {.gate_type = type, .up_type = type, .down_type = down};
    bool first = true;
    args.d_model = D_MODEL, args.d_expert = D_EXPERT, args.n_experts = N_EXPERTS;
    args.n_used = N_USED, args.n_rows = n_rows, args.x = b->x, args.a = b->a;
    args.scratch = b->scratch, args.outputs = b->outputs, args.heat = b->heat, args.hits = b->hits;
    addresses_fill(b, gate_bytes, down_bytes, n_ops);
    printf("experts %-5s %-5s %4zu %9.1f ", tensor_type_find(type)->name,
           tensor_type_find(down)->name, n_rows,
           n_used * (double)(2 * gate_bytes + down_bytes) / b->copy_gbs * 1e-3);
    quantise(b, n_rows, D_MODEL);
    for (size_t f = 0; f < COUNT(experts_forms); f++) {
        struct exec_graph *graph = NULL;
        args.ids = b->ids, args.addresses = b->addresses;
        if ((f == 0 && n_rows > CUDA_ROWS_MAX) || experts_forms[f](&args, b->stream) != 0) {
            printf(" %9s ", "-");
            continue;
        }
        const bool agrees = result_agrees(b, b->outputs, n_rows * N_USED * D_MODEL, first);
        first = false;
        exec_cuda.capture_begin(b->stream);
        for (size_t i = 0; i < n_ops; i++) {
            args.ids = b->ids + i * ROWS_MAX * N_USED;
            args.addresses = b->addresses + i * N_EXPERTS;
            (void)experts_forms[f](&args, b->stream);
        }
        graph_end(b, &graph);
        time_print(graph_time(b, graph, n_ops), agrees);
        exec_cuda.graph_close(graph);
    }
    printf("\n");
}

static void head_print(const char *what)
{
    printf("%-19s %4s %9s ", what, "rows", "read");
    for (size_t f = 0; f < COUNT(form_names); f++)
        printf(" %9s ", form_names[f]);
    printf("\n");
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t type;
        size_t n_out, n_in;
    } shapes[] = {{TENSOR_Q4_K, 5120, 2048},   {TENSOR_Q4_K, 4608, 2048},
                  {TENSOR_Q4_K, 2048, 4096},   {TENSOR_Q6_K, 512, 2048},
                  {TENSOR_Q4_K, 512, 2048},    {TENSOR_Q6_K, 151936, 2048},
                  {TENSOR_Q4_K, 151936, 2048}, {TENSOR_Q8_0, 4096, 2048}};
    static struct bench b;
    b.n_rounds = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 4 : 12;
    bench_open(&b);
    printf("copy %.0f GB/s read and written; microseconds an operation\n", b.copy_gbs);
    head_print("product");
    for (size_t i = 0; i < COUNT(shapes); i++) {
        if (i == 0 || shapes[i].type != shapes[i - 1].type)
            pool_fill(&b, shapes[i].type);
        for (size_t r = 0; r < COUNT(row_counts); r++)
            product_row(&b, shapes[i].type, shapes[i].n_out, shapes[i].n_in, row_counts[r]);
    }
    head_print("8 of 128, 768 x 2048");
    pool_fill(&b, TENSOR_Q4_K);
    for (size_t r = 0; r < COUNT(row_counts); r++)
        experts_row(&b, TENSOR_Q4_K, TENSOR_Q4_K, row_counts[r]);
    for (size_t r = 0; r < COUNT(row_counts); r++)
        experts_row(&b, TENSOR_Q4_K, TENSOR_Q6_K, row_counts[r]);
    return b.differs ? 1 : 0;
}
