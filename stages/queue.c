/* stages/queue.c - what the coordinator asks for, in order: ROWS lines gather into a step, STEP closes it; FORK, DROP, CREDIT and CHUNK take
 * their place between steps.
 *
 * A ring of QUEUE_MAX items whose row arrays are made once, at LOAD. A wrong line spoils only its own step: the rest of that step's
 * lines are read and dropped, and the STEP that closes it is answered by one ERR. Lines of an older epoch are dropped without a word:
 * they were on their way when the links were made anew. Threads: the control thread.
 */
#include "stages/stage.h"

#include <stdlib.h>
#include <string.h>

int queue_open(struct queue *q, size_t rows_max, size_t n_sampled_max, struct error *err)
{
    memset(q, 0, sizeof *q);
    q->rows_max = rows_max;
    q->n_sampled_max = n_sampled_max;
    for (size_t i = 0; i < QUEUE_MAX; i++) {
        q->items[i].runs = calloc(rows_max, sizeof *q->items[i].runs);
        q->items[i].tokens = calloc(rows_max, sizeof *q->items[i].tokens);
        q->items[i].biases = calloc(n_sampled_max * FORWARD_BIAS_MAX, sizeof *q->items[i].biases);
        if (q->items[i].runs == NULL || q->items[i].tokens == NULL || q->items[i].biases == NULL) {
            queue_close(q);
            return error_set(err, EBB_ENOMEM, "no memory for a queue of %d steps of %zu rows",
                             QUEUE_MAX, rows_max);
        }
    }
    return 0;
}

void queue_close(struct queue *q)
{
    for (size_t i = 0; i < QUEUE_MAX; i++) {
        free(q->items[i].runs);
        free(q->items[i].tokens);
        free(q->items[i].biases);
    }
    memset(q, 0, sizeof *q);
}

void queue_clear(struct queue *q)
{
    q->first = q->n_used = 0;
    q->building = false;
}

struct item *queue_first(struct queue *q)
{
    return q->n_used > 0 ? &q->items[q->first] : NULL;
}

void queue_pop(struct queue *q)
{
    q->first = (q->first + 1) % QUEUE_MAX;
    q->n_used--;
}

static struct item *slot_next(struct queue *q)
{
    return q->n_used < QUEUE_MAX ? &q->items[(q->first + q->n_used) % QUEUE_MAX] : NULL;
}

static void item_begin(struct item *it, enum item_kind kind, uint32_t epoch, uint64_t step)
{
    it->kind = kind;
    it->epoch = epoch;
    it->step = step;
    it->through = UINT32_MAX;
    it->cancelled = false;
    it->n_runs = it->n_rows = it->n_biases = 0;
    it->broken.code = 0;
}

/* epoch= and step=. 1: the line is of this epoch; 0: older, to be dropped; < 0: err. */
static int step_name(const struct stage *s, const struct message *m, uint64_t *step,
                     struct error *err)
{
    uint64_t epoch = s->epoch;
    int rc = message_u64(m, "epoch", 0, UINT32_MAX, &epoch, err);
    if (rc == 0 || rc == EBB_ENOENT)
        rc = message_u64(m, "step", 0, UINT64_MAX, step, err);
    if (rc == EBB_ENOENT)
        return error_set(err, EBB_EINVAL, "%s: wants step=<number>", m->verb);
    if (rc != 0)
        return rc;
    if (epoch > s->epoch)
        return error_set(err, EBB_EMISMATCH, "epoch %llu wanted, this stage is at %u",
                         (unsigned long long)epoch, s->epoch);
    return epoch == s->epoch;
}

static void refuse_step(struct stage *s, uint64_t step, const struct error *err)
{
    char tag[MESSAGE_TAG_MAX + 1];
    (void)snprintf(tag, sizeof tag, "step:%u.%llu", s->epoch, (unsigned long long)step);
    stage_refuse(s, tag, err);
}

/* The step that takes ROWS now: a new step number begins a new one. NULL with err: no room. */
static struct item *item_building(struct stage *s, uint64_t step, struct error *err)
{
    struct queue *q = &s->queue;
    struct item *it = slot_next(q);
    if (it == NULL) {
        error_set(err, EBB_EBUSY, "%d steps are waiting already", QUEUE_MAX);
        return NULL;
    }
    if (!q->building || it->step != step) {
        if (q->building) {
            struct error unfinished;
            error_set(&unfinished, EBB_EINVAL, "step %llu: its STEP line is missing",
                      (unsigned long long)it->step);
            refuse_step(s, it->step, &unfinished);
        }
        item_begin(it, ITEM_STEP, s->epoch, step);
        q->building = true;
    }
    return it;
}

