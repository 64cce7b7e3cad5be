/* rope_test.c - angles, and the norm and rotation of heads on a CUDA card, against the CPU and for any number of rows. */
#include "pair.h"

static double *frequencies(struct pair *p, size_t n_half)
{
    double *f = pair_new(p, n_half * sizeof *f);
    for (size_t i = 0; i < n_half; i++)
        f[i] = pow(1e6, -(double)i / (double)n_half);
    return f;
}

static int32_t ordered(float f)
{
    int32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits < 0 ? INT32_MIN - bits : bits;
}

Test(rope, angles_are_those_of_the_cpu_to_the_last_bit_but_one)
{
    enum { ROWS = 600, HALF = 64 };
    struct pair p = pair_open();
    double *inv_freq = frequencies(&p, HALF);
    int32_t *positions = pair_new(&p, ROWS * sizeof *positions);
    size_t bytes = ROWS * HALF * 2 * sizeof(float), differ = 0;
    float *gpu = pair_new(&p, bytes), *cpu = pair_new(&p, bytes);
    for (int32_t r = 0; r < ROWS; r++)
        positions[r] = r < 300 ? r - 2 : r * 4801;
    struct rope_angles_args args = {positions, inv_freq, ROWS, HALF, 0.75f, gpu};
    cr_assert_eq(p.cuda->rope_angles(&args, p.stream), 0);
    args.angles = cpu;
    cr_assert_eq(p.reference->rope_angles(&args, p.cpu.stream), 0);
    pair_wait(&p);
    for (size_t i = 0; i < ROWS * HALF * 2; i++) {
        int64_t apart = (int64_t)ordered(gpu[i]) - ordered(cpu[i]);
        cr_assert(apart >= -1 && apart <= 1, "angle %zu: %a, the CPU has %a", i, gpu[i], cpu[i]);
        differ += apart != 0;
    }
    cr_assert(differ <= ROWS * HALF * 2 / 100, "%zu of the angles differ", differ);
    pair_close(&p);
}

struct heads {
    size_t n_rows, n_heads, head_dim, n_half;
    bool halves, norm;
};

/* Runs on a copy of x, so that x can be asked again. */
static float *rotated(struct pair *p, const struct kernel_set *set, const float *x,
                      const float *angles, const float *weight, const struct heads *h)
{
    size_t bytes = h->n_rows * h->n_heads * h->head_dim * sizeof(float);
    float *y = pair_new(p, bytes);
    memcpy(y, x, bytes);
    struct head_rope_args args = {y,           h->n_rows, h->n_heads,
                                  h->head_dim, h->n_half, h->norm ? weight : NULL,
                                  1e-6f,       angles,    h->halves};
    cr_assert_eq(set->head_rope(&args, set == p->cuda ? p->stream : p->cpu.stream), 0);
    pair_wait(p);
    return y;
}

Test(rope, heads_are_rotated_as_on_the_cpu_and_normed_near_it)
{
    static const size_t dims[][2] = {{64, 32}, {80, 40}, {96, 24}, {128, 64}, {256, 128}, {6, 2}};
    enum { ROWS = 7, HEADS = 5 };
    struct pair p = pair_open();
    uint64_t state = 41;
    for (size_t i = 0; i < 4 * sizeof dims / sizeof dims[0]; i++) {
        struct heads h = {ROWS, HEADS, dims[i / 4][0], dims[i / 4][1], i % 2 != 0, i / 2 % 2 != 0};
        size_t n = ROWS * HEADS * h.head_dim, n_angles = ROWS * h.n_half * 2;
        float *x = values_of(n, INPUT_RANDOM, &state);
        float *angles =
            pair_take(&p, values_of(n_angles, INPUT_RANDOM, &state), n_angles * sizeof(float));
        float *weight =
            pair_take(&p, values_of(h.head_dim, INPUT_RANDOM, &state), h.head_dim * sizeof(float));
        float *gpu = rotated(&p, p.cuda, x, angles, weight, &h);
        float *cpu = rotated(&p, p.reference, x, angles, weight, &h);
        if (!h.norm)
            cr_assert_eq(memcmp(gpu, cpu, n * sizeof(float)), 0, "head_dim %zu", h.head_dim);
        for (size_t j = 0; j < n; j++)
            cr_assert_float_eq(gpu[j], cpu[j], 1e-5f * (8 + fabsf(cpu[j])));
        free(x);
    }
    pair_close(&p);
}

Test(rope, a_row_has_the_same_bits_alone_in_8_and_in_512)
{
    enum { ROWS = 512, HEADS = 4, DIM = 128, HALF = 64, ROW = HEADS * DIM };
    struct pair p = pair_open();
    uint64_t state = 42;
    struct heads h = {ROWS, HEADS, DIM, HALF, true, true};
    float *x = values_of(ROWS * ROW, INPUT_RANDOM, &state);
    float *angles = pair_take(&p, values_of(ROWS * HALF * 2, INPUT_RANDOM, &state),
                              ROWS * HALF * 2 * sizeof(float));
    float *weight = pair_take(&p, values_of(DIM, INPUT_RANDOM, &state), DIM * sizeof(float));
    float *all = rotated(&p, p.cuda, x, angles, weight, &h);
    for (size_t r = 0; r + 8 <= ROWS; r += 41) {
        h.n_rows = r % 2 == 0 ? 1 : 8;
        float *some = rotated(&p, p.cuda, x + r * ROW, angles + r * HALF * 2, weight, &h);
        cr_assert_eq(memcmp(some, all + r * ROW, h.n_rows * ROW * sizeof(float)), 0, "row %zu", r);
    }
    free(x);
    pair_close(&p);
}

Test(rope, more_pairs_than_a_head_has_are_refused)
{
    struct pair p = pair_open();
    struct head_rope_args args = {.n_rows = 1, .n_heads = 1, .head_dim = 64, .n_half = 33};
    cr_assert_eq(p.cuda->head_rope(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
