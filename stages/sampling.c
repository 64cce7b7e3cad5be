/* stages/sampling.c - how rows are sampled: the settings of a ROWS line, the tokens that penalties look back on, and what is
 * said of a token's probability.
 *
 * The last stage keeps every sequence's tokens itself, by position, in its row of in.history (the row is the sequence's row of the
 * KV tables). Every stage sees every ROWS line in the same order, and a token that the sender did not know yet (@step.row) was
 * sampled here, so nothing but settings has to travel, and a replay from position 0 leads to the same history. A step's tokens are
 * written when its input has come, next to the KV that they belong to: what holds for the KV's positions (cutting back, forking,
 * dropping, a new epoch) holds for these, and positions beyond a sequence's length are never read. Other stages keep nothing.
 * Threads: the control thread; the kernels read what it wrote while it waits for them.
 */
#include "stages/stage.h"

#include <math.h>
#include <string.h>

#define LOGPROBS_MAX 20

static int optional(int rc)
{
    return rc == EBB_ENOENT ? 0 : rc;
}

static int read_choice(const struct message *m, struct sample_params *p, struct error *err)
{
    double temperature = 0, top_p = 1, min_p = 0;
    uint64_t top_k = 0, seed = 0;
    int rc = optional(message_f64(m, "temperature", 0, 100, &temperature, err));
    if (rc == 0)
        rc = optional(message_f64(m, "top_p", 0, 1, &top_p, err));
    if (rc == 0)
        rc = optional(message_f64(m, "min_p", 0, 1, &min_p, err));
    if (rc == 0)
        rc = optional(message_u64(m, "top_k", 0, INT32_MAX, &top_k, err));
    if (rc == 0)
        rc = optional(message_u64(m, "seed", 0, UINT64_MAX, &seed, err));
    *p = (struct sample_params){.temperature = (float)temperature,
                                .top_p = (float)top_p,
                                .min_p = (float)min_p,
                                .top_k = (int32_t)top_k,
                                .seed = seed};
    return rc;
}

static int read_penalties(const struct message *m, struct sample_params *p, struct error *err)
{
    double repetition = 1, frequency = 0, presence = 0;
    uint64_t n_repeat = 64, n_prompt = 0;
    int rc = optional(message_f64(m, "repetition_penalty", 0.01, 100, &repetition, err));
    if (rc == 0)
        rc = optional(message_u64(m, "repeat_last_n", 0, INT32_MAX, &n_repeat, err));
    if (rc == 0)
        rc = optional(message_f64(m, "frequency_penalty", -2, 2, &frequency, err));
    if (rc == 0)
        rc = optional(message_f64(m, "presence_penalty", -2, 2, &presence, err));
    if (rc == 0)
        rc = optional(message_u64(m, "prompt", 0, INT32_MAX, &n_prompt, err));
    p->repetition = (float)repetition;
    p->frequency = (float)frequency;
    p->presence = (float)presence;
    p->n_repeat = (int32_t)n_repeat;
    p->n_prompt = (int32_t)n_prompt;
    return rc;
}

static int read_biases(struct stage *s, struct item *it, const char *list, struct sample_params *p,
                       struct error *err)
{
    _Static_assert(FORWARD_BIAS_MAX == LOGIT_BIAS_MAX, "as many as a line may name");
    struct logit_bias biases[LOGIT_BIAS_MAX];
    size_t n = 0, room = s->queue.n_sampled_max * FORWARD_BIAS_MAX;
    p->bias_first = (int32_t)it->n_biases;
    if (list == NULL)
        return 0;
    int rc = biases_read(list, (int32_t)s->model->geometry.n_vocab - 1, biases, &n, err);
    if (rc == 0 && n > room - it->n_biases)
        return error_set(err, EBB_ERANGE, "step %llu: at most %zu biases in a step",
                         (unsigned long long)it->step, room);
    for (size_t i = 0; rc == 0 && i < n; i++)
        it->biases[it->n_biases++] =
            (struct sample_bias){.id = biases[i].id, .bias = biases[i].bias};
    p->n_bias = rc == 0 ? (int32_t)n : 0;
    return rc;
}

