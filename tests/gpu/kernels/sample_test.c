/* sample_test.c - the card draws the tokens that the CPU draws from the same logits; likewise the largest and the log-probabilities. */
#include "pair.h"

enum logits_kind {
    LOGITS_WIDE,  /* bell-shaped, as a model's */
    LOGITS_TIED,  /* a few values, each many times */
    LOGITS_FLAT,  /* all within a millionth */
    LOGITS_FAR,   /* some near the largest, the rest thousands away */
    LOGITS_WRONG, /* with NaN, infinities and both zeros */
    LOGITS_EQUAL, /* one value */
    LOGITS_NONE,  /* NaN and -infinity */
    LOGITS_KINDS
};

static float logit_of(enum logits_kind kind, uint64_t *state)
{
    static const float wrong[8] = {NAN, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f, 1e30f, -1e30f};
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += random_value(state);
    switch (kind) {
    case LOGITS_WIDE: return 2.5f * sum;
    case LOGITS_TIED: return (float)(random_bits(state) % 19) / 4 - 2;
    case LOGITS_FLAT: return 7 + sum * 1e-7f;
    case LOGITS_FAR: return random_bits(state) % 50 == 0 ? sum : 300 * sum - 5000;
    case LOGITS_WRONG: return random_bits(state) % 3 != 0 ? sum : wrong[random_bits(state) % 8];
    case LOGITS_EQUAL: return -3.25f;
    default: return random_bits(state) % 2 != 0 ? NAN : -INFINITY;
    }
}

static float *logits_new(struct pair *p, size_t n_rows, size_t n, enum logits_kind kind,
                         uint64_t *state)
{
    float *logits = pair_new(p, n_rows * n * sizeof *logits);
    for (size_t i = 0; i < n_rows * n; i++)
        logits[i] = logit_of(kind, state);
    return logits;
}

static struct sample_params params_of(size_t n, uint64_t *state)
{
    static const float temperatures[] = {0,    1e-40f, 1e-4f,    0.1f, 0.7f, 1,
                                         1.7f, 30,     INFINITY, -1,   NAN};
    static const float shares[] = {1, 0.95f, 0.8f, 0.5f, 0.05f, 0, 0.99999994f, NAN, 2};
    static const float floors[] = {0, 0, 0, 0.05f, 0.5f, 1, 7, NAN, 1e-12f};
    static const int32_t tops[] = {0, 0, 1, 2, 40, 50, 1000, -3};
    struct sample_params p = {.temperature = temperatures[random_bits(state) % 11],
                              .top_p = shares[random_bits(state) % 9],
                              .min_p = floors[random_bits(state) % 9],
                              .top_k = tops[random_bits(state) % 8],
                              .seed = random_bits(state),
                              .position = random_bits(state) % 100000,
                              .repetition = 1};
    if (random_bits(state) % 8 == 0)
        p.top_k = (int32_t)(random_bits(state) % (n + 2));
    return p;
}

/* Draws by the reference set and by the card, and compares. */
static void draw_both(struct pair *p, struct sample_args args, int kind)
{
    size_t bytes = args.n_rows * sizeof(int32_t);
    int32_t *want = pair_new(p, bytes), *got = pair_new(p, bytes);
    size_t cpu = p->fast->sample_scratch_bytes(args.n_rows, args.n_vocab);
    size_t card = p->cuda->sample_scratch_bytes(args.n_rows, args.n_vocab);
    void *cpu_scratch = bytes_of(cpu);
    memset(got, 0xcd, bytes);
    args.scratch = cpu_scratch, args.ids = want;
    cr_assert_eq(p->fast->sample(&args, p->cpu.stream), 0);
    args.scratch = pair_new(p, card), args.ids = got;
    cr_assert_eq(p->cuda->sample(&args, p->stream), 0);
    pair_wait(p);
    for (size_t r = 0; r < args.n_rows; r++) {
        const struct sample_params *s = &args.params[r];
        cr_assert_eq(want[r], got[r],
                     "kind %d, %zu tokens, row %zu: wanted %d (%a), got %d (%a); temperature %g, "
                     "top_p %g, min_p %g, top_k %d",
                     kind, args.n_vocab, r, want[r],
                     args.logits[r * args.n_vocab + (size_t)want[r]], got[r],
                     args.logits[r * args.n_vocab + (size_t)got[r] % args.n_vocab], s->temperature,
                     s->top_p, s->min_p, s->top_k);
    }
    free(cpu_scratch);
}

