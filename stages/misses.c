/* stages/misses.c - the host's side of absent experts: what it is asked with, how it answers, how fast both sides are (see misses.h). */
#include "stages/misses.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "stages/forward.h"

#define LINE_BYTES    256 /* what is written by one side shares no line with what the other writes */
#define LOOKS         128
#define YIELDS        20000
#define PROBE_REPEATS 3

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const struct model_geometry *geometry(const struct misses *x)
{
    return x->set.f->shape.geometry;
}

static bool is_quantised(uint32_t type)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    return info != NULL && info->block_values > 1;
}

static bool serves(const struct model_layer *l)
{
    return l->router.data != NULL && is_quantised(l->gate_exps.type) &&
           is_quantised(l->up_exps.type) && is_quantised(l->down_exps.type);
}

static size_t rounded(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static int open_shared(struct misses *x, struct error *err)
{
    const struct model_geometry *g = geometry(x);
    const struct forward_shape *shape = &x->set.f->shape;
    size_t request = rounded(sizeof *x->request),
           away = rounded(MISS_ROWS_MAX * g->n_experts_used * sizeof *x->away),
           in = rounded(MISS_ROWS_MAX * (size_t)g->d_model * sizeof *x->away_x);
    x->shared_bytes = request + away + in * (1 + g->n_experts_used);
    int rc = shape->exec->shared_alloc(shape->card, x->shared_bytes, &x->shared, err);
    if (rc != 0)
        return rc;
    unsigned char *base = x->shared;
    x->request = (void *)base;
    x->away = (void *)(base + request);
    x->away_x = (void *)(base + request + away);
    x->rows = (void *)(base + request + away + in);
    x->request->answered = 1;
    return 0;
}

static int open_own(struct misses *x, struct error *err)
{
    const struct model_geometry *g = geometry(x);
    size_t a = rounded(MISS_ROWS_MAX * x->kernels->activation_bytes(g->d_model)),
           scratch = rounded(x->kernels->experts_scratch_bytes(
               MISS_ROWS_MAX, g->n_experts_used, g->n_experts, g->d_model, g->d_expert)),
           counts = rounded((g->n_experts + MISS_ROWS_MAX) * sizeof *x->counts);
    x->own = aligned_alloc(LINE_BYTES, a + scratch + counts);
    x->graphs = calloc(x->set.n_layers * MISS_SIZES, sizeof(struct exec_graph *));
    if (x->own == NULL || x->graphs == NULL)
        return error_set(err, EBB_ENOMEM, "misses: no memory for the host's side");
    memset(x->own, 0, a + scratch + counts);
    x->a = x->own;
    x->scratch = (unsigned char *)x->own + a;
    x->counts = (void *)((unsigned char *)x->own + a + scratch);
    return 0;
}

/* What the host does for a layer and so many rows. */
static int record(struct misses *x, size_t layer, size_t n_rows,
                  const struct expert_address *addresses, struct exec_graph **graph,
                  struct error *err)
{
    const struct model_geometry *g = geometry(x);
    const struct model_layer *l = &x->set.layers[layer];
    struct quantize_args quantize = {x->away_x, x->a, n_rows, g->d_model};
    struct experts_args experts = {.gate_type = l->gate_exps.type,
                                   .up_type = l->up_exps.type,
                                   .down_type = l->down_exps.type,
                                   .addresses = addresses,
                                   .d_model = g->d_model,
                                   .d_expert = g->d_expert,
                                   .n_experts = g->n_experts,
                                   .n_used = g->n_experts_used,
                                   .n_rows = n_rows,
                                   .x = x->away_x,
                                   .a = x->a,
                                   .ids = x->away,
                                   .scratch = x->scratch,
                                   .outputs = x->rows,
                                   .heat = x->counts,
                                   .hits = x->counts + g->n_experts};
    int rc = exec_cpu.capture_begin(x->stream);
    if (rc != 0)
        return error_set(err, rc, "misses: the host's work cannot be recorded");
    int pushed = x->kernels->quantize(&quantize, x->stream);
    if (pushed == 0)
        pushed = x->kernels->experts(&experts, x->stream);
    rc = exec_cpu.capture_end(x->stream, graph, err);
    if (rc == 0 && pushed != 0)
        rc = error_set(err, pushed, "misses: the host cannot compute this layer's experts");
    return rc;
}

static int open_graphs(struct misses *x, struct error *err)
{
    int rc = 0;
    for (size_t layer = 0; rc == 0 && layer < x->set.n_layers; layer++) {
        if (!serves(&x->set.layers[layer]))
            continue;
        x->n_layers_served++;
        for (size_t i = 0; rc == 0 && i < MISS_SIZES; i++)
            rc = record(x, layer, (size_t)1 << i,
                        x->set.f->in.addresses + layer * geometry(x)->n_experts,
                        &x->graphs[layer * MISS_SIZES + i], err);
    }
    return rc;
}

int misses_open(struct misses *x, const struct misses_settings *set, struct error *err)
{
    struct exec_settings host = {.n_threads = (int)set->n_threads};
    bool any = false;
    memset(x, 0, sizeof *x);
    x->set = *set;
    x->rates.percent = set->percent;
    for (size_t layer = 0; layer < set->n_layers; layer++)
        any = any || serves(&set->layers[layer]);
    if (set->ops == NULL || set->n_threads == 0 || set->percent == 0 || !any)
        return 0;
    x->kernels = kernel_set_cpu("auto", err);
    int rc = x->kernels != NULL ? exec_cpu.open(&x->host, &host, err) : err->code;
    if (rc == 0)
        rc = exec_cpu.stream_open(x->host, &x->stream, err);
    if (rc == 0)
        rc = exec_cpu.event_open(x->host, &x->answered, err);
    if (rc == 0)
        rc = open_shared(x, err);
    if (rc == 0)
        rc = open_own(x, err);
    if (rc == 0)
        rc = open_graphs(x, err);
    if (rc != 0)
        misses_close(x);
    return rc;
}

void misses_close(struct misses *x)
{
    atomic_store(&x->stopping, true);
    if (x->stream != NULL)
        exec_cpu.stream_close(x->stream);
    if (x->answered != NULL)
        exec_cpu.event_close(x->answered);
    for (size_t i = 0; x->graphs != NULL && i < x->set.n_layers * MISS_SIZES; i++)
        exec_cpu.graph_close(x->graphs[i]);
    exec_cpu.close(x->host);
    if (x->shared != NULL)
        x->set.f->shape.exec->shared_free(x->set.f->shape.card, x->shared);
    free(x->graphs);
    free(x->own);
    memset(x, 0, sizeof *x);
}

static uint32_t size_of(size_t n_rows)
{
    uint32_t size = 0;
    while ((size_t)1 << size < n_rows)
        size++;
    return size;
}

bool misses_ask_of(const struct misses *x, size_t layer, size_t n_rows, uint32_t *index,
                   uint32_t *tag)
{
    if (!misses_serve(x, n_rows) || x->graphs[layer * MISS_SIZES] == NULL)
        return false;
    *tag = (uint32_t)layer * MISS_SIZES + size_of(n_rows);
    *index = 1;
    for (size_t before = 0; before < layer; before++)
        *index += x->graphs[before * MISS_SIZES] != NULL;
    return true;
}

/* The request's number once it is another than `seen`; `seen` when the stage ends. */
static uint32_t number_wait(const struct misses *x, uint32_t seen)
{
    const struct timespec pause = {.tv_nsec = 50000};
    for (int i = 0; !atomic_load_explicit(&x->stopping, memory_order_relaxed); i++) {
        uint32_t number = __atomic_load_n(&x->request->number, __ATOMIC_ACQUIRE);
        if (number != seen)
            return number;
        if (i >= LOOKS + YIELDS)
            (void)nanosleep(&pause, NULL);
        else if (i >= LOOKS)
            (void)sched_yield();
    }
    return seen;
}

static void answer(struct misses *x, struct exec_cpu_worker *w)
{
    uint64_t begin = now_ns();
    exec_cpu_graph_run(x->graphs[x->request->tag], w);
    uint32_t n = x->request->n_experts;
    __atomic_store_n(&x->request->answered, 1, __ATOMIC_RELEASE);
    miss_rates_host(&x->rates, n, 1e-3 * (double)(now_ns() - begin));
}

struct watch_op {
    struct misses *x;
    uint32_t last; /* the step's last ask */
    uint32_t size; /* of the step, as an index */
};

/* An ask that the job saw. */
struct seen {
    uint32_t number;
    uint64_t ns;
    size_t n_host;
};

/* From the ask before this one to this one, if both are of one step and none was between them. */
static void rates_see(struct misses *x, uint32_t size, const struct seen *before,
                      const struct seen *now)
{
    if (before->ns != 0 && now->number / MISS_NUMBER_STEP - before->number / MISS_NUMBER_STEP == 1)
        miss_rates_seen(&x->rates, size, before->number % MISS_NUMBER_STEP / 2, before->n_host,
                        1e-3 * (double)(now->ns - before->ns));
}

/* A request with work stays as it is until it is answered: the card waits. Of those without, some may pass unseen. */
static void watch_job(const void *args, struct exec_cpu_worker *w)
{
    const struct watch_op *op = args;
    struct misses *x = op->x;
    struct seen before = {0};
    while ((int32_t)(MISS_NUMBER(op->last, 0, 0) -
                     x->n_seen / MISS_NUMBER_STEP * MISS_NUMBER_STEP) > 0) {
        struct seen now = {.number = number_wait(x, x->n_seen), .ns = now_ns()};
        if (now.number == x->n_seen)
            return;
        x->n_seen = now.number;
        rates_see(x, op->size, &before, &now);
        if (now.number % 2 != 0) {
            now.n_host = x->request->n_experts;
            answer(x, w);
        }
        before = now;
    }
}

int misses_begin(struct misses *x, size_t n_rows)
{
    struct watch_op op = {x, x->n_asked + x->n_layers_served, size_of(n_rows)};
    struct miss_control *control = x->set.f->in.miss;
    miss_rates_split(&x->rates, op.size, n_rows * geometry(x)->n_experts_used, control->split);
    control->number = x->n_asked;
    x->n_asked = op.last;
    return exec_cpu_push(x->stream, watch_job, &op, sizeof op);
}

/* What is timed: experts of one layer, none of them twice, as they lie in the file. */
struct probe {
    struct misses *x;
    struct exec_stream *s;
    struct exec_event *done;
    struct expert_address *addresses; /* of both sides' memory */
    size_t layer, next;
};

/* Row 0 of the request: n experts that were not timed before. */
static void probe_choose(struct probe *p, size_t n)
{
    const struct model_geometry *g = geometry(p->x);
    for (size_t i = 0; i < g->n_experts_used; i++)
        p->x->away[i] = i < n ? (int32_t)(p->next++ % g->n_experts) : -1;
}

/* Microseconds from `begin` until the event of what was put on the stream; 0: a launch failed. */
static double probe_wait(const struct exec_driver *exec, struct exec_event *done,
                         struct exec_stream *s, uint64_t begin)
{
    int is_done = exec->event_record(done, s) == 0 ? 0 : -1;
    while (is_done == 0 && (is_done = exec->event_query(done)) == 0)
        (void)sched_yield();
    return is_done > 0 ? 1e-3 * (double)(now_ns() - begin) : 0;
}

static double probe_card(struct probe *p, size_t n)
{
    const struct forward *f = p->x->set.f;
    const struct model_geometry *g = geometry(p->x);
    const struct model_layer *l = &p->x->set.layers[p->layer];
    uint64_t begin = now_ns();
    probe_choose(p, n);
    struct experts_args args = {.gate_type = l->gate_exps.type,
                                .up_type = l->up_exps.type,
                                .down_type = l->down_exps.type,
                                .addresses = p->addresses,
                                .d_model = g->d_model,
                                .d_expert = g->d_expert,
                                .n_experts = g->n_experts,
                                .n_used = g->n_experts_used,
                                .n_rows = 1,
                                .x = f->normed,
                                .a = f->activations,
                                .ids = p->x->away,
                                .scratch = f->experts_scratch,
                                .outputs = f->expert_outputs,
                                .heat = (uint32_t *)f->hidden,
                                .hits = (uint32_t *)f->hidden + g->n_experts};
    return f->kernels->experts(&args, p->s) == 0 ? probe_wait(f->shape.exec, p->done, p->s, begin)
                                                 : 0;
}

static double probe_host(struct probe *p, struct exec_graph *graph, size_t n)
{
    uint64_t begin = now_ns();
    probe_choose(p, n);
    return exec_cpu.graph_launch(graph, p->x->stream) == 0
               ? probe_wait(&exec_cpu, p->x->answered, p->x->stream, begin)
               : 0;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static void probe_run(struct probe *p, struct exec_graph *graph)
{
    struct miss_rates *r = &p->x->rates;
    size_t n_used = geometry(p->x)->n_experts_used;
    double none = 1e9, host = 1e9;
    for (int i = 0; i < PROBE_REPEATS; i++)
        none = smaller(none, probe_card(p, 0));
    for (size_t i = 0; i < MISS_RATES_PROBES; i++) {
        size_t n = (size_t)1 << i;
        double us = 1e9;
        for (int j = 0; j < PROBE_REPEATS && n <= n_used; j++)
            us = smaller(us, probe_card(p, n) - none);
        r->card_us[i] = n <= n_used ? us : 2 * r->card_us[i - 1];
    }
    for (int i = 0; i < PROBE_REPEATS; i++)
        host = smaller(host, probe_host(p, graph, n_used));
    miss_rates_host(r, n_used, host);
}

static void point_to_file(struct expert_address *to, const struct model_layer *l, size_t n_experts)
{
    size_t bytes;
    for (uint32_t e = 0; e < n_experts; e++)
        to[e] = (struct expert_address){.gate = model_expert(&l->gate_exps, e, &bytes),
                                        .up = model_expert(&l->up_exps, e, &bytes),
                                        .down = model_expert(&l->down_exps, e, &bytes)};
}

int misses_probe(struct misses *x, struct exec_stream *s, struct error *err)
{
    struct probe p = {.x = x, .s = s};
    struct exec_graph *graph = NULL;
    void *addresses = NULL;
    if (x->host == NULL || x->rates.percent >= 0)
        return 0;
    const struct forward_shape *shape = &x->set.f->shape;
    while (x->graphs[p.layer * MISS_SIZES] == NULL)
        p.layer++;
    int rc = shape->exec->shared_alloc(
        shape->card, shape->geometry->n_experts * sizeof *p.addresses, &addresses, err);
    if (rc != 0)
        return rc;
    p.addresses = addresses;
    point_to_file(p.addresses, &x->set.layers[p.layer], shape->geometry->n_experts);
    rc = shape->exec->event_open(shape->card, &p.done, err);
    if (rc == 0)
        rc = record(x, p.layer, 1, p.addresses, &graph, err);
    if (rc == 0)
        probe_run(&p, graph);
    exec_cpu.graph_close(graph);
    if (p.done != NULL)
        shape->exec->event_close(p.done);
    shape->exec->shared_free(shape->card, addresses);
    return rc;
}