static int read_token(const char **cursor, int32_t n_vocab, struct step_token *out,
                      struct error *err)
{
    const char *p = *cursor;
    if (*p != '@') {
        int got = ids_next(cursor, n_vocab - 1, &out->id, err);
        out->step = 0;
        out->row = 0;
        return got;
    }
    char *end;
    unsigned long long step = strtoull(p + 1, &end, 10);
    if (end == p + 1 || *end != '.' || p[1] == '-' || p[1] == '+')
        return error_set(err, EBB_EINVAL, "ids: wants @<step>.<row>, got %.24s", p);
    const char *row_text = end + 1;
    unsigned long row = strtoul(row_text, &end, 10);
    if (end == row_text || (*end != ',' && *end != '\0') || row > INT32_MAX || *row_text == '-' ||
        *row_text == '+')
        return error_set(err, EBB_EINVAL, "ids: wants @<step>.<row>, got %.24s", p);
    *out = (struct step_token){.id = -1, .step = step, .row = (uint32_t)row};
    *cursor = *end == ',' ? end + 1 : end;
    return 1;
}

static int read_want(const struct message *m, struct step_run *run, struct error *err)
{
    const char *want = message_key(m, "want");
    run->want = WANT_NONE;
    if (want == NULL || strcmp(want, "none") == 0)
        return 0;
    if (strcmp(want, "last") == 0) {
        run->want = WANT_LAST;
        return 0;
    }
    uint64_t k;
    if (strncmp(want, "top:", 4) != 0 || parse_u64(want + 4, 1, FORWARD_TOP_MAX, &k) != 0)
        return error_set(err, EBB_EINVAL, "want: none, last or top:1..%d wanted, got %s",
                         FORWARD_TOP_MAX, want);
    run->want = WANT_TOP;
    run->n_top = (uint32_t)k;
    return 0;
}

static int optional(int rc)
{
    return rc == EBB_ENOENT ? 0 : rc;
}

static int required(int rc, const char *key, struct error *err)
{
    return rc == EBB_ENOENT ? error_set(err, EBB_EINVAL, "ROWS: wants %s=", key) : rc;
}

static int rows_add(struct stage *s, struct item *it, const struct message *m, struct error *err)
{
    uint64_t seq = 0, pos = 0;
    struct step_run fresh = {.row_first = (uint32_t)it->n_rows};
    const char *cursor = message_key(m, "ids");
    int rc = required(message_u64(m, "seq", 0, UINT32_MAX, &seq, err), "seq", err);
    if (rc == 0)
        rc = required(message_u64(m, "pos", 0, s->load.context - 1, &pos, err), "pos", err);
    if (rc == 0 && cursor == NULL)
        rc = required(EBB_ENOENT, "ids", err);
    if (rc == 0)
        rc = read_want(m, &fresh, err);
    if (rc != 0)
        return rc;
    fresh.seq = (uint32_t)seq;
    fresh.pos = (uint32_t)pos;
    struct step_run *run = it->n_runs > 0 ? &it->runs[it->n_runs - 1] : NULL;
    bool goes_on = run != NULL && run->seq == seq && run->pos + run->n_rows == pos;
    if (goes_on) /* what its last line says holds */
        it->n_biases -= (size_t)run->sample.n_bias;
    rc = sampling_read(s, it, &fresh, m, err);
    if (rc != 0)
        return rc;
    if (goes_on) {
        run->want = fresh.want;
        run->n_top = fresh.n_top;
        run->sample = fresh.sample;
        run->n_logprobs = fresh.n_logprobs;
    } else {
        if (it->n_runs == s->queue.rows_max)
            return error_set(err, EBB_ERANGE, "step %llu: at most %zu runs",
                             (unsigned long long)it->step, s->queue.rows_max);
        run = &it->runs[it->n_runs++];
        *run = fresh;
    }
    int got;
    struct step_token token;
    while ((got = read_token(&cursor, (int32_t)s->model->geometry.n_vocab, &token, err)) == 1) {
        if (it->n_rows == s->queue.rows_max)
            return error_set(err, EBB_ERANGE, "step %llu: at most %zu rows",
                             (unsigned long long)it->step, s->queue.rows_max);
        it->tokens[it->n_rows++] = token;
        run->n_rows++;
    }
    run->sample.position = (int64_t)run->pos + run->n_rows;
    if (got == 0 && run->n_rows == 0)
        return error_set(err, EBB_EINVAL, "ROWS: ids names no token");
    return got;
}

void queue_rows(struct stage *s, const struct message *m)
{
    struct error err = {0};
    uint64_t step;
    int rc = step_name(s, m, &step, &err);
    if (rc == 0)
        return;
    struct item *it = rc > 0 ? item_building(s, step, &err) : NULL;
    if (it == NULL) {
        stage_refuse(s, "-", &err);
        return;
    }
    if (it->broken.code == 0 && rows_add(s, it, m, &err) != 0)
        it->broken = err;
}

