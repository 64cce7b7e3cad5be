/* stages/run.c - executes the queue: one step at a time, in pieces that end at boundaries.
 *
 *   IDLE -> INPUT (tokens known, or rows arrived) -> LAYERS -> SENDING, or HEAD on the last stage -> IDLE
 *
 * A short step is launched whole, a long one layer by layer, so that a VRAM command finds a boundary within one layer. Nothing here
 * waits: run_advance() goes as far as it can and returns; an event, a tile or a line brings the loop back. Threads: control thread.
 * A step that cannot run is refused whole: sequences are cut back to where they were.
 */
#include "stages/stage.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int run_open(struct stage *s, struct error *err)
{
    s->run = (struct runner){0};
    s->run.sampled_ids = calloc(s->queue.rows_max, sizeof *s->run.sampled_ids);
    if (s->run.sampled_ids == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for %zu sampled ids", s->queue.rows_max);
    return s->platform->exec->event_open(s->card, &s->run.done, err);
}

void run_close(struct stage *s)
{
    if (s->run.done != NULL)
        s->platform->exec->event_close(s->run.done);
    free(s->run.sampled_ids);
    s->run = (struct runner){0};
}

bool run_at_boundary(const struct stage *s)
{
    return !s->run.busy;
}

bool run_awaits_input(const struct stage *s)
{
    return s->run.phase == RUN_INPUT && now_us() - s->run.started_us < INPUT_WATCH_US;
}

static bool is_first(const struct stage *s)
{
    return s->load.stage == 0;
}

static bool is_last(const struct stage *s)
{
    return s->load.stage + 1 == s->load.n_stages;
}

static void fail_launch(struct stage *s, int rc)
{
    struct error err;
    error_set(&err, rc, "stage %u: %s: a launch failed (%s)", s->load.stage,
              s->forward.refused != NULL ? s->forward.refused : "compute", error_code_name(rc));
    stage_fail(s, &err);
}

/* What goes on the compute stream from now on. */
static void piece_begin(struct stage *s, const char *name)
{
    if (!trace_is_on(&s->trace))
        return;
    s->trace.piece = name;
    s->trace.piece_us = now_us();
    s->trace.piece_first = s->run.next_layer;
}

/* It was seen to have ended. */
static void piece_end(struct stage *s)
{
    struct trace *t = &s->trace;
    unsigned long long step = s->run.item != NULL ? s->run.item->step : 0;
    if (!trace_is_on(t))
        return;
    if (t->piece_last > t->piece_first)
        trace_span(t, TRACE_COMPUTE, t->piece_us, now_us(), "name=%s step=%llu first=%zu last=%zu",
                   t->piece, step, s->load.layer_first + t->piece_first,
                   s->load.layer_first + t->piece_last - 1);
    else if (s->run.item != NULL)
        trace_span(t, TRACE_COMPUTE, t->piece_us, now_us(), "name=%s step=%llu", t->piece, step);
    else
        trace_span(t, TRACE_COMPUTE, t->piece_us, now_us(), "name=%s", t->piece);
}

/* A phase of a step on the control thread, since `begin_us`. */
static void phase_span(struct stage *s, const char *name, uint64_t begin_us)
{
    if (trace_is_on(&s->trace))
        trace_span(&s->trace, TRACE_CONTROL, begin_us, now_us(), "name=%s step=%llu", name,
                   (unsigned long long)s->run.item->step);
}

static void step_span(struct stage *s, const char *name, uint64_t begin_us)
{
    const struct item *it = s->run.item;
    if (trace_is_on(&s->trace))
        trace_span(&s->trace, TRACE_CONTROL, begin_us, now_us(),
                   "name=%s step=%llu epoch=%u rows=%zu sequences=%zu", name,
                   (unsigned long long)it->step, it->epoch, it->n_rows, it->n_runs);
}

/* Marks the end of what was just put on the compute stream. */
static void out_on_stream(struct stage *s, int rc)
{
    if (rc == 0)
        rc = s->platform->exec->event_record(s->run.done, s->compute);
    if (rc != 0)
        fail_launch(s, rc);
    else
        s->run.busy = true;
    s->trace.piece_last = s->run.next_layer;
}

void run_flush(struct stage *s, const char *what)
{
    if (s->run.busy)
        return;
    piece_begin(s, what);
    out_on_stream(s, 0);
}

void run_reset(struct stage *s)
{
    assert(!s->run.busy);
    s->run.phase = RUN_IDLE;
    s->run.item = NULL;
}

static void say_ran(struct stage *s, const struct item *it, bool ran)
{
    static char list[LINE_BYTES_MAX / 2];
    struct line_writer w;
    uint32_t per_row = ran ? (uint32_t)(s->experts.n_used * s->experts.n_groups) : 0;
    line_begin(&w, s->line, sizeof s->line, "RAN");
    line_u64(&w, "epoch", it->epoch);
    line_u64(&w, "step", it->step);
    line_u64(&w, "us", ran ? now_us() - s->run.started_us : 0);
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        list[0] = '\0';
        for (size_t i = 0; i < it->n_runs; i++) {
            const struct step_run *r = &it->runs[i];
            uint64_t n = (uint64_t)per_row * r->n_rows;
            if (pass == 0) {
                n = 0;
                for (uint32_t j = 0; ran && j < r->n_rows; j++)
                    n += s->forward.out.hits[r->row_first + j];
                s->n_hits += n;
                s->n_tokens += ran && r->want == WANT_LAST;
            } else {
                s->n_lookups += n;
            }
            int wrote = snprintf(list + at, sizeof list - at, "%s%llu", i > 0 ? "," : "",
                                 (unsigned long long)n);
            at += wrote > 0 && (size_t)wrote < sizeof list - at ? (size_t)wrote : 0;
        }
        line_key(&w, pass == 0 ? "hits" : "lookups", list);
    }
    line_u64(&w, "kv_blocks_free", s->kv.n_free);
    stage_say(s, &w);
}

