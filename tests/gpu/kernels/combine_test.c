/* combine_test.c - the small row operations on the card: combination, SwiGLU, gather (the CPU's bits), the shared expert, moves. */
#include "pair.h"

static float *values_new(struct pair *p, size_t n, enum input_kind kind, uint64_t *state)
{
    return pair_take(p, values_of(n, kind, state), n * sizeof(float));
}

static void combine_check(struct pair *p, size_t d_model, size_t n_used, size_t n_rows,
                          enum input_kind kind)
{
    uint64_t state = 21 + d_model + n_used;
    size_t bytes = n_rows * d_model * sizeof(float);
    float *outputs = values_new(p, n_rows * n_used * d_model, kind, &state);
    float *mix = values_new(p, n_rows * n_used, INPUT_RANDOM, &state);
    float *want = values_new(p, n_rows * d_model, kind, &state), *got = pair_new(p, bytes);
    int32_t *ids = pair_new(p, n_rows * n_used * sizeof *ids);
    memcpy(got, want, bytes);
    for (size_t i = 0; i < n_rows * n_used; i++)
        ids[i] = (int32_t)(random_bits(&state) % 9) - 1;
    for (size_t i = 0; i < n_used; i++)
        ids[i] = -1; /* a row of none */
    struct combine_args args = {outputs, mix, ids, d_model, n_used, n_rows, want};
    cr_assert_eq(p->reference->combine(&args, p->cpu.stream), 0);
    args.hidden = got;
    cr_assert_eq(p->cuda->combine(&args, p->stream), 0);
    pair_wait(p);
    cr_assert_eq(memcmp(want, got, bytes), 0, "%zu x %zu, %zu rows", d_model, n_used, n_rows);
}

Test(cuda_combine, has_the_bits_of_the_cpu)
{
    struct pair p = pair_open();
    for (enum input_kind kind = 0; kind < INPUT_KINDS; kind++) {
        combine_check(&p, 2048, 8, 3, kind);
        combine_check(&p, 100, 1, 70, kind);
        combine_check(&p, 33, 16, 2, kind);
    }
    pair_close(&p);
}

Test(cuda_swiglu, has_the_bits_of_the_cpu_also_in_place)
{
    enum { N = 3001, ROWS = 3 };
    struct pair p = pair_open();
    uint64_t state = 22;
    for (enum input_kind kind = 0; kind < INPUT_KINDS; kind++) {
        float *gate = values_new(&p, ROWS * N, kind, &state);
        float *up = values_new(&p, ROWS * N, kind, &state);
        float *want = pair_new(&p, ROWS * N * sizeof *want);
        for (int i = 0; i < N; i += 2)
            gate[i] *= 40; /* into both tails of the exponential */
        struct swiglu_args args = {gate, up, want, ROWS, N};
        cr_assert_eq(p.reference->swiglu(&args, p.cpu.stream), 0);
        card_wait(&p.cpu);
        args.y = gate;
        cr_assert_eq(p.cuda->swiglu(&args, p.stream), 0);
        pair_wait(&p);
        cr_assert_eq(memcmp(want, gate, ROWS * N * sizeof *want), 0, "kind %d", kind);
    }
    pair_close(&p);
}

Test(cuda_gather, picks_rows_and_gives_zeros_for_none)
{
    enum { N = 700, ROWS = 5 };
    static const int32_t chosen[ROWS] = {3, -1, 0, 3, 9};
    struct pair p = pair_open();
    uint64_t state = 23;
    float *x = values_new(&p, 10 * N, INPUT_RANDOM, &state);
    float *want = pair_new(&p, ROWS * N * sizeof *want),
          *got = pair_new(&p, ROWS * N * sizeof *got);
    int32_t *index = pair_new(&p, sizeof chosen);
    memcpy(index, chosen, sizeof chosen);
    memset(got, 0xcd, ROWS * N * sizeof *got);
    struct gather_args args = {x, index, want, ROWS, N};
    cr_assert_eq(p.reference->gather(&args, p.cpu.stream), 0);
    args.y = got;
    cr_assert_eq(p.cuda->gather(&args, p.stream), 0);
    pair_wait(&p);
    cr_assert_eq(memcmp(want, got, ROWS * N * sizeof *want), 0);
    pair_close(&p);
}

