/* tools/bench/products.c - products by type and shape, beside the speed at which the same threads read memory.
 *
 * Weights of one type fill a buffer of 640 MiB, as matrix behind matrix, and runs go round it slice by slice: no cache
 * holds what comes next. A run of reading and a run of multiplying take turns, half of the buffer apart, by the same
 * workers (a job of the same executor), so that a neighbour on the machine slows both. The sum that reading makes is kept,
 * so that no compiler leaves it out. Runs take milliseconds: where other work has the processors most of the time, medians
 * say what that work left over, and the best run, beside the best of reading, what the kernels can do.
 *
 * With many rows a product is bound by arithmetic: those are told in multiply-adds a second, over fewer bytes.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/kernels.h"
#include "tools/bench/bench.h"
#include "tools/make-model/fill.h"

#define RUNS_MAX   64
#define MIB        ((size_t)1 << 20)
#define READ_PIECE ((size_t)256 << 10)

struct matrix_shape {
    size_t n_out, n_in;
};

struct room {
    const struct bench_settings *settings;
    const struct kernel_set *set;
    struct exec *exec;
    struct exec_stream *stream;
    struct exec_event *event;
    unsigned char *weights; /* owned, capacity bytes */
    size_t capacity;
    float *x, *y; /* owned: rows in and out */
    void *a;      /* owned: x quantised */
    uint64_t sum;
    int n_runs;
    double elapsed_s,
        cpu_s; /* of all runs: by the clock, and what the process had of its processors */
};

static const struct matrix_shape shapes[] = {
    {768, 2048},   /* an expert's gate, Qwen3-30B-A3B */
    {2048, 768},   /* its down */
    {4096, 2048},  /* the queries' projection */
    {4096, 4096},  /* Mixtral's */
    {32000, 4096}, /* its output */
};
static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q5_K,
                                 TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                                 TENSOR_F16,  TENSOR_BF16, TENSOR_F32};
enum { N_IN_MAX = 4096, N_OUT_MAX = 32000, PREFILL_OUT = 4096, PREFILL_ROWS_MAX = 512 };
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static int room_wait(struct room *m, struct error *err)
{
    int done;
    if (exec_cpu.event_record(m->event, m->stream) != 0)
        return error_set(err, EBB_ENOMEM, "the executor takes no more work");
    while ((done = exec_cpu.event_query(m->event)) == 0) {
        struct pollfd wake = {.fd = exec_cpu.wake_fd(m->exec), .events = POLLIN};
        exec_cpu.wake_clear(m->exec);
        if (exec_cpu.event_query(m->event) == 0)
            (void)poll(&wake, 1, 10);
    }
    return done == 1 ? 0 : error_set(err, EBB_EDRIVER, "an operation failed");
}

struct read_job {
    const unsigned char *from;
    size_t n_bytes;
    uint64_t *sum;
};

typedef uint64_t lanes __attribute__((vector_size(32), may_alias, aligned(1)));

/* Four places of a piece at once: one stream alone does not keep the memory busy (measured: 10 of 17 GB/s). */
static uint64_t piece_read(const unsigned char *at)
{
    const size_t quarter = READ_PIECE / 4;
    lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (const unsigned char *end = at + quarter; at < end; at += sizeof(lanes)) {
        s0 += *(const lanes *)at;
        s1 += *(const lanes *)(at + quarter);
        s2 += *(const lanes *)(at + 2 * quarter);
        s3 += *(const lanes *)(at + 3 * quarter);
    }
    s0 += s1 + s2 + s3;
    return s0[0] + s0[1] + s0[2] + s0[3];
}

static void read_range(void *ctx, size_t first, size_t last)
{
    const struct read_job *job = ctx;
    uint64_t sum = 0;
    for (size_t piece = first; piece < last; piece++)
        sum += piece_read(job->from + piece * READ_PIECE);
    (void)__atomic_fetch_add(job->sum, sum, __ATOMIC_RELAXED);
}

static void read_run(const void *args, struct exec_cpu_worker *w)
{
    struct read_job job = *(const struct read_job *)args;
    exec_cpu_parallel_for(w, job.n_bytes / READ_PIECE, 1, read_range, &job);
}

/* Times of a run: by the clock, and of the process's threads together. */
struct stopwatch {
    double begin, cpu_begin;
};

static double cpu_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct stopwatch watch_start(void)
{
    return (struct stopwatch){bench_now(), cpu_now()};
}

static double watch_stop(struct stopwatch w, struct room *m)
{
    double seconds = bench_now() - w.begin;
    m->elapsed_s += seconds;
    m->cpu_s += cpu_now() - w.cpu_begin;
    return seconds;
}

