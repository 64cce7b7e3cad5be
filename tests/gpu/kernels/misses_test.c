/* misses_test.c - sharing absent experts out on the card: the CPU form's ids, heat and rows; a recorded wait holds the stream. */
#include "pair.h"
#include "kernels/misses.h"

enum { D_MODEL = 2048, N_EXPERTS = 128, N_USED = 8, N_ROWS = 8, N_PAIRS = N_ROWS * N_USED };

struct side {
    uint32_t *heat;
    int32_t *here, *away;
    float *away_x, *outputs;
    struct miss_request *request;
};

static struct side side_new(struct pair *p)
{
    struct side s = {pair_new(p, N_EXPERTS * sizeof *s.heat),
                     pair_new(p, N_PAIRS * sizeof *s.here),
                     pair_new(p, N_PAIRS * sizeof *s.away),
                     pair_new(p, N_ROWS * D_MODEL * sizeof *s.away_x),
                     pair_new(p, N_PAIRS * D_MODEL * sizeof *s.outputs),
                     pair_new(p, sizeof *s.request)};
    s.request->answered = 1;
    return s;
}

static void side_run(const struct miss_ops *ops, const struct miss_ask_args *ask, const float *rows,
                     const struct side *s, struct exec_stream *stream)
{
    struct miss_ask_args args = *ask;
    args.heat = s->heat, args.here = s->here, args.request = s->request;
    args.away = s->away, args.away_x = s->away_x;
    struct miss_take_args take = {ask->ids,    s->here, ask->d_model, ask->n_used,
                                  ask->n_rows, rows,    s->outputs};
    cr_assert_eq(ops->ask(&args, stream), 0);
    cr_assert_eq(ops->take(&take, stream), 0);
}

Test(cuda_misses, are_shared_out_as_on_the_cpu)
{
    struct pair p = pair_open();
    uint64_t state = 5;
    struct expert_address *addresses = pair_new(&p, N_EXPERTS * sizeof *addresses);
    int32_t *ids = pair_new(&p, N_PAIRS * sizeof *ids);
    struct miss_control *control = pair_new(&p, sizeof *control);
    float *x = pair_take(&p, values_of(N_ROWS * D_MODEL, INPUT_RANDOM, &state),
                         N_ROWS * D_MODEL * sizeof *x);
    float *rows = pair_take(&p, values_of(N_PAIRS * D_MODEL, INPUT_RANDOM, &state),
                            N_PAIRS * D_MODEL * sizeof *rows);
    for (size_t n_rows = 1; n_rows <= N_ROWS; n_rows++)
        for (uint32_t percent = 0; percent <= 100; percent += 25) {
            struct side want = side_new(&p), got = side_new(&p);
            for (size_t e = 0; e < N_EXPERTS; e++)
                addresses[e].resident = random_bits(&state) % 3 != 0;
            for (size_t i = 0; i < N_PAIRS; i++)
                ids[i] = (int32_t)(random_bits(&state) % 40) - 1;
            control->number = 7 * percent;
            for (size_t m = 0; m <= N_PAIRS; m++)
                control->split[m] = (uint16_t)((m * percent + 50) / 100);
            struct miss_ask_args args = {.addresses = addresses,
                                         .ids = ids,
                                         .d_model = D_MODEL,
                                         .n_experts = N_EXPERTS,
                                         .n_used = N_USED,
                                         .n_rows = n_rows,
                                         .x = x,
                                         .control = control,
                                         .index = 3,
                                         .tag = 5};
            side_run(&miss_ops_cpu, &args, rows, &want, p.cpu.stream);
            side_run(&miss_ops_cuda, &args, rows, &got, p.stream);
            pair_wait(&p);
            cr_assert_eq(memcmp(want.request, got.request, sizeof *want.request), 0);
            cr_assert_eq(memcmp(want.heat, got.heat, N_EXPERTS * sizeof *want.heat), 0);
            cr_assert_eq(memcmp(want.here, got.here, N_PAIRS * sizeof *want.here), 0);
            cr_assert_eq(memcmp(want.away, got.away, N_PAIRS * sizeof *want.away), 0);
            cr_assert_eq(memcmp(want.away_x, got.away_x, N_ROWS * D_MODEL * sizeof *x), 0);
            cr_assert_eq(memcmp(want.outputs, got.outputs, N_PAIRS * D_MODEL * sizeof *rows), 0);
        }
    pair_close(&p);
}

/* A fill behind a wait comes only after the flag, every time that the two are launched. */
Test(cuda_misses, a_wait_holds_the_stream_recorded_or_not)
{
    struct pair p = pair_open();
    struct error err = {0};
    struct exec_graph *graph = NULL;
    uint32_t *flag = pair_new(&p, 256), *filled = pair_new(&p, 256);
    cr_assert_eq(exec_cuda.capture_begin(p.stream), 0);
    cr_assert_eq(exec_cuda.fill(p.stream, filled, 1, 4), 0);
    cr_assert_eq(miss_ops_cuda.wait(flag, 3, p.stream), 0);
    cr_assert_eq(exec_cuda.fill(p.stream, filled, 2, 4), 0);
    cr_assert_eq(exec_cuda.capture_end(p.stream, &graph, &err), 0, "%s", err.text);
    for (int i = 0; i < 6; i++) {
        *flag = *filled = 0;
        if (i % 2 == 0) {
            cr_assert_eq(exec_cuda.graph_launch(graph, p.stream), 0);
        } else {
            cr_assert_eq(exec_cuda.fill(p.stream, filled, 1, 4), 0);
            cr_assert_eq(miss_ops_cuda.wait(flag, 3, p.stream), 0);
            cr_assert_eq(exec_cuda.fill(p.stream, filled, 2, 4), 0);
        }
        cr_assert_eq(exec_cuda.event_record(p.event, p.stream), 0);
        poll(NULL, 0, 20);
        cr_assert_eq(exec_cuda.event_query(p.event), 0);
        cr_assert_eq(__atomic_load_n(filled, __ATOMIC_ACQUIRE), 0x01010101);
        __atomic_store_n(flag, 3, __ATOMIC_RELEASE);
        pair_wait(&p);
        cr_assert_eq(__atomic_load_n(filled, __ATOMIC_ACQUIRE), 0x02020202);
    }
    exec_cuda.graph_close(graph);
    pair_close(&p);
}