static void step_end(struct stage *s, bool ran)
{
    struct item *it = s->run.item;
    step_span(s, ran ? "step" : "skipped", s->run.started_us);
    if (ran) {
        s->n_steps++;
        refill_step(&s->refill, it->n_rows, now_us() - s->run.launched_us);
        if (s->experts.cache != NULL)
            experts_fold_heat(&s->experts);
    }
    say_ran(s, it, ran);
    s->run.phase = RUN_IDLE;
    s->run.item = NULL;
    queue_pop(&s->queue);
}

static void step_refuse(struct stage *s, const struct error *err)
{
    char tag[MESSAGE_TAG_MAX + 1];
    step_span(s, "refused", s->run.started_us);
    (void)snprintf(tag, sizeof tag, "step:%u.%llu", s->run.item->epoch,
                   (unsigned long long)s->run.item->step);
    stage_refuse(s, tag, err);
    s->run.phase = RUN_IDLE;
    s->run.item = NULL;
    queue_pop(&s->queue);
}

static void between_steps(struct stage *s, const struct item *it)
{
    struct error err = {0};
    struct line_writer w;
    bool fork = it->kind == ITEM_FORK;
    int rc = fork ? kv_fork(&s->kv, it->seq_new, it->seq_old, it->n_shared, &err)
                  : kv_drop(&s->kv, it->seq_old);
    if (rc == EBB_ENOENT && !fork)
        error_set(&err, rc, "sequence %u: no such sequence to drop", it->seq_old);
    if (rc != 0) {
        char tag[MESSAGE_TAG_MAX + 1];
        (void)snprintf(tag, sizeof tag, "%s:%u", fork ? "fork" : "drop",
                       fork ? it->seq_new : it->seq_old);
        stage_refuse(s, tag, &err);
    } else {
        if (fork)
            history_fork(s, it->seq_new, it->seq_old, it->n_shared);
        line_begin(&w, s->line, sizeof s->line, fork ? "FORKED" : "DROPPED");
        line_bare_i64(&w, fork ? it->seq_new : it->seq_old);
        line_u64(&w, "kv_blocks_free", s->kv.n_free);
        stage_say(s, &w);
    }
    queue_pop(&s->queue);
}

/* First stage: every token id of the step, as far as it is known. 1 = all, 0 = some are still on the back link. */
static int tokens_resolve(struct stage *s, struct item *it)
{
    for (size_t r = 0; r < it->n_rows; r++) {
        struct step_token *t = &it->tokens[r];
        if (t->id < 0 && !sampled_find(s, t->step, t->row, &t->id))
            return 0;
        s->forward.in.tokens[r] = t->id;
    }
    return 1;
}

/* Undoes kv_extend() for the first n runs. */
static void cut_back(struct stage *s, const struct item *it, size_t n)
{
    struct kv_copy copy;
    size_t n_copies = 0;
    uint32_t slot;
    for (size_t i = 0; i < n; i++)
        (void)kv_extend(&s->kv, it->runs[i].seq, it->runs[i].pos, 0, &slot, &copy, &n_copies, NULL);
}

