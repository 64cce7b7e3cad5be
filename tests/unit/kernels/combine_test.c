/* combine_test.c - the weighted sum of expert outputs runs in rank order with one rounding a
 * step. */
#include "inputs.h"

Test(combine, adds_ranks_in_order_and_leaves_out_ranks_without_an_expert)
{
    enum { D_MODEL = 200, N_USED = 4, N_ROWS = 5 };
    struct card card = card_open(2);
    uint64_t state = 5;
    float *outputs = values_of(N_ROWS * N_USED * D_MODEL, INPUT_RANDOM, &state);
    float *mix = values_of(N_ROWS * N_USED, INPUT_RANDOM, &state);
    float *before = values_of(N_ROWS * D_MODEL, INPUT_RANDOM, &state), hidden[N_ROWS * D_MODEL];
    int32_t ids[N_ROWS * N_USED];
    for (size_t i = 0; i < N_ROWS * N_USED; i++) {
        ids[i] = i % 7 == 3 || i / N_USED == 2 ? -1 : (int32_t)i;
        if (ids[i] < 0)
            memset(outputs + i * D_MODEL, 0xff,
                   D_MODEL * sizeof *outputs); /* NaNs that nobody may read */
    }
    for (size_t s = 0; s < N_SETS; s++) {
        const struct kernel_set *set = set_named(set_names[s]);
        if (set == NULL)
            continue;
        struct combine_args args = {outputs, mix, ids, D_MODEL, N_USED, N_ROWS, hidden};
        memcpy(hidden, before, sizeof hidden);
        cr_assert_eq(set->combine(&args, card.stream), 0);
        card_wait(&card);
        for (size_t r = 0; r < N_ROWS; r++)
            for (size_t i = 0; i < D_MODEL; i++) {
                float acc = 0.0f;
                for (size_t rank = r * N_USED; rank < (r + 1) * N_USED; rank++)
                    if (ids[rank] >= 0)
                        acc = fmaf(mix[rank], outputs[rank * D_MODEL + i], acc);
                cr_assert_eq(hidden[r * D_MODEL + i], before[r * D_MODEL + i] + acc);
            }
    }
    free(outputs), free(mix), free(before);
    card_close(&card);
}
