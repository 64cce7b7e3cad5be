/* experts_plain_test.c - experts stored unquantised, in shapes that are no multiple of anything: the exact sets agree,
 * and all are near fp64. */
#include "inputs.h"

enum { N_EXPERTS = 3, N_USED = 2, ROWS = 35 };

struct shape {
    uint32_t types[3]; /* gate, up, down */
    size_t d_model, d_expert;
};

struct experts {
    struct shape shape;
    void *weights[N_EXPERTS][3];
    struct expert_address addresses[N_EXPERTS];
    float *x;
    int32_t ids[ROWS * N_USED];
};

static struct experts experts_make(struct shape shape)
{
    struct experts e = {.shape = shape};
    uint64_t state = 91 + shape.d_model;
    for (size_t i = 0; i < N_EXPERTS; i++) {
        const size_t model = shape.d_model, hidden = shape.d_expert;
        e.weights[i][0] = weights_of(shape.types[0], model, hidden, INPUT_RANDOM, &state);
        e.weights[i][1] = weights_of(shape.types[1], model, hidden, INPUT_RANDOM, &state);
        e.weights[i][2] = weights_of(shape.types[2], hidden, model, INPUT_RANDOM, &state);
        e.addresses[i] =
            (struct expert_address){e.weights[i][0], e.weights[i][1], e.weights[i][2], 1, 0};
    }
    e.x = values_of(ROWS * shape.d_model, INPUT_RANDOM, &state);
    for (int32_t i = 0; i < ROWS * N_USED; i++)
        e.ids[i] = (i / N_USED + i % N_USED) % N_EXPERTS;
    return e;
}

static void experts_free(struct experts *e)
{
    for (size_t i = 0; i < N_EXPERTS; i++)
        free(e->weights[i][0]), free(e->weights[i][1]), free(e->weights[i][2]);
    free(e->x);
}

/* All rows at once, or row by row; without quantised activations. Freed by the caller. */
static float *experts_run(const struct experts *e, const char *name, struct card *card,
                          size_t batch)
{
    const struct kernel_set *set = set_named(name);
    const struct shape *s = &e->shape;
    float *outputs = bytes_of(ROWS * N_USED * s->d_model * sizeof *outputs);
    void *scratch =
        bytes_of(set->experts_scratch_bytes(batch, N_USED, N_EXPERTS, s->d_model, s->d_expert));
    uint32_t heat[N_EXPERTS] = {0}, hits[ROWS] = {0};
    for (size_t row = 0; row < ROWS; row += batch) {
        struct experts_args args = {.gate_type = s->types[0],
                                    .up_type = s->types[1],
                                    .down_type = s->types[2],
                                    .addresses = e->addresses,
                                    .d_model = s->d_model,
                                    .d_expert = s->d_expert,
                                    .n_experts = N_EXPERTS,
                                    .n_used = N_USED,
                                    .n_rows = batch,
                                    .x = e->x + row * s->d_model,
                                    .ids = e->ids + row * N_USED,
                                    .scratch = scratch,
                                    .outputs = outputs + row * N_USED * s->d_model,
                                    .heat = heat,
                                    .hits = hits + row};
        cr_assert_eq(set->experts(&args, card->stream), 0);
        card_wait(card);
    }
    for (size_t r = 0; r < ROWS; r++)
        cr_assert_eq(hits[r], N_USED);
    free(scratch);
    return outputs;
}

/* A matrix as fp32, through embed(). Freed by the caller. */
static float *matrix_of(struct card *card, uint32_t type, const void *weights, size_t n_in,
                        size_t n_out)
{
    float *wide = bytes_of(n_in * n_out * sizeof *wide);
    for (size_t o = 0; o < n_out; o++) {
        int32_t token = (int32_t)o;
        struct embed_args args = {type, weights, n_out, n_in, 1, &token, wide + o * n_in};
        cr_assert_eq(set_named("reference")->embed(&args, card->stream), 0);
        card_wait(card);
    }
    return wide;
}

static double dot(const float *w, const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

/* One (row, rank) pair in fp64 against what a set gave. */
static void pair_check(const struct experts *e, struct card *card, size_t pair, const float *got)
{
    const struct shape *s = &e->shape;
    const size_t expert = (size_t)e->ids[pair];
    double x[128], hidden[128], size = 0, error = 0;
    float *m[3];
    for (int i = 0; i < 3; i++)
        m[i] = matrix_of(card, s->types[i], e->weights[expert][i], i < 2 ? s->d_model : s->d_expert,
                         i < 2 ? s->d_expert : s->d_model);
    for (size_t i = 0; i < s->d_model; i++)
        x[i] = e->x[pair / N_USED * s->d_model + i];
    for (size_t h = 0; h < s->d_expert; h++) {
        double g = dot(m[0] + h * s->d_model, x, s->d_model);
        hidden[h] = g / (1 + exp(-g)) * dot(m[1] + h * s->d_model, x, s->d_model);
    }
    for (size_t o = 0; o < s->d_model; o++) {
        double want = dot(m[2] + o * s->d_expert, hidden, s->d_expert);
        size += want * want;
        error += pow(got[o] - want, 2);
    }
    cr_assert_leq(error, 1e-10 * size, "pair %zu: %g of %g", pair, error, size);
    free(m[0]), free(m[1]), free(m[2]);
}

Test(experts_plain, agree_in_the_exact_sets_in_any_shape_and_batch_and_are_near_fp64)
{
    static const struct shape shapes[] = {
        {{TENSOR_F16, TENSOR_F16, TENSOR_F16}, 100, 36},
        {{TENSOR_BF16, TENSOR_BF16, TENSOR_BF16}, 64, 96},
        {{TENSOR_F32, TENSOR_F16, TENSOR_BF16}, 18, 2},
        {{TENSOR_F32, TENSOR_F32, TENSOR_F32}, 6, 70},
    };
    struct card card = card_open(2);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct experts e = experts_make(shapes[i]);
        const size_t bytes = ROWS * N_USED * shapes[i].d_model * sizeof(float);
        float *first = experts_run(&e, "reference", &card, ROWS);
        for (size_t s = 0; s < N_SETS; s++) {
            if (set_named(set_names[s]) == NULL)
                continue;
            float *all = experts_run(&e, set_names[s], &card, ROWS);
            float *single = experts_run(&e, set_names[s], &card, 1);
            cr_assert_eq(memcmp(all, single, bytes), 0, "%s, shape %zu", set_names[s], i);
            if (s < N_EXACT)
                cr_assert_eq(memcmp(first, all, bytes), 0, "%s, shape %zu", set_names[s], i);
            for (size_t pair = 0; pair < ROWS * N_USED; pair += 7)
                pair_check(&e, &card, pair, all + pair * shapes[i].d_model);
            free(all), free(single);
        }
        free(first);
        experts_free(&e);
    }
    card_close(&card);
}
