/* runtime/cmd_score.c - `ebbtide score`: what the model thinks comes next, after every position of a text.
 *
 * One SCORE request; a line of stdout per LOGITS event: the position, then id and logit of the largest, 9 significant
 * digits, which bring any float back. Nothing else goes to stdout.
 */
#include "runtime/commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cmd_client.h"

#define TAG "score"

struct score {
    const struct settings *s;
    char *ids; /* owned; NULL: text */
};

/* "5:1.25,6:0.5" as " 5 1.25 6 0.5"; cut in place. */
static int top_print(char *top)
{
    for (char *pair; (pair = strsep(&top, ",")) != NULL;) {
        char *id = strsep(&pair, ":"), *end;
        if (pair == NULL)
            return EBB_EPEER;
        float logit = strtof(pair, &end);
        if (*end != '\0' || end == pair)
            return EBB_EPEER;
        printf(" %s %.9g", id, (double)logit);
    }
    return 0;
}

static int logits_print(const struct message *m, struct error *err)
{
    const char *position = message_bare(m, 1), *top = message_key(m, "top");
    char pairs[LINE_BYTES_MAX];
    if (position == NULL || top == NULL)
        return error_set(err, EBB_EPEER, "LOGITS: wanted a position and top=, got neither or one");
    (void)snprintf(pairs, sizeof pairs, "%s", top);
    printf("%s", position);
    if (top_print(pairs) != 0)
        return error_set(err, EBB_EPEER, "LOGITS: wanted pairs like 5:1.25 in top=, got others");
    putchar('\n');
    return 0;
}

static int request_send(const struct score *score, struct channel *c, struct error *err)
{
    const char *text = score->s->prompt;
    char buffer[256];
    struct line_writer w;
    int code = score->ids != NULL ? request_ids(c, TAG, score->ids, err)
                                  : request_text(c, TAG, score->s, text, strlen(text), err);
    if (code != 0)
        return code;
    line_begin(&w, buffer, sizeof buffer, "SCORE");
    line_bare(&w, TAG);
    line_u64(&w, "top", score->s->score_top);
    return request_line(c, &w, err);
}

static int speak(void *ctx, struct channel *c, struct error *err)
{
    struct message m;
    int code = request_send(ctx, c, err);
    for (bool done = false; code == 0 && !done;) {
        code = event_next(c, &m, err);
        if (code == 0 && strcmp(m.verb, "LOGITS") == 0)
            code = logits_print(&m, err);
        if (code == 0 && strcmp(m.verb, "DONE") == 0) {
            done = true;
            code = event_done(&m, err);
        }
    }
    if (fflush(stdout) != 0 && code == 0)
        code = error_set(err, EBB_EIO, "stdout: %s", strerror(errno));
    return code;
}

static int score_go(const struct settings *s)
{
    struct score score = {.s = s};
    struct console console;
    struct error err = {0};
    int code = 0, status;
    console_open(&console, s->log_level);
    if (s->prompt == NULL)
        code = ids_read(s, &score.ids, &err);
    if (code == 0)
        code = engine_for_caller(s, &console, &(struct caller){speak, &score}, &err);
    status = engine_status(&console, code, &err);
    free(score.ids);
    return status;
}

int command_score_run(const struct command *c, int argc, char **argv)
{
    char *bare[argc + 1];
    size_t n_bare;
    struct settings s;
    int status;
    if (command_settings(c, &s, argc, argv, bare, &n_bare, &status)) {
        int n_sources = (s.ids != NULL) + (s.ids_file != NULL) + (s.prompt != NULL);
        if (n_bare > 0)
            status = command_misused(c, "score: wanted --text for a text, got a bare argument");
        else if (n_sources != 1)
            status = command_misused(c, "score: wanted one of --ids, --ids-file and --text");
        else
            status = score_go(&s);
    }
    settings_free(&s);
    return status;
}
