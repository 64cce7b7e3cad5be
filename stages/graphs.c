/* stages/graphs.c - records and launches short steps (see graphs.h). */
#include "stages/graphs.h"

#include <string.h>

static size_t size_for(const struct graphs *g, size_t n_rows)
{
    size_t i = 0;
    while (i + 1 < g->n_sizes && g->rows[i] < n_rows)
        i++;
    return i;
}

static int launch_layers(struct graphs *g, size_t n_rows, struct exec_stream *s)
{
    struct forward *f = g->f;
    int rc = forward_begin(f, g->weights, n_rows, g->embeds, s);
    for (size_t layer = 0; rc == 0 && layer < f->shape.n_layers; layer++)
        rc = forward_layer(f, g->weights, g->kv, &g->layers[layer], layer, n_rows, s);
    return rc;
}

static int launch_misses(struct graphs *g, size_t n_rows, struct exec_stream *s)
{
    g->f->misses = g->misses;
    int rc = launch_layers(g, n_rows, s);
    g->f->misses = NULL;
    return rc;
}

static int launch_head(struct graphs *g, size_t n_rows, struct exec_stream *s)
{
    for (size_t i = 0; i < n_rows; i++)
        g->f->in.logprobs[i] = -1;
    return forward_head(g->f, g->weights, 0, n_rows, 0, s);
}

static int record(struct graphs *g, size_t n_rows, struct exec_stream *s,
                  int (*launch)(struct graphs *, size_t, struct exec_stream *),
                  struct exec_graph **out, struct error *err)
{
    const struct exec_driver *exec = g->f->shape.exec;
    int rc = exec->capture_begin(s);
    if (rc != 0)
        return error_set(err, rc, "a step of %zu rows cannot be recorded", n_rows);
    int launched = launch(g, n_rows, s);
    rc = exec->capture_end(s, out, err);
    if (launched == 0)
        return rc;
    if (rc == 0)
        exec->graph_close(*out);
    *out = NULL;
    return error_set(err, launched, "this card cannot compute the %s of a step of %zu rows (%s)",
                     g->f->refused != NULL ? g->f->refused : "layers", n_rows,
                     error_code_name(launched));
}

int graphs_open(struct graphs *g, struct exec_stream *s, struct error *err)
{
    const struct forward_shape *shape = &g->f->shape;
    g->n_sizes = 0;
    if (!shape->exec->is_device)
        return 0;
    size_t most = shape->rows_base < GRAPH_ROWS_MAX ? shape->rows_base : GRAPH_ROWS_MAX;
    int rc = 0;
    for (size_t rows = 1; rc == 0; rows *= 2) {
        size_t n = rows < most ? rows : most, i = g->n_sizes++;
        g->rows[i] = n;
        rc = record(g, n, s, launch_layers, &g->layers_graph[i], err);
        if (rc == 0 && misses_serve(g->misses, n))
            rc = record(g, n, s, launch_misses, &g->misses_graph[i], err);
        if (rc == 0 && shape->is_last)
            rc = record(g, n, s, launch_head, &g->head_graph[i], err);
        if (n == most)
            break;
    }
    if (rc != 0)
        graphs_close(g);
    return rc;
}

void graphs_close(struct graphs *g)
{
    for (size_t i = 0; i < g->n_sizes; i++) {
        const struct exec_driver *exec = g->f->shape.exec;
        if (g->layers_graph[i] != NULL)
            exec->graph_close(g->layers_graph[i]);
        if (g->misses_graph[i] != NULL)
            exec->graph_close(g->misses_graph[i]);
        if (g->head_graph[i] != NULL)
            exec->graph_close(g->head_graph[i]);
    }
    memset(g, 0, sizeof *g);
}

int graphs_run_layers(struct graphs *g, size_t n_rows, bool resident, bool tables, bool addresses,
                      struct exec_stream *s)
{
    struct forward *f = g->f;
    size_t i = size_for(g, n_rows);
    struct exec_graph *graph = resident ? NULL : g->misses_graph[i];
    int rc = graph != NULL ? misses_begin(g->misses, g->rows[i]) : 0;
    if (rc != 0)
        return rc;
    *(resident ? &g->n_resident : &g->n_missing) += 1;
    for (size_t r = n_rows; r < g->rows[i]; r++) {
        f->in.tokens[r] = f->in.positions[r] = -1;
        f->in.row_sequence[r] = 0;
    }
    rc = forward_send(f, tables, addresses, s);
    return rc == 0 ? f->shape.exec->graph_launch(graph != NULL ? graph : g->layers_graph[i], s)
                   : rc;
}

void graphs_clear_head(struct graphs *g, size_t n)
{
    struct forward *f = g->f;
    size_t end = g->rows[size_for(g, n)];
    for (size_t r = n; r < end && r < f->shape.n_rows; r++) {
        f->in.head_index[r] = -1;
        f->in.sample[r] = (struct sample_params){.repetition = 1.0f};
    }
}

int graphs_run_head(struct graphs *g, size_t n, struct exec_stream *s)
{
    return g->f->shape.exec->graph_launch(g->head_graph[size_for(g, n)], s);
}
