/* experts_few_test.c - the experts of a few rows on the tensor cores: the bits, heat and hits of the CPU, whatever the types,
 * shapes, routing and addresses; ids and addresses are read when the work runs. */
#include "experts_layer.h"
#include "kernels/ops_cuda.h"

enum { ROWS_MAX = 40 };

/* Experts of 0, 1, 2, 8, 9 and 17 pairs, and one of all the others; an expert may have a row twice. Some pairs have none, some an
 * id out of range. Turns give other experts these numbers. */
static void route(struct layer *l, size_t turn)
{
    static const size_t shares[] = {0, 1, 2, 8, 9, 17};
    const size_t n_pairs = ROWS_MAX * N_USED;
    size_t at = 0;
    for (size_t pair = 0; pair < n_pairs; pair++)
        l->ids[pair] = pair % 8 == 3     ? -1
                       : pair % 32 == 17 ? N_EXPERTS
                                         : (int32_t)(turn % N_EXPERTS);
    for (size_t e = 0; e < sizeof shares / sizeof shares[0]; e++)
        for (size_t i = 0; i < shares[e]; i++) {
            l->ids[at * 7 % n_pairs] = (int32_t)((1 + e + turn) % N_EXPERTS);
            at++;
        }
}

static const size_t counts[] = {1, 2, 3, 4, 8, 9, 16, 17, 33, ROWS_MAX};
static const struct experts_way way = {.rows_max = ROWS_MAX,
                                       .counts = counts,
                                       .n_counts = sizeof counts / sizeof counts[0],
                                       .against_fast = true,
                                       .seed = 79,
                                       .experts = experts_few_cuda,
                                       .route = route};
/* By way of the set, which takes what this form refuses to another. */
static const struct experts_way chosen = {.rows_max = ROWS_MAX,
                                          .counts = counts,
                                          .n_counts = sizeof counts / sizeof counts[0],
                                          .against_fast = true,
                                          .seed = 80,
                                          .route = route};

Test(experts_few, have_the_bits_and_counts_of_the_cpu_for_every_type, .timeout = 300)
{
    check_every_type(&way, 512, false);
}

Test(experts_few, may_have_matrices_of_different_types, .timeout = 300)
{
    static const uint32_t mixes[][3] = {{TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K},
                                        {TENSOR_Q6_K, TENSOR_Q6_K, TENSOR_Q4_K},
                                        {TENSOR_Q3_K, TENSOR_Q3_K, TENSOR_Q5_0},
                                        {TENSOR_Q5_1, TENSOR_Q5_1, TENSOR_Q2_K}};
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
        layer_check(&way, mixes[i], 256, 512, 0);
    check_mixed_types(&chosen);
}

Test(experts_few, have_the_bits_of_the_cpu_in_a_real_models_shape, .timeout = 300)
{
    static const uint32_t types[] = {TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q4_K};
    check_real_shape(&way);
    layer_check(&way, types, 2048, 768, 0);
}

Test(experts_few, may_be_of_widths_that_are_no_multiple_of_anything_but_a_block, .timeout = 300)
{
    static const uint32_t types[][3] = {{TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0},
                                        {TENSOR_Q5_1, TENSOR_Q5_1, TENSOR_Q4_0},
                                        {TENSOR_Q4_1, TENSOR_Q4_1, TENSOR_Q5_0}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        layer_check(&way, types[i], 288, 96, 0);
    check_odd_widths(&chosen);
}

Test(experts_few, may_lie_at_any_even_address, .timeout = 300)
{
    check_every_type(&way, 256, true);
}

Test(experts_few, read_routing_and_addresses_when_a_recorded_launch_runs)
{
    check_recorded(&way);
}

Test(experts_few, refuse_what_they_do_not_compute_without_a_launch)
{
    struct pair p = pair_open();
    struct experts_args args = {.gate_type = TENSOR_Q4_K, .up_type = TENSOR_Q4_K};
    args.down_type = TENSOR_Q4_K, args.d_model = 256, args.d_expert = 128;
    args.n_rows = 9, args.n_used = 1, args.n_experts = 4;
    cr_assert_eq(experts_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.d_expert = 256, args.n_used = EXPERTS_USED_MAX + 1;
    cr_assert_eq(experts_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_used = 1, args.down_type = TENSOR_F16;
    cr_assert_eq(experts_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.down_type = TENSOR_Q4_K, args.up_type = TENSOR_Q8_0;
    cr_assert_eq(experts_few_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
