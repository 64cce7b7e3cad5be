/* router_test.c - routing on the card: near the CPU's numbers, the same experts where the choice is clear, the same bits in any
 * batch. */
#include "pair.h"

struct routed {
    size_t n_experts, n_used, n_rows;
    float *logits, *mix;
    int32_t *ids;
};

static struct routed routed_new(struct pair *p, const struct router_args *a)
{
    struct routed r = {a->n_experts, a->n_used, a->n_rows, NULL, NULL, NULL};
    r.logits = pair_new(p, a->n_rows * a->n_experts * sizeof(float));
    r.mix = pair_new(p, a->n_rows * a->n_used * sizeof(float));
    r.ids = pair_new(p, a->n_rows * a->n_used * sizeof(int32_t));
    return r;
}

static void route(const struct kernel_set *set, struct exec_stream *s, struct router_args args,
                  struct routed *to, size_t first, size_t n_rows)
{
    args.x += first * args.n_in;
    args.positions += first;
    args.n_rows = n_rows;
    args.logits = to->logits + first * args.n_experts;
    args.ids = to->ids + first * args.n_used;
    args.mix = to->mix + first * args.n_used;
    cr_assert_eq(set->router(&args, s), 0);
}

/* Ids as the CPU's, unless two of its probabilities are as near as roundings are; mix within 1e-5. */
static void routed_compare(const struct routed *want, const struct routed *got)
{
    for (size_t i = 0; i < want->n_rows * want->n_used; i++) {
        const float *p = want->logits + i / want->n_used * want->n_experts; /* probabilities now */
        if (want->ids[i] != got->ids[i]) {
            cr_assert(want->ids[i] >= 0 && got->ids[i] >= 0);
            cr_assert_float_eq(p[want->ids[i]], p[got->ids[i]], 1e-5 * p[want->ids[i]]);
        }
        cr_assert_float_eq(want->mix[i], got->mix[i], 1e-5 * want->mix[i] + 1e-12, "%zu: %g %g", i,
                           want->mix[i], got->mix[i]);
    }
}

static void router_check(struct pair *p, struct router_args args)
{
    uint64_t state = 31 + args.n_experts + args.n_in;
    int32_t *positions = pair_new(p, args.n_rows * sizeof *positions);
    args.weights =
        pair_take(p, weights_of(args.type, args.n_in, args.n_experts, INPUT_RANDOM, &state),
                  tensor_row_bytes(args.type, args.n_in) * args.n_experts);
    args.x = pair_take(p, values_of(args.n_rows * args.n_in, INPUT_RANDOM, &state),
                       args.n_rows * args.n_in * sizeof(float));
    args.positions = positions;
    for (size_t r = 0; r < args.n_rows; r++)
        positions[r] = r % 5 == 3 ? -1 : (int32_t)r;
    struct routed want = routed_new(p, &args), all = routed_new(p, &args);
    struct routed few = routed_new(p, &args), single = routed_new(p, &args);
    route(p->reference, p->cpu.stream, args, &want, 0, args.n_rows);
    route(p->cuda, p->stream, args, &all, 0, args.n_rows);
    for (size_t r = 0; r < args.n_rows; r++)
        route(p->cuda, p->stream, args, &single, r, 1);
    for (size_t r = 0; r < args.n_rows; r += 8)
        route(p->cuda, p->stream, args, &few, r, args.n_rows - r < 8 ? args.n_rows - r : 8);
    pair_wait(p);
    size_t n = args.n_rows * args.n_used;
    cr_assert_eq(memcmp(all.ids, single.ids, n * sizeof(int32_t)), 0);
    cr_assert_eq(memcmp(all.mix, single.mix, n * sizeof(float)), 0);
    cr_assert_eq(memcmp(all.ids, few.ids, n * sizeof(int32_t)), 0);
    cr_assert_eq(memcmp(all.mix, few.mix, n * sizeof(float)), 0);
    routed_compare(&want, &all);
}

Test(cuda_router, agrees_with_the_cpu_in_any_shape_type_and_batch)
{
    struct pair p = pair_open();
    static const size_t shapes[][3] = {/* n_in, n_experts, n_used */
                                       {2048, 128, 8}, {256, 16, 4},   {101, 60, 3},
                                       {64, 257, 16},  {2880, 512, 5}, {18, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t t = 0; t < N_PLAIN_TYPES; t++) {
            struct router_args args = {.type = plain_types[t],
                                       .n_in = shapes[i][0],
                                       .n_experts = shapes[i][1],
                                       .n_used = shapes[i][2],
                                       .n_rows = i == 0 ? 37 : 11,
                                       .renormalise = i % 2 == 0,
                                       .scale = i % 3 == 0 ? 1.0f : 2.5f};
            router_check(&p, args);
        }
    pair_close(&p);
}

Test(cuda_router, gives_ties_to_the_lower_id_and_what_is_no_number_to_the_last)
{
    enum { N = 32, EXPERTS = 70, USED = 6 };
    struct pair p = pair_open();
    float *weights = pair_new(&p, EXPERTS * N * sizeof *weights);
    float *x = pair_new(&p, N * sizeof *x);
    int32_t *positions = pair_new(&p, sizeof *positions);
    x[0] = 1;
    for (int e = 0; e < EXPERTS; e++)
        weights[e * N] = e == 40 || e == 7 || e == 69 ? 3 : e == 5 ? 4 : 1;
    struct router_args args = {.type = TENSOR_F32,
                               .weights = weights,
                               .x = x,
                               .n_in = N,
                               .n_experts = EXPERTS,
                               .n_used = USED,
                               .n_rows = 1,
                               .scale = 1,
                               .positions = positions};
    struct routed want = routed_new(&p, &args), got = routed_new(&p, &args);
    static const int32_t chosen[USED] = {5, 7, 40, 69, 0, 1};
    route(p.cuda, p.stream, args, &got, 0, 1);
    pair_wait(&p);
    cr_assert_eq(memcmp(got.ids, chosen, sizeof chosen), 0);
    x[0] = NAN;
    route(p.reference, p.cpu.stream, args, &want, 0, 1);
    route(p.cuda, p.stream, args, &got, 0, 1);
    pair_wait(&p);
    cr_assert_eq(memcmp(got.ids, want.ids, sizeof chosen), 0);
    cr_assert_eq(memcmp(got.mix, want.mix, USED * sizeof(float)), 0);
    pair_close(&p);
}

Test(cuda_router, refuses_what_it_does_not_compute)
{
    struct pair p = pair_open();
    struct router_args args = {.type = TENSOR_F32, .n_in = 32, .n_experts = 8, .n_rows = 1};
    cr_assert_eq(p.cuda->router(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_used = 9;
    cr_assert_eq(p.cuda->router(&args, p.stream), EBB_EUNSUPPORTED);
    args.n_used = 2, args.type = TENSOR_Q8_0;
    cr_assert_eq(p.cuda->router(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
