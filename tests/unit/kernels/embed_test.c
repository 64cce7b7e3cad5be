/* embed_test.c - token rows of every type. */
#include "inputs.h"

Test(embed, takes_each_token_its_own_row_and_zeros_for_none)
{
    enum { D_MODEL = 512, N_VOCAB = 7, N_ROWS = 6 };
    static const int32_t tokens[N_ROWS] = {3, -1, 0, N_VOCAB, 6, 3};
    struct card card = card_open(2);
    const struct kernel_set *set = set_named("reference");
    uint64_t state = 11;
    for (size_t t = 0; t < N_TYPES; t++) {
        const uint32_t type = type_at(t);
        size_t row_bytes = tensor_row_bytes(type, D_MODEL);
        uint8_t *table = bytes_of(row_bytes * N_VOCAB);
        for (size_t i = 0; i < row_bytes * N_VOCAB; i++)
            table[i] = (uint8_t)(random_bits(&state) >> 26); /* small bytes: no infinite scale */
        float *hidden = bytes_of(N_ROWS * D_MODEL * sizeof *hidden), one[D_MODEL];
        struct embed_args args = {type, table, N_VOCAB, D_MODEL, N_ROWS, tokens, hidden};
        cr_assert_eq(set->embed(&args, card.stream), 0);
        card_wait(&card);
        for (size_t r = 0; r < N_ROWS; r++) {
            int32_t first = 0;
            memset(one, 0, sizeof one);
            if (tokens[r] >= 0 && tokens[r] < N_VOCAB) {
                struct embed_args alone = {
                    type, table + (size_t)tokens[r] * row_bytes, 1, D_MODEL, 1, &first, one};
                cr_assert_eq(set->embed(&alone, card.stream), 0);
                card_wait(&card);
            }
            cr_assert_eq(memcmp(hidden + r * D_MODEL, one, sizeof one), 0);
        }
        free(table), free(hidden);
    }
    card_close(&card);
}

Test(embed, reads_f32_f16_and_bf16_exactly)
{
    struct card card = card_open(1);
    const struct kernel_set *set = set_named("reference");
    const float floats[4] = {1.5f, -0.0f, 1e-42f, 3e38f};
    const uint16_t halves[8] = {0x3c00, 0x8000, 0x0001, 0x03ff, 0x7bff, 0x7c00, 0xc248, 0x0400};
    const float wanted[8] = {1.0f,     -0.0f,    0x1p-24f,   0x3ffp-24f,
                             65504.0f, INFINITY, -3.140625f, 0x1p-14f};
    float got[8];
    int32_t token = 0;
    struct embed_args args = {TENSOR_F32, floats, 1, 4, 1, &token, got};
    cr_assert_eq(set->embed(&args, card.stream), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(got, floats, sizeof floats), 0);
    args = (struct embed_args){TENSOR_F16, halves, 1, 8, 1, &token, got};
    cr_assert_eq(set->embed(&args, card.stream), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(got, wanted, sizeof wanted), 0);
    const uint16_t bfloats[4] = {0x3fc0, 0x8001, 0x7f7f, 0xff80};
    const float wide[4] = {1.5f, -0x1p-133f, 0x1.fep127f, -INFINITY};
    args = (struct embed_args){TENSOR_BF16, bfloats, 1, 4, 1, &token, got};
    cr_assert_eq(set->embed(&args, card.stream), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(got, wide, sizeof wide), 0);
    card_close(&card);
}

Test(embed, refuses_what_it_cannot_read)
{
    struct card card = card_open(1);
    const struct kernel_set *set = set_named("reference");
    int32_t token = 0;
    float y[32];
    struct embed_args args = {99, y, 1, 32, 1, &token, y};
    cr_assert_eq(set->embed(&args, card.stream), EBB_EUNSUPPORTED);
    args.type = TENSOR_Q4_K;
    cr_assert_eq(set->embed(&args, card.stream), EBB_EUNSUPPORTED);
    card_close(&card);
}
