/* runtime/scheduler.c - sequences: admission by KV credit, donors and forks, results, resets.
 *
 * Owns every sequence from submit() to its drop, the table of steps in flight and the count of KV
 * blocks. Orders that must go before the next step (START, FORK, DROP) wait in a small ring;
 * admission runs only when it is empty, so a sequence number is never reused before its DROP was
 * handed out, and the ring can hold every slot's DROP plus one START, one FORK and one CREDIT.
 *
 * Donors give way whenever admission lacks blocks or numbers, least recently used first. The donor
 * to be forked goes last: if even its own blocks are needed, only whole blocks are shared and it is
 * dropped right after the fork, so that no stage needs a copy of a partial block that was not
 * counted.
 */
#include "runtime/scheduler_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void list_append(struct seq_list *l, struct sched_seq *q)
{
    q->prev = l->last;
    q->next = NULL;
    *(l->last != NULL ? &l->last->next : &l->first) = q;
    l->last = q;
    l->n++;
}

static void list_remove(struct seq_list *l, struct sched_seq *q)
{
    *(q->prev != NULL ? &q->prev->next : &l->first) = q->next;
    *(q->next != NULL ? &q->next->prev : &l->last) = q->prev;
    q->prev = q->next = NULL;
    l->n--;
}

/* Keeps the waiting list in order of submission: a sequence put back after a reset stands before
 * later ones. */
static void list_insert_ordered(struct seq_list *l, struct sched_seq *q)
{
    struct sched_seq *after = l->last;
    while (after != NULL && after->order > q->order)
        after = after->prev;
    if (after == l->last) {
        list_append(l, q);
        return;
    }
    q->prev = after;
    q->next = after != NULL ? after->next : l->first;
    q->next->prev = q;
    *(after != NULL ? &after->next : &l->first) = q;
    l->n++;
}

static uint32_t blocks_for(const struct scheduler *s, uint32_t positions)
{
    return (positions + s->shape.block_tokens - 1) / s->shape.block_tokens;
}

int scheduler_open(struct scheduler **out, const struct sched_shape *shape, struct error *err)
{
    assert(shape->n_stages > 0 && shape->n_stages <= 64 && shape->parallel > 0 && shape->chunk > 0);
    assert(shape->n_slots > shape->parallel && shape->block_tokens > 0);
    struct scheduler *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for the scheduler");
    s->shape = *shape;
    if (s->shape.n_groups == 0 || s->shape.n_groups > shape->n_stages)
        s->shape.n_groups = shape->n_stages;
    s->next_step = 1;
    s->n_steps_max = shape->run_ahead ? 2 * shape->n_stages : shape->n_stages + 1;
    if (s->n_steps_max > STEPS_MAX)
        s->n_steps_max = STEPS_MAX;
    s->n_orders_max = shape->n_slots + 4;
    s->n_refused = s->n_low = UINT32_MAX;
    if (s->shape.chunk_min == 0 || s->shape.chunk_min > s->shape.chunk)
        s->shape.chunk_min = s->shape.chunk;
    s->chunk_held = s->shape.chunk_min;
    s->chunk_lendable = s->shape.chunk;
    if (s->shape.n_granted == 0 || s->shape.n_granted > shape->n_blocks)
        s->shape.n_granted = shape->n_blocks;
    s->slot_used = calloc(shape->n_slots, sizeof *s->slot_used);
    s->steps = calloc(s->n_steps_max, sizeof *s->steps);
    s->orders = calloc(s->n_orders_max, sizeof *s->orders);
    int code = kv_credit_open(&s->credit, shape->n_blocks, err);
    s->credit.n_limit = s->shape.n_granted;
    bool whole = s->slot_used != NULL && s->steps != NULL && s->orders != NULL;
    for (uint32_t i = 0; whole && i < s->n_steps_max; i++) {
        s->steps[i].runs = calloc(shape->parallel, sizeof *s->steps[i].runs);
        whole = s->steps[i].runs != NULL;
    }
    if (code == 0 && !whole)
        code = error_set(err, EBB_ENOMEM, "no memory for the scheduler's tables");
    if (code != 0) {
        scheduler_close(s);
        return code;
    }
    *out = s;
    return 0;
}