/* Tells where other work had the processors. */
static void busyness_note(const struct room *m, struct report *r)
{
    char text[160];
    double share = m->cpu_s / (m->elapsed_s * m->settings->n_threads);
    if (share >= 0.9)
        return;
    (void)snprintf(text, sizeof text,
                   "(The threads had the processors for %.0f %% of the time: figures are too low, "
                   "ratios rough.)",
                   100 * share);
    report_note(r, text);
}

/* A run of whole matrices. */
struct slice {
    size_t at, n_bytes;
};

static int slice_read(struct room *m, struct slice slice, double *seconds, struct error *err)
{
    struct read_job job = {m->weights + slice.at, slice.n_bytes, &m->sum};
    struct stopwatch watch = watch_start();
    if (exec_cpu_push(m->stream, read_run, &job, sizeof job) != 0)
        return error_set(err, EBB_ENOMEM, "the executor takes no more work");
    int code = room_wait(m, err);
    *seconds = watch_stop(watch, m);
    return code;
}

/* Multiplies n_rows by all matrices of the slice. */
static int slice_multiply(struct room *m, struct slice slice, uint32_t type,
                          struct matrix_shape shape, size_t n_rows, double *seconds,
                          struct error *err)
{
    size_t matrix_bytes = tensor_row_bytes(type, shape.n_in) * shape.n_out;
    struct product_args args = {.type = type,
                                .n_in = shape.n_in,
                                .n_out = shape.n_out,
                                .n_rows = n_rows,
                                .x = m->x,
                                .a = tensor_type_find(type)->block_values > 1 ? m->a : NULL,
                                .y = m->y};
    struct stopwatch watch = watch_start();
    for (size_t at = 0; at < slice.n_bytes; at += matrix_bytes) {
        args.weights = m->weights + slice.at + at;
        int code = m->set->product(&args, m->stream);
        if (code != 0)
            return error_set(err, code, "%s: the kernels %s do not compute it",
                             tensor_type_find(type)->name, m->set->name);
    }
    int code = room_wait(m, err);
    *seconds = watch_stop(watch, m);
    return code;
}

static int rows_quantise(struct room *m, size_t n_in, size_t n_rows, struct error *err)
{
    struct quantize_args args = {m->x, m->a, n_rows, n_in};
    if (m->set->quantize(&args, m->stream) != 0)
        return error_set(err, EBB_EUNSUPPORTED, "rows of %zu values are not quantised", n_in);
    return room_wait(m, err);
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

static int vector_measure(struct room *m, uint32_t type, struct matrix_shape shape,
                          struct report *r, struct error *err)
{
    size_t matrix_bytes = tensor_row_bytes(type, shape.n_in) * shape.n_out;
    size_t wanted = (m->settings->quick ? 16 : 32) * MIB;
    size_t slice_bytes = (wanted > matrix_bytes ? wanted / matrix_bytes : 1) * matrix_bytes;
    size_t n_slices = m->capacity / slice_bytes;
    double reading[RUNS_MAX], multiplying[RUNS_MAX];
    struct row row = {.what = "matrix-vector", .unit = "GB/s", .n_runs = m->n_runs};
    int code = rows_quantise(m, shape.n_in, 1, err);
    for (int i = -1; i < m->n_runs && code == 0; i++) { /* the first warms up */
        size_t here = (size_t)(i + 1) % n_slices, there = (here + n_slices / 2) % n_slices;
        code = slice_read(m, (struct slice){here * slice_bytes, slice_bytes},
                          &reading[i < 0 ? 0 : i], err);
        if (code == 0)
            code = slice_multiply(m, (struct slice){there * slice_bytes, slice_bytes}, type, shape,
                                  1, &multiplying[i < 0 ? 0 : i], err);
    }
    if (code != 0)
        return code;
    row.value = (double)slice_bytes * 1e-9 / bench_median(multiplying, m->n_runs);
    row.against =
        (double)(slice_bytes / READ_PIECE * READ_PIECE) * 1e-9 / bench_median(reading, m->n_runs);
    row.best = (double)slice_bytes * 1e-9 / multiplying[0]; /* sorted by now */
    row.best_against = (double)(slice_bytes / READ_PIECE * READ_PIECE) * 1e-9 / reading[0];
    row_name(&row, type, shape, 1);
    report_row(r, &row);
    return 0;
}

static int rows_measure(struct room *m, uint32_t type, size_t n_rows, struct row *row,
                        struct error *err)
{
    struct matrix_shape shape = {PREFILL_OUT, 2048};
    size_t matrix_bytes = tensor_row_bytes(type, shape.n_in) * shape.n_out;
    double seconds[RUNS_MAX];
    int n_runs = m->settings->quick ? 3 : 7, code = rows_quantise(m, shape.n_in, n_rows, err);
    for (int i = 0; i < n_runs && code == 0; i++)
        code = slice_multiply(m, (struct slice){(size_t)i * matrix_bytes, matrix_bytes}, type,
                              shape, n_rows, &seconds[i], err);
    if (code != 0)
        return code;
    *row = (struct row){.what = "matrix-rows", .unit = "GMAC/s", .n_runs = n_runs};
    row->value = (double)(shape.n_in * shape.n_out * n_rows) * 1e-9 / bench_median(seconds, n_runs);
    row_name(row, type, shape, n_rows);
    return 0;
}

/* Blocks of the type all over the buffer. */
static void weights_fill(struct room *m, uint32_t type)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    struct fill fill;
    fill_open(&fill, type, 0, 0.02, type + 1);
    fill_blocks(&fill, 0, m->capacity / info->block_bytes, m->weights);
}