/* The gate's sum differs from the CPU's by roundings, so hidden by a few units of its last place: at most 1e-5 of what is added. */
static void shared_check(struct pair *p, size_t n, size_t n_rows, bool gated)
{
    uint64_t state = 24 + n;
    size_t bytes = n_rows * n * sizeof(float);
    float *gate = values_new(p, n, INPUT_RANDOM, &state);
    float *x = values_new(p, n_rows * n, INPUT_RANDOM, &state);
    float *y = values_new(p, n_rows * n, INPUT_RANDOM, &state);
    float *start = values_new(p, n_rows * n, INPUT_RANDOM, &state);
    float *want = pair_new(p, bytes), *got = pair_new(p, bytes), *single = pair_new(p, bytes);
    memcpy(want, start, bytes), memcpy(got, start, bytes), memcpy(single, start, bytes);
    for (size_t i = 0; i < n; i++)
        gate[i] *= 1.0f / 16;
    struct shared_add_args args = {gated ? gate : NULL, x, y, n_rows, n, want};
    cr_assert_eq(p->reference->shared_add(&args, p->cpu.stream), 0);
    args.hidden = got;
    cr_assert_eq(p->cuda->shared_add(&args, p->stream), 0);
    for (size_t r = 0; r < n_rows; r++) {
        struct shared_add_args one = {args.gate, x + r * n, y + r * n, 1, n, single + r * n};
        cr_assert_eq(p->cuda->shared_add(&one, p->stream), 0);
    }
    pair_wait(p);
    cr_assert_eq(memcmp(got, single, bytes), 0, "a row alone has other bits");
    for (size_t i = 0; i < n_rows * n; i++)
        cr_assert_leq(fabs((double)got[i] - want[i]), gated ? 1e-5 * (1 + fabs(y[i])) : 0);
}

Test(cuda_shared_add, is_near_the_cpu_and_the_same_in_any_batch)
{
    struct pair p = pair_open();
    shared_check(&p, 2048, 5, true);
    shared_check(&p, 2048, 2, false);
    shared_check(&p, 77, 40, true);
    shared_check(&p, 5, 3, true);
    pair_close(&p);
}

Test(cuda_move, takes_every_byte_of_every_pair_and_no_other)
{
    static const size_t sizes[] = {256, 32768 - 256, 32768, 33024, 5 * 32768 + 512};
    struct pair p = pair_open();
    enum { N = 70, GAP = 256 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t bytes = sizes[k], stride = bytes + GAP;
        uint64_t state = 5 + k;
        unsigned char *from = pair_new(&p, N * stride), *to = pair_new(&p, N * stride);
        struct move_pair *pairs = pair_new(&p, N * sizeof *pairs);
        for (size_t i = 0; i < N * stride; i++)
            from[i] = (unsigned char)random_bits(&state);
        for (size_t i = 0; i < N; i++) /* 3 and N have no common factor */
            pairs[i] = (struct move_pair){from + i * stride, to + i * 3 % N * stride};
        struct move_args args = {pairs, N, bytes};
        cr_assert_eq(p.cuda->move(&args, p.stream), 0);
        pair_wait(&p);
        for (size_t i = 0; i < N; i++) {
            unsigned char *at = to + i * 3 % N * stride;
            cr_assert_eq(memcmp(at, from + i * stride, bytes), 0, "%zu bytes, pair %zu", bytes, i);
            for (size_t j = bytes; j < stride; j++)
                cr_assert_eq(at[j], 0, "%zu bytes, pair %zu: byte %zu behind", bytes, i, j);
        }
    }
    pair_close(&p);
}