static void sample_check(struct pair *p, size_t n_rows, size_t n, enum logits_kind kind)
{
    uint64_t state = 41 + n + kind;
    struct sample_params *params = pair_new(p, n_rows * sizeof *params);
    for (size_t r = 0; r < n_rows; r++)
        params[r] = params_of(n, &state);
    struct sample_args args = {.logits = logits_new(p, n_rows, n, kind, &state),
                               .n_rows = n_rows,
                               .n_vocab = n,
                               .params = params};
    draw_both(p, args, (int)kind);
}

Test(cuda_sample, draws_the_tokens_of_the_cpu_from_logits_of_any_kind)
{
    struct pair p = pair_open();
    static const size_t sizes[][2] = {{1, 300},   {5, 300},    {33, 300},
                                      {777, 200}, {4096, 150}, {32001, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int kind = 0; kind < LOGITS_KINDS; kind++)
            sample_check(&p, sizes[i][1], sizes[i][0], (enum logits_kind)kind);
    pair_close(&p);
}

Test(cuda_sample, draws_the_tokens_of_the_cpu_from_a_large_vocabulary)
{
    struct pair p = pair_open();
    for (int kind = 0; kind < LOGITS_KINDS; kind++)
        sample_check(&p, 24, 151936, (enum logits_kind)kind);
    pair_close(&p);
}

Test(cuda_sample, applies_penalties_and_biases_as_the_cpu_does)
{
    enum { ROWS = 64, HISTORY = 5000 };
    static const size_t sizes[] = {700, 4096, 50001};
    struct pair p = pair_open();
    for (size_t c = 0; c < 3; c++) {
        const size_t n = sizes[c];
        uint64_t state = 42 + n;
        int32_t *history = pair_new(&p, ROWS * HISTORY * sizeof *history);
        struct sample_bias *biases = pair_new(&p, ROWS * 3000 * sizeof *biases);
        struct sample_params *params = pair_new(&p, ROWS * sizeof *params);
        float *logits = logits_new(&p, ROWS, n, LOGITS_WIDE, &state);
        float *before = pair_new(&p, ROWS * n * sizeof *before);
        memcpy(before, logits, ROWS * n * sizeof *before);
        for (int i = 0; i < ROWS * HISTORY; i++)
            history[i] = (int32_t)(random_bits(&state) % 600) - 10;
        for (int i = 0; i < ROWS * 3000; i++)
            biases[i] = (struct sample_bias){(int32_t)(i % 3000 * 7 % (int)n) - 1,
                                             random_value(&state) * 9};
        for (int r = 0; r < ROWS; r++) {
            struct sample_params *s = &params[r];
            *s = params_of(n, &state);
            s->temperature = r % 2 == 0 ? 0 : 0.9f;
            s->position = r * HISTORY / ROWS;
            s->repetition = r % 4 == 1 ? 1 : 1.3f;
            s->frequency = r % 3 == 0 ? 0 : 0.03f;
            s->presence = r % 5 == 0 ? 0 : -0.2f;
            s->n_repeat = r * 13;
            s->n_prompt = r * 9;
            s->history_row = ROWS - 1 - r;
            s->bias_first = 3000 * r;
            s->n_bias = r % 7 == 0   ? 0
                        : r % 3 == 0 ? (int32_t)(n / 7 < 3000 ? n / 7 : 3000)
                                     : r % 4;
        }
        struct sample_args args = {.logits = logits,
                                   .n_rows = ROWS,
                                   .n_vocab = n,
                                   .params = params,
                                   .history = history,
                                   .history_stride = HISTORY,
                                   .biases = biases};
        draw_both(&p, args, LOGITS_WIDE);
        cr_assert_eq(memcmp(before, logits, ROWS * n * sizeof *before), 0,
                     "the logits are to be left for log-probabilities");
    }
    pair_close(&p);
}

Test(cuda_sample, draws_from_a_captured_graph_by_what_the_buffers_hold_then)
{
    enum { N = 3000, ROWS = 4 };
    struct pair p = pair_open();
    struct error err = {0};
    struct exec_graph *graph = NULL;
    uint64_t state = 43;
    struct sample_params *params = pair_new(&p, ROWS * sizeof *params);
    int32_t *got = pair_new(&p, ROWS * sizeof *got), want[ROWS];
    void *cpu_scratch = bytes_of(p.fast->sample_scratch_bytes(ROWS, N));
    struct sample_args args = {.logits = logits_new(&p, ROWS, N, LOGITS_WIDE, &state),
                               .n_rows = ROWS,
                               .n_vocab = N,
                               .params = params,
                               .scratch = pair_new(&p, p.cuda->sample_scratch_bytes(ROWS, N)),
                               .ids = got};
    cr_assert_eq(exec_cuda.capture_begin(p.stream), 0);
    cr_assert_eq(p.cuda->sample(&args, p.stream), 0);
    cr_assert_eq(exec_cuda.capture_end(p.stream, &graph, &err), 0, "%s", err.text);
    args.scratch = cpu_scratch, args.ids = want;
    for (int step = 0; step < 20; step++) {
        for (int r = 0; r < ROWS; r++)
            params[r] = (struct sample_params){.temperature = (float)(step % 3),
                                               .top_p = 0.9f,
                                               .seed = 5,
                                               .position = step * ROWS + r};
        cr_assert_eq(exec_cuda.graph_launch(graph, p.stream), 0);
        cr_assert_eq(p.fast->sample(&args, p.cpu.stream), 0);
        pair_wait(&p);
        cr_assert_eq(memcmp(want, got, sizeof want), 0, "step %d", step);
    }
    exec_cuda.graph_close(graph);
    free(cpu_scratch);
    pair_close(&p);
}

static void top_check(struct pair *p, size_t n_rows, size_t n, size_t k, enum logits_kind kind)
{
    uint64_t state = 44 + n + kind;
    size_t bytes = n_rows * k * sizeof(float);
    struct top_args args = {logits_new(p, n_rows, n, kind, &state),
                            n_rows,
                            n,
                            k,
                            pair_new(p, bytes),
                            pair_new(p, bytes)};
    struct top_args got = args;
    got.ids = pair_new(p, bytes), got.values = pair_new(p, bytes);
    cr_assert_eq(p->fast->top(&args, p->cpu.stream), 0);
    cr_assert_eq(p->cuda->top(&got, p->stream), 0);
    pair_wait(p);
    cr_assert_eq(memcmp(args.ids, got.ids, bytes), 0, "kind %d, %zu of %zu", (int)kind, k, n);
    cr_assert_eq(memcmp(args.values, got.values, bytes), 0, "kind %d, %zu of %zu", (int)kind, k, n);
}

Test(cuda_top, gives_what_the_cpu_gives)
{
    static const size_t shapes[][2] = {{1, 1},     {7, 3},        {1000, 999},   {1024, 1024},
                                       {5000, 20}, {20000, 1024}, {151936, 100}, {151936, 1}};
    struct pair p = pair_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int kind = 0; kind < LOGITS_KINDS; kind++)
            top_check(&p, 3, shapes[i][0], shapes[i][1], (enum logits_kind)kind);
    pair_close(&p);
}

