/* sample_test.c - which token is drawn, and which are the largest. */
#include "inputs.h"

static const struct kernel_set *set(void)
{
    return kernel_set_cpu("auto", NULL);
}

static void draw(struct card *card, const float *logits, size_t n_rows, size_t n_vocab,
                 const struct sample_params *params, int32_t *ids)
{
    void *scratch = bytes_of(set()->sample_scratch_bytes(n_rows, n_vocab));
    struct sample_args args = {.logits = logits,
                               .n_rows = n_rows,
                               .n_vocab = n_vocab,
                               .params = params,
                               .scratch = scratch,
                               .ids = ids};
    cr_assert_eq(set()->sample(&args, card->stream), 0);
    card_wait(card);
    free(scratch);
}

static int32_t draw_one(struct card *card, const float *logits, size_t n,
                        struct sample_params params)
{
    int32_t id = -99;
    draw(card, logits, 1, n, &params, &id);
    return id;
}

/* How often each of n tokens is drawn in `times` positions. */
static void histogram(struct card *card, const float *logits, size_t n, struct sample_params params,
                      size_t times, size_t *counts)
{
    float *rows = bytes_of(times * n * sizeof *rows);
    struct sample_params *all = bytes_of(times * sizeof *all);
    int32_t *ids = bytes_of(times * sizeof *ids);
    memset(counts, 0, n * sizeof *counts);
    for (size_t i = 0; i < times; i++) {
        memcpy(rows + i * n, logits, n * sizeof *rows);
        all[i] = params;
        all[i].position = (int64_t)i;
    }
    draw(card, rows, times, n, all, ids);
    for (size_t i = 0; i < times; i++) {
        cr_assert(ids[i] >= 0 && (size_t)ids[i] < n);
        counts[ids[i]]++;
    }
    free(rows), free(all), free(ids);
}

Test(sample, the_uniform_number_is_in_its_range_even_and_never_changes)
{
    size_t counts[16] = {0};
    double chi = 0;
    for (int64_t i = 0; i < 160000; i++) {
        double u = sample_uniform((uint64_t)(i / 400), i % 400);
        cr_assert(u >= 0.0 && u < 1.0);
        counts[(size_t)(u * 16)]++;
    }
    for (int i = 0; i < 16; i++)
        chi += pow((double)counts[i] - 10000, 2) / 10000;
    cr_assert_lt(chi, 37.7, "0.1 %% level of 15 degrees: %f", chi);
    cr_assert_eq(sample_uniform(0, 0), 0x1.4e0dba5e9a32fp-1, "%a", sample_uniform(0, 0));
    cr_assert_eq(sample_uniform(42, 1234567), 0x1.be4867de14baap-1, "%a",
                 sample_uniform(42, 1234567));
    cr_assert_neq(sample_uniform(1, 0), sample_uniform(0, 1));
}

Test(sample, temperature_0_takes_the_largest_and_the_lower_id_of_equals)
{
    float logits[6] = {-1, NAN, 5, 2, 5, -INFINITY};
    struct card card = card_open(1);
    struct sample_params greedy = {.temperature = 0, .top_p = 1};
    cr_assert_eq(draw_one(&card, logits, 6, greedy), 2);
    float none[3] = {NAN, NAN, NAN};
    cr_assert_eq(draw_one(&card, none, 3, greedy), 0);
    greedy.temperature = 1;
    cr_assert_eq(draw_one(&card, none, 3, greedy), 0);
    float infinite[4] = {1, INFINITY, NAN, 2};
    cr_assert_eq(draw_one(&card, infinite, 4, greedy), 1);
    card_close(&card);
}

