/* quantize_test.c - quantised activations: the numbers of the reference, part by part, since the two lay them out differently. */
#include "pair.h"
#include "bits.h"
#include "kernels/activation.h"

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void rows_compare(struct pair *p, size_t n, size_t n_rows, const float *x)
{
    const size_t n_blocks = n / 32, d_at = n, sx_at = d_at + round_up(4 * n_blocks, 16);
    const size_t half_at = sx_at + round_up(4 * n_blocks, 16);
    uint8_t *cpu = bytes_of(n_rows * p->reference->activation_bytes(n));
    uint8_t *gpu = pair_new(p, n_rows * p->cuda->activation_bytes(n));
    struct quantize_args args = {x, cpu, n_rows, n};
    cr_assert_eq(p->reference->quantize(&args, p->cpu.stream), 0);
    args.a = gpu;
    cr_assert_eq(p->cuda->quantize(&args, p->stream), 0);
    pair_wait(p);
    for (size_t r = 0; r < n_rows; r++) {
        const uint8_t *got = gpu + r * p->cuda->activation_bytes(n);
        struct activation want = activation_at(cpu, n, r);
        cr_assert_eq(memcmp(want.q, got, n), 0, "quants of row %zu of %zu values", r, n);
        cr_assert(bits_agree(want.d, (const float *)(got + d_at), n_blocks), "scales of row %zu",
                  r);
        cr_assert(bits_agree(want.sx, (const float *)(got + sx_at), n_blocks), "sums of row %zu",
                  r);
        cr_assert_eq(memcmp(want.sum16, got + half_at, 4 * n_blocks), 0, "halves of row %zu", r);
    }
    free(cpu);
    exec_cuda.shared_free(p->gpu, gpu);
}

Test(quantize, has_the_numbers_of_the_reference_for_every_width_and_input)
{
    static const size_t widths[] = {32, 96, 160, 256, 768, 2048, 4096};
    struct pair p = pair_open();
    uint64_t state = 5;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t n_rows = 1; n_rows <= 65; n_rows += 32)
            for (int kind = 0; kind < INPUT_KINDS; kind++) {
                const size_t n = widths[w] * n_rows;
                float *x = pair_take(&p, values_of(n, (enum input_kind)kind, &state), 4 * n);
                rows_compare(&p, widths[w], n_rows, x);
                exec_cuda.shared_free(p.gpu, x);
            }
    pair_close(&p);
}

Test(quantize, shows_infinities_and_nans_in_scales_and_has_no_quants_for_them)
{
    struct pair p = pair_open();
    float *x = pair_new(&p, 128 * sizeof *x);
    for (size_t i = 0; i < 128; i++)
        x[i] = (float)i;
    x[40] = INFINITY, x[70] = NAN, x[71] = INFINITY, x[100] = -INFINITY;
    rows_compare(&p, 128, 1, x);
    pair_close(&p);
}

Test(quantize, refuses_a_width_that_is_no_whole_number_of_blocks)
{
    struct pair p = pair_open();
    struct quantize_args args = {.n_rows = 1, .n = 48};
    cr_assert_eq(p.cuda->quantize(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