/* KV room for every run, positions and table rows of every row, the copies of shared blocks that are about to be written. */
static int kv_prepare(struct stage *s, const struct item *it, struct error *err)
{
    struct forward *f = &s->forward;
    for (size_t i = 0; i < it->n_runs; i++) {
        const struct step_run *r = &it->runs[i];
        struct kv_copy copy;
        size_t n_copies = 0;
        uint32_t slot = 0;
        int rc = kv_extend(&s->kv, r->seq, r->pos, r->n_rows, &slot, &copy, &n_copies, err);
        if (rc != 0) {
            cut_back(s, it, i);
            return rc;
        }
        unsigned char *base = s->kv.base;
        size_t bytes = kv_block_bytes(&s->kv.shape);
        if (n_copies > 0 &&
            (rc = s->platform->exec->copy(s->compute, base + bytes * (size_t)copy.to,
                                          base + bytes * (size_t)copy.from, bytes)) != 0)
            return error_set(err, rc, "a KV block could not be copied");
        for (uint32_t j = 0; j < r->n_rows; j++) {
            f->in.positions[r->row_first + j] = (int32_t)(r->pos + j);
            f->in.row_sequence[r->row_first + j] = (int32_t)slot;
        }
    }
    return 0;
}

/* Which rows go through the head: top rows first, then the sampled ones. */
static void head_list(struct stage *s, const struct item *it)
{
    struct forward *f = &s->forward;
    struct runner *run = &s->run;
    size_t n = 0;
    for (size_t i = 0; i < it->n_runs; i++)
        for (uint32_t j = 0; it->runs[i].want == WANT_TOP && j < it->runs[i].n_rows; j++)
            f->in.head_index[n++] = (int32_t)(it->runs[i].row_first + j);
    run->n_top = n;
    run->top_k = 0;
    for (size_t i = 0; i < it->n_runs; i++)
        if (it->runs[i].want == WANT_TOP && it->runs[i].n_top > run->top_k)
            run->top_k = it->runs[i].n_top;
    if (run->top_k > s->model->geometry.n_vocab)
        run->top_k = s->model->geometry.n_vocab;
    for (size_t i = 0; i < it->n_runs; i++)
        if (it->runs[i].want == WANT_LAST) {
            sampling_place(s, it, &it->runs[i], n);
            f->in.head_index[n++] = (int32_t)(it->runs[i].row_first + it->runs[i].n_rows - 1);
        }
    run->n_sample = n - run->n_top;
    run->head_next = run->head_launched = 0;
}

static void step_start(struct stage *s)
{
    struct item *it = s->run.item;
    struct error err = {0};
    s->run.started_us = now_us();
    if (it->cancelled || it->through < s->load.stage) {
        step_end(s, false);
        return;
    }
    int rc = kv_prepare(s, it, &err);
    if (rc != 0) {
        step_refuse(s, &err);
        return;
    }
    s->run.next_layer = s->run.n_arrived = s->run.n_sent = 0;
    head_list(s, it);
    s->run.phase = RUN_INPUT;
}

/* 1 = the rows are here. */
static int input_ready(struct stage *s)
{
    struct error err = {0};
    if (is_first(s))
        return tokens_resolve(s, s->run.item);
    int rc = links_take_rows(s, s->run.item, &err);
    if (rc < 0)
        stage_log("stage %u: %s", s->load.stage,
                  err.text); /* the link is gone: the coordinator makes it anew */
    return rc == 0 && s->run.n_arrived == s->run.item->n_rows;
}

static int head_pass(struct stage *s)
{
    struct runner *run = &s->run;
    size_t end = run->head_next < run->n_top ? run->n_top : run->n_top + run->n_sample;
    size_t n =
        end - run->head_next < s->forward.head_rows ? end - run->head_next : s->forward.head_rows;
    size_t n_top = run->head_next < run->n_top ? run->top_k : 0;
    run->head_launched = n;
    return forward_head(&s->forward, &s->weights, run->head_next, n, n_top, s->compute);
}

/* The step's values to the card, and whatever has moved since the last time. */
static int step_send(struct stage *s)
{
    bool tables = s->kv.changed, addresses = s->experts.changed;
    s->kv.changed = s->experts.changed = false;
    return forward_send(&s->forward, tables, addresses, s->compute);
}

static bool head_is_recorded(const struct stage *s)
{
    const struct runner *run = &s->run;
    bool plain = run->n_top == 0 && run->n_sample > 0 && graphs_serve(&s->graphs, run->n_sample);
    for (size_t i = 0; plain && i < run->n_sample; i++)
        plain = s->forward.in.logprobs[i] < 0;
    return plain;
}

