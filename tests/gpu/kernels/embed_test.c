/* embed_test.c - embedding on the card gives the CPU's bits, for every type. */
#include "pair.h"

enum { VOCAB = 37, ROWS = 9 };

static void embed_check(struct pair *p, uint32_t type, size_t d_model, enum input_kind kind)
{
    uint64_t state = 11 + type;
    size_t bytes = tensor_row_bytes(type, d_model) * VOCAB;
    size_t out_bytes = ROWS * d_model * sizeof(float);
    static const int32_t chosen[ROWS] = {0, VOCAB - 1, -1, 5, 5, VOCAB, 17, INT32_MIN, 36};
    int32_t *tokens = pair_new(p, sizeof chosen);
    memcpy(tokens, chosen, sizeof chosen);
    void *table = pair_take(p, weights_of(type, d_model, VOCAB, kind, &state), bytes);
    float *want = pair_new(p, out_bytes), *got = pair_new(p, out_bytes);
    memset(got, 0xcd, out_bytes);
    struct embed_args args = {type, table, VOCAB, d_model, ROWS, tokens, want};
    cr_assert_eq(p->reference->embed(&args, p->cpu.stream), 0);
    args.hidden = got;
    cr_assert_eq(p->cuda->embed(&args, p->stream), 0);
    pair_wait(p);
    cr_assert_eq(memcmp(want, got, out_bytes), 0, "type %u, d_model %zu", type, d_model);
}

Test(cuda_embed, has_the_bits_of_the_cpu_for_every_type)
{
    struct pair p = pair_open();
    for (size_t i = 0; i < N_TYPES; i++) {
        embed_check(&p, type_at(i), 256, INPUT_RANDOM);
        embed_check(&p, type_at(i), 2048 + 256, INPUT_EXTREMES);
        if (tensor_row_bytes(type_at(i), 32) != 0)
            embed_check(&p, type_at(i), 32, INPUT_RANDOM);
    }
    pair_close(&p);
}

Test(cuda_embed, widens_every_half_float_and_bfloat_as_the_cpu_does)
{
    enum { N = 65536 };
    struct pair p = pair_open();
    uint16_t *table = pair_new(&p, N * sizeof *table);
    int32_t *token = pair_new(&p, sizeof *token);
    float *want = pair_new(&p, N * sizeof *want), *got = pair_new(&p, N * sizeof *got);
    for (int i = 0; i < N; i++)
        table[i] = (uint16_t)i;
    for (size_t i = 1; i < N_PLAIN_TYPES; i++) {
        struct embed_args args = {plain_types[i], table, 1, N, 1, token, want};
        cr_assert_eq(p.reference->embed(&args, p.cpu.stream), 0);
        args.hidden = got;
        cr_assert_eq(p.cuda->embed(&args, p.stream), 0);
        pair_wait(&p);
        cr_assert_eq(memcmp(want, got, N * sizeof *want), 0, "type %u", plain_types[i]);
    }
    pair_close(&p);
}

Test(cuda_embed, refuses_a_type_it_does_not_know_and_a_broken_width)
{
    struct pair p = pair_open();
    struct embed_args args = {.type = 99, .n_vocab = 1, .d_model = 32, .n_rows = 1};
    cr_assert_eq(p.cuda->embed(&args, p.stream), EBB_EUNSUPPORTED);
    args.type = TENSOR_Q4_K;
    cr_assert_eq(p.cuda->embed(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