Test(sample, tokens_come_as_often_as_the_softmax_says)
{
    enum { N = 12, TIMES = 40000 };
    float logits[N];
    size_t counts[N];
    double p[N], sum = 0, chi = 0;
    uint64_t state = 41;
    struct card card = card_open(2);
    for (int i = 0; i < N; i++) {
        logits[i] = 2 * random_value(&state);
        sum += p[i] = exp(logits[i] / 0.8);
    }
    struct sample_params params = {.temperature = 0.8f, .top_p = 1, .seed = 7};
    histogram(&card, logits, N, params, TIMES, counts);
    for (int i = 0; i < N; i++)
        chi += pow((double)counts[i] - TIMES * p[i] / sum, 2) / (TIMES * p[i] / sum);
    cr_assert_lt(chi, 31.3, "0.1 %% level of 11 degrees: %f", chi);
    card_close(&card);
}

Test(sample, top_k_top_p_and_min_p_keep_what_they_say)
{
    /* probabilities 0.1 0.4 0.2 0.2 0.1, ids in that order */
    float logits[5];
    double p[5] = {0.1, 0.4, 0.2, 0.2, 0.1};
    static const struct {
        int32_t top_k;
        float top_p, min_p;
        unsigned kept;
    } cases[] = {
        {0, 1, 0, 0x1f},      {1, 1, 0, 0x02},    {2, 1, 0, 0x06}, /* of two equals the lower id */
        {3, 1, 0, 0x0e},      {4, 1, 0, 0x0f},    {5, 1, 0, 0x1f},    {99, 1, 0, 0x1f},
        {0, 0.3f, 0, 0x02},   {0, 0.5f, 0, 0x06}, {0, 0.7f, 0, 0x0e}, {0, 0.85f, 0, 0x0f},
        {0, 0, 0, 0x02},      {0, -1, 0, 0x02},   {0, 1, 0.3f, 0x0e}, {0, 1, 0.6f, 0x02},
        {0, 1, 7, 0x02},      {3, 0.6f, 0, 0x06}, {3, 0.8f, 0, 0x0e}, {4, 0.99f, 0.4f, 0x0e},
        {-5, NAN, NAN, 0x1f},
    };
    struct card card = card_open(2);
    for (int i = 0; i < 5; i++)
        logits[i] = (float)log(p[i]);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sample_params params = {.temperature = 1,
                                       .top_p = cases[c].top_p,
                                       .min_p = cases[c].min_p,
                                       .top_k = cases[c].top_k,
                                       .seed = 3};
        size_t counts[5];
        unsigned seen = 0;
        double sum = 0;
        histogram(&card, logits, 5, params, 4000, counts);
        for (int i = 0; i < 5; i++) {
            seen |= (unsigned)(counts[i] > 0) << i;
            sum += cases[c].kept >> i & 1 ? p[i] : 0;
        }
        cr_assert_eq(seen, cases[c].kept, "case %zu: %x", c, seen);
        for (int i = 0; i < 5; i++)
            if (cases[c].kept >> i & 1)
                cr_assert_float_eq((double)counts[i] / 4000, p[i] / sum, 0.04);
    }
    card_close(&card);
}

