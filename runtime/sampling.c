/* runtime/sampling.c - a request's sampling settings, read and written (see sampling.h).
 *
 * Only settings travel: what penalties look back on, the last stage knows by itself. Refuses values outside the ranges
 * that GRAMMAR.md names.
 */
#include "runtime/sampling.h"
#include <stdio.h>

static int optional(int code)
{
    return code == EBB_ENOENT ? 0 : code;
}

static int penalties_read(const struct message *m, struct sampling *s, struct error *err)
{
    int code = optional(message_f64(m, "repetition_penalty", 0.01, 100, &s->repetition, err));
    if (code == 0)
        code = optional(message_u64(m, "repeat_last_n", 0, INT32_MAX, &s->n_repeat, err));
    if (code == 0)
        code = optional(message_f64(m, "frequency_penalty", -2, 2, &s->frequency, err));
    if (code == 0)
        code = optional(message_f64(m, "presence_penalty", -2, 2, &s->presence, err));
    return code;
}

static int biases_take(const struct message *m, uint32_t n_vocab, struct sampling *s,
                       struct error *err)
{
    const char *list = message_key(m, "logit_bias");
    struct error why = {0};
    int code =
        list == NULL ? 0 : biases_read(list, (int32_t)n_vocab - 1, s->biases, &s->n_biases, &why);
    return code == 0 ? 0 : error_set(err, code, "%s: logit_bias: %s", m->verb, why.text);
}

int sampling_read(const struct message *m, uint32_t n_vocab, struct sampling *s, struct error *err)
{
    *s = (struct sampling){.top_p = 1, .repetition = 1, .n_repeat = 64};
    int code = optional(message_f64(m, "temperature", 0, 100, &s->temperature, err));
    if (code == 0)
        code = optional(message_f64(m, "top_p", 0, 1, &s->top_p, err));
    if (code == 0)
        code = optional(message_u64(m, "top_k", 0, n_vocab, &s->top_k, err));
    if (code == 0)
        code = optional(message_f64(m, "min_p", 0, 1, &s->min_p, err));
    if (code == 0)
        code = optional(message_u64(m, "seed", 0, UINT64_MAX, &s->seed, err));
    if (code == 0)
        code = penalties_read(m, s, err);
    if (code == 0)
        code = biases_take(m, n_vocab, s, err);
    s->has_logprobs = message_key(m, "logprobs") != NULL;
    if (code == 0 && s->has_logprobs)
        code = message_u64(m, "logprobs", 0, LOGPROBS_MAX, &s->n_logprobs, err);
    return code;
}

static void penalties_write(struct line_writer *w, const struct sampling *s, uint32_t n_prompt)
{
    if (s->repetition != 1) {
        line_f64(w, "repetition_penalty", s->repetition);
        line_u64(w, "repeat_last_n", s->n_repeat);
    }
    if (s->frequency != 0)
        line_f64(w, "frequency_penalty", s->frequency);
    if (s->presence != 0)
        line_f64(w, "presence_penalty", s->presence);
    if (s->frequency != 0 || s->presence != 0)
        line_u64(w, "prompt", n_prompt);
}

static void biases_write(struct line_writer *w, const struct sampling *s)
{
    char text[LOGIT_BIAS_MAX * 40];
    size_t at = 0;
    for (size_t i = 0; i < s->n_biases; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d:%.9g", i > 0 ? "," : "",
                               s->biases[i].id, (double)s->biases[i].bias);
    if (s->n_biases > 0)
        line_key(w, "logit_bias", text);
}

void sampling_write(struct line_writer *w, const struct sampling *s, uint32_t n_prompt)
{
    penalties_write(w, s, n_prompt);
    biases_write(w, s);
    if (s->has_logprobs)
        line_u64(w, "logprobs", s->n_logprobs);
    if (s->temperature <= 0)
        return;
    line_f64(w, "temperature", s->temperature);
    if (s->top_p < 1)
        line_f64(w, "top_p", s->top_p);
    if (s->top_k > 0)
        line_u64(w, "top_k", s->top_k);
    if (s->min_p > 0)
        line_f64(w, "min_p", s->min_p);
    line_u64(w, "seed", s->seed);
}