/* The step's rows are another stage's input. */
static bool goes_on(const struct stage *s)
{
    return !is_last(s) && s->run.item->through > s->load.stage;
}

/* Behind the last layer. A device's rows are put on their way at once: their copies stand in the stream before those of what kernels
 * counted, so the next stage has them sooner. What finds no credit goes when the step is finished. */
static int layers_end(struct stage *s)
{
    struct error err = {0};
    if (goes_on(s) && !s->platform->host_memory && links_send_rows(s, s->run.item, &err) < 0)
        stage_log("stage %u: %s", s->load.stage, err.text);
    return forward_receive(&s->forward, s->compute);
}

/* A short step on a device: all layers at once, and the head where it only samples. */
static int launch_recorded(struct stage *s)
{
    struct runner *run = &s->run;
    bool head = is_last(s) && run->n_top + run->n_sample > 0,
         recorded = head && head_is_recorded(s);
    if (recorded)
        graphs_clear_head(&s->graphs, run->n_sample);
    bool tables = s->kv.changed, addresses = s->experts.changed;
    s->kv.changed = s->experts.changed = false;
    int rc = graphs_run_layers(&s->graphs, run->item->n_rows, experts_are_resident(&s->experts),
                               tables, addresses, s->compute);
    run->next_layer = s->n_layers;
    if (rc == 0)
        rc = layers_end(s);
    if (rc != 0 || !head)
        return rc;
    run->phase = RUN_HEAD;
    if (!recorded)
        return head_pass(s);
    run->head_launched = run->n_sample;
    return graphs_run_head(&s->graphs, run->n_sample, s->compute);
}

/* The next layer, or all of a short step. */
static int launch_direct(struct stage *s)
{
    struct runner *run = &s->run;
    size_t n_rows = run->item->n_rows;
    int rc = run->next_layer == 0 || s->experts.changed ? step_send(s) : 0;
    if (rc == 0 && run->next_layer == 0)
        rc = forward_begin(&s->forward, &s->weights, n_rows, is_first(s), s->compute);
    size_t stop = n_rows <= WHOLE_STEP_ROWS ? s->n_layers : run->next_layer + 1;
    for (; rc == 0 && run->next_layer < stop; run->next_layer++)
        rc = forward_layer(&s->forward, &s->weights, &s->kv,
                           &s->model->layers[s->load.layer_first + run->next_layer],
                           run->next_layer, n_rows, s->compute);
    if (rc == 0 && run->next_layer == s->n_layers)
        rc = layers_end(s);
    if (rc == 0 && n_rows <= WHOLE_STEP_ROWS && is_last(s) && run->n_top + run->n_sample > 0) {
        run->phase = RUN_HEAD;
        rc = head_pass(s);
    }
    return rc;
}

static void launch_layers(struct stage *s)
{
    if (s->run.next_layer == 0)
        s->run.launched_us = now_us();
    bool recorded = s->run.next_layer == 0 && graphs_serve(&s->graphs, s->run.item->n_rows);
    piece_begin(s, recorded ? "graph" : "layers");
    out_on_stream(s, recorded ? launch_recorded(s) : launch_direct(s));
    phase_span(s, "launch", s->trace.piece_us);
}

static const struct step_run *run_of_row(const struct item *it, size_t row)
{
    size_t low = 0, high = it->n_runs;
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (it->runs[mid].row_first <= row)
            low = mid;
        else
            high = mid;
    }
    return &it->runs[low];
}

static void say_logits(struct stage *s, size_t entry, size_t in_pass)
{
    static char list[FORWARD_TOP_MAX * 40];
    const struct item *it = s->run.item;
    size_t row = (size_t)s->forward.in.head_index[entry], at = 0;
    size_t stride = s->run.top_k;
    uint32_t k = run_of_row(it, row)->n_top;
    for (size_t i = 0; i < k && i < stride; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%d:%.9g", i > 0 ? "," : "",
                               s->forward.out.top_ids[in_pass * stride + i],
                               (double)s->forward.out.top_values[in_pass * stride + i]);
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "LOGITS");
    line_u64(&w, "epoch", it->epoch);
    line_u64(&w, "step", it->step);
    line_u64(&w, "row", row);
    line_key(&w, "top", list);
    stage_say(s, &w);
}