static void seq_free(struct scheduler *s, struct sched_seq *q)
{
    kv_trim(&s->credit, &q->holding, 0);
    kv_holding_close(&q->holding);
    free(q->tokens);
    free(q);
}

void scheduler_close(struct scheduler *s)
{
    if (s == NULL)
        return;
    struct seq_list *lists[] = {&s->waiting, &s->live, &s->donors};
    for (size_t i = 0; i < 3; i++)
        while (lists[i]->first != NULL) {
            struct sched_seq *q = lists[i]->first;
            list_remove(lists[i], q);
            seq_free(s, q);
        }
    for (uint32_t i = 0; s->steps != NULL && i < s->n_steps_max; i++)
        free(s->steps[i].runs);
    kv_credit_close(&s->credit);
    free(s->slot_used);
    free(s->steps);
    free(s->orders);
    free(s);
}

int scheduler_submit(struct scheduler *s, void *owner, const int32_t *prompt, uint32_t n_prompt,
                     uint32_t n_max, uint32_t top, struct sched_seq **out, struct error *err)
{
    if (n_max > s->shape.context)
        n_max = s->shape.context;
    if (n_prompt == 0 || n_prompt > n_max || blocks_for(s, n_max) > s->shape.n_blocks)
        return error_set(err, EBB_ERANGE,
                         "%u positions of prompt and %u in all do not fit %u positions of KV",
                         n_prompt, n_max, s->shape.n_blocks * s->shape.block_tokens);
    struct sched_seq *q = calloc(1, sizeof *q);
    if (q == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a sequence");
    q->tokens = malloc(n_max * sizeof *q->tokens);
    if (q->tokens == NULL || kv_holding_open(&q->holding, blocks_for(s, n_max), err) != 0) {
        free(q->tokens);
        free(q);
        return error_set(err, EBB_ENOMEM, "no memory for a sequence of %u positions", n_max);
    }
    memcpy(q->tokens, prompt, n_prompt * sizeof *prompt);
    q->state = SEQ_WAITING;
    q->owner = owner;
    q->n_tokens = q->n_prefill = n_prompt;
    q->n_max = n_max;
    q->top = top;
    q->order = ++s->order;
    list_append(&s->waiting, q);
    s->n_refused = UINT32_MAX;
    *out = q;
    return 0;
}

static void order_add(struct scheduler *s, struct sched_order order)
{
    assert(s->n_orders < s->n_orders_max);
    s->orders[(s->order_first + s->n_orders++) % s->n_orders_max] = order;
}

static void donor_drop(struct scheduler *s, struct sched_seq *donor)
{
    order_add(s, (struct sched_order){.kind = ORDER_DROP, .slot = donor->slot});
    s->slot_used[donor->slot] = false;
    list_remove(&s->donors, donor);
    seq_free(s, donor);
}

static uint32_t common_prefix(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The donor with the longest prefix of q, at least one of q's tokens being left to run. */
static struct sched_seq *donor_find(const struct scheduler *s, const struct sched_seq *q,
                                    uint32_t *n)
{
    struct sched_seq *best = NULL;
    *n = 0;
    for (struct sched_seq *d = s->donors.first; d != NULL && q->top == 0; d = d->next) {
        uint32_t most = d->n_tokens < q->n_tokens - 1 ? d->n_tokens : q->n_tokens - 1;
        uint32_t same = common_prefix(d->tokens, q->tokens, most);
        if (same > *n) {
            best = d;
            *n = same;
        }
    }
    return best;
}

/* The donor to give up next, sparing one. */
static struct sched_seq *donor_oldest(const struct scheduler *s, const struct sched_seq *spared)
{
    struct sched_seq *oldest = NULL;
    for (struct sched_seq *d = s->donors.first; d != NULL; d = d->next)
        if (d != spared && (oldest == NULL || d->turn < oldest->turn))
            oldest = d;
    return oldest;
}

static uint32_t slots_free(const struct scheduler *s)
{
    return s->shape.n_slots - s->live.n - s->donors.n;
}

static uint32_t slot_take(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->shape.n_slots; i++)
        if (!s->slot_used[i]) {
            s->slot_used[i] = true;
            return i;
        }
    assert(!"a slot was counted as free");
    return 0;
}

/* Whether the stages may grant that many blocks in all; the order is on its way then. */
static bool credit_ask(struct scheduler *s, uint32_t n_blocks)
{
    if (n_blocks <= s->credit.n_limit || n_blocks > s->credit.n_blocks || n_blocks >= s->n_refused)
        return false;
    s->n_asked = n_blocks;
    order_add(s, (struct sched_order){.kind = ORDER_CREDIT, .n = n_blocks});
    return true;
}

/* What could be taken if only the donor's first `whole` blocks stayed. */
static uint32_t left_without(const struct scheduler *s, const struct sched_seq *donor,
                             uint32_t whole)
{
    uint32_t used = kv_credit_used(&s->credit) - kv_private(&s->credit, &donor->holding, whole);
    return s->credit.n_limit > used ? s->credit.n_limit - used : 0;
}

/* Frees donors until `need` blocks and a slot are there. *donor and *n say what can still be
 * forked; *spent: the donor must be dropped after the fork. false: live sequences hold too much. */
static bool room_make(struct scheduler *s, uint32_t total, struct sched_seq **donor, uint32_t *n,
                      bool *spent)
{
    uint32_t block = s->shape.block_tokens;
    *spent = false;
    for (;;) {
        uint32_t need = total - *n / block;
        if (kv_credit_left(&s->credit) >= need && slots_free(s) > 0)
            return true;
        struct sched_seq *oldest = donor_oldest(s, *donor);
        if (oldest != NULL) {
            donor_drop(s, oldest);
            continue;
        }
        uint32_t whole = *n / block;
        if (whole > 0 && slots_free(s) > 0 && left_without(s, *donor, whole) >= total - whole) {
            *n = whole * block;
            *spent = true;
            return true;
        }
        if (credit_ask(s, kv_credit_used(&s->credit) + need) || *donor == NULL)
            return false;
        donor_drop(s, *donor);
        *donor = NULL;
        *n = 0;
    }
}

/* The longest wait first; whoever cannot start yet keeps the others behind it. */
static bool admit(struct scheduler *s)
{
    struct sched_seq *q = s->waiting.first, *donor;
    uint32_t n;
    bool spent;
    if (q == NULL || s->live.n >= s->shape.parallel || s->n_asked != 0)
        return false;
    uint32_t total = blocks_for(s, q->n_max);
    donor = donor_find(s, q, &n);
    if (!room_make(s, total, &donor, &n, &spent)) {
        if (s->n_asked == 0 && s->live.n == 0) /* nobody will give anything back */
            order_add(s, (struct sched_order){.kind = ORDER_REFUSE, .seq = q, .n = total});
        return false;
    }
    list_remove(&s->waiting, q);
    q->slot = slot_take(s);
    q->state = SEQ_LIVE;
    q->turn = ++s->turn;
    q->n_fed = q->n_reused = n;
    q->n_sampling = 0;
    list_append(&s->live, q);
    if (donor != NULL) {
        kv_share(&s->credit, &donor->holding, &q->holding, n / s->shape.block_tokens);
        order_add(s, (struct sched_order){
                         .kind = ORDER_FORK, .new_slot = q->slot, .slot = donor->slot, .n = n});
        donor->turn = ++s->turn;
        if (spent)
            donor_drop(s, donor);
    }
    bool taken = kv_take(&s->credit, &q->holding, total - q->holding.n);
    assert(taken);
    (void)taken;
    order_add(s, (struct sched_order){.kind = ORDER_START, .seq = q});
    return true;
}

bool scheduler_next(struct scheduler *s, struct sched_order *out)
{
    if (s->n_orders == 0)
        (void)admit(s);
    if (s->n_orders == 0)
        return scheduler_build(s, out);
    *out = s->orders[s->order_first];
    s->order_first = (s->order_first + 1) % s->n_orders_max;
    s->n_orders--;
    return true;
}

/* A donor that another one contains is of no more use. true: it is `fresh` itself. */
static bool donors_thin(struct scheduler *s, struct sched_seq *fresh)
{
    for (struct sched_seq *d = s->donors.first, *next; d != NULL; d = next) {
        next = d->next;
        if (d == fresh)
            continue;
        uint32_t n = d->n_tokens < fresh->n_tokens ? d->n_tokens : fresh->n_tokens;
        if (common_prefix(d->tokens, fresh->tokens, n) < n)
            continue;
        if (d->n_tokens >= fresh->n_tokens) {
            d->turn = ++s->turn;
            return true;
        }
        donor_drop(s, d);
    }
    return false;
}

static void seq_orders_forget(struct scheduler *s, const struct sched_seq *q)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_orders; i++) {
        struct sched_order o = s->orders[(s->order_first + i) % s->n_orders_max];
        if (o.seq != q)
            s->orders[(s->order_first + kept++) % s->n_orders_max] = o;
    }
    s->n_orders = kept;
}

