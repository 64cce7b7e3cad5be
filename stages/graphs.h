/* stages/graphs.h - the short steps of a device card, recorded: for 1, 2, 4, … rows all layers of the stage, and for as many sampled
 * rows the head with sampling.
 *
 * Layers are recorded in two families. One is for steps while every expert of the stage is on the card, and holds no wait for the host.
 * The other, for steps of up to MISS_ROWS_MAX rows, shares the experts that are not with the host (misses.h); without a host that helps,
 * and for more rows, the first family reads them over the bus. Which one a step takes is asked anew for every step.
 *
 * A graph holds addresses that are fixed for the life of the load; what differs from step to step is read from the step's values.
 * A step of 5 rows runs the graph for 8: the rows that nobody asked for are inert (position and token -1). Everything is recorded at
 * load, so that serving allocates nothing. A card that is no device has no graphs, and n_sizes is 0.
 * Threads: the control thread. Owns the graphs.
 */
#pragma once
#include "stages/forward.h"

#define GRAPH_ROWS_MAX 64
#define GRAPH_SIZES    8

struct graphs {
    struct forward *f; /* borrowed, as all below */
    const struct weights *weights;
    const struct kv *kv;
    const struct model_layer *layers; /* [n_layers], the stage's */
    struct misses *misses;
    bool embeds;              /* the first stage looks tokens up */
    size_t rows[GRAPH_SIZES]; /* ascending */
    size_t n_sizes;
    struct exec_graph *layers_graph[GRAPH_SIZES], *head_graph[GRAPH_SIZES]; /* head: last stage */
    struct exec_graph *misses_graph[GRAPH_SIZES]; /* NULL: there is no such family for this size */
    uint64_t n_resident, n_missing; /* steps launched while all experts were on the card, and not */
};

/* All but the graphs is filled in; records on s, where nothing else may be. */
int graphs_open(struct graphs *g, struct exec_stream *s, struct error *err);
void graphs_close(struct graphs *g); /* a zeroed one is fine */

/* Whether a step of so many rows is recorded. */
static inline bool graphs_serve(const struct graphs *g, size_t n_rows)
{
    return g->n_sizes > 0 && n_rows <= g->rows[g->n_sizes - 1];
}
/* Launches all layers for rows [0, n_rows), making the rows above inert; sends the step's values first. Resident: every expert of the
 * stage is on the card. */
int graphs_run_layers(struct graphs *g, size_t n_rows, bool resident, bool tables, bool addresses,
                      struct exec_stream *s);
/* Launches the head for head_index[0 .. n), all sampled and without log-probabilities. The entries above must have been made inert
 * before the step's values were sent: graphs_clear_head(). */
int graphs_run_head(struct graphs *g, size_t n, struct exec_stream *s);
void graphs_clear_head(struct graphs *g, size_t n);
