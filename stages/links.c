/* stages/links.c - the stage's side of its links: LINK lines, rows in and out, sampled ids back to the first stage.
 *
 * A LINK of a higher epoch means that some stage was lost: the old links, the queue and every sequence go, at a boundary after all that
 * is on the stream. Lines that arrive in between wait (deferred). A link that fails is closed and said in the log; the coordinator, who
 * sees the lost stage itself, makes new ones.
 */
#include "stages/stage.h"

#include <stdlib.h>
#include <string.h>

static const char *const way_key[LINK_N_WAYS] = {"in", "out", "back-in", "back-out"};

static void link_drop(struct stage *s, enum link_way way)
{
    if (s->links[way] != NULL)
        s->link_driver->close(s->links[way]);
    s->links[way] = NULL;
    s->link_told[way] = s->link_failed[way] = false;
}

/* What is of no use any more begins to end, without waiting. */
static bool link_end(struct stage *s, enum link_way way)
{
    if (s->links[way] == NULL)
        return true;
    link_room_give(s);
    s->link_failed[way] = true;
    return s->link_driver->end(s->links[way]);
}

/* The link, if it works. */
static struct link *live(const struct stage *s, enum link_way way)
{
    return s->link_failed[way] ? NULL : s->links[way];
}

void links_close(struct stage *s)
{
    for (int way = 0; way < LINK_N_WAYS; way++)
        (void)link_end(s, (enum link_way)way); /* all at once */
    for (int way = 0; way < LINK_N_WAYS; way++)
        link_drop(s, (enum link_way)way);
    for (size_t i = 0; i < s->n_deferred; i++)
        free(s->deferred[i]);
    s->n_deferred = s->n_outbox = 0;
}

bool links_are_copying(const struct stage *s)
{
    bool copying = false;
    for (int way = 0; way < LINK_N_WAYS; way++)
        copying = copying || (live(s, (enum link_way)way) != NULL &&
                              s->link_driver->is_copying(s->links[way]));
    return copying;
}

int links_due_ms(const struct stage *s)
{
    int due = -1;
    for (int way = 0; way < LINK_N_WAYS; way++) {
        int ms = s->links[way] != NULL ? s->link_driver->due_ms(s->links[way]) : -1;
        if (ms >= 0 && (due < 0 || ms < due))
            due = ms;
    }
    return due;
}

/* key: of who listens; became: by what rows travel, of who is connected. */
static void say_linked(struct stage *s, enum link_way way, const char *value, const char *key,
                       const char *became)
{
    struct line_writer w;
    line_begin(&w, s->line, sizeof s->line, "LINKED");
    line_u64(&w, "epoch", s->epoch);
    line_text(&w, way_key[way], value, strlen(value));
    if (key != NULL)
        line_key(&w, "key", key);
    if (became != NULL)
        line_key(&w, "link", became);
    stage_say(s, &w);
}

static int link_make(struct stage *s, enum link_way way, const struct message *m, struct error *err)
{
    char value[LINK_ADDRESS_MAX], host[LINK_ADDRESS_MAX], key[LINK_KEY_MAX];
    size_t n = 0, n_host = 0;
    int rc = message_text(m, way_key[way], value, sizeof value - 1, &n, err);
    if (rc != 0)
        return rc;
    value[n] = '\0';
    rc = message_text(m, "host", host, sizeof host - 1, &n_host, err);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    host[n_host] = '\0';
    struct link_settings settings = link_settings_for(s, way);
    settings.vmm = s->link_driver == &link_ipc && way == LINK_OUT ? &s->memory : NULL;
    settings.card_uuid = s->link_driver == &link_nccl && !link_is_back(way) ? s->card_uuid : NULL;
    if (s->links[way] != NULL)
        return error_set(err, EBB_EBUSY, "LINK %s: epoch %u has this link already", way_key[way],
                         s->epoch);
    if (settings.card_uuid != NULL)
        link_room_give(s);
    if (way == LINK_IN || way == LINK_BACK_IN) {
        char address[LINK_ADDRESS_MAX];
        if (strcmp(value, "listen") != 0)
            return error_set(err, EBB_EINVAL, "LINK %s: wants listen, got %s", way_key[way], value);
        rc = s->link_driver->listen(&s->links[way], &settings, n_host > 0 ? host : NULL, address,
                                    key, err);
        if (rc == 0)
            say_linked(s, way, address, key, NULL);
        return rc;
    }
    const char *given = message_key(m, "key");
    if (given == NULL)
        return error_set(err, EBB_EINVAL, "LINK %s: wants key=<hex>", way_key[way]);
    return s->link_driver->connect(&s->links[way], &settings, value, given, err);
}

