/* norm_test.c - rmsnorm on a CUDA card: near the CPU's, and the same bits however many rows are asked. */
#include "pair.h"

/* Different sums of up to 32768 squares: each within 1e-5 of the true one, the root halves that. */
static void assert_near(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])) ||
                      fabsf(got[i] - want[i]) <= 1e-5f * fabsf(want[i]) + 1e-44f,
                  "%s: value %zu is %a, the CPU has %a", what, i, got[i], want[i]);
}

static void rmsnorm_both(struct pair *p, struct rmsnorm_args *args, float *gpu, float *cpu)
{
    args->y = gpu;
    cr_assert_eq(p->cuda->rmsnorm(args, p->stream), 0);
    args->y = cpu;
    cr_assert_eq(p->reference->rmsnorm(args, p->cpu.stream), 0);
    pair_wait(p);
}

Test(norm, rmsnorm_is_near_the_cpu_for_all_inputs_and_lengths)
{
    static const size_t lengths[] = {1, 7, 33, 64, 500, 2048, 4096, 4100, 5001, 32768};
    enum { ROWS = 3 };
    struct pair p = pair_open();
    uint64_t state = 31;
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            size_t n = lengths[l], bytes = ROWS * n * sizeof(float);
            float *x = pair_take(&p, values_of(ROWS * n, (enum input_kind)kind, &state), bytes);
            float *weight = pair_take(&p, values_of(n, INPUT_RANDOM, &state), n * sizeof *weight);
            float *gpu = pair_new(&p, bytes), *cpu = pair_new(&p, bytes);
            struct rmsnorm_args args = {x, weight, NULL, ROWS, n, 1e-6f};
            rmsnorm_both(&p, &args, gpu, cpu);
            assert_near(gpu, cpu, ROWS * n, "rmsnorm");
            args.y = x; /* in place */
            cr_assert_eq(p.cuda->rmsnorm(&args, p.stream), 0);
            pair_wait(&p);
            cr_assert_eq(memcmp(x, gpu, bytes), 0, "in place, n %zu kind %d", n, kind);
        }
    pair_close(&p);
}

Test(norm, a_row_has_the_same_bits_alone_in_8_and_in_512_wherever_it_lies)
{
    static const size_t lengths[] = {384, 2048, 6001};
    enum { ROWS = 512 };
    struct pair p = pair_open();
    uint64_t state = 32;
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        size_t n = lengths[l], bytes = ROWS * n * sizeof(float);
        float *x = pair_take(&p, values_of(ROWS * n, INPUT_RANDOM, &state), bytes);
        float *weight = pair_take(&p, values_of(n, INPUT_RANDOM, &state), n * sizeof *weight);
        float *all = pair_new(&p, bytes), *some = pair_new(&p, 9 * n * sizeof(float));
        struct rmsnorm_args args = {x, weight, all, ROWS, n, 1e-6f};
        cr_assert_eq(p.cuda->rmsnorm(&args, p.stream), 0);
        for (size_t r = 0; r + 8 <= ROWS; r += 41) {
            float *to = some + (r % 2); /* odd places: not at 16 bytes */
            args = (struct rmsnorm_args){x + r * n, weight, to, r % 3 == 0 ? 1 : 8, n, 1e-6f};
            cr_assert_eq(p.cuda->rmsnorm(&args, p.stream), 0);
            pair_wait(&p);
            cr_assert_eq(memcmp(to, all + r * n, args.n_rows * n * sizeof(float)), 0,
                         "n %zu row %zu", n, r);
        }
    }
    pair_close(&p);
}

Test(norm, rows_that_are_too_long_are_refused)
{
    struct pair p = pair_open();
    struct rmsnorm_args args = {.n_rows = 1, .n = 32769};
    cr_assert_eq(p.cuda->rmsnorm(&args, p.stream), EBB_EUNSUPPORTED);
    args.n = 0;
    cr_assert_eq(p.cuda->rmsnorm(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
