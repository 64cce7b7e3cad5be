/* tests/policies/policies.c - static, LRU, LFU with decay, and Belady's optimum; and the replay.
 *
 * These fetch at once what is missing (LRU and LFU whatever it costs, the optimum where it pays) and are
 * as simple as they can be: every decision is a look at all keys. Keys 0 .. n_slots - 1 are in at the start.
 */
#include "tests/policies/policies.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NEVER SIZE_MAX

struct simple {
    const struct trace *trace;
    size_t n_slots, n_uploads;
    size_t n_read; /* keys since open */
    bool has_learned;
    double growth, scale;
    bool *is_in;  /* [n_keys] */
    double *rank; /* [n_keys]: the lowest goes first */
    size_t *next; /* [all keys of the trace]: where the same key is read again */
};

static void simple_close(void *state)
{
    struct simple *s = state;
    free(s->is_in);
    free(s->rank);
    free(s->next);
    free(s);
}

static void *simple_open(const struct trace *t, size_t n_slots, double half_life,
                         const struct policy *rule)
{
    (void)rule;
    struct simple *s = calloc(1, sizeof *s);
    assert(s != NULL && n_slots <= t->n_keys);
    *s = (struct simple){.trace = t, .n_slots = n_slots, .scale = 1.0, .growth = 1.0};
    s->is_in = calloc(t->n_keys, sizeof *s->is_in);
    s->rank = calloc(t->n_keys, sizeof *s->rank);
    s->next = calloc(t->n_tokens * t->n_per_token, sizeof *s->next);
    assert(s->is_in != NULL && s->rank != NULL && s->next != NULL);
    for (size_t key = 0; key < n_slots; key++)
        s->is_in[key] = true;
    if (half_life > 0.0)
        s->growth =
            1.0 + 0.6931471805599453 / half_life; /* near enough for half-lives of hundreds */
    return s;
}

static uint32_t lowest(const struct simple *s)
{
    uint32_t low = UINT32_MAX;
    for (uint32_t key = 0; key < s->trace->n_keys; key++)
        if (s->is_in[key] && (low == UINT32_MAX || s->rank[key] < s->rank[low]))
            low = key;
    return low;
}

static void exchange(struct simple *s, uint32_t out, uint32_t in)
{
    s->is_in[out] = false;
    s->is_in[in] = true;
    s->n_uploads++;
}

static size_t simple_n_uploads(const void *state)
{
    return ((const struct simple *)state)->n_uploads;
}

/* What was read most while learning stays. */
static void static_learned(void *state)
{
    struct simple *s = state;
    s->has_learned = true;
    memset(s->is_in, 0, s->trace->n_keys * sizeof *s->is_in);
    for (size_t slot = 0; slot < s->n_slots; slot++) {
        uint32_t high = UINT32_MAX;
        for (uint32_t key = 0; key < s->trace->n_keys; key++)
            if (!s->is_in[key] && (high == UINT32_MAX || s->rank[key] > s->rank[high]))
                high = key;
        s->is_in[high] = true;
    }
}

static size_t static_step(void *state, const uint32_t *keys, size_t n)
{
    struct simple *s = state;
    size_t hits = 0;
    for (size_t i = 0; i < n; i++) {
        hits += s->is_in[keys[i]];
        s->rank[keys[i]] += s->has_learned ? 0.0 : 1.0;
    }
    return hits;
}

/* Reads a key: in already, or in place of the lowest. */
static size_t read_at_once(struct simple *s, uint32_t key)
{
    if (s->is_in[key])
        return 1;
    exchange(s, lowest(s), key);
    return 0;
}

static size_t lru_step(void *state, const uint32_t *keys, size_t n)
{
    struct simple *s = state;
    size_t hits = 0;
    for (size_t i = 0; i < n; i++) {
        hits += read_at_once(s, keys[i]);
        s->rank[keys[i]] = (double)++s->n_read;
    }
    return hits;
}

static size_t lfu_step(void *state, const uint32_t *keys, size_t n)
{
    struct simple *s = state;
    size_t hits = 0;
    for (size_t i = 0; i < n; i++) {
        s->scale *= s->growth;
        hits += read_at_once(s, keys[i]);
        s->rank[keys[i]] += s->scale;
    }
    for (size_t key = 0; s->scale > 1e100 && key < s->trace->n_keys; key++)
        s->rank[key] /= 1e100;
    s->scale /= s->scale > 1e100 ? 1e100 : 1.0;
    return hits;
}

/* rank = minus the time of the next use; a key that is not read sooner than all that are in passes by. */
static void *optimum_open(const struct trace *t, size_t n_slots, double setting,
                          const struct policy *rule)
{
    struct simple *s = simple_open(t, n_slots, setting, rule);
    size_t n = t->n_tokens * t->n_per_token;
    size_t *seen = calloc(t->n_keys, sizeof *seen);
    assert(seen != NULL);
    for (size_t key = 0; key < t->n_keys; key++)
        seen[key] = NEVER;
    for (size_t at = n; at-- > 0;) {
        s->next[at] = seen[t->keys[at]];
        seen[t->keys[at]] = at;
    }
    for (size_t key = 0; key < t->n_keys; key++)
        s->rank[key] = -(double)seen[key];
    free(seen);
    return s;
}

static size_t optimum_step(void *state, const uint32_t *keys, size_t n)
{
    struct simple *s = state;
    size_t hits = 0;
    for (size_t i = 0; i < n; i++) {
        s->rank[keys[i]] = -(double)s->next[s->n_read++];
        if (s->is_in[keys[i]]) {
            hits++;
            continue;
        }
        uint32_t out = lowest(s);
        if (s->rank[out] < s->rank[keys[i]])
            exchange(s, out, keys[i]);
    }
    return hits;
}

const struct replay_policy replay_policies[REPLAY_N] = {
    [REPLAY_STATIC] = {"static", simple_open, static_learned, static_step, simple_n_uploads,
                       simple_close},
    [REPLAY_LRU] = {"LRU", simple_open, NULL, lru_step, simple_n_uploads, simple_close},
    [REPLAY_LFU] = {"LFU-decay", simple_open, NULL, lfu_step, simple_n_uploads, simple_close},
    [REPLAY_SHIPPED] = {"shipped", shipped_open, NULL, shipped_step, shipped_n_uploads,
                        shipped_close},
    [REPLAY_OPTIMUM] = {"optimum", optimum_open, NULL, optimum_step, simple_n_uploads,
                        simple_close},
};

struct replay_result replay(const struct replay_policy *p, const struct trace *t, size_t n_learn,
                            size_t n_slots, double setting, const struct policy *rule)
{
    void *state = p->open(t, n_slots, setting, rule);
    size_t hits = 0, uploads = 0;
    for (size_t token = 0; token < t->n_tokens; token++) {
        if (token == n_learn) {
            if (p->learned != NULL)
                p->learned(state);
            uploads = p->n_uploads(state);
        }
        size_t n = p->step(state, t->keys + token * t->n_per_token, t->n_per_token);
        hits += token >= n_learn ? n : 0;
    }
    double n_tokens = (double)(t->n_tokens - n_learn);
    struct replay_result r = {.hit_rate = (double)hits / (n_tokens * (double)t->n_per_token),
                              .n_uploads = (double)(p->n_uploads(state) - uploads) / n_tokens};
    p->close(state);
    return r;
}
