/* tests/policies/texts.c - the recorded routing of texts (tests/data/routing.json), and halves of them. */
#include "tests/policies/policies.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(const char *path, const char *why)
{
    (void)fprintf(stderr, "%s: %s\n", path, why);
    exit(1);
}

static size_t expert_of(const json_t *tokens, size_t token, size_t i)
{
    return (size_t)json_integer_value(json_array_get(json_array_get(tokens, token), i));
}

static struct trace read_text(const char *path, const json_t *layers)
{
    const json_t *first = json_array_get(layers, 0);
    size_t n_used = json_array_size(json_array_get(first, 0));
    struct trace t = {.n_layers = json_array_size(layers), .n_tokens = json_array_size(first)};
    t.n_per_token = t.n_layers * n_used;
    uint32_t *keys = calloc(t.n_tokens * t.n_per_token + 1, sizeof *keys);
    if (keys == NULL || t.n_tokens == 0 || n_used == 0)
        refuse(path, "holds no routing of a text");
    for (size_t l = 0; l < t.n_layers; l++)
        for (size_t token = 0; token < t.n_tokens; token++)
            for (size_t i = 0; i < n_used; i++)
                if (expert_of(json_array_get(layers, l), token, i) >= t.n_experts)
                    t.n_experts = expert_of(json_array_get(layers, l), token, i) + 1;
    for (size_t token = 0; token < t.n_tokens; token++)
        for (size_t l = 0; l < t.n_layers; l++)
            for (size_t i = 0; i < n_used; i++)
                keys[token * t.n_per_token + l * n_used + i] =
                    (uint32_t)(l * t.n_experts + expert_of(json_array_get(layers, l), token, i));
    t.n_keys = t.n_layers * t.n_experts;
    t.keys = keys;
    return t;
}

void texts_open(struct texts *t, const char *path)
{
    json_error_t error;
    json_t *file = json_load_file(path, 0, &error), *text;
    const char *name;
    *t = (struct texts){0};
    if (file == NULL)
        refuse(path, error.text);
    json_object_foreach(file, name, text)
    {
        if (t->n == TEXTS_MAX)
            refuse(path, "too many texts");
        (void)snprintf(t->name[t->n], sizeof t->name[t->n], "%s", name);
        t->trace[t->n++] = read_text(path, json_object_get(text, "experts"));
    }
    json_decref(file);
}

void texts_close(struct texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        free((void *)t->trace[i].keys);
    *t = (struct texts){0};
}

struct trace texts_join(const struct trace *a, const struct trace *b, size_t n)
{
    struct trace t = *a;
    size_t half = n * a->n_per_token;
    uint32_t *keys = calloc(2 * half, sizeof *keys);
    if (keys == NULL || 2 * n > b->n_tokens || a->n_keys != b->n_keys)
        refuse("texts", "do not fit together");
    memcpy(keys, a->keys, half * sizeof *keys);
    memcpy(keys + half, b->keys + half, half * sizeof *keys);
    t.n_tokens = 2 * n;
    t.keys = keys;
    return t;
}

double texts_lfu_setting(const struct trace *t, size_t n_slots)
{
    struct trace half = texts_join(t, t, t->n_tokens / 4);
    double best = 0.0, best_rate = -1.0;
    for (double setting = 256.0; setting <= 16384.0; setting *= 2.0) {
        struct replay_result r =
            replay(&replay_policies[REPLAY_LFU], &half, half.n_tokens / 2, n_slots, setting, NULL);
        if (r.hit_rate > best_rate) {
            best_rate = r.hit_rate;
            best = setting;
        }
    }
    free((void *)half.keys);
    return best;
}