static int step_close(struct item *it, const struct message *m, struct error *err)
{
    uint64_t rows = it->n_rows, through = UINT32_MAX;
    if (it->broken.code != 0) {
        *err = it->broken;
        return err->code;
    }
    int rc = optional(message_u64(m, "rows", 1, UINT32_MAX, &rows, err));
    if (rc == 0)
        rc = optional(message_u64(m, "through", 0, UINT32_MAX - 1, &through, err));
    if (rc != 0)
        return rc;
    if (it->n_rows == 0 || rows != it->n_rows)
        return error_set(err, EBB_EINVAL, "step %llu: STEP says %llu rows, its ROWS gave %zu",
                         (unsigned long long)it->step, (unsigned long long)rows, it->n_rows);
    for (size_t i = 0; i < it->n_runs; i++)
        for (size_t j = i + 1; j < it->n_runs; j++)
            if (it->runs[i].seq == it->runs[j].seq)
                return error_set(err, EBB_EINVAL, "step %llu: sequence %u stands in two runs",
                                 (unsigned long long)it->step, it->runs[i].seq);
    it->through = (uint32_t)through;
    return 0;
}

void queue_step(struct stage *s, const struct message *m)
{
    struct error err = {0};
    uint64_t step;
    int rc = step_name(s, m, &step, &err);
    if (rc == 0)
        return;
    if (rc < 0) {
        stage_refuse(s, "-", &err);
        return;
    }
    struct queue *q = &s->queue;
    struct item *it = item_building(s, step, &err);
    rc = it == NULL ? err.code : step_close(it, m, &err);
    q->building = false;
    if (rc != 0) {
        refuse_step(s, step, &err);
        return;
    }
    q->n_used++;
}

void queue_cancel(struct stage *s, const struct message *m)
{
    struct error err = {0};
    uint64_t step;
    int rc = step_name(s, m, &step, &err);
    if (rc < 0)
        stage_refuse(s, "-", &err);
    for (size_t i = 0; rc > 0 && i < s->queue.n_used; i++) {
        struct item *it = &s->queue.items[(s->queue.first + i) % QUEUE_MAX];
        if (it->kind == ITEM_STEP && it->step == step)
            it->cancelled = true;
    }
}

/* A FORK or DROP may not cut into a step whose lines are still coming: it waits its turn behind it, so it is refused there. */
static struct item *item_between(struct stage *s, enum item_kind kind, const struct message *m,
                                 struct error *err)
{
    struct item *it = s->queue.building ? NULL : slot_next(&s->queue);
    if (s->queue.building)
        error_set(err, EBB_EINVAL, "%s: stands between the lines of a step", m->verb);
    else if (it == NULL)
        error_set(err, EBB_EBUSY, "%d steps are waiting already", QUEUE_MAX);
    else
        item_begin(it, kind, s->epoch, 0);
    return it;
}

static int bare_u32(const struct message *m, size_t i, uint32_t *out, struct error *err)
{
    const char *text = message_bare(m, i);
    uint64_t value = 0;
    if (text == NULL || parse_u64(text, 0, UINT32_MAX, &value) != 0)
        return error_set(err, EBB_EINVAL, "%s: field %zu wants a number, got %s", m->verb, i + 1,
                         text != NULL ? text : "nothing");
    *out = (uint32_t)value;
    return 0;
}

void queue_fork(struct stage *s, const struct message *m)
{
    struct error err = {0};
    struct item *it = item_between(s, ITEM_FORK, m, &err);
    int rc = it == NULL ? err.code : bare_u32(m, 0, &it->seq_new, &err);
    if (rc == 0)
        rc = bare_u32(m, 1, &it->seq_old, &err);
    if (rc == 0)
        rc = bare_u32(m, 2, &it->n_shared, &err);
    if (rc != 0)
        stage_refuse(s, "-", &err);
    else
        s->queue.n_used++;
}

void queue_drop(struct stage *s, const struct message *m)
{
    struct error err = {0};
    struct item *it = item_between(s, ITEM_DROP, m, &err);
    int rc = it == NULL ? err.code : bare_u32(m, 0, &it->seq_old, &err);
    if (rc != 0)
        stage_refuse(s, "-", &err);
    else
        s->queue.n_used++;
}

void queue_credit(struct stage *s, const struct message *m)
{
    struct error err = {0};
    struct item *it = item_between(s, ITEM_CREDIT, m, &err);
    int rc = it == NULL ? err.code : bare_u32(m, 0, &it->n_wanted, &err);
    if (rc != 0)
        stage_refuse(s, "-", &err);
    else
        s->queue.n_used++;
}

void queue_chunk(struct stage *s, const struct message *m)
{
    struct error err = {0};
    struct item *it = item_between(s, ITEM_CHUNK, m, &err);
    int rc = it == NULL ? err.code : bare_u32(m, 0, &it->n_wanted, &err);
    if (rc != 0)
        stage_refuse(s, "-", &err);
    else
        s->queue.n_used++;
}
