/* misses_test.c - an ask shares absent experts out by the split and says so in order; what was taken and what was computed here are
 * the whole. */
#include "inputs.h"
#include "kernels/misses.h"

enum { D_MODEL = 96, N_EXPERTS = 11, N_USED = 4, N_ROWS = 3, N_PAIRS = N_ROWS * N_USED };

/* Experts 3, 5, 7, 9 are absent. Row 1 has a rank without an expert. */
static const int32_t ids[N_PAIRS] = {5, 0, 3, 9, 3, -1, 2, 9, 7, 5, 1, 3};

struct asked {
    struct expert_address addresses[N_EXPERTS];
    float x[N_ROWS * D_MODEL], away_x[N_ROWS * D_MODEL];
    struct miss_control control;
    uint32_t heat[N_EXPERTS];
    int32_t here[N_PAIRS], away[N_PAIRS];
    struct miss_request request;
    struct miss_ask_args args;
};

static struct asked *asked_make(uint16_t of_four)
{
    struct asked *a = calloc(1, sizeof *a);
    cr_assert_not_null(a);
    for (int e = 0; e < N_EXPERTS; e++)
        a->addresses[e].resident = e % 2 == 0 || e == 1;
    for (int i = 0; i < N_ROWS * D_MODEL; i++)
        a->x[i] = (float)i;
    a->control = (struct miss_control){.number = 40};
    a->control.split[4] = of_four;
    a->request.answered = 1;
    a->args = (struct miss_ask_args){.addresses = a->addresses,
                                     .ids = ids,
                                     .d_model = D_MODEL,
                                     .n_experts = N_EXPERTS,
                                     .n_used = N_USED,
                                     .n_rows = N_ROWS,
                                     .x = a->x,
                                     .control = &a->control,
                                     .index = 3,
                                     .tag = 17,
                                     .heat = a->heat,
                                     .here = a->here,
                                     .request = &a->request,
                                     .away = a->away,
                                     .away_x = a->away_x};
    return a;
}

Test(misses, the_first_of_the_absent_experts_go_away_with_all_their_pairs)
{
    static const int32_t here[N_PAIRS] = {-1, 0, -1, 9, -1, -1, 2, 9, 7, -1, 1, -1};
    static const int32_t away[N_PAIRS] = {5, -1, 3, -1, 3, -1, -1, -1, -1, 5, -1, 3};
    static const uint32_t heat[N_EXPERTS] = {[3] = 3, [5] = 2};
    struct card card = card_open(1);
    struct asked *a = asked_make(2);
    cr_assert_eq(miss_ops_cpu.ask(&a->args, card.stream), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(a->here, here, sizeof here), 0);
    cr_assert_eq(memcmp(a->away, away, sizeof away), 0);
    cr_assert_eq(memcmp(a->heat, heat, sizeof heat), 0);
    cr_assert_eq(memcmp(a->away_x, a->x, sizeof a->x), 0);
    cr_assert_eq(a->request.number, MISS_NUMBER(40 + 3, 4, true));
    cr_assert_eq(a->request.tag, 17);
    cr_assert_eq(a->request.n_experts, 2);
    cr_assert_eq(a->request.answered, 0);
    free(a);
    card_close(&card);
}

Test(misses, an_ask_without_work_raises_the_number_and_holds_nobody_up)
{
    struct card card = card_open(1);
    struct asked *a = asked_make(0);
    cr_assert_eq(miss_ops_cpu.ask(&a->args, card.stream), 0);
    card_wait(&card);
    cr_assert_eq(memcmp(a->here, ids, sizeof ids), 0);
    cr_assert_eq(a->request.number, MISS_NUMBER(40 + 3, 4, false));
    cr_assert_eq(a->request.answered, 1);
    cr_assert_eq(a->request.n_experts, 0);
    free(a);
    card_close(&card);
}

Test(misses, more_rows_than_a_request_has_room_for_are_refused)
{
    struct card card = card_open(1);
    struct asked *a = asked_make(0);
    a->args.n_rows = MISS_ROWS_MAX + 1;
    cr_assert_eq(miss_ops_cpu.ask(&a->args, card.stream), EBB_EUNSUPPORTED);
    free(a);
    card_close(&card);
}

Test(misses, rows_are_taken_where_the_host_computed_them_alone)
{
    struct card card = card_open(1);
    struct asked *a = asked_make(2);
    static float rows[N_PAIRS * D_MODEL], outputs[N_PAIRS * D_MODEL];
    struct miss_take_args take = {ids, a->here, D_MODEL, N_USED, N_ROWS, rows, outputs};
    for (int i = 0; i < N_PAIRS * D_MODEL; i++)
        rows[i] = 1, outputs[i] = 2;
    cr_assert_eq(miss_ops_cpu.ask(&a->args, card.stream), 0);
    cr_assert_eq(miss_ops_cpu.take(&take, card.stream), 0);
    card_wait(&card);
    for (int pair = 0; pair < N_PAIRS; pair++)
        for (int i = 0; i < D_MODEL; i++)
            cr_assert_eq(outputs[pair * D_MODEL + i], ids[pair] == 3 || ids[pair] == 5 ? 1 : 2);
    free(a);
    card_close(&card);
}

Test(misses, a_stream_waits_for_a_flag_also_when_the_wait_was_recorded)
{
    struct card card = card_open(1);
    struct exec_graph *graph;
    struct error err;
    static uint32_t flag;
    cr_assert_eq(exec_cpu.capture_begin(card.stream), 0);
    cr_assert_eq(miss_ops_cpu.wait(&flag, 7, card.stream), 0);
    cr_assert_eq(exec_cpu.capture_end(card.stream, &graph, &err), 0);
    for (int i = 0; i < 2; i++) {
        flag = 0;
        cr_assert_eq(exec_cpu.graph_launch(graph, card.stream), 0);
        cr_assert_eq(exec_cpu.event_record(card.event, card.stream), 0);
        for (int j = 0; j < 20; j++, poll(NULL, 0, 1))
            cr_assert_eq(exec_cpu.event_query(card.event), 0);
        __atomic_store_n(&flag, 7, __ATOMIC_RELEASE);
        card_wait(&card);
    }
    exec_cpu.graph_close(graph);
    card_close(&card);
}
