/* kernels/misses.h - experts that are not on the card, shared out between it and the host's processors.
 *
 * A step asks once a layer: the card's operation `ask` chooses whose each absent expert is, writes ids and rows where both sides see
 * them, and raises the request's number. The card computes its own part by kernels.h; a thread of this process that watches the number
 * computes the host's and stores `answered`. `wait` holds the stream until then, `take` puts the host's rows beside the others.
 * An expert's result is the same bits on both sides (NUMERICS tier 1), so who computes it may change from ask to ask.
 *
 * Launchers as in kernels.h: 0, EBB_EUNSUPPORTED (nothing was launched) or what exec returned; all may be recorded.
 */
#pragma once
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MISS_ROWS_MAX  8
#define MISS_PAIRS_MAX (MISS_ROWS_MAX * EXPERTS_USED_MAX)

/* In memory of shared_alloc(). What one side writes shares no line with what the other does. */
struct miss_request {
    uint32_t number;    /* MISS_NUMBER(), written last */
    uint32_t tag;       /* with work: the ask's */
    uint32_t n_experts; /* with work: how many are asked for, > 0 */
    uint32_t apart[61];
    uint32_t answered; /* 1; 0 from an ask with work until the host's rows are there */
    uint32_t apart_too[63];
};

/* Of the count-th ask so far, which found n_absent experts not resident; with_work is 0 or 1. Counts start anew at 2^22. */
#define MISS_NUMBER_STEP 1024
#define MISS_NUMBER(count, n_absent, with_work)                                                    \
    (MISS_NUMBER_STEP * (uint32_t)(count) + 2 * (uint32_t)(n_absent) + (uint32_t)(with_work))

struct miss_control {                   /* of a step */
    uint32_t number;                    /* asks before it */
    uint16_t split[MISS_PAIRS_MAX + 1]; /* of so many absent experts, how many are the host's */
};

/* Of the distinct experts of `ids` that are not resident, in the order of their first pairs, the first control->split[their number]
 * are the host's: their pairs get -1 in `here` and their id in `away`, all others the other way about. Counts heat for the host's.
 * n_rows <= MISS_ROWS_MAX. */
struct miss_ask_args {
    const struct expert_address *addresses; /* [n_experts] */
    const int32_t *ids;                     /* [n_rows][n_used], -1 = none */
    size_t d_model, n_experts, n_used, n_rows;
    const float *x; /* [n_rows][d_model] */
    const struct miss_control *control;
    uint32_t index, tag; /* which ask of the step this is, from 1; what the host knows it by */
    uint32_t *heat;      /* [n_experts] */
    int32_t *here;       /* [n_rows][n_used] */
    struct miss_request *request; /* in memory that both see, as are these: */
    int32_t *away;                /* [n_rows][n_used], written where there is work */
    float *away_x;                /* [n_rows][d_model]: x, alike */
};

/* outputs[r][rank] = rows[r][rank] where here has -1 and ids has an expert. */
struct miss_take_args {
    const int32_t *ids, *here; /* [n_rows][n_used] */
    size_t d_model, n_used, n_rows;
    const float *rows; /* [n_rows][n_used][d_model], the host's */
    float *outputs;    /* alike, on the card */
};

struct miss_ops {
    int (*ask)(const struct miss_ask_args *args, struct exec_stream *s);
    /* What comes after runs only once *flag, which a thread of this process stores, is `value`. No kernel spins. */
    int (*wait)(const uint32_t *flag, uint32_t value, struct exec_stream *s);
    int (*take)(const struct miss_take_args *args, struct exec_stream *s);
};

extern const struct miss_ops
    miss_ops_cpu; /* of CPU streams: for cards that only say they are devices */
extern const struct miss_ops miss_ops_cuda; /* in programs linked with the room's CUDA half */

/* The host's side, inside a job (exec.h): runs what a CPU stream recorded, here and now. */
void exec_cpu_graph_run(const struct exec_graph *graph, struct exec_cpu_worker *w);

#ifdef __cplusplus
}
#endif