static int falling(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

Test(sample, cuts_hold_over_a_large_vocabulary_with_negative_logits)
{
    enum { N = 20000, K = 50 };
    uint64_t state = 42;
    struct card card = card_open(2);
    float *logits = values_of(N, INPUT_RANDOM, &state), *sorted = bytes_of(N * sizeof *sorted);
    for (int shift = 0; shift < 3; shift++) {
        for (int i = 0; i < N; i++)
            logits[i] -= 20.0f * (float)shift;
        memcpy(sorted, logits, N * sizeof *sorted);
        qsort(sorted, N, sizeof *sorted, falling);
        double total = 0, mass = 0;
        size_t n_p = 0;
        for (int i = 0; i < N; i++)
            total += exp(sorted[i] - sorted[0]);
        while (mass < 0.1 * total)
            mass += exp(sorted[n_p++] - sorted[0]);
        for (int64_t position = 0; position < 150; position++) {
            struct sample_params by_k = {.temperature = 1, .top_p = 1, .top_k = K, .seed = 5};
            struct sample_params by_p = {.temperature = 1, .top_p = 0.1f, .seed = 5};
            by_k.position = by_p.position = position;
            cr_assert_geq(logits[draw_one(&card, logits, N, by_k)], sorted[K - 1]);
            cr_assert_geq(logits[draw_one(&card, logits, N, by_p)], sorted[n_p]);
        }
    }
    free(logits), free(sorted);
    card_close(&card);
}

Test(sample, a_row_is_drawn_alike_alone_and_in_company)
{
    enum { N_ROWS = 40, N = 3000 };
    uint64_t state = 43;
    float *logits = values_of(N_ROWS * N, INPUT_RANDOM, &state);
    struct sample_params params[N_ROWS];
    int32_t first[N_ROWS], ids[N_ROWS];
    for (int i = 0; i < N_ROWS; i++)
        params[i] = (struct sample_params){.temperature = i % 4 == 0 ? 0 : 1.3f,
                                           .top_p = 0.9f,
                                           .min_p = 0.01f,
                                           .top_k = i % 3 * 20,
                                           .seed = 9,
                                           .position = i};
    for (int threads = 1; threads <= 3; threads++) {
        struct card card = card_open(threads);
        draw(&card, logits, N_ROWS, N, params, threads == 1 ? first : ids);
        for (int i = 0; i < N_ROWS; i++) {
            cr_assert_eq(first[i], draw_one(&card, logits + i * N, N, params[i]));
            cr_assert(threads == 1 || first[i] == ids[i]);
        }
        card_close(&card);
    }
    free(logits);
}

Test(sample, every_set_draws_the_same_tokens)
{
    enum { N_ROWS = 60, N = 777 };
    uint64_t state = 45;
    struct card card = card_open(2);
    float *logits = values_of(N_ROWS * N, INPUT_RANDOM, &state);
    void *scratch = bytes_of(set()->sample_scratch_bytes(N_ROWS, N));
    struct sample_params params[N_ROWS];
    int32_t ids[N_SETS][N_ROWS];
    for (int i = 0; i < N_ROWS; i++)
        params[i] = (struct sample_params){.temperature = 0.5f + (float)(i % 5),
                                           .top_p = 0.95f,
                                           .top_k = i % 2 * 100,
                                           .seed = 10,
                                           .position = i};
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *named = set_named(set_names[s]);
        struct sample_args args = {.logits = logits,
                                   .n_rows = N_ROWS,
                                   .n_vocab = N,
                                   .params = params,
                                   .scratch = scratch,
                                   .ids = ids[s]};
        cr_assert_eq((named != NULL ? named : set())->sample(&args, card.stream), 0);
        card_wait(&card);
    }
    for (size_t s = 1; s < N_SETS; s++)
        cr_assert_eq(memcmp(ids[0], ids[s], sizeof ids[0]), 0, "%s", set_names[s]);
    free(logits), free(scratch);
    card_close(&card);
}

enum { ADJUST_N = 700, ADJUST_ROWS = 32, ADJUST_HISTORY = 300 };

/* Rows that differ in everything, over one history each. */
struct adjusted {
    float *logits;
    int32_t *history;
    struct sample_bias biases[ADJUST_ROWS * 3];
    struct sample_params params[ADJUST_ROWS];
};

