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
    struct sample_args args = {logits, n_rows, n_vocab, params, scratch, ids};
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
        struct sample_params params = {1, cases[c].top_p, cases[c].min_p, cases[c].top_k, 3, 0};
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
            struct sample_params by_k = {1, 1, 0, K, 5, position},
                                 by_p = {1, 0.1f, 0, 0, 5, position};
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
        params[i] = (struct sample_params){i % 4 == 0 ? 0 : 1.3f, 0.9f, 0.01f, i % 3 * 20, 9, i};
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
    static const char *const names[] = {"reference", "avx2", "float"};
    uint64_t state = 45;
    struct card card = card_open(2);
    float *logits = values_of(N_ROWS * N, INPUT_RANDOM, &state);
    void *scratch = bytes_of(set()->sample_scratch_bytes(N_ROWS, N));
    struct sample_params params[N_ROWS];
    int32_t ids[3][N_ROWS];
    for (int i = 0; i < N_ROWS; i++)
        params[i] = (struct sample_params){0.5f + (float)(i % 5), 0.95f, 0, i % 2 * 100, 10, i};
    for (int s = 0; s < 3; s++) {
        const struct kernel_set *named = set_named(names[s]);
        struct sample_args args = {logits, N_ROWS, N, params, scratch, ids[s]};
        cr_assert_eq((named != NULL ? named : set())->sample(&args, card.stream), 0);
        card_wait(&card);
    }
    cr_assert_eq(memcmp(ids[0], ids[1], sizeof ids[0]), 0);
    cr_assert_eq(memcmp(ids[0], ids[2], sizeof ids[0]), 0);
    free(logits), free(scratch);
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