void scheduler_end(struct scheduler *s, struct sched_seq *q, uint64_t last_step)
{
    seq_orders_forget(s, q);
    s->n_refused = UINT32_MAX;
    if (q->state == SEQ_WAITING) {
        list_remove(&s->waiting, q);
        seq_free(s, q);
        return;
    }
    assert(q->state == SEQ_LIVE);
    for (uint32_t i = 0; i < s->n_steps_max; i++)
        for (uint32_t j = 0; s->steps[i].id != 0 && j < s->steps[i].n_runs; j++) {
            struct sched_run *run = &s->steps[i].runs[j];
            if (run->seq != q)
                continue;
            run->seq = NULL;
            if (s->steps[i].id > last_step)
                run->owner = NULL;
        }
    list_remove(&s->live, q);
    q->state = SEQ_DONOR;
    q->owner = NULL;
    q->last_step = NULL;
    q->turn = ++s->turn;
    /* An overrun row may have stored one position more than is known: it keeps its block, but
     * nobody shares it. */
    kv_trim(&s->credit, &q->holding, blocks_for(s, q->n_fed));
    if (q->n_tokens > q->n_fed)
        q->n_tokens = q->n_fed;
    if (q->n_fed == 0) { /* no stage has heard of it */
        s->slot_used[q->slot] = false;
        seq_free(s, q);
        return;
    }
    list_append(&s->donors, q);
    if (donors_thin(s, q))
        donor_drop(s, q);
}

