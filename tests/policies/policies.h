/* tests/policies/policies.h - policies of a cache, replayed on recorded routing.
 *
 * One small interface: a policy is opened for a trace and a number of slots, is stepped token by
 * token (the keys that the token reads; how many were in slots), is told once when what it may learn
 * from ends, and is closed. The shipped policy is vmm/policy.h over a real cache; the others are the
 * ones it has to stand beside. Belady's optimum alone looks at the trace ahead of the token.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "vmm/policy.h"

struct trace { /* keys are layer * n_experts + expert */
    size_t n_layers, n_experts, n_keys, n_per_token, n_tokens;
    const uint32_t *keys; /* [n_tokens][n_per_token] */
};

struct replay_policy {
    const char *name;
    /* setting: LFU's half-life in touches; the shipped policy's is *rule (NULL = as shipped). NULL: no memory. */
    void *(*open)(const struct trace *t, size_t n_slots, double setting, const struct policy *rule);
    void (*learned)(void *state); /* may be NULL */
    size_t (*step)(void *state, const uint32_t *keys, size_t n);
    size_t (*n_uploads)(const void *state); /* since open */
    void (*close)(void *state);
};

enum replay_name {
    REPLAY_STATIC,
    REPLAY_LRU,
    REPLAY_LFU,
    REPLAY_SHIPPED,
    REPLAY_OPTIMUM,
    REPLAY_N
};
extern const struct replay_policy replay_policies[REPLAY_N];

/* shipped.c */
void *shipped_open(const struct trace *t, size_t n_slots, double setting,
                   const struct policy *rule);
size_t shipped_step(void *state, const uint32_t *keys, size_t n);
size_t shipped_n_uploads(const void *state);
void shipped_close(void *state);

struct replay_result {
    double hit_rate;  /* of the tokens from n_learn on */
    double n_uploads; /* a token, of the same */
};
struct replay_result replay(const struct replay_policy *p, const struct trace *t, size_t n_learn,
                            size_t n_slots, double setting, const struct policy *rule);

#define TEXTS_MAX 8
struct texts {
    size_t n;
    char name[TEXTS_MAX][16];
    struct trace trace[TEXTS_MAX]; /* keys owned */
};
/* Exits with a message when the file is not as it should be: it is ours. */
void texts_open(struct texts *t, const char *path);
void texts_close(struct texts *t);
/* Tokens [0, n) of a, then [n, 2n) of b. Keys are the caller's to free. */
struct trace texts_join(const struct trace *a, const struct trace *b, size_t n);
/* The half-life for LFU that does best on the second quarter of a text, after its first. */
double texts_lfu_setting(const struct trace *t, size_t n_slots);
