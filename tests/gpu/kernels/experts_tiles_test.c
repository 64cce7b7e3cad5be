/* experts_tiles_test.c - the experts of many rows on the tensor cores: the bits, heat and hits of the CPU, whatever the types,
 * shapes, routing and addresses; ids and addresses are read when the work runs. */
#include "experts_layer.h"
#include "kernels/ops_cuda.h"

enum { ROWS_MAX = 300 };

/* Different experts for each rank of a row, expert 8 rare; every eighth row has none, and now and then an id is out of range. */
static void route(struct layer *l, size_t turn)
{
    for (size_t r = 0; r < ROWS_MAX; r++)
        for (size_t rank = 0; rank < N_USED; rank++)
            l->ids[r * N_USED + rank] = r % 8 == 3     ? -1
                                        : r % 64 == 33 ? 8 - (int32_t)rank
                                                       : (int32_t)((r * r + 3 * rank + turn) % 8);
    l->ids[5 * N_USED + 2] = -1;
    l->ids[6 * N_USED + 1] = N_EXPERTS;
}

static const size_t counts[] = {1, 3, 8, 9, 16, 40, 77, ROWS_MAX};
static const struct experts_way way = {.rows_max = ROWS_MAX,
                                       .counts = counts,
                                       .n_counts = sizeof counts / sizeof counts[0],
                                       .against_fast = true,
                                       .seed = 78,
                                       .experts = experts_tiles_cuda,
                                       .route = route};

Test(experts_tiles, have_the_bits_and_counts_of_the_cpu_for_every_type, .timeout = 300)
{
    check_every_type(&way, 512, false);
}

Test(experts_tiles, may_have_matrices_of_different_types, .timeout = 300)
{
    check_mixed_types(&way);
}

Test(experts_tiles, have_the_bits_of_the_cpu_in_a_real_models_shape, .timeout = 300)
{
    check_real_shape(&way);
}

Test(experts_tiles, may_be_of_widths_that_are_no_multiple_of_anything_but_a_block, .timeout = 300)
{
    check_odd_widths(&way);
}

Test(experts_tiles, may_lie_at_any_even_address, .timeout = 300)
{
    check_every_type(&way, 256, true);
}

Test(experts_tiles, read_routing_and_addresses_when_a_recorded_launch_runs)
{
    check_recorded(&way);
}

Test(experts_tiles, refuse_what_they_do_not_compute_without_a_launch)
{
    struct pair p = pair_open();
    struct experts_args args = {.gate_type = TENSOR_Q4_K, .up_type = TENSOR_Q4_K};
    args.down_type = TENSOR_Q4_K, args.d_model = 256, args.d_expert = 128;
    args.n_rows = 9, args.n_used = 1;
    cr_assert_eq(experts_tiles_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.d_expert = 256, args.n_used = EXPERTS_USED_MAX + 1;
    cr_assert_eq(experts_tiles_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_used = 1, args.down_type = TENSOR_F16;
    cr_assert_eq(experts_tiles_cuda(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