void scheduler_forget(struct scheduler *s, const void *owner)
{
    for (uint32_t i = 0; i < s->n_steps_max; i++)
        for (uint32_t j = 0; s->steps[i].id != 0 && j < s->steps[i].n_runs; j++)
            if (s->steps[i].runs[j].owner == owner)
                s->steps[i].runs[j].owner = NULL;
}

struct sched_step *scheduler_step(struct scheduler *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->n_steps_max && id != 0; i++)
        if (s->steps[i].id == id)
            return &s->steps[i];
    return NULL;
}

int scheduler_token(struct scheduler *s, struct sched_step *step, uint32_t row, int32_t id,
                    struct sched_seq **seq, struct error *err)
{
    (void)s;
    for (uint32_t i = 0; i < step->n_runs; i++) {
        struct sched_run *run = &step->runs[i];
        if (!run->wants_token || run->row_first + run->n_rows - 1 != row)
            continue;
        run->wants_token = false;
        *seq = run->seq;
        if (run->seq != NULL) {
            assert(run->seq->n_sampling > 0 && run->seq->n_tokens < run->seq->n_max);
            run->seq->tokens[run->seq->n_tokens++] = id;
            run->seq->n_sampling--;
        }
        return 0;
    }
    return error_set(err, EBB_EPEER,
                     "step %llu: a token for row %u, where none was asked for or it came before",
                     (unsigned long long)step->id, row);
}

bool scheduler_ran(struct scheduler *s, struct sched_step *step, uint32_t stage)
{
    uint64_t all = s->shape.n_stages == 64 ? UINT64_MAX : (UINT64_C(1) << s->shape.n_stages) - 1;
    step->ran |= UINT64_C(1) << stage;
    return step->ran == all && step->tokens_came;
}

