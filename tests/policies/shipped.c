/* tests/policies/shipped.c - the shipped policy, as a stage runs it: a cache of vmm on a CPU card, and
 * between two tokens what stages/experts.c does there. Publishes the upload that the last token gave time
 * to, counts what it read, and starts at most one exchange; the slot is out of use for one whole token.
 */
#include "tests/policies/policies.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOT_BYTES  256
#define SLOTS_GRAIN 16 /* a segment of one page */
#define UPLOADS_MAX 16 /* between two tokens, into free slots */

struct shipped {
    const struct trace *trace;
    struct policy rule;
    char directory[64];
    struct vmm_driver driver;
    struct pool pool;
    struct cache *cache;
    size_t uploading[UPLOADS_MAX], n_uploading, n_uploads;
    uint32_t *uses; /* [n_keys], of the token */
};

static void must(int code, const struct error *err)
{
    if (code == 0)
        return;
    (void)fprintf(stderr, "replay: %s\n", err->text);
    abort();
}

static struct cache_key key_of(const struct shipped *s, uint32_t key)
{
    return (struct cache_key){(uint32_t)(key / s->trace->n_experts),
                              (uint32_t)(key % s->trace->n_experts)};
}

static void settle(struct shipped *s)
{
    struct cache_key key, evicted;
    bool did_evict = false;
    struct error err;
    for (size_t i = 0; i < s->n_uploading; i++)
        must(cache_publish(s->cache, s->uploading[i]), &err);
    s->n_uploading = 0;
    while (!did_evict && s->n_uploading < UPLOADS_MAX &&
           policy_next(&s->rule, s->cache, s->n_uploading == 0, &key)) {
        must(cache_insert(s->cache, key, &s->uploading[s->n_uploading], &did_evict, &evicted, &err),
             &err);
        s->n_uploading++;
        s->n_uploads++;
    }
}

void *shipped_open(const struct trace *t, size_t n_slots, double setting, const struct policy *rule)
{
    (void)setting;
    struct error err = {0};
    struct shipped *s = calloc(1, sizeof *s);
    size_t reached, n_segments = n_slots / SLOTS_GRAIN;
    *s = (struct shipped){.trace = t, .rule = rule != NULL ? *rule : policy_shipped};
    s->uses = calloc(t->n_keys, sizeof *s->uses);
    (void)strcpy(s->directory, "/tmp/ebbtide-replay-XXXXXX");
    if (s->uses == NULL || mkdtemp(s->directory) == NULL)
        abort();
    struct vmm_host_settings card = {.capacity_bytes = n_slots * SLOT_BYTES,
                                     .runtime_dir = s->directory};
    struct cache_settings cs = {.slot_bytes = SLOT_BYTES,
                                .n_groups = t->n_layers,
                                .n_indexes = t->n_experts,
                                .half_life_touches = policy_half_life_touches(&s->rule, t->n_keys)};
    must(vmm_driver_host_open(&s->driver, &card, &err), &err);
    must(pool_open(&s->pool, &s->driver, SLOTS_GRAIN * SLOT_BYTES, n_segments, &err), &err);
    must(pool_hold(&s->pool, n_segments, &reached, &err), &err);
    must(cache_open(&s->cache, &s->pool, &cs, n_segments, &err), &err);
    must(cache_grow(s->cache, n_segments, &reached, &err), &err);
    if (cache_n_slots(s->cache) != n_slots)
        abort();
    while (cache_n_free(s->cache) > 0 || s->n_uploading > 0)
        settle(s); /* READY comes when the slots are full */
    return s;
}

size_t shipped_step(void *state, const uint32_t *keys, size_t n)
{
    struct shipped *s = state;
    size_t hits = 0;
    settle(s);
    for (size_t i = 0; i < n; i++) {
        hits += cache_slot_of(s->cache, key_of(s, keys[i])) != CACHE_NO_SLOT;
        s->uses[keys[i]]++;
    }
    for (uint32_t key = 0; key < s->trace->n_keys; key++) {
        cache_touch(s->cache, key_of(s, key), s->uses[key]);
        s->uses[key] = 0;
    }
    return hits;
}

size_t shipped_n_uploads(const void *state)
{
    return ((const struct shipped *)state)->n_uploads;
}

void shipped_close(void *state)
{
    struct shipped *s = state;
    char path[512];
    cache_close(s->cache);
    pool_close(&s->pool);
    s->driver.close(&s->driver);
    DIR *directory = opendir(s->directory);
    for (const struct dirent *e; directory != NULL && (e = readdir(directory)) != NULL;) {
        (void)snprintf(path, sizeof path, "%s/%s", s->directory, e->d_name);
        (void)unlink(path);
    }
    if (directory != NULL)
        (void)closedir(directory);
    (void)rmdir(s->directory);
    free(s->uses);
    free(s);
}
