/* norm_test.c - norms, rotation and gathering: the sets agree on the bits, and the bits on the mathematics. */
#include "inputs.h"

static float *twice_of(const float *x, size_t n)
{
    float *copy = bytes_of(n * sizeof *copy);
    return memcpy(copy, x, n * sizeof *copy);
}

Test(norm, rmsnorm_gives_the_same_bits_in_every_exact_set_for_all_inputs_and_lengths)
{
    static const size_t lengths[] = {1, 7, 15, 16, 17, 33, 80, 512, 1000};
    enum { N_ROWS = 5 };
    uint64_t state = 11;
    struct card card = card_open(2);
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            size_t n = lengths[l];
            float *x = values_of(N_ROWS * n, (enum input_kind)kind, &state);
            float *weight = values_of(n, INPUT_RANDOM, &state), *y[N_EXACT] = {NULL};
            for (size_t s = 0; s < N_EXACT; s++) {
                const struct kernel_set *set = set_named(set_names[s]);
                if (set == NULL)
                    continue;
                y[s] = twice_of(x, N_ROWS * n);
                struct rmsnorm_args args = {x, weight, y[s], N_ROWS, n, 1e-6f};
                if (s > 0)
                    args.x = y[s]; /* in place */
                cr_assert_eq(set->rmsnorm(&args, card.stream), 0);
                card_wait(&card);
            }
            for (size_t s = 1; s < N_EXACT; s++)
                cr_assert(y[s] == NULL || memcmp(y[0], y[s], N_ROWS * n * sizeof(float)) == 0,
                          "%s n %zu kind %d", set_names[s], n, kind);
            free(x), free(weight);
            for (size_t s = 0; s < N_EXACT; s++)
                free(y[s]);
        }
    card_close(&card);
}

Test(norm, rmsnorm_is_near_the_fp64_sum_in_every_set)
{
    enum { N = 2048 };
    uint64_t state = 12;
    struct card card = card_open(1);
    float *x = values_of(N, INPUT_RANDOM, &state), *weight = values_of(N, INPUT_RANDOM, &state);
    double sum = 0;
    for (size_t i = 0; i < N; i++)
        sum += (double)x[i] * x[i];
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        float y[N];
        struct rmsnorm_args args = {x, weight, y, 1, N, 1e-5f};
        if (set == NULL)
            continue;
        cr_assert_eq(set->rmsnorm(&args, card.stream), 0);
        card_wait(&card);
        for (size_t i = 0; i < N; i++) {
            double want = x[i] / sqrt(sum / N + 1e-5) * weight[i];
            cr_assert(fabs(y[i] - want) <= 1e-6 * fabs(want));
        }
    }
    free(x), free(weight);
    card_close(&card);
}

Test(norm, a_row_has_the_same_bits_alone_and_among_512_with_any_number_of_threads)
{
    enum { N_ROWS = 512, N = 384 };
    uint64_t state = 13;
    const struct kernel_set *set = kernel_set_cpu("auto", NULL);
    float *x = values_of(N_ROWS * N, INPUT_RANDOM, &state),
          *weight = values_of(N, INPUT_RANDOM, &state);
    float *all = bytes_of(N_ROWS * N * sizeof(float)), one[N];
    for (int threads = 1; threads <= 3; threads++) {
        struct card card = card_open(threads);
        struct rmsnorm_args args = {x, weight, all, N_ROWS, N, 1e-6f};
        cr_assert_eq(set->rmsnorm(&args, card.stream), 0);
        for (size_t r = 0; r < N_ROWS; r += 37) {
            struct rmsnorm_args alone = {x + r * N, weight, one, 1, N, 1e-6f};
            cr_assert_eq(set->rmsnorm(&alone, card.stream), 0);
            card_wait(&card);
            cr_assert_eq(memcmp(one, all + r * N, sizeof one), 0);
        }
        card_close(&card);
    }
    free(x), free(weight), free(all);
}

Test(rope, angles_are_rounded_once_from_fp64_and_finite_for_inert_rows)
{
    enum { N_ROWS = 5, N_HALF = 24 };
    int32_t positions[N_ROWS] = {0, 1, 131071, -1, 77};
    double inv_freq[N_HALF];
    float angles[N_ROWS][N_HALF][2];
    struct card card = card_open(1);
    for (int i = 0; i < N_HALF; i++)
        inv_freq[i] = pow(1e6, -(double)i / N_HALF);
    struct rope_angles_args args = {positions, inv_freq, N_ROWS, N_HALF, 1.0f, &angles[0][0][0]};
    cr_assert_eq(kernel_set_cpu("reference", NULL)->rope_angles(&args, card.stream), 0);
    card_wait(&card);
    for (int r = 0; r < N_ROWS; r++)
        for (int i = 0; i < N_HALF; i++) {
            double angle = positions[r] < 0 ? 0 : positions[r] * inv_freq[i];
            cr_assert_eq(angles[r][i][0], (float)cos(angle));
            cr_assert_eq(angles[r][i][1], (float)sin(angle));
        }
    card_close(&card);
}

