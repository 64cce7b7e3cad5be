/* make_model_test.c - models of random weights: their values have the spread that keeps activations finite, and their
 * routers the skew of real ones. The program runs as a user starts it. */
#include <criterion/criterion.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>
#include "kernels/kernels.h"
#include "runtime/model/model.h"

enum { ROWS = 512 };

struct made {
    char path[64];
    struct model *model;
};

static struct made made_open(const char *shape, const char *flags)
{
    struct made made = {.path = "/tmp/made-XXXXXX"};
    char command[512];
    struct error err = {0};
    int fd = mkstemp(made.path);
    cr_assert(fd >= 0);
    close(fd);
    (void)snprintf(command, sizeof command, "%s %s %s --force -o %s 2>/dev/null",
                   EBBTIDE_MAKE_MODEL, shape, flags, made.path);
    cr_assert_eq(system(command), 0, "%s", command);
    cr_assert_eq(model_open(&made.model, made.path, &err), 0, "%s", err.text);
    return made;
}

static void made_close(struct made *made)
{
    model_close(made->model);
    unlink(made->path);
}

struct card {
    struct exec *exec;
    struct exec_stream *stream;
    struct exec_event *event;
    const struct kernel_set *set;
};

static struct card card_open(void)
{
    struct card c = {.set = kernel_set_cpu("auto", NULL)};
    struct exec_settings settings = {.n_threads = 1};
    cr_assert_eq(exec_cpu.open(&c.exec, &settings, NULL), 0);
    cr_assert_eq(exec_cpu.stream_open(c.exec, &c.stream, NULL), 0);
    cr_assert_eq(exec_cpu.event_open(c.exec, &c.event, NULL), 0);
    return c;
}

static void card_wait(struct card *c)
{
    cr_assert_eq(exec_cpu.event_record(c->event, c->stream), 0);
    while (exec_cpu.event_query(c->event) == 0)
        poll(NULL, 0, 1);
    cr_assert_eq(exec_cpu.event_query(c->event), 1);
}

static void card_close(struct card *c)
{
    exec_cpu.event_close(c->event);
    exec_cpu.stream_close(c->stream);
    exec_cpu.close(c->exec);
}

/* Rows first .. of a table as floats; freed by the caller. */
static float *rows_of(struct card *card, const struct tensor_view *t, int32_t first, size_t n)
{
    int32_t *tokens = calloc(n, sizeof *tokens);
    float *out = calloc(n * t->dims[0], sizeof *out);
    for (size_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    struct embed_args args = {t->type, t->data, (size_t)t->dims[1], (size_t)t->dims[0], n,
                              tokens,  out};
    cr_assert_eq(card->set->embed(&args, card->stream), 0);
    card_wait(card);
    free(tokens);
    return out;
}

static void check_spread(const float *x, size_t n, double sigma, const char *what)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        cr_assert(isfinite(x[i]), "%s", what);
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    cr_assert_float_eq(sum / (double)n, 0, 0.03 * sigma, "%s: mean %g", what, sum / (double)n);
    cr_assert_float_eq(sqrt(squares / (double)n), sigma, 0.08 * sigma, "%s: %g, not %g", what,
                       sqrt(squares / (double)n), sigma);
}

Test(make_model, values_of_every_type_have_the_spread_that_keeps_activations_even)
{
    static const char *const mixes[] = {"q4_k_m", "f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0",
                                        "q5_1",   "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
    struct card card = card_open();
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        char flags[64];
        (void)snprintf(flags, sizeof flags, "--layers 1 --type-mix %s", mixes[i]);
        struct made made = made_open("tiny-qwen3", flags);
        const struct model *m = made.model;
        size_t d = m->geometry.d_model;
        float *table = rows_of(&card, &m->token_embd, 0, ROWS);
        float *output = rows_of(&card, &m->output, 0, ROWS);
        check_spread(table, ROWS * d, 1, mixes[i]);
        check_spread(output, ROWS * d, 3 / sqrt((double)d), mixes[i]);
        free(table), free(output);
        made_close(&made);
    }
    card_close(&card);
}

static int falling(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* How often each expert of a layer is chosen for the embeddings of ROWS tokens, most first. */
static void popularity(struct card *card, const struct model *m, uint32_t layer, uint32_t *count)
{
    const struct model_geometry *g = &m->geometry;
    const struct model_layer *l = &m->layers[layer];
    float *x = rows_of(card, &m->token_embd, 0, ROWS);
    float *logits = calloc((size_t)ROWS * g->n_experts, sizeof *logits);
    float *mix = calloc((size_t)ROWS * g->n_experts_used, sizeof *mix);
    int32_t *ids = calloc((size_t)ROWS * g->n_experts_used, sizeof *ids);
    int32_t *positions = calloc(ROWS, sizeof *positions);
    struct rmsnorm_args norm = {x, l->ffn_norm.data, x, ROWS, g->d_model, g->rms_eps};
    struct router_args router = {.type = l->router.type,
                                 .weights = l->router.data,
                                 .x = x,
                                 .n_in = g->d_model,
                                 .n_experts = g->n_experts,
                                 .n_used = g->n_experts_used,
                                 .n_rows = ROWS,
                                 .renormalise = g->router_renormalise,
                                 .scale = g->router_scale,
                                 .logits = logits,
                                 .ids = ids,
                                 .mix = mix,
                                 .positions = positions};
    cr_assert_eq(card->set->rmsnorm(&norm, card->stream), 0);
    cr_assert_eq(card->set->router(&router, card->stream), 0);
    card_wait(card);
    memset(count, 0, g->n_experts * sizeof *count);
    for (size_t i = 0; i < (size_t)ROWS * g->n_experts_used; i++)
        count[ids[i]]++;
    qsort(count, g->n_experts, sizeof *count, falling);
    free(x), free(logits), free(mix), free(ids), free(positions);
}

static void check_popularity(const uint32_t *count, const struct model_geometry *g)
{
    double mean = (double)ROWS * g->n_experts_used / g->n_experts;
    uint32_t n_seen = 0, of_first_quarter = 0;
    for (uint32_t e = 0; e < g->n_experts; e++) {
        n_seen += count[e] > 0;
        of_first_quarter += e < g->n_experts / 4 ? count[e] : 0;
    }
    double share = (double)of_first_quarter / ((double)ROWS * g->n_experts_used);
    cr_log_info("%u experts: %u seen, the most liked %.1f times the mean, the least %.2f, the "
                "first quarter %.2f",
                g->n_experts, n_seen, count[0] / mean, count[g->n_experts - 1] / mean, share);
    cr_assert_geq(n_seen, g->n_experts * 9 / 10);
    cr_assert_geq(count[0], 1.3 * mean);
    cr_assert_leq(count[0], 10 * mean);
    cr_assert(share > 0.32 && share < 0.75, "the first quarter has %.2f", share);
}

Test(make_model, experts_are_all_used_and_some_are_liked_more)
{
    static const char *const shapes[][2] = {
        {"tiny-qwen3", ""},
        {"tiny-mixtral", "--seed 5"},
        {"tiny-olmoe", ""},
        {"olmoe-1b-7b", "--layers 1 --type-mix q2_k"},
    };
    struct card card = card_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct made made = made_open(shapes[i][0], shapes[i][1]);
        uint32_t count[256];
        for (uint32_t layer = 0; layer < made.model->geometry.n_layers; layer++) {
            popularity(&card, made.model, layer, count);
            check_popularity(count, &made.model->geometry);
        }
        made_close(&made);
    }
    card_close(&card);
}
