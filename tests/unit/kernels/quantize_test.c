/* quantize_test.c - activations become int8 as NUMERICS tier 1, rule 1 says, with the same bits in
 * every set. */
#include "inputs.h"
#include "kernels/activation.h"

enum { ROWS = 3, N = 32 * 21 };

static void quantize(const char *name, struct card *card, const float *x, void *a, size_t n_rows,
                     size_t n)
{
    const struct kernel_set *set = set_named(name);
    struct quantize_args args = {x, a, n_rows, n};
    memset(a, 0xcd, n_rows * set->activation_bytes(n));
    cr_assert_eq(set->quantize(&args, card->stream), 0);
    card_wait(card);
}

/* The rule in other words: doubles where they are exact, and lrint for ties to even. */
static void block_check(const float *x, const int8_t *q, float d, float sx, const int16_t *sum16)
{
    float amax = 0.0f;
    int sum = 0, second = 0;
    for (int i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    for (int i = 0; i < 32; i++) {
        float id = 127.0f / amax;
        long wanted = amax < 0x1p-100f ? 0 : lrint((double)(float)(x[i] * id));
        cr_assert_eq(q[i], wanted > 127 ? 127 : wanted < -127 ? -127 : wanted);
        sum += q[i];
        second += i < 16 ? 0 : q[i];
    }
    cr_assert_eq(d, amax < 0x1p-100f ? 0.0f : amax / 127.0f);
    cr_assert_eq(sx, d * (float)sum);
    cr_assert_eq(sum16[0], sum - second);
    cr_assert_eq(sum16[1], second);
}

Test(quantize, follows_the_rule_and_has_the_same_bits_in_every_exact_set)
{
    struct card card = card_open(3);
    uint64_t state = 17;
    size_t bytes = ROWS * set_named("reference")->activation_bytes(N);
    void *a = bytes_of(bytes), *b = bytes_of(bytes);
    for (int kind = 0; kind < INPUT_KINDS; kind++) {
        float *x = values_of(ROWS * N, (enum input_kind)kind, &state);
        for (int i = 0; i < 32; i++)
            x[i] = (float)i - 0.5f; /* with amax 127 every value is a tie */
        x[31] = 127.0f;
        quantize("reference", &card, x, a, ROWS, N);
        for (size_t r = 0; r < ROWS; r++) {
            struct activation row = activation_at(a, N, r);
            for (size_t k = 0; k < N / 32; k++)
                block_check(x + r * N + 32 * k, row.q + 32 * k, row.d[k], row.sx[k],
                            row.sum16 + 2 * k);
        }
        for (size_t s = 1; s < N_EXACT; s++)
            if (set_named(set_names[s]) != NULL) {
                quantize(set_names[s], &card, x, b, ROWS, N);
                cr_assert_eq(memcmp(a, b, bytes), 0, "%s, kind %d", set_names[s], kind);
            }
        free(x);
    }
    free(a), free(b);
    card_close(&card);
}

Test(quantize, shows_values_that_are_not_finite_instead_of_hiding_them)
{
    struct card card = card_open(1);
    float x[128];
    void *a = bytes_of(set_named("reference")->activation_bytes(128)),
         *b = bytes_of(set_named("reference")->activation_bytes(128));
    for (int i = 0; i < 128; i++)
        x[i] = (float)i;
    x[3] = NAN, x[40] = INFINITY, x[70] = -INFINITY, x[71] = NAN;
    quantize("reference", &card, x, a, 1, 128);
    struct activation row = activation_at(a, 128, 0);
    cr_assert(isnan(row.d[0]) && isinf(row.d[1]) && isnan(row.d[2]) && isfinite(row.d[3]));
    for (int i = 0; i < 96; i++)
        cr_assert_eq(row.q[i], 0);
    for (size_t s = 1; s < N_EXACT; s++) {
        if (set_named(set_names[s]) == NULL)
            continue;
        quantize(set_names[s], &card, x, b, 1, 128);
        struct activation other = activation_at(b, 128, 0);
        cr_assert_eq(memcmp(row.q, other.q, 128), 0);
        cr_assert(isnan(other.d[0]) && isinf(other.d[1]) && isnan(other.d[2]) &&
                  other.d[3] == row.d[3]);
        cr_assert(isnan(other.sx[0]) && isnan(other.sx[1]) && isnan(other.sx[2]) &&
                  other.sx[3] == row.sx[3]);
    }
    free(a), free(b);
    card_close(&card);
}

Test(quantize, refuses_a_width_that_is_not_whole_blocks)
{
    struct card card = card_open(1);
    struct quantize_args args = {NULL, NULL, 1, 33};
    for (size_t i = 0; i < N_SETS; i++)
        if (set_named(set_names[i]) != NULL)
            cr_assert_eq(set_named(set_names[i])->quantize(&args, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}