/* A pass through the head is done: its results are read. */
static void head_collect(struct stage *s)
{
    struct runner *run = &s->run;
    for (size_t i = 0; i < run->head_launched; i++) {
        size_t entry = run->head_next + i;
        if (entry < run->n_top)
            say_logits(s, entry, i);
        else {
            run->sampled_ids[entry - run->n_top] = s->forward.out.ids[i];
            sampling_say(s, run->item, entry, i);
        }
    }
    run->head_next += run->head_launched;
    run->head_launched = 0;
}

static void say_tokens(struct stage *s)
{
    struct runner *run = &s->run;
    const int32_t *rows = s->forward.in.head_index + run->n_top;
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "TOK");
    line_u64(&w, "epoch", run->item->epoch);
    line_u64(&w, "step", run->item->step);
    if (run->n_sample > 0) {
        line_ids(&w, "rows", rows, run->n_sample);
        line_ids(&w, "ids", run->sampled_ids, run->n_sample);
        for (size_t i = 0; i < run->n_sample; i++)
            sampled_remember(s, run->item->step, rows[i], run->sampled_ids[i]);
        if (!is_first(s))
            links_send_ids(s, run->item->step, rows, run->sampled_ids, run->n_sample);
    }
    stage_say(s, &w);
}

/* After the last layer, at a boundary: rows go on, or tokens come out. True if the step has ended. */
static bool step_finish(struct stage *s)
{
    struct runner *run = &s->run;
    struct error err = {0};
    if (goes_on(s)) {
        if (run->phase != RUN_SENDING)
            s->trace.phase_us = trace_is_on(&s->trace) ? now_us() : 0;
        run->phase = RUN_SENDING;
        int rc = links_send_rows(s, run->item, &err);
        if (rc < 0)
            stage_log("stage %u: %s", s->load.stage, err.text);
        if (rc <= 0)
            return false;
        phase_span(s, "send", s->trace.phase_us);
    } else if (is_last(s)) {
        run->phase = RUN_HEAD;
        if (run->head_next < run->n_top + run->n_sample) {
            piece_begin(s, "head");
            out_on_stream(s, head_pass(s));
            return false;
        }
        say_tokens(s);
    }
    step_end(s, true);
    return true;
}

/* One piece of work at a boundary. False: nothing can go out now. */
static bool run_piece(struct stage *s)
{
    struct runner *run = &s->run;
    switch (run->phase) {
    case RUN_IDLE:
        run->item = queue_first(&s->queue);
        if (run->item == NULL)
            return false;
        if (run->item->kind != ITEM_STEP)
            between_steps(s, run->item);
        else
            step_start(s);
        return true;
    case RUN_INPUT:
        if (run->item->cancelled) {
            cut_back(s, run->item, run->item->n_runs);
            step_end(s, false);
            return true;
        }
        if (!input_ready(s))
            return false;
        phase_span(s, "input", run->started_us);
        history_take(s, run->item);
        run->phase = RUN_LAYERS;
        return true;
    case RUN_LAYERS:
        if (run->next_layer == s->n_layers)
            return step_finish(s);
        launch_layers(s);
        return true;
    case RUN_SENDING:
    case RUN_HEAD: return step_finish(s);
    }
    return false;
}

/* What is out on the stream: 1 = nothing (any more), 0 = something, < 0 = it failed. */
static int settle_busy(struct stage *s)
{
    if (!s->run.busy)
        return 1;
    int done = s->platform->exec->event_query(s->run.done);
    if (done < 0)
        fail_launch(s, done);
    if (done != 1)
        return done;
    s->run.busy = false;
    piece_end(s);
    if (s->run.phase == RUN_HEAD)
        head_collect(s);
    return 1;
}

static void advance(struct stage *s)
{
    while (!s->quitting && settle_busy(s) == 1) {
        struct error err = {0};
        budget_finish(s);
        links_deferred(s);
        yield_look(s);
        vram_advance(s);
        if (vram_is_waiting(s))
            return;
        if (budget_is_next(s)) {
            if (!budget_begin(s))
                return;
            continue;
        }
        int rc = uploads_settle(s, &err);
        if (rc > 0)
            rc = uploads_start(s, true, &err);
        if (rc < 0)
            stage_fail(s, &err);
        if (rc < 0 || s->state != STAGE_SERVING || !run_piece(s))
            return;
    }
}

void run_advance(struct stage *s)
{
    struct error err = {0};
    advance(s);
    /* Beside the work that is out now: a launch does not wait for what this costs. */
    if (!s->quitting && s->run.busy && s->n_vram == 0 && !budget_is_next(s) &&
        uploads_start(s, false, &err) < 0)
        stage_fail(s, &err);
}
