/* runtime/cmd_inspect.c - `ebbtide inspect`: a model file's numbers, as tables for people or as JSON for programs.
 *
 * Starts nothing and loads nothing; everything it says is in runtime/model/inspect.h. A model that is not supported is no
 * failure of this command: what stands against it is part of the answer. A file whose container cannot be read is.
 */
#include "runtime/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/inspect.h"
#include "runtime/plan.h"

struct amount {
    char text[24];
};

/* "17.3 MiB", four digits at most. */
static struct amount amount_of(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct amount a;
    double value = (double)bytes;
    size_t u = 0;
    while (value >= 1000 && u + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        u++;
    }
    (void)snprintf(a.text, sizeof a.text, "%.*f %s", u == 0 || value >= 100 ? 0 : 1, value,
                   units[u]);
    return a;
}

/* "29.9 M" */
static struct amount count_of(uint64_t n)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    struct amount a;
    double value = (double)n;
    size_t u = 0;
    while (value >= 1000 && u + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        u++;
    }
    (void)snprintf(a.text, sizeof a.text, "%.*f%s", u == 0 || value >= 100 ? 0 : 1, value,
                   units[u]);
    return a;
}

static void line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(const char *name, const char *format, ...)
{
    va_list args;
    printf("  %-16s", name);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void geometry_print(const struct inspection *x)
{
    const struct model_geometry *g = &x->geometry;
    line("layers", "%u, %u wide", g->n_layers, g->d_model);
    line("attention", "%u heads of %u, %u of keys and values", g->n_heads, g->head_dim,
         g->n_kv_heads);
    if (g->n_experts > 0)
        line("experts", "%u of %u, %u wide", g->n_experts_used, g->n_experts, g->d_expert);
    if (g->n_experts > 0 && g->d_shared > 0)
        line("shared expert", "%u wide", g->d_shared);
    if (g->n_experts == 0)
        line("feed-forward", "%u wide", g->d_ff);
    line("context", "%u positions, rotation base %g", g->context_max, g->rope_base);
    line("vocabulary", "%u tokens, %s%s%s%s", g->n_vocab,
         x->tokenizer[0] != '\0' ? x->tokenizer : "no tokenizer",
         x->pretokenizer[0] != '\0' ? " (" : "", x->pretokenizer,
         x->pretokenizer[0] != '\0' ? ")" : "");
    if (x->template_name[0] != '\0')
        line("chat template", "%s%s", x->template_name, x->template_is_known ? "" : " (a guess)");
}

static void types_print(const struct inspection *x)
{
    printf("\n  %-14s %-12s %8s %12s\n", "group", "type", "tensors", "bytes");
    for (size_t g = 0; g < GROUP_COUNT; g++)
        for (size_t i = 0; i < x->groups[g].n_types; i++) {
            const struct inspect_type *t = &x->groups[g].types[i];
            printf("  %-14s %-12s %8" PRIu64 " %12s%s\n",
                   i == 0 ? inspect_group_name((enum inspect_group)g) : "", t->name, t->n_tensors,
                   amount_of(t->bytes).text, t->is_computed ? "" : "  not computed with");
        }
    if (x->is_tied)
        printf("  %-14s %-12s\n", "head", "(the embedding)");
}

/* Layers of the same sizes share a line. */
static void layers_print(const struct inspection *x)
{
    printf("\n  %-14s %12s %12s   each\n", "layers", "dense", "experts");
    for (uint32_t first = 0, last; first < x->n_layers; first = last + 1) {
        const struct inspect_layer *a = &x->layers[first];
        char range[32];
        for (last = first; last + 1 < x->n_layers; last++)
            if (x->layers[last + 1].dense_bytes != a->dense_bytes ||
                x->layers[last + 1].expert_bytes != a->expert_bytes)
                break;
        (void)snprintf(range, sizeof range, first == last ? "%u" : "%u-%u", first, last);
        printf("  %-14s %12s %12s\n", range, amount_of(a->dense_bytes).text,
               a->expert_bytes != 0 ? amount_of(a->expert_bytes).text : "-");
    }
}

static void splits_print(const struct inspection *x, uint32_t n_cards)
{
    printf("\n  %-6s %-5s %-9s %12s %12s %16s\n", "cards", "card", "layers", "dense", "experts",
           "KV/1,000 tokens");
    for (uint32_t n = 1; n <= n_cards && n <= x->n_layers; n++) {
        struct plan plan;
        if (plan_make(&plan, "auto", n, x->n_layers, NULL) != 0)
            return;
        for (size_t i = 0; i < plan.n_stages; i++) {
            struct inspect_share s =
                inspect_share(x, plan.stages[i].layer_first, plan.stages[i].layer_last);
            char range[32], cards[16] = "";
            if (i == 0)
                (void)snprintf(cards, sizeof cards, "%u", n);
            (void)snprintf(range, sizeof range, "%u-%u", s.layer_first, s.layer_last);
            printf("  %-6s %-5zu %-9s %12s %12s %16s\n", cards, i, range,
                   amount_of(s.dense_bytes).text,
                   s.expert_bytes != 0 ? amount_of(s.expert_bytes).text : "-",
                   s.kv_bytes != 0 ? amount_of(s.kv_bytes).text : "-");
        }
    }
}

static void tables_print(const struct inspection *x, const char *path, uint32_t n_cards)
{
    printf("%s\n", path);
    if (x->name[0] != '\0')
        line("name", "%s", x->name);
    line("architecture", "%s, %s parameters", x->architecture[0] != '\0' ? x->architecture : "none",
         count_of(x->n_parameters).text);
    line("file", "%s%s", amount_of(x->file_bytes).text, x->n_parts > 1 ? "" : ", one file");
    if (x->n_parts > 1)
        line("parts", "%zu", x->n_parts);
    geometry_print(x);
    line("supported", "%s", x->is_supported ? "yes" : "no");
    for (size_t i = 0; i < x->n_problems; i++)
        line(i == 0 ? "what is not" : "", "%s", x->problems[i]);
    if (x->n_parameters > 0)
        types_print(x);
    if (x->n_layers > 0) {
        layers_print(x);
        splits_print(x, n_cards);
    }
}

static json_t *geometry_json(const struct inspection *x)
{
    const struct model_geometry *g = &x->geometry;
    return json_pack("{sI sI sI sI sI sI sI sI sI sI sI sI sI sf sb}", "layers",
                     (json_int_t)x->n_layers, "d_model", (json_int_t)g->d_model, "heads",
                     (json_int_t)g->n_heads, "kv_heads", (json_int_t)g->n_kv_heads, "head_dim",
                     (json_int_t)g->head_dim, "context", (json_int_t)g->context_max, "vocabulary",
                     (json_int_t)g->n_vocab, "d_ff", (json_int_t)g->d_ff, "experts",
                     (json_int_t)g->n_experts, "experts_used", (json_int_t)g->n_experts_used,
                     "d_expert", (json_int_t)g->d_expert, "d_shared", (json_int_t)g->d_shared,
                     "rope_dimensions", (json_int_t)g->n_rot, "rope_base", g->rope_base, "tied",
                     (int)x->is_tied);
}

static json_t *types_json(const struct inspection *x)
{
    json_t *list = json_array();
    for (size_t g = 0; g < GROUP_COUNT; g++)
        for (size_t i = 0; i < x->groups[g].n_types; i++) {
            const struct inspect_type *t = &x->groups[g].types[i];
            json_array_append_new(
                list, json_pack("{ss ss sI sI sI sb}", "group",
                                inspect_group_name((enum inspect_group)g), "type", t->name,
                                "number", (json_int_t)t->type, "tensors", (json_int_t)t->n_tensors,
                                "bytes", (json_int_t)t->bytes, "computed", (int)t->is_computed));
        }
    return list;
}

static json_t *layers_json(const struct inspection *x)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < x->n_layers; i++)
        json_array_append_new(list, json_pack("{sI sI sI}", "layer", (json_int_t)i, "dense_bytes",
                                              (json_int_t)x->layers[i].dense_bytes, "expert_bytes",
                                              (json_int_t)x->layers[i].expert_bytes));
    return list;
}

