/* tools/kit/ask.c - one question to a running engine, and the whole answer.
 *
 * The reply owns a copy of every line twice: as it came, and cut up by the parser. Numbers of lines are bounded, because a
 * peer's answer is never trusted to end. An engine that says nothing for two minutes is told as an error.
 */
#include "tools/kit/kit.h"

#include <stdlib.h>
#include <string.h>

#define ANSWER_MS 120000

static bool is_verb(const char *line, const char *verb)
{
    size_t n_bytes = strlen(verb);
    return strncmp(line, verb, n_bytes) == 0 && (line[n_bytes] == ' ' || line[n_bytes] == '\0');
}

/* "ERR <tag> <code> <text>" as the error that it is; the line is taken apart. */
static int error_take(char *line, size_t n_bytes, struct error *err)
{
    struct message m;
    struct error said = {0};
    const char *tag;
    if (message_parse(&m, line, n_bytes, NULL) != 0 || !message_error(&m, &tag, &said))
        return error_set(err, EBB_EPEER, "the engine answered with an ERR that is none");
    return error_set(err, said.code, "%s", said.text);
}

static int reply_add(struct kit_reply *r, const char *line, size_t n_bytes, struct error *err)
{
    size_t i = r->n_lines;
    if (i == KIT_LINES_MAX)
        return error_set(err, EBB_EPEER, "the engine answered with more than %d lines",
                         KIT_LINES_MAX);
    r->lines[i] = strdup(line);
    r->copies[i] = strdup(line);
    r->n_lines++;
    if (r->lines[i] == NULL || r->copies[i] == NULL)
        return error_set(err, EBB_ENOMEM, "out of memory for the answer");
    return message_parse(&r->messages[i], r->copies[i], n_bytes, err);
}

static int reply_read(struct channel *c, const char *verb, struct kit_reply *r, struct error *err)
{
    char done[32], *line;
    size_t n_bytes;
    (void)snprintf(done, sizeof done, "%s-DONE", verb);
    for (;;) {
        int code = client_wait_line(c, ANSWER_MS, &line, &n_bytes, err);
        if (code != 0)
            return code;
        r->is_refused = is_verb(line, "ERR");
        if (r->is_refused)
            return error_take(line, n_bytes, err);
        if (is_verb(line, done)) {
            r->done = strdup(line);
            return r->done != NULL ? 0 : error_set(err, EBB_ENOMEM, "out of memory for the answer");
        }
        if (is_verb(line, verb) && (code = reply_add(r, line, n_bytes, err)) != 0)
            return code;
    }
}

int kit_connect(const struct kit_flags *f, struct channel *c, struct error *err)
{
    char path[4096];
    int code = client_find(f->control, f->name, path, sizeof path, err);
    if (code == 0)
        code = client_connect(c, path, err);
    if (code != 0)
        return code == EBB_ENOENT || code == EBB_EBUSY ? STATUS_NO_ENGINE : STATUS_FAILED;
    return STATUS_DONE;
}

int kit_ask_over(struct channel *c, const char *line, struct kit_reply *r, struct error *err)
{
    char verb[16];
    int code;
    memset(r, 0, sizeof *r);
    (void)snprintf(verb, sizeof verb, "%.*s", (int)strcspn(line, " "), line);
    r->messages = calloc(KIT_LINES_MAX, sizeof r->messages[0]);
    code = r->messages != NULL ? 0 : error_set(err, EBB_ENOMEM, "out of memory for the answer");
    if (code == 0)
        code = client_ask(c, line, err);
    if (code == 0)
        code = reply_read(c, strcmp(verb, "UNLEASE") == 0 ? "VRAM" : verb, r, err);
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

int kit_ask(const struct kit_flags *f, const char *line, struct kit_reply *r, struct error *err)
{
    struct channel c;
    memset(r, 0, sizeof *r);
    int status = kit_connect(f, &c, err);
    if (status != STATUS_DONE)
        return status;
    status = kit_ask_over(&c, line, r, err);
    channel_close(&c);
    return status;
}

void kit_places(const struct kit_flags *f, struct kit_reply *r)
{
    struct kit_reply plan;
    if (kit_ask(f, "PLAN", &plan, NULL) == STATUS_DONE) {
        for (size_t i = 0; i < r->n_lines; i++) {
            const char *device = message_key(&r->messages[i], "device");
            for (size_t k = 0; device != NULL && k < plan.n_lines; k++) {
                const char *of = message_key(&plan.messages[k], "device");
                const char *place = message_key(&plan.messages[k], "card");
                if (r->places[i] == NULL && of != NULL && place != NULL && strcmp(of, device) == 0)
                    r->places[i] = strdup(place);
            }
        }
    }
    kit_reply_free(&plan);
}

void kit_reply_free(struct kit_reply *r)
{
    for (size_t i = 0; i < r->n_lines; i++) {
        free(r->places[i]);
        free(r->lines[i]);
        free(r->copies[i]);
    }
    free(r->messages);
    free(r->done);
    memset(r, 0, sizeof *r);
}

void kit_reply_print(FILE *out, const struct kit_reply *r)
{
    for (size_t i = 0; i < r->n_lines; i++)
        fprintf(out, "%s\n", r->lines[i]);
    if (r->done != NULL)
        fprintf(out, "%s\n", r->done);
}
