/* runtime/cmd_run.c - `ebbtide run`: one prompt in, its continuation out, a line of figures at the end.
 *
 * The prompt is the bare arguments, a file, stdin, or ids; exactly one of them. The caller's thread makes the request and
 * writes stdout; figures are told by the main thread when the engine has ended, so that they are stderr's last line.
 */
#include "runtime/commands.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cmd_client.h"

#define TAG "run"

struct run {
    const struct settings *s;
    char *prompt; /* owned; NULL: ids */
    size_t n_prompt;
    char *ids; /* owned; NULL: a prompt */
    struct output output;

    uint64_t n_cards;
    bool done; /* the figures below hold */
    uint64_t n_prompt_tokens, n_reused, n_generated, hits, lookups;
    double prefill_ms, decode_ms;
};

/* The shortest decimal that reads back the same: 0.7 goes out as 0.7. */
static void number_key(struct line_writer *w, const char *key, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    line_key(w, key, text);
}

static void penalties_write(const struct settings *s, struct line_writer *w)
{
    if (s->repeat_penalty != 1) {
        number_key(w, "repetition_penalty", s->repeat_penalty);
        line_u64(w, "repeat_last_n", s->repeat_last_n);
    }
    if (s->frequency_penalty != 0)
        number_key(w, "frequency_penalty", s->frequency_penalty);
    if (s->presence_penalty != 0)
        number_key(w, "presence_penalty", s->presence_penalty);
    if (s->logit_bias != NULL)
        line_key(w, "logit_bias", s->logit_bias);
    if (s->logprobs != NULL)
        line_key(w, "logprobs", s->logprobs);
}

static int gen_send(const struct settings *s, struct channel *c, struct error *err)
{
    char buffer[LINE_BYTES_MAX];
    struct line_writer w;
    line_begin(&w, buffer, sizeof buffer, "GEN");
    line_bare(&w, TAG);
    line_bare_i64(&w, s->max_new);
    if (s->temperature > 0) {
        number_key(&w, "temperature", s->temperature);
        number_key(&w, "top_p", s->top_p);
        number_key(&w, "min_p", s->min_p);
        line_u64(&w, "top_k", s->top_k);
        line_u64(&w, "seed", s->seed);
    }
    penalties_write(s, &w);
    if (s->ignore_eos)
        line_u64(&w, "ignore_eos", 1);
    return request_line(c, &w, err);
}

static void figures_take(struct run *r, const struct message *m)
{
    r->n_prompt_tokens = event_u64(m, "prompt");
    r->n_reused = event_u64(m, "reused");
    r->n_generated = event_u64(m, "generated");
    r->hits = event_u64(m, "hits");
    r->lookups = event_u64(m, "lookups");
    r->prefill_ms = event_f64(m, "prefill_ms");
    r->decode_ms = event_f64(m, "decode_ms");
    r->done = true;
}

static int answer_read(struct run *r, struct channel *c, struct error *err)
{
    struct message m;
    for (;;) {
        int code = event_next(c, &m, err);
        if (code == 0)
            code = output_event(&r->output, &m, err);
        if (code != 0)
            return code;
        if (strcmp(m.verb, "INFO") == 0)
            r->n_cards = event_u64(&m, "cards");
        if (strcmp(m.verb, "DONE") == 0) {
            figures_take(r, &m);
            return event_done(&m, err);
        }
    }
}

static int speak(void *ctx, struct channel *c, struct error *err)
{
    struct run *r = ctx;
    struct error ignored;
    int code;
    if (r->ids != NULL)
        code = request_ids(c, TAG, r->ids, err);
    else
        code = request_text(c, TAG, r->s, r->prompt, r->n_prompt, err);
    if (code == 0)
        code = gen_send(r->s, c, err);
    if (code == 0)
        code = answer_read(r, c, err);
    if (code == 0)
        return output_end(&r->output, err);
    (void)output_end(&r->output, &ignored);
    return code;
}

/* " 412 tok/s", or nothing where no time was measured. */
struct rate {
    char text[32];
};
static struct rate rate_of(uint64_t n, double ms)
{
    struct rate r = {""};
    if (n > 0 && ms > 0)
        (void)snprintf(r.text, sizeof r.text, " %.0f tok/s", (double)n * 1000.0 / ms);
    return r;
}