static json_t *split_json(const struct inspection *x, uint32_t n)
{
    json_t *shares = json_array();
    struct plan plan = {0};
    (void)plan_make(&plan, "auto", n, x->n_layers, NULL);
    for (size_t i = 0; i < plan.n_stages; i++) {
        struct inspect_share s =
            inspect_share(x, plan.stages[i].layer_first, plan.stages[i].layer_last);
        json_array_append_new(
            shares, json_pack("{sI sI sI sI sI sI}", "card", (json_int_t)i, "layer_first",
                              (json_int_t)s.layer_first, "layer_last", (json_int_t)s.layer_last,
                              "dense_bytes", (json_int_t)s.dense_bytes, "expert_bytes",
                              (json_int_t)s.expert_bytes, "kv_bytes_per_1000_tokens",
                              (json_int_t)s.kv_bytes));
    }
    return json_pack("{sI so}", "cards", (json_int_t)n, "shares", shares);
}

static json_t *problems_json(const struct inspection *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_problems; i++)
        json_array_append_new(list, json_string(x->problems[i]));
    return list;
}

/* The path as it is, or empty where it is no text. */
static int json_write(const struct inspection *x, const char *path, uint32_t n_cards,
                      struct error *err)
{
    json_t *splits = json_array(), *file = json_string(path), *all;
    for (uint32_t n = 1; n <= n_cards && n <= x->n_layers; n++)
        json_array_append_new(splits, split_json(x, n));
    all = json_pack("{so sI sI ss ss sI sb so so so so sI sI s{ss ss sI} s{ss sb} so}", "file",
                    file != NULL ? file : json_string(""), "parts", (json_int_t)x->n_parts, "bytes",
                    (json_int_t)x->file_bytes, "architecture", x->architecture, "name", x->name,
                    "parameters", (json_int_t)x->n_parameters, "supported", (int)x->is_supported,
                    "problems", problems_json(x), "geometry", geometry_json(x), "types",
                    types_json(x), "layers", layers_json(x), "embedding_bytes",
                    (json_int_t)x->embedding_bytes, "head_bytes", (json_int_t)x->head_bytes,
                    "tokenizer", "model", x->tokenizer, "pre", x->pretokenizer, "tokens",
                    (json_int_t)x->n_tokens, "template", "name", x->template_name, "known",
                    (int)x->template_is_known, "splits", splits);
    if (all == NULL || json_dumpf(all, stdout, JSON_INDENT(1)) != 0) {
        json_decref(all);
        return error_set(err, EBB_ENOMEM, "%s: cannot be written as JSON", path);
    }
    json_decref(all);
    putchar('\n');
    return 0;
}

