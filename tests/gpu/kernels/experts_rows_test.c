/* experts_rows_test.c - the experts of up to eight rows: the bits, heat and hits of the reference, whatever the types, shapes,
 * routing and addresses; ids and addresses are read when the work runs. */
#include "experts_layer.h"
#include "kernels/ops_cuda.h"

enum { ROWS_MAX = 8 };

/* Different experts for each rank of a row; row 3 has none, row 5 one less, and now and then an id is out of range. */
static void route(struct layer *l, size_t turn)
{
    for (size_t r = 0; r < ROWS_MAX; r++)
        for (size_t rank = 0; rank < N_USED; rank++)
            l->ids[r * N_USED + rank] = r == 3 ? -1 : (int32_t)((r * r + 3 * rank + turn) % 9);
    l->ids[5 * N_USED + 2] = -1;
    l->ids[6 * N_USED + 1] = N_EXPERTS;
}

static const size_t counts[] = {1, 2, 3, 4, 5, 6, 7, ROWS_MAX};
static const struct experts_way way = {.rows_max = ROWS_MAX,
                                       .counts = counts,
                                       .n_counts = sizeof counts / sizeof counts[0],
                                       .seed = 77,
                                       .experts = experts_rows_cuda,
                                       .route = route};

Test(experts_rows, have_the_bits_and_counts_of_the_reference_for_every_type)
{
    check_every_type(&way, 512, false);
}

Test(experts_rows, may_have_matrices_of_different_types)
{
    check_mixed_types(&way);
}

Test(experts_rows, have_the_bits_of_the_reference_in_a_real_models_shape)
{
    check_real_shape(&way);
}

Test(experts_rows, may_be_of_widths_that_are_no_multiple_of_anything_but_a_block)
{
    check_odd_widths(&way);
}

Test(experts_rows, may_lie_at_any_even_address)
{
    check_every_type(&way, 256, true);
}

Test(experts_rows, read_routing_and_addresses_when_a_recorded_launch_runs)
{
    check_recorded(&way);
}

Test(experts_rows, refuse_what_they_do_not_compute_without_a_launch)
{
    struct pair p = pair_open();
    struct experts_args args = {.gate_type = TENSOR_Q4_K, .up_type = TENSOR_Q4_K};
    args.down_type = TENSOR_Q4_K, args.d_model = 256, args.d_expert = 128;
    args.n_rows = 1, args.n_used = 1;
    cr_assert_eq(p.cuda->experts(&args, p.stream), EBB_EUNSUPPORTED);
    args.d_expert = 256, args.n_used = EXPERTS_USED_MAX + 1;
    cr_assert_eq(p.cuda->experts(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