static void epoch_begin(struct stage *s, uint32_t epoch)
{
    for (int way = 0; way < LINK_N_WAYS; way++)
        link_drop(s, (enum link_way)way);
    s->epoch = epoch;
    s->n_sampled = s->n_outbox = 0;
    queue_clear(&s->queue);
    run_reset(s);
    kv_drop_all(&s->kv);
}

static int link_line(struct stage *s, const struct message *m, struct error *err)
{
    uint64_t epoch = s->epoch;
    int rc = message_u64(m, "epoch", 0, UINT32_MAX, &epoch, err);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    if (epoch < s->epoch)
        return 0;
    if (epoch > s->epoch)
        epoch_begin(s, (uint32_t)epoch);
    int n = 0;
    for (int way = 0; way < LINK_N_WAYS; way++)
        if (message_key(m, way_key[way]) != NULL) {
            n++;
            rc = link_make(s, (enum link_way)way, m, err);
            if (rc != 0)
                return rc;
        }
    return n == 1 ? 0
                  : error_set(err, EBB_EINVAL,
                              "LINK: wants one of in, out, back-in, back-out; got %d", n);
}

void links_deferred(struct stage *s)
{
    bool ended = true;
    for (int way = 0; s->n_deferred > 0 && way < LINK_N_WAYS; way++)
        ended = link_end(s, (enum link_way)way) && ended;
    if (!ended)
        return;
    for (size_t i = 0; i < s->n_deferred; i++) {
        struct message m;
        struct error err = {0};
        int rc = message_parse(&m, s->deferred[i], strlen(s->deferred[i]), &err);
        if (rc == 0)
            rc = link_line(s, &m, &err);
        if (rc != 0)
            stage_refuse(s, "-", &err);
        free(s->deferred[i]);
    }
    s->n_deferred = 0;
}

void link_command(struct stage *s, const struct message *m, const char *line)
{
    struct error err = {0};
    uint64_t epoch = s->epoch;
    (void)message_u64(m, "epoch", 0, UINT32_MAX, &epoch, NULL);
    bool waits = s->n_deferred > 0 || epoch > s->epoch;
    if (!waits) {
        if (link_line(s, m, &err) != 0)
            stage_refuse(s, "-", &err);
        return;
    }
    char *copy = s->n_deferred < DEFERRED_MAX ? strdup(line) : NULL;
    if (copy == NULL) {
        error_set(&err, EBB_EBUSY, "LINK: %d lines are waiting already", DEFERRED_MAX);
        stage_refuse(s, "-", &err);
        return;
    }
    s->deferred[s->n_deferred++] = copy;
    run_flush(s, "rest");
}

size_t links_poll_fds(struct stage *s, struct pollfd *fds, size_t max)
{
    size_t n = 0;
    for (int way = 0; way < LINK_N_WAYS && n + LINK_POLL_FDS_MAX <= max; way++)
        if (live(s, (enum link_way)way) != NULL)
            n += s->link_driver->poll_fds(s->links[way], fds + n);
    return n;
}