static int inspect_go(const struct settings *s, const char *path)
{
    struct inspection x;
    struct error err = {0};
    int code = inspect_open(&x, path, &err);
    if (code == 0 && s->json)
        code = json_write(&x, path, s->inspect_cards, &err);
    else if (code == 0)
        tables_print(&x, path, s->inspect_cards);
    if (code == 0 && fflush(stdout) != 0)
        code = error_set(&err, EBB_EIO, "stdout: cannot be written");
    if (code != 0)
        fprintf(stderr, "ebbtide: %s\n", err.text);
    else
        inspect_close(&x);
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

int command_inspect_run(const struct command *c, int argc, char **argv)
{
    char *bare[argc + 1];
    size_t n_bare = 0, n_groups = 0;
    struct settings s;
    struct error err = {0};
    int status = STATUS_DONE;
    while (c->groups[n_groups] != NULL)
        n_groups++;
    settings_default(&s);
    int code = settings_parse_groups(&s, c->groups, n_groups, argc, argv, bare, &n_bare, &err);
    if (code != 0)
        status = command_misused(c, err.text);
    else if (s.help)
        command_help(stdout, c);
    else if (n_bare != 1)
        status = command_misused(c, "inspect: wanted one file");
    else
        status = inspect_go(&s, bare[0]);
    settings_free(&s);
    return status;
}
