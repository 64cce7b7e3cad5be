/* tools/bench/model.c - prefill and decode of a model by whole engines, on one stage and on two; the hop between them.
 *
 * An engine of one stage and one of two answer in turns, unless the model is so large that two at once would not fit.
 * What a hop costs is measured on a model so small that its own work hardly counts: what a token takes with two stages,
 * less what it takes with one (the hidden state goes over once and the token's id comes back).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/engine.h"
#include "tools/bench/made.h"

#define RUNS_MAX 9

static const char *const cards[] = {"cpu:0", "cpu:0,cpu:1"};
static const char *const stages[] = {"one stage", "two stages"};

struct rates {
    double prefill[RUNS_MAX], decode[RUNS_MAX]; /* seconds a token */
};

static int rates_measure(struct engine *e, struct generation g, struct rates *to, int run,
                         struct error *err)
{
    struct generation prefill = g, decode = g;
    prefill.n_new = 1;
    decode.n_prompt = 16;
    int code = engine_generate(e, &prefill, err);
    if (code == 0)
        code = engine_generate(e, &decode, err);
    if (code == 0 && decode.n_decoded == 0)
        code = error_set(err, EBB_EPEER, "a generation gave no token after its first");
    if (code != 0)
        return code;
    to->prefill[run] = prefill.prefill_s / (double)prefill.n_prompt;
    to->decode[run] = decode.decode_s / (double)decode.n_decoded;
    return 0;
}

/* Runs -1 .. n_runs - 1 of one engine or of both in turns; the first warms up. */
static int engines_measure(struct engine *engines, size_t n_engines, struct generation g,
                           struct rates *to, int n_runs, struct error *err)
{
    int code = 0;
    for (int run = -1; run < n_runs && code == 0; run++)
        for (size_t i = 0; i < n_engines && code == 0; i++)
            code = rates_measure(&engines[i], g, &to[i], run < 0 ? 0 : run, err);
    return code;
}

/* to[0], to[1]: with one stage and with two. */
static int both_measure(const struct bench_settings *s, const char *model, struct generation g,
                        struct rates to[2], int n_runs, struct error *err)
{
    struct engine engines[2] = {{0}, {0}};
    struct stat st;
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    bool in_turns = stat(model, &st) == 0 && st.st_size < (double)pages * (double)page / 4;
    int code = 0;
    for (size_t i = 0; i < 2 && code == 0; i++) {
        struct engine_flags flags = {.model = model, .cards = cards[i]};
        code = engine_open(&engines[i], s, &flags, err);
        if (code == 0 && !in_turns) {
            code = engines_measure(&engines[i], 1, g, &to[i], n_runs, err);
            engine_close(&engines[i]);
        }
    }
    if (code == 0 && in_turns)
        code = engines_measure(engines, 2, g, to, n_runs, err);
    engine_close(&engines[1]);
    engine_close(&engines[0]);
    return code;
}

static void rates_report(struct report *r, struct rates rates[2], struct generation g, int n_runs)
{
    double prefill[2], decode[2];
    for (size_t i = 0; i < 2; i++) {
        prefill[i] = 1 / bench_median(rates[i].prefill, n_runs);
        decode[i] = 1 / bench_median(rates[i].decode, n_runs);
    }
    for (size_t i = 0; i < 2; i++) {
        struct row row = {.what = "prefill",
                          .value = prefill[i],
                          .unit = "tok/s",
                          .against = i > 0 ? prefill[0] : 0,
                          .n_runs = n_runs};
        (void)snprintf(row.shape, sizeof row.shape, "%s; %llu tokens", stages[i],
                       (unsigned long long)g.n_prompt);
        report_row(r, &row);
    }
    for (size_t i = 0; i < 2; i++) {
        struct row row = {.what = "decode",
                          .value = decode[i],
                          .unit = "tok/s",
                          .against = i > 0 ? decode[0] : 0,
                          .n_runs = n_runs};
        (void)snprintf(row.shape, sizeof row.shape, "%s; %llu tokens", stages[i],
                       (unsigned long long)g.n_new);
        report_row(r, &row);
    }
}

static int hop_measure(const struct bench_settings *s, struct report *r, struct error *err)
{
    struct generation g = {.n_prompt = 8, .n_new = s->quick ? 100 : 400, .seed = 2};
    struct rates rates[2];
    char path[MADE_PATH_BYTES];
    int n_runs = s->quick ? 3 : 9;
    int code = made_model(path, "tiny-qwen3", 2, err);
    if (code == 0)
        code = both_measure(s, path, g, rates, n_runs, err);
    made_remove(path);
    if (code != 0)
        return code;
    double one = bench_median(rates[0].decode, n_runs) * 1e6;
    double two = bench_median(rates[1].decode, n_runs) * 1e6;
    struct row rows[] = {
        {.what = "a token", .shape = "one stage", .value = one, .unit = "us", .n_runs = n_runs},
        {.what = "a token", .shape = "two stages", .value = two, .unit = "us", .n_runs = n_runs},
        {.what = "hop there and back",
         .shape = "the difference",
         .value = two - one,
         .unit = "us",
         .n_runs = n_runs},
    };
    report_part(r, "hop",
                "The hop between two stages, on a model of 2 layers that is nearly nothing", NULL,
                false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        report_row(r, &rows[i]);
    return 0;
}

int bench_model(const struct bench_settings *s, struct report *r, struct error *err)
{
    struct generation g = {.n_prompt = s->quick ? 64 : 512, .n_new = s->quick ? 16 : 64, .seed = 1};
    struct rates rates[2];
    char title[256];
    const char *name = strrchr(s->model, '/');
    int n_runs = s->quick ? 3 : 5;
    (void)snprintf(title, sizeof title, "A model by the engine, one sequence: %.200s",
                   name != NULL ? name + 1 : s->model);
    report_part(r, "model", title, "one stage", false);
    int code = both_measure(s, s->model, g, rates, n_runs, err);
    if (code != 0)
        return code;
    rates_report(r, rates, g, n_runs);
    return hop_measure(s, r, err);
}