Test(rope, angles_are_scaled_by_one_product_after_rounding)
{
    enum { N_ROWS = 3, N_HALF = 32, N = N_ROWS * N_HALF * 2 };
    static const int32_t positions[N_ROWS] = {0, 5, 40000};
    const float scale = 1.1386294f;
    double inv_freq[N_HALF];
    float plain[N], scaled[N];
    struct card card = card_open(2);
    for (int i = 0; i < N_HALF; i++)
        inv_freq[i] = pow(1e4, -(double)i / N_HALF);
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        struct rope_angles_args args = {positions, inv_freq, N_ROWS, N_HALF, 1.0f, plain};
        if (set == NULL)
            continue;
        cr_assert_eq(set->rope_angles(&args, card.stream), 0);
        args.scale = scale, args.angles = scaled;
        cr_assert_eq(set->rope_angles(&args, card.stream), 0);
        card_wait(&card);
        for (int i = 0; i < N; i++)
            cr_assert_eq(scaled[i], plain[i] * scale);
    }
    card_close(&card);
}

static void head_rope_compare(struct card *card, size_t head_dim, size_t n_half, bool halves,
                              bool norm)
{
    enum { N_ROWS = 3, N_HEADS = 3 };
    uint64_t state = 14 + head_dim;
    size_t n = N_ROWS * N_HEADS * head_dim;
    float *x = values_of(n, INPUT_RANDOM, &state),
          *weight = values_of(head_dim, INPUT_RANDOM, &state);
    float *angles = values_of(N_ROWS * n_half * 2, INPUT_RANDOM, &state), *y[N_EXACT] = {NULL};
    for (size_t s = 0; s < N_EXACT; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        if (set == NULL)
            continue;
        y[s] = twice_of(x, n);
        struct head_rope_args args = {
            y[s], N_ROWS, N_HEADS, head_dim, n_half, norm ? weight : NULL, 1e-6f, angles, halves};
        cr_assert_eq(set->head_rope(&args, card->stream), 0);
        card_wait(card);
    }
    for (size_t s = 1; s < N_EXACT; s++)
        cr_assert(y[s] == NULL || memcmp(y[0], y[s], n * sizeof(float)) == 0, "%s", set_names[s]);
    for (size_t h = 0; h < N_ROWS * N_HEADS && !norm; h++) {
        const float *from = x + h * head_dim, *to = y[0] + h * head_dim;
        const float *angle = angles + h / N_HEADS * n_half * 2;
        for (size_t i = 0; i < n_half; i++) {
            size_t p = halves ? i : 2 * i, q = halves ? i + n_half : 2 * i + 1;
            double c = angle[2 * i], sine = angle[2 * i + 1];
            cr_assert_float_eq(to[p], from[p] * c - from[q] * sine, 1e-5);
            cr_assert_float_eq(to[q], from[p] * sine + from[q] * c, 1e-5);
        }
        cr_assert_eq(
            memcmp(from + 2 * n_half, to + 2 * n_half, (head_dim - 2 * n_half) * sizeof *to), 0);
    }
    free(x), free(weight), free(angles);
    for (size_t s = 0; s < N_EXACT; s++)
        free(y[s]);
}

Test(rope, heads_turn_alike_in_every_exact_set_and_dimensions_past_the_pairs_stay)
{
    static const size_t dims[] = {16, 64, 80, 96, 128, 256, 10};
    struct card card = card_open(2);
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (int variant = 0; variant < 8; variant++) {
            size_t n_half = variant & 4 ? dims[d] / 4 : dims[d] / 2;
            head_rope_compare(&card, dims[d], n_half, variant & 1, variant & 2);
        }
    struct head_rope_args wide = {.n_rows = 1, .n_heads = 1, .head_dim = 64, .n_half = 33};
    cr_assert_eq(kernel_set_cpu("auto", NULL)->head_rope(&wide, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}

Test(gather, picks_rows_by_number_and_gives_zeros_for_none)
{
    enum { N_ROWS = 4, N = 50 };
    uint64_t state = 15;
    int32_t index[N_ROWS] = {2, -1, 0, 2};
    float *x = values_of(3 * N, INPUT_RANDOM, &state), y[N_ROWS][N], zeros[N] = {0};
    struct card card = card_open(2);
    struct gather_args args = {x, index, &y[0][0], N_ROWS, N};
    cr_assert_eq(kernel_set_cpu("reference", NULL)->gather(&args, card.stream), 0);
    card_wait(&card);
    for (int j = 0; j < N_ROWS; j++)
        cr_assert_eq(memcmp(y[j], index[j] < 0 ? zeros : x + index[j] * N, sizeof zeros), 0);
    free(x);
    card_close(&card);
}