/* Ids that arrived for the first stage. */
static void take_ids(struct stage *s)
{
    struct link_tile tile;
    struct error err;
    while (live(s, LINK_BACK_IN) != NULL &&
           s->link_driver->peek(s->links[LINK_BACK_IN], &tile) == 0) {
        const struct link_id *ids = tile.data;
        for (uint32_t i = 0; tile.kind == LINK_IDS && tile.epoch == s->epoch && i < tile.n_rows;
             i++)
            if (ids[i].id >= 0 && (uint32_t)ids[i].id < s->model->geometry.n_vocab)
                sampled_remember(s, tile.step, ids[i].row, ids[i].id);
        (void)s->link_driver->take(s->links[LINK_BACK_IN], NULL, NULL, &err);
    }
}

static void outbox_flush(struct stage *s)
{
    size_t done = 0;
    while (done < s->n_outbox && live(s, LINK_BACK_OUT) != NULL) {
        size_t n = 1;
        struct link_settings set = link_settings_for(s, LINK_BACK_OUT);
        while (done + n < s->n_outbox && n < set.tile_rows &&
               s->outbox_step[done + n] == s->outbox_step[done])
            n++;
        struct link_tile tile = {.kind = LINK_IDS,
                                 .epoch = s->epoch,
                                 .n_rows = (uint32_t)n,
                                 .step = s->outbox_step[done],
                                 .data = &s->outbox[done]};
        struct error err;
        if (s->link_driver->send(s->links[LINK_BACK_OUT], &tile, NULL, &err) != 0)
            break;
        done += n;
    }
    memmove(s->outbox, s->outbox + done, (s->n_outbox - done) * sizeof s->outbox[0]);
    memmove(s->outbox_step, s->outbox_step + done, (s->n_outbox - done) * sizeof s->outbox_step[0]);
    s->n_outbox -= done;
}

/* None begins or ends. */
static bool links_are_settled(const struct stage *s)
{
    bool settled = true;
    for (int way = 0; way < LINK_N_WAYS; way++)
        if (s->links[way] != NULL)
            settled = settled && (s->link_failed[way] ? s->link_driver->end(s->links[way])
                                                      : s->link_driver->is_up(s->links[way]));
    return settled;
}

void links_service(struct stage *s)
{
    for (int way = 0; way < LINK_N_WAYS; way++) {
        struct error err = {0};
        if (live(s, (enum link_way)way) == NULL)
            continue;
        int rc = s->link_driver->service(s->links[way], &err);
        if (rc != 0) {
            stage_log("stage %u: link %s: %s", s->load.stage, way_key[way], err.text);
            (void)link_end(s, (enum link_way)way);
        } else if (!s->link_told[way] && (way == LINK_OUT || way == LINK_BACK_OUT) &&
                   s->link_driver->is_up(s->links[way])) {
            const char *why = "";
            const char *became = s->link_driver->became(s->links[way], &why);
            s->link_told[way] = true;
            if (why[0] != '\0')
                stage_log("stage %u: link %s: %s, not %s: %s", s->load.stage, way_key[way], became,
                          s->link_driver->name, why);
            say_linked(s, (enum link_way)way, "ok", NULL, became);
        }
    }
    if (links_are_settled(s))
        link_room_settle(s);
    take_ids(s);
    outbox_flush(s);
}

/* Rows move in the order of the compute stream. Where the control thread can reach them they move at boundaries, when nothing on the
 * stream reads or writes them: copying them right away saves the stream's waking up and the word back from it, as a decode step's
 * rows are a few KiB. */
static struct exec_stream *tiles_stream(const struct stage *s)
{
    return s->platform->host_memory ? NULL : s->compute;
}

/* A tile's call: the copy may still be on the stream when it has returned. */
static void tile_span(struct stage *s, const char *name, uint64_t began,
                      const struct link_tile *tile)
{
    if (trace_is_on(&s->trace))
        trace_span(&s->trace, TRACE_LINK, began, now_us(), "name=%s step=%llu first=%u rows=%u",
                   name, (unsigned long long)tile->step, tile->row_first, tile->n_rows);
}