int sampling_read(struct stage *s, struct item *it, struct step_run *run, const struct message *m,
                  struct error *err)
{
    uint64_t n_logprobs = 0;
    int rc = read_choice(m, &run->sample, err);
    if (rc == 0)
        rc = read_penalties(m, &run->sample, err);
    if (rc == 0)
        rc = read_biases(s, it, message_key(m, "logit_bias"), &run->sample, err);
    run->n_logprobs = -1;
    if (rc == 0 && message_key(m, "logprobs") != NULL) {
        rc = message_u64(m, "logprobs", 0, LOGPROBS_MAX, &n_logprobs, err);
        run->n_logprobs = (int32_t)n_logprobs;
    }
    return rc;
}

static int32_t *history_of(const struct stage *s, uint32_t slot)
{
    return s->forward.in.history + (size_t)slot * s->kv.shape.table_stride * KV_BLOCK_TOKENS;
}

void history_take(struct stage *s, struct item *it)
{
    if (s->forward.in.history == NULL)
        return;
    for (size_t i = 0; i < it->n_runs; i++) {
        const struct step_run *run = &it->runs[i];
        int32_t *at =
            history_of(s, (uint32_t)s->forward.in.row_sequence[run->row_first]) + run->pos;
        for (uint32_t j = 0; j < run->n_rows; j++) {
            struct step_token *t = &it->tokens[run->row_first + j];
            if (t->id <
                0) /* unknown even here only where the sender made it up: then it counts for nothing */
                (void)sampled_find(s, t->step, t->row, &t->id);
            at[j] = t->id;
        }
    }
}

void history_fork(struct stage *s, uint32_t seq_new, uint32_t seq_old, uint32_t n)
{
    uint32_t to, from;
    if (s->forward.in.history != NULL && kv_slot(&s->kv, seq_new, &to) == 0 &&
        kv_slot(&s->kv, seq_old, &from) == 0)
        memcpy(history_of(s, to), history_of(s, from), n * sizeof *s->forward.in.history);
}

void sampling_place(struct stage *s, const struct item *it, const struct step_run *run,
                    size_t entry)
{
    struct forward *f = &s->forward;
    struct sample_params *p = &f->in.sample[entry];
    *p = run->sample;
    f->in.logprobs[entry] = run->n_logprobs;
    if ((size_t)run->n_logprobs > s->model->geometry.n_vocab && run->n_logprobs > 0)
        f->in.logprobs[entry] = (int32_t)s->model->geometry.n_vocab;
    p->history_row = f->in.row_sequence[run->row_first];
    if (f->in.biases != NULL && p->n_bias > 0)
        memcpy(f->in.biases + p->bias_first, it->biases + p->bias_first,
               (size_t)p->n_bias * sizeof *it->biases);
}

/* Rounded once; what has no mass at all is at -infinity. */
static double logprob(float logit, double norm)
{
    float value = (float)((double)logit - norm);
    return value == value ? (double)value : -(double)INFINITY;
}

void sampling_say(struct stage *s, const struct item *it, size_t entry, size_t in_pass)
{
    const struct forward *f = &s->forward;
    char list[LOGPROBS_MAX * 40] = "", number[40];
    size_t at = 0, first = in_pass * FORWARD_TOP_MAX;
    struct line_writer w;
    if (f->in.logprobs[entry] < 0)
        return;
    for (size_t i = 0; i < (size_t)f->in.logprobs[entry]; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%d:%.9g", i > 0 ? "," : "",
                               f->out.top_ids[first + i],
                               logprob(f->out.top_values[first + i], f->out.norms[in_pass]));
    (void)snprintf(number, sizeof number, "%.9g",
                   logprob(f->out.chosen[in_pass], f->out.norms[in_pass]));
    line_begin(&w, s->line, sizeof s->line, "PROB");
    line_u64(&w, "epoch", it->epoch);
    line_u64(&w, "step", it->step);
    line_u64(&w, "row", (uint64_t)f->in.head_index[entry]);
    line_key(&w, "logprob", number);
    if (at > 0)
        line_key(&w, "top", list);
    stage_say(s, &w);
}
