/* tools/bench/engine.h - an `ebbtide serve` of our own, spoken to in the line protocol.
 *
 * The engine is the program beside this one, started with its pipes and ended by closing them. It has a namespace of its
 * own, so that its cards have nothing to do with other engines'. Threads: one owner. Lifetime: close it in any case.
 */
#pragma once
#include <sys/types.h>
#include "protocol/client.h"
#include "tools/bench/bench.h"

struct engine {
    pid_t pid; /* 0: none */
    struct channel channel;
    bool is_open;
    struct message message; /* the line that engine_wait() found; valid until the next call */
    uint64_t n_requests;
};

struct engine_flags {
    const char *model, *cards;
    const char *segment_mib, *context, *parallel, *kv_tokens,
        *chunk; /* NULL: the engine's choice */
};

/* Started and READY. EBB_ENOENT (no engine beside this program), EBB_EIO, EBB_EPEER with its words. */
int engine_open(struct engine *e, const struct bench_settings *s, const struct engine_flags *f,
                struct error *err);
void engine_close(struct engine *e); /* also of a zeroed one */

/* Sends a line and waits for one of that verb; EBB_EPEER where the engine answers with an ERR or is gone. */
int engine_ask(struct engine *e, const char *line, const char *verb, struct error *err);

/* A generation from n_prompt random ids: seconds until the first token, and from it to the last. */
struct generation {
    uint64_t n_prompt, n_new, seed;
    double prefill_s, decode_s;
    uint64_t n_decoded;     /* tokens after the first */
    uint64_t hits, lookups; /* of experts, prompt included */
};
int engine_generate(struct engine *e, struct generation *g, struct error *err);

/* n <= ENGINE_SIDE_BY_SIDE_MAX of them side by side: tokens a second of all together while all are past their prompts.
 * EBB_EPEER also where that was never so. */
#define ENGINE_SIDE_BY_SIDE_MAX 256
int engine_generate_side_by_side(struct engine *e, const struct generation *g, size_t n,
                                 double *tokens_a_second, struct error *err);