int links_take_rows(struct stage *s, const struct item *item, struct error *err)
{
    struct link *in = live(s, LINK_IN);
    struct link_tile tile;
    size_t d_model = s->model->geometry.d_model;
    while (in != NULL && s->run.n_arrived < item->n_rows && s->link_driver->peek(in, &tile) == 0) {
        int rc;
        bool old = tile.epoch < item->epoch || tile.step < item->step;
        if (!old && (tile.step > item->step || tile.epoch > item->epoch))
            return 0;
        if (old || tile.kind != LINK_ROWS) {
            rc = s->link_driver->take(in, NULL, NULL, err);
        } else if (tile.row_first != s->run.n_arrived ||
                   tile.n_rows > item->n_rows - s->run.n_arrived) {
            return error_set(err, EBB_EPEER, "step %llu: rows %u-%u came, row %zu was next",
                             (unsigned long long)item->step, tile.row_first,
                             tile.row_first + tile.n_rows - 1, s->run.n_arrived);
        } else {
            uint64_t began = trace_is_on(&s->trace) ? now_us() : 0;
            struct link_tile told = tile;
            s->run.n_arrived += tile.n_rows;
            rc = s->link_driver->take(in, s->forward.hidden + (size_t)tile.row_first * d_model,
                                      tiles_stream(s), err);
            tile_span(s, "tile-in", began, &told);
        }
        if (rc != 0)
            return rc;
    }
    return 0;
}

int links_send_rows(struct stage *s, const struct item *item, struct error *err)
{
    struct link *out = live(s, LINK_OUT);
    size_t d_model = s->model->geometry.d_model,
           rows_max = link_settings_for(s, LINK_OUT).tile_rows;
    while (s->run.n_sent < item->n_rows) {
        size_t n =
            item->n_rows - s->run.n_sent < rows_max ? item->n_rows - s->run.n_sent : rows_max;
        struct link_tile tile = {.kind = LINK_ROWS,
                                 .epoch = item->epoch,
                                 .row_first = (uint32_t)s->run.n_sent,
                                 .n_rows = (uint32_t)n,
                                 .step = item->step,
                                 .data = s->forward.hidden + s->run.n_sent * d_model};
        uint64_t began = trace_is_on(&s->trace) ? now_us() : 0;
        int rc = out == NULL ? EBB_EAGAIN : s->link_driver->send(out, &tile, tiles_stream(s), err);
        if (rc == EBB_EAGAIN)
            return 0;
        if (rc != 0)
            return rc;
        tile_span(s, "tile-out", began, &tile);
        s->run.n_sent += n;
    }
    return 1;
}

void links_send_ids(struct stage *s, uint64_t step, const int32_t *rows, const int32_t *ids,
                    size_t n)
{
    if (live(s, LINK_BACK_OUT) == NULL)
        return;
    for (size_t i = 0; i < n; i++) {
        if (s->n_outbox ==
            SAMPLED_MAX) /* a first stage that stopped reading: it would not use them any more */
            s->n_outbox = 0;
        s->outbox[s->n_outbox] = (struct link_id){.row = rows[i], .id = ids[i]};
        s->outbox_step[s->n_outbox++] = step;
    }
    outbox_flush(s);
}

void sampled_remember(struct stage *s, uint64_t step, int32_t row, int32_t id)
{
    s->sampled[s->n_sampled++ % SAMPLED_MAX] = (struct sampled){.step = step, .row = row, .id = id};
}

bool sampled_find(const struct stage *s, uint64_t step, uint32_t row, int32_t *id)
{
    size_t oldest = s->n_sampled > SAMPLED_MAX ? s->n_sampled - SAMPLED_MAX : 0;
    for (size_t i = s->n_sampled; i-- > oldest;) {
        const struct sampled *x = &s->sampled[i % SAMPLED_MAX];
        if (x->step == step && (uint32_t)x->row == row) {
            *id = x->id;
            return true;
        }
    }
    return false;
}