static int room_open(struct room *m, const struct bench_settings *s, struct error *err)
{
    struct exec_settings settings = {.n_threads = s->n_threads};
    struct fill fill;
    size_t n_x = (size_t)N_IN_MAX * PREFILL_ROWS_MAX;
    size_t n_y = (size_t)PREFILL_OUT * PREFILL_ROWS_MAX;
    *m = (struct room){.settings = s, .capacity = (s->quick ? 128 : 640) * MIB};
    m->n_runs = s->quick ? 20 : 60;
    m->set = kernel_set_cpu(s->kernels, err);
    if (m->set == NULL)
        return err->code;
    int code = exec_cpu.open(&m->exec, &settings, err);
    if (code == 0)
        code = exec_cpu.stream_open(m->exec, &m->stream, err);
    if (code == 0)
        code = exec_cpu.event_open(m->exec, &m->event, err);
    if (code != 0)
        return code;
    void *pages =
        mmap(NULL, m->capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->weights = pages != MAP_FAILED ? pages : NULL;
    m->x = aligned_alloc(64, n_x * sizeof *m->x);
    m->y = aligned_alloc(64, n_y * sizeof *m->y);
    m->a =
        aligned_alloc(64, (m->set->activation_bytes(N_IN_MAX) * PREFILL_ROWS_MAX + 63) / 64 * 64);
    if (m->weights == NULL || m->x == NULL || m->y == NULL || m->a == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for %zu MiB of weights", m->capacity / MIB);
    fill_open(&fill, TENSOR_F32, 0, 1, 1);
    fill_blocks(&fill, 0, n_x, m->x);
    return 0;
}

static void room_close(struct room *m)
{
    if (m->event != NULL)
        exec_cpu.event_close(m->event);
    if (m->stream != NULL)
        exec_cpu.stream_close(m->stream);
    exec_cpu.close(m->exec);
    if (m->weights != NULL)
        (void)munmap(m->weights, m->capacity);
    free(m->x);
    free(m->y);
    free(m->a);
}

/* All shapes of the types that files mostly have, one of the others. */
static bool is_measured(const struct bench_settings *s, size_t type, size_t shape)
{
    bool is_main = shapes[shape].n_out == 4096 && shapes[shape].n_in == 2048;
    return is_main || (!s->quick && type < 3);
}

static int types_measure(struct room *m, struct report *r, struct error *err)
{
    static const size_t n_rows[] = {64, 512};
    struct row rows[COUNT(types) * COUNT(n_rows)];
    size_t n = 0, n_batches = m->settings->quick ? 1 : COUNT(n_rows);
    int code = 0;
    report_part(r, "products",
                "Products of one row: weights read, beside plain reading by the same threads",
                "reading", true);
    for (size_t t = 0; t < COUNT(types) && code == 0; t++) {
        weights_fill(m, types[t]);
        for (size_t i = 0; i < COUNT(shapes) && code == 0; i++)
            if (is_measured(m->settings, t, i))
                code = vector_measure(m, types[t], shapes[i], r, err);
        for (size_t b = 0; b < n_batches && code == 0; b++)
            code = rows_measure(m, types[t], n_rows[b], &rows[n++], err);
    }
    if (code != 0)
        return code;
    report_part(r, "products", "Products of many rows: multiply-adds", NULL, false);
    for (size_t i = 0; i < n; i++)
        report_row(r, &rows[i]);
    busyness_note(m, r);
    return 0;
}

int bench_products(const struct bench_settings *s, struct report *r, struct error *err)
{
    struct room m;
    int code = room_open(&m, s, err);
    if (code == 0)
        code = types_measure(&m, r, err);
    room_close(&m);
    return code;
}