static struct adjusted adjusted_rows(void)
{
    uint64_t state = 46;
    struct adjusted a = {.logits = values_of(ADJUST_ROWS * ADJUST_N, INPUT_RANDOM, &state)};
    a.history = bytes_of(ADJUST_ROWS * ADJUST_HISTORY * sizeof *a.history);
    for (int i = 0; i < ADJUST_ROWS * ADJUST_HISTORY; i++)
        a.history[i] = (int32_t)(random_bits(&state) % (ADJUST_N + 20)) - 10;
    for (int i = 0; i < ADJUST_ROWS * 3; i++)
        a.biases[i] = (struct sample_bias){.id = i * 7 % ADJUST_N, .bias = (float)(i % 9) - 4};
    for (int i = 0; i < ADJUST_ROWS; i++)
        a.params[i] = (struct sample_params){.temperature = i % 2 == 0 ? 0 : 1.1f,
                                             .top_p = 1,
                                             .seed = 11,
                                             .position = 200 + i,
                                             .repetition = i % 4 == 1 ? 1 : 1.3f,
                                             .frequency = i % 3 == 0 ? 0 : 0.3f,
                                             .presence = i % 5 == 0 ? 0 : -0.2f,
                                             .n_repeat = i * 13,
                                             .n_prompt = i * 9,
                                             .history_row = ADJUST_ROWS - 1 - i,
                                             .bias_first = 3 * i,
                                             .n_bias = i % 4};
    return a;
}

/* What kernels.h says, token by token. */
static void adjust_plainly(const struct adjusted *a, int row, float *logits)
{
    const struct sample_params *p = &a->params[row];
    const int32_t *history = a->history + p->history_row * ADJUST_HISTORY;
    for (int32_t id = 0; id < ADJUST_N; id++) {
        float times = 0, l = a->logits[row * ADJUST_N + id];
        bool is_recent = false;
        for (int64_t i = 0; i < p->position; i++) {
            times += i >= p->n_prompt && history[i] == id ? 1 : 0;
            is_recent = is_recent || (i >= p->position - p->n_repeat && history[i] == id);
        }
        if (is_recent)
            l = l > 0 ? l / p->repetition : l * p->repetition;
        float taken = p->frequency * times;
        l = l - taken;
        l = times > 0 ? l - p->presence : l;
        for (int32_t i = 0; i < p->n_bias; i++)
            l = a->biases[p->bias_first + i].id == id ? l + a->biases[p->bias_first + i].bias : l;
        logits[id] = l;
    }
}

Test(sample, penalties_and_biases_draw_as_from_logits_adjusted_by_hand_in_every_set)
{
    struct card card = card_open(2);
    struct adjusted a = adjusted_rows();
    float *by_hand = bytes_of(ADJUST_N * sizeof *by_hand);
    float *before = bytes_of(ADJUST_ROWS * ADJUST_N * sizeof *before);
    void *scratch = bytes_of(set()->sample_scratch_bytes(ADJUST_ROWS, ADJUST_N));
    memcpy(before, a.logits, ADJUST_ROWS * ADJUST_N * sizeof *before);
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *named = set_named(set_names[s]);
        int32_t ids[ADJUST_ROWS];
        int n_moved = 0;
        struct sample_args args = {.logits = a.logits,
                                   .n_rows = ADJUST_ROWS,
                                   .n_vocab = ADJUST_N,
                                   .params = a.params,
                                   .scratch = scratch,
                                   .ids = ids,
                                   .history = a.history,
                                   .history_stride = ADJUST_HISTORY,
                                   .biases = a.biases};
        cr_assert_eq((named != NULL ? named : set())->sample(&args, card.stream), 0);
        card_wait(&card);
        for (int r = 0; r < ADJUST_ROWS; r++) {
            const struct sample_params *p = &a.params[r];
            struct sample_params plain = {.temperature = p->temperature,
                                          .top_p = 1,
                                          .seed = p->seed,
                                          .position = p->position};
            adjust_plainly(&a, r, by_hand);
            cr_assert_eq(ids[r], draw_one(&card, by_hand, ADJUST_N, plain), "%s row %d",
                         set_names[s], r);
            n_moved += ids[r] != draw_one(&card, a.logits + r * ADJUST_N, ADJUST_N, plain);
        }
        cr_assert_gt(n_moved, 0, "the settings did nothing");
    }
    cr_assert_eq(memcmp(before, a.logits, ADJUST_ROWS * ADJUST_N * sizeof *before), 0,
                 "the logits are to be left for log-probabilities");
    free(by_hand), free(before), free(scratch), free(a.logits), free(a.history);
    card_close(&card);
}

