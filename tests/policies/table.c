/* tests/policies/table.c - the program: replays recorded routing and prints the tables of MULTI_GPU.md.
 *
 *   policy-table [routing.json]           hit rates of every policy on the second halves
 *   policy-table --settings [routing.json]  how the shipped policy's numbers do on the first halves
 */
#include "tests/policies/policies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t percents[] = {25, 50, 75};

static void print_row(const struct texts *t, size_t a, size_t b, size_t percent)
{
    struct trace joined = texts_join(&t->trace[a], &t->trace[b], t->trace[a].n_tokens / 2);
    size_t n_slots = joined.n_keys * percent / 100;
    double lfu = texts_lfu_setting(&t->trace[a], n_slots), uploads[REPLAY_N];
    printf("| %s%s%s | %zu %% |", t->name[a], a != b ? " → " : "", a != b ? t->name[b] : "",
           percent);
    for (int p = 0; p < REPLAY_N; p++) {
        struct replay_result r =
            replay(&replay_policies[p], &joined, joined.n_tokens / 2, n_slots, lfu, NULL);
        uploads[p] = r.n_uploads;
        printf(" %.1f |", 100.0 * r.hit_rate);
    }
    printf(" %.1f | %.1f | %.2f |\n", uploads[REPLAY_LRU], uploads[REPLAY_LFU],
           uploads[REPLAY_SHIPPED]);
    free((void *)joined.keys);
}

static void print_rates(const struct texts *t)
{
    printf("| text | slots |");
    for (int p = 0; p < REPLAY_N; p++)
        printf(" %s |", replay_policies[p].name);
    printf(" uploads a token: LRU | LFU-decay | shipped |\n|---|---|");
    for (int p = 0; p < REPLAY_N + 3; p++)
        printf("---|");
    printf("\n");
    for (int switches = 0; switches < 2; switches++)
        for (size_t a = 0; a < t->n; a++)
            for (size_t b = 0; b < t->n; b++)
                for (size_t i = 0; i < 3 && (a != b) == switches; i++)
                    print_row(t, a, b, percents[i]);
}

/* Means over all texts and sizes, of the second quarters: after the same text's first, and another's. */
static void print_setting(const struct texts *t, const struct policy *rule)
{
    double sum[2] = {0}, uploads[2] = {0}, n[2] = {0};
    for (size_t a = 0; a < t->n; a++)
        for (size_t b = 0; b < t->n; b++) {
            struct trace joined = texts_join(&t->trace[a], &t->trace[b], t->trace[a].n_tokens / 4);
            for (size_t i = 0; i < 3; i++) {
                struct replay_result r =
                    replay(&replay_policies[REPLAY_SHIPPED], &joined, joined.n_tokens / 2,
                           joined.n_keys * percents[i] / 100, 0.0, rule);
                sum[a != b] += 100.0 * r.hit_rate;
                uploads[a != b] += r.n_uploads;
                n[a != b] += 1.0;
            }
            free((void *)joined.keys);
        }
    printf("| %g | %g | %g | %.2f | %.2f | %.2f | %.2f |\n", rule->half_life_uses, rule->ratio,
           rule->margin, sum[0] / n[0], sum[1] / n[1], uploads[0] / n[0], uploads[1] / n[1]);
}

static void print_settings(const struct texts *t)
{
    static const double uses[] = {4, 6, 8, 12, 16, 32, 64},
                        rules[][2] = {{1.0, 0.0}, {1.1, 0.25}, {1.25, 0.5}, {1.5, 1.0}, {1.5, 2.0}};
    printf("| half-life, uses | ratio | margin | same text | after a switch | uploads a token | "
           "after a "
           "switch |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        for (size_t j = 0; j < sizeof rules / sizeof *rules; j++)
            print_setting(t, &(struct policy){uses[i], rules[j][0], rules[j][1]});
}

int main(int argc, char **argv)
{
    bool settings = argc > 1 && strcmp(argv[1], "--settings") == 0;
    const char *path = argc > 1 + settings ? argv[1 + settings] : EBBTIDE_TEST_DATA "/routing.json";
    struct texts t;
    texts_open(&t, path);
    if (settings)
        print_settings(&t);
    else
        print_rates(&t);
    texts_close(&t);
    return fflush(stdout) == 0 ? 0 : 1;
}