void scheduler_retire(struct scheduler *s, struct sched_step *step)
{
    s->n_steps--;
    s->n_prompt_steps -= step->is_prompt;
    step->id = 0;
}

void scheduler_reset(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_steps_max; i++)
        s->steps[i].id = 0;
    s->n_steps = s->n_prompt_steps = 0;
    while (s->donors.first != NULL)
        donor_drop(s, s->donors.first);
    while (s->live.first != NULL) {
        struct sched_seq *q = s->live.first;
        list_remove(&s->live, q);
        kv_trim(&s->credit, &q->holding, 0);
        s->slot_used[q->slot] = false;
        q->state = SEQ_WAITING;
        q->n_prefill = q->n_tokens;
        q->n_fed = q->n_sampling = q->n_reused = 0;
        q->last_step = NULL;
        list_insert_ordered(&s->waiting, q);
    }
    s->n_orders = 0;
    s->n_asked = 0;
    s->chunk_asked = 0;
    s->n_refused = s->n_low = UINT32_MAX;
}

void scheduler_credited(struct scheduler *s, uint32_t n_granted)
{
    uint32_t asked = s->n_asked;
    if (n_granted > s->credit.n_blocks)
        n_granted = s->credit.n_blocks;
    if (n_granted > s->credit.n_limit)
        s->n_low = UINT32_MAX;
    if (n_granted < asked)
        s->n_refused = asked;
    s->credit.n_limit = n_granted;
    s->n_asked = 0;
}

void scheduler_credit_retry(struct scheduler *s)
{
    s->n_refused = UINT32_MAX;
}

/* What live sequences and the start's amount need; shared blocks count twice, which only errs to the
 * safe side. */
static uint32_t blocks_needed(const struct scheduler *s)
{
    uint32_t n = 0;
    for (const struct sched_seq *q = s->live.first; q != NULL; q = q->next)
        n += q->holding.n;
    return n > s->shape.n_granted ? n : s->shape.n_granted;
}

bool scheduler_has_surplus(const struct scheduler *s)
{
    if (s->credit.n_limit <= s->shape.n_granted || s->waiting.n > 0 || s->n_asked != 0)
        return false;
    uint32_t needed = blocks_needed(s);
    return needed < s->credit.n_limit && needed < s->n_low;
}

void scheduler_give_back(struct scheduler *s)
{
    uint32_t needed = blocks_needed(s);
    if (s->n_orders > 0 || !scheduler_has_surplus(s))
        return;
    while (kv_credit_used(&s->credit) > needed && s->donors.n > 0)
        donor_drop(s, donor_oldest(s, NULL));
    s->n_asked = s->n_low = needed;
    order_add(s, (struct sched_order){.kind = ORDER_CREDIT, .n = needed});
}

static uint32_t chunk_within(const struct scheduler *s, uint32_t n_rows)
{
    if (n_rows < s->shape.chunk_min)
        return s->shape.chunk_min;
    return n_rows < s->shape.chunk ? n_rows : s->shape.chunk;
}

void scheduler_chunked(struct scheduler *s, uint32_t n_rows)
{
    s->chunk_held = chunk_within(s, n_rows);
    if (s->chunk_held < s->chunk_asked)
        s->chunk_lendable = s->chunk_held;
    s->chunk_asked = 0;
}

void scheduler_lendable(struct scheduler *s, uint32_t n_rows)
{
    s->chunk_lendable = chunk_within(s, n_rows);
    s->chunk_held = s->shape.chunk_min;
}

struct sched_counts scheduler_counts(const struct scheduler *s)
{
    return (struct sched_counts){.n_waiting = s->waiting.n,
                                 .n_live = s->live.n,
                                 .n_donors = s->donors.n,
                                 .n_steps = s->n_steps,
                                 .n_blocks_free = kv_credit_left(&s->credit),
                                 .n_credit_asked = s->n_asked,
                                 .n_chunk_asked = s->chunk_asked,
                                 .n_chunk_held = s->chunk_held,
                                 .n_chunk_lendable = s->chunk_lendable};
}

struct sched_shape scheduler_shape(const struct scheduler *s)
{
    return s->shape;
}