Test(sample, neutral_penalties_draw_the_same_and_read_no_history)
{
    enum { N = 500 };
    uint64_t state = 47;
    struct card card = card_open(1);
    float *logits = values_of(N, INPUT_RANDOM, &state);
    for (int64_t position = 0; position < 50; position++) {
        struct sample_params plain = {
            .temperature = position % 2 == 0 ? 0 : 0.9f, .top_p = 0.9f, .position = position};
        struct sample_params neutral = plain, none = plain;
        neutral.repetition = 1, neutral.n_repeat = 64;
        none.repetition = 2; /* over a window of nothing */
        int32_t id = draw_one(&card, logits, N, plain);
        cr_assert_eq(draw_one(&card, logits, N, neutral), id);
        cr_assert_eq(draw_one(&card, logits, N, none), id);
    }
    free(logits);
    card_close(&card);
}

Test(logprob, is_the_log_of_the_softmax_and_the_same_in_every_set)
{
    enum { N = 3001, ROWS = 3 };
    uint64_t state = 48;
    struct card card = card_open(2);
    float *logits = values_of(ROWS * N, INPUT_RANDOM, &state);
    int32_t ids[ROWS] = {5, 0, N - 1};
    double norms[N_SETS][ROWS];
    float chosen[ROWS];
    logits[N] = NAN;
    logits[N + 1] = -INFINITY;
    ids[1] = 1;
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *named = set_named(set_names[s]);
        struct logprob_args args = {logits, ROWS, N, ids, norms[s], chosen};
        cr_assert_eq((named != NULL ? named : set())->logprob(&args, card.stream), 0);
        card_wait(&card);
    }
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < N; i++)
            sum += isnan(logits[r * N + i]) ? 0 : exp((double)logits[r * N + i]);
        cr_assert_float_eq(norms[0][r], log(sum), 1e-6);
        cr_assert_eq(chosen[r], logits[r * N + ids[r]]);
    }
    for (size_t s = 1; s < N_SETS; s++)
        cr_assert_eq(memcmp(norms[0], norms[s], sizeof norms[0]), 0, "%s", set_names[s]);
    free(logits);
    card_close(&card);
}

Test(top, gives_the_k_largest_falling_with_ties_to_the_lower_id)
{
    enum { N = 1000 };
    uint64_t state = 44;
    struct card card = card_open(2);
    float logits[2 * N], values[2 * N];
    int32_t ids[2 * N];
    for (int i = 0; i < 2 * N; i++)
        logits[i] = i % 50 == 0 ? NAN : (float)(random_bits(&state) % 97) - 40;
    static const size_t ks[] = {1, 2, 5, 64, 999, N};
    for (size_t c = 0; c < sizeof ks / sizeof ks[0]; c++) {
        size_t k = ks[c];
        struct top_args args = {logits, 2, N, k, ids, values};
        cr_assert_eq(set()->top(&args, card.stream), 0);
        card_wait(&card);
        for (size_t r = 0; r < 2; r++) {
            bool taken[N] = {false};
            for (size_t i = 0; i < k; i++) {
                size_t best = N;
                float max = 0;
                for (size_t j = 0; j < N; j++) {
                    float v = isnan(logits[r * N + j]) ? -INFINITY : logits[r * N + j];
                    if (!taken[j] && (best == N || v > max)) {
                        best = j;
                        max = v;
                    }
                }
                taken[best] = true;
                cr_assert_eq(ids[r * k + i], (int32_t)best);
                cr_assert_eq(values[r * k + i], max);
            }
        }
    }
    struct top_args more = {logits, 1, N, N + 1, ids, values};
    cr_assert_eq(set()->top(&more, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}
