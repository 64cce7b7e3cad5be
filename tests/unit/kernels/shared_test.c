/* shared_test.c - the shared expert's sum: the same bits in the exact sets, near fp64 in all, a row at a time. */
#include "inputs.h"
#include "kernels/expf.h"
#include "kernels/reduce.h"

enum { ROWS_MAX = 9 };

static float *copy_of(const float *x, size_t n)
{
    return memcpy(bytes_of(n * sizeof *x), x, n * sizeof *x);
}

static void shared_add(const char *name, struct card *card, struct shared_add_args args)
{
    cr_assert_eq(set_named(name)->shared_add(&args, card->stream), 0);
    card_wait(card);
}

static void sums_compare(struct card *card, size_t n, size_t n_rows, enum input_kind kind)
{
    uint64_t state = 51 + n;
    float *x = values_of(n_rows * n, kind, &state), *gate = values_of(n, INPUT_RANDOM, &state);
    float *y = values_of(n_rows * n, INPUT_RANDOM, &state),
          *before = values_of(n_rows * n, INPUT_RANDOM, &state), *out[N_SETS] = {NULL};
    for (size_t i = 0; i < n; i++)
        gate[i] *= 0.01f; /* keeps most sigmoids where they bend */
    for (size_t s = 0; s < N_SETS; s++) {
        if (set_named(set_names[s]) == NULL)
            continue;
        out[s] = copy_of(before, n_rows * n);
        shared_add(set_names[s], card, (struct shared_add_args){gate, x, y, n_rows, n, out[s]});
    }
    for (size_t s = 1; s < N_EXACT; s++)
        cr_assert(out[s] == NULL || memcmp(out[0], out[s], n_rows * n * sizeof *y) == 0,
                  "%s n %zu kind %d", set_names[s], n, kind);
    for (size_t r = 0; r < n_rows; r++) {
        float z = reduce_dot(gate, x + r * n, n), sigmoid = 1.0f / (1.0f + ebb_expf(-z));
        double wide = 0, size = 0;
        for (size_t i = 0; i < n; i++) {
            wide += (double)gate[i] * x[r * n + i];
            size += fabs((double)gate[i] * x[r * n + i]);
        }
        for (size_t i = r * n; i < (r + 1) * n; i++) {
            double want = before[i] + y[i] / (1 + exp(-wide));
            cr_assert_eq(out[0][i], fmaf(sigmoid, y[i], before[i]));
            cr_assert_float_eq(out[N_EXACT][i], want, 1e-6 * (fabs(y[i]) + fabs(before[i])));
            if (size < 1e30)
                cr_assert_float_eq(out[0][i], want,
                                   1e-6 * (1 + size) * (fabs(y[i]) + fabs(before[i])));
        }
    }
    free(x), free(gate), free(y), free(before);
    for (size_t s = 0; s < N_SETS; s++)
        free(out[s]);
}

Test(shared, add_has_the_same_bits_in_the_exact_sets_and_is_the_gated_sum)
{
    static const size_t widths[] = {1, 7, 16, 64, 100, 768}, rows[] = {1, 2, ROWS_MAX};
    struct card card = card_open(2);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (int kind = 0; kind < INPUT_KINDS; kind++)
                sums_compare(&card, widths[w], rows[r], (enum input_kind)kind);
    card_close(&card);
}

Test(shared, add_without_a_gate_is_the_plain_sum_and_rows_do_not_depend_on_company_or_threads)
{
    enum { N = 2048, ROWS = 67 };
    uint64_t state = 52;
    float *x = values_of(ROWS * N, INPUT_RANDOM, &state),
          *gate = values_of(N, INPUT_RANDOM, &state);
    float *y = values_of(ROWS * N, INPUT_RANDOM, &state);
    for (size_t s = 0; s < N_SETS; s++)
        for (int threads = 1; set_named(set_names[s]) != NULL && threads <= 3; threads++) {
            struct card card = card_open(threads);
            float *all = copy_of(x, ROWS * N), *one = copy_of(x, ROWS * N);
            shared_add(set_names[s], &card, (struct shared_add_args){NULL, x, y, ROWS, N, all});
            for (size_t i = 0; i < ROWS * N; i++)
                cr_assert_eq(all[i], x[i] + y[i]);
            shared_add(set_names[s], &card, (struct shared_add_args){gate, x, y, ROWS, N, all});
            for (size_t r = 0; r < ROWS; r++) {
                float *row = one + r * N;
                shared_add(set_names[s], &card,
                           (struct shared_add_args){NULL, x, y + r * N, 1, N, row});
                shared_add(set_names[s], &card,
                           (struct shared_add_args){gate, x + r * N, y + r * N, 1, N, row});
            }
            cr_assert_eq(memcmp(all, one, ROWS * N * sizeof *all), 0);
            free(all), free(one);
            card_close(&card);
        }
    free(x), free(gate), free(y);
}
