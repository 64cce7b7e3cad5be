/* stages/misses.h - the host's processors beside a device card: in short steps they compute some of the experts that are not on it.
 *
 * An expert that is not resident can be read by the card's kernels over the bus, or computed where it lies, in the mapped file. Both give
 * the same bits (NUMERICS.md, tier 1). In a recorded step of few rows, behind the router of every layer:
 *
 *   card    ask: shares the absent experts out, writes ids and rows into memory that both see, then raises the request's number
 *   card    experts: those on the card and its own share          host   sees the number, computes its share, answers
 *   card    the stream waits for the answer's flag, takes the host's rows, combines in rank order
 *
 * The host's side is a CPU executor (kernels/exec.h) of its own: one job a step, which watches the number until the step's last ask. So
 * the control thread never waits and answers VRAM and PING meanwhile; a worker that dies takes the process with it.
 * Off, without a thread: on a card that has no such operations, with threads 0, without a layer of quantised experts.
 * Threads: the control thread calls; the job runs on the executor's. Shared are the request, `stopping` and the rates.
 */
#pragma once
#include <stdatomic.h>
#include "kernels/misses.h"
#include "runtime/model/model.h"
#include "stages/miss_rates.h"

struct forward;

struct misses_settings {
    const struct miss_ops *ops;       /* the card's; NULL: it has none */
    struct forward *f;                /* borrowed: its shape, kernels, addresses, control */
    const struct model_layer *layers; /* borrowed [n_layers]: the stage's */
    size_t n_layers;
    uint32_t n_threads; /* 0: off */
    int percent;        /* of absent experts, or MISS_SHARE_AUTO */
};

struct misses {
    struct misses_settings set;
    struct exec *host; /* NULL: off */
    struct exec_stream *stream;
    struct exec_event *answered;      /* of the probe */
    const struct kernel_set *kernels; /* the host's */
    void *shared;                     /* of the card's exec: what both see */
    size_t shared_bytes;
    struct miss_request *request;
    int32_t *away;        /* [MISS_ROWS_MAX][n_used] */
    float *away_x, *rows; /* [MISS_ROWS_MAX][d_model]; [MISS_ROWS_MAX][n_used][d_model] */
    void *own;            /* host's: activations, scratch, counts that nobody reads */
    void *a, *scratch;
    uint32_t *counts;
    struct exec_graph **graphs; /* owned [n_layers][MISS_SIZES]; NULL where a layer is not served */
    uint32_t n_layers_served;   /* asks of a step */
    uint32_t n_asked;           /* asks of all steps launched */
    uint32_t n_seen;            /* the job's: the last number it has seen */
    _Atomic bool stopping;
    struct miss_rates rates;
};

/* EBB_ENOMEM, EBB_EUNSUPPORTED; nothing is left then. Off is success. */
int misses_open(struct misses *x, const struct misses_settings *set, struct error *err);
void misses_close(
    struct misses *x); /* nothing of the card may wait any more; a zeroed one is fine */

/* Whether steps of so many rows are shared with the host. */
static inline bool misses_serve(const struct misses *x, size_t n_rows)
{
    return x->host != NULL && n_rows <= MISS_ROWS_MAX;
}

/* Whether a layer asks; *tag is what it is known by for so many rows, *index which of the step's asks it makes, from 1. */
bool misses_ask_of(const struct misses *x, size_t layer, size_t n_rows, uint32_t *index,
                   uint32_t *tag);

/* Times both sides with experts of the file, once, before the first step, on a stream where nothing runs; returns when done. */
int misses_probe(struct misses *x, struct exec_stream *s, struct error *err);

/* Before a step recorded for so many rows that asks is sent: writes its control and sets the host to watch. */
int misses_begin(struct misses *x, size_t n_rows);