/* The first token is the prompt's work, so decoding is measured from it: over one token less. */
static void figures_say(const struct run *r, struct console *console)
{
    uint64_t n_decoded = r->n_generated > 0 ? r->n_generated - 1 : 0;
    char hits[32] = "";
    if (!r->done)
        return;
    if (r->lookups > 0)
        (void)snprintf(hits, sizeof hits, ", expert hits %.1f %%",
                       100.0 * (double)r->hits / (double)r->lookups);
    console_say(console, CONSOLE_WARN,
                "%" PRIu64 " prompt tokens%s, %" PRIu64 " generated%s%s, %" PRIu64 " card%s%s%s%s",
                r->n_prompt_tokens, rate_of(r->n_prompt_tokens - r->n_reused, r->prefill_ms).text,
                r->n_generated, rate_of(n_decoded, r->decode_ms).text, hits, r->n_cards,
                r->n_cards == 1 ? "" : "s", r->s->cards_auto ? " (auto: " : "", r->s->auto_cards,
                r->s->cards_auto ? ")" : "");
}

/* The one source of the prompt: false with what is wrong in err. */
static int source_check(const struct settings *s, size_t n_bare, struct error *err)
{
    size_t n_sources =
        (n_bare > 0) + (s->prompt_file != NULL) + (s->ids != NULL) + (s->ids_file != NULL);
    if (n_bare > 1)
        return error_set(err, EBB_EINVAL, "wanted one prompt, got %zu arguments: put it in quotes",
                         n_bare);
    if (n_sources != 1)
        return error_set(err, EBB_EINVAL,
                         "wanted one prompt (an argument, -f FILE, --ids or --ids-file), got %zu",
                         n_sources);
    if (s->chat && (s->ids != NULL || s->ids_file != NULL))
        return error_set(err, EBB_EINVAL, "--chat: wanted text as the prompt, got ids");
    return 0;
}

static int prompt_take(struct run *r, const char *bare, struct error *err)
{
    if (bare != NULL && strcmp(bare, "-") != 0) {
        r->prompt = strdup(bare);
        r->n_prompt = strlen(bare);
        return r->prompt != NULL ? 0 : error_set(err, EBB_ENOMEM, "out of memory for the prompt");
    }
    if (bare != NULL || r->s->prompt_file != NULL)
        return bytes_read(bare != NULL ? bare : r->s->prompt_file, &r->prompt, &r->n_prompt, err);
    return ids_read(r->s, &r->ids, err);
}

static int prompt_read(struct run *r, const char *bare, struct error *err)
{
    int code = prompt_take(r, bare, err);
    bool is_empty = r->ids != NULL ? r->ids[0] == '\0' : r->n_prompt == 0;
    if (code == 0 && is_empty && !r->s->chat)
        return error_set(err, EBB_EINVAL, "the prompt is empty: there is nothing to go on from");
    return code;
}

static int run_go(const struct settings *s, const char *bare)
{
    struct run r = {.s = s};
    struct console console;
    struct error err = {0};
    int code, status;
    console_open(&console, s->log_level);
    output_open(&r.output, s->output);
    code = prompt_read(&r, bare, &err);
    if (code == 0)
        code = engine_for_caller(s, &console, &(struct caller){speak, &r}, &err);
    status = engine_status(&console, code, &err);
    if (status != STATUS_FAILED)
        figures_say(&r, &console);
    free(r.prompt);
    free(r.ids);
    return status;
}

int command_run_run(const struct command *c, int argc, char **argv)
{
    char *bare[argc + 1];
    size_t n_bare;
    struct settings s;
    struct error err = {0};
    int status;
    if (command_settings(c, &s, argc, argv, bare, &n_bare, &status)) {
        if (source_check(&s, n_bare, &err) != 0)
            status = command_misused(c, err.text);
        else
            status = run_go(&s, n_bare > 0 ? bare[0] : NULL);
    }
    settings_free(&s);
    return status;
}