Test(cuda_top, refuses_more_than_there_are_and_more_than_it_can_sort)
{
    struct pair p = pair_open();
    struct top_args args = {.n_rows = 1, .n_vocab = 10, .k = 11};
    cr_assert_eq(p.cuda->top(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_vocab = 5000, args.k = 1025;
    cr_assert_eq(p.cuda->top(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}

/* The mass is exact; the card's log() may be a unit or two off the CPU's. */
static void logprob_check(struct pair *p, size_t n_rows, size_t n, enum logits_kind kind)
{
    uint64_t state = 45 + n + kind;
    int32_t *ids = pair_new(p, n_rows * sizeof *ids);
    double *norms[2] = {pair_new(p, n_rows * 8), pair_new(p, n_rows * 8)};
    float *chosen[2] = {pair_new(p, n_rows * 4), pair_new(p, n_rows * 4)};
    for (size_t r = 0; r < n_rows; r++)
        ids[r] = r == 1 ? -1 : r == 2 ? (int32_t)n : (int32_t)(random_bits(&state) % n);
    struct logprob_args args = {
        logits_new(p, n_rows, n, kind, &state), n_rows, n, ids, norms[0], chosen[0]};
    cr_assert_eq(p->fast->logprob(&args, p->cpu.stream), 0);
    args.norms = norms[1], args.chosen = chosen[1];
    cr_assert_eq(p->cuda->logprob(&args, p->stream), 0);
    pair_wait(p);
    cr_assert_eq(memcmp(chosen[0], chosen[1], n_rows * 4), 0);
    for (size_t r = 0; r < n_rows; r++)
        cr_assert(norms[0][r] == norms[1][r] ||
                      fabs(norms[0][r] - norms[1][r]) <= 1e-15 * (20 + fabs(norms[0][r])),
                  "kind %d, %zu tokens: %a, got %a", (int)kind, n, norms[0][r], norms[1][r]);
}

Test(cuda_logprob, is_that_of_the_cpu_but_for_the_last_bit_of_a_logarithm)
{
    static const size_t sizes[] = {1, 50, 3001, 151936};
    struct pair p = pair_open();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int kind = 0; kind < LOGITS_KINDS; kind++)
            logprob_check(&p, 9, sizes[i], (enum logits_kind)kind);
    pair_close(&p);
}
