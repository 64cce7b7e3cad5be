/* runtime/trace.c - reads the stages' lines of spans and writes one JSON file (trace.h).
 *
 * Runs when no stage lives any more, so nothing is in a hurry. The files are another process's: a line that breaks its form is
 * passed over. Owns: the JSON tree, until it is written.
 */
#include "runtime/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol/message.h"

static const char *const tracks[] = {"control", "compute", "upload", "link", "vram"};
static const char *const track_words[] = {"control thread", "compute stream", "upload stream",
                                          "link tiles", "VRAM commands"};
#define N_TRACKS (sizeof tracks / sizeof tracks[0])

struct merge {
    json_t *events; /* borrowed from the whole */
    uint32_t stage;
    uint64_t n_lost;
    bool is_named, has_ended;
};

int trace_stage_path(const char *path, uint32_t stage, char *out, size_t room, struct error *err)
{
    int n = snprintf(out, room, "%s.stage%" PRIu32, path, stage);
    return n > 0 && (size_t)n < room
               ? 0
               : error_set(err, EBB_ERANGE, "--trace: a path of more than %zu bytes", room - 1);
}

int trace_prepare(const char *path, uint32_t n_stages, struct error *err)
{
    char part[TRACE_PATH_MAX];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_set(err, EBB_EIO, "--trace: %s: %s", path, strerror(errno));
    (void)close(fd);
    for (uint32_t i = 0; i < n_stages; i++) {
        int code = trace_stage_path(path, i, part, sizeof part, err);
        if (code != 0)
            return code;
        (void)unlink(part);
    }
    return 0;
}

static int metadata(struct merge *m, const char *what, size_t track, json_t *args)
{
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:o}", "name", what, "ph", "M", "pid",
                              (int)m->stage, "tid", (int)track, "args", args);
    return event == NULL ? EBB_ENOMEM : json_array_append_new(m->events, event);
}

/* STAGE: what the process and its threads are called. A stage that was started again says it again. */
static int stage_take(struct merge *m, const struct message *line)
{
    char name[256], words[512];
    size_t n = 0;
    const char *layers = message_key(line, "layers"), *kind = message_key(line, "kind");
    if (m->is_named || message_text(line, "name", name, sizeof name - 1, &n, NULL) != 0)
        return 0;
    name[n] = '\0';
    m->is_named = true;
    (void)snprintf(words, sizeof words, "stage %" PRIu32 ": layers %s, %s (%s)", m->stage,
                   layers != NULL ? layers : "?", kind != NULL ? kind : "?", name);
    int code = metadata(m, "process_name", 0, json_pack("{s:s}", "name", words));
    if (code == 0)
        code =
            metadata(m, "process_sort_index", 0, json_pack("{s:i}", "sort_index", (int)m->stage));
    for (size_t i = 0; code == 0 && i < N_TRACKS; i++)
        code = metadata(m, "thread_name", i, json_pack("{s:s}", "name", track_words[i]));
    return code;
}

/* Keys of a SPAN that are not the event's own. */
static json_t *span_args(const struct message *line)
{
    static const char *const own[] = {"track", "at", "us", "name"};
    json_t *args = json_object();
    for (size_t i = line->n_bare; args != NULL && i < line->n_fields; i++) {
        const struct message_field *f = &line->fields[i];
        bool is_own = false;
        char *end;
        for (size_t j = 0; j < sizeof own / sizeof own[0]; j++)
            is_own = is_own || strcmp(f->key, own[j]) == 0;
        long long value = strtoll(f->value, &end, 10);
        json_t *json =
            end != f->value && *end == '\0' ? json_integer(value) : json_string(f->value);
        if (is_own)
            json_decref(json);
        else if (json_object_set_new(args, f->key, json) != 0)
            json_decref(args), args = NULL;
    }
    return args;
}

static int span_take(struct merge *m, const struct message *line)
{
    const char *track = message_key(line, "track"), *name = message_key(line, "name");
    uint64_t at, us;
    size_t i = 0;
    while (i < N_TRACKS && (track == NULL || strcmp(track, tracks[i]) != 0))
        i++;
    if (i == N_TRACKS || name == NULL || message_u64(line, "at", 0, INT64_MAX, &at, NULL) != 0 ||
        message_u64(line, "us", 0, INT64_MAX, &us, NULL) != 0)
        return 0;
    json_t *args = span_args(line);
    json_t *event = json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:o}", "name", name, "cat",
                              track, "ph", "X", "pid", (int)m->stage, "tid", (int)i, "ts",
                              (json_int_t)at, "dur", (json_int_t)us, "args", args);
    return event == NULL ? EBB_ENOMEM : json_array_append_new(m->events, event);
}

static int line_take(struct merge *m, char *text, size_t n_bytes)
{
    static struct message line;
    uint64_t lost = 0;
    if (message_parse(&line, text, n_bytes, NULL) != 0)
        return 0;
    if (strcmp(line.verb, "SPAN") == 0)
        return span_take(m, &line);
    if (strcmp(line.verb, "STAGE") == 0) {
        m->has_ended = false;
        return stage_take(m, &line);
    }
    if (strcmp(line.verb, "LOST") == 0 &&
        message_u64(&line, "spans", 0, INT64_MAX, &lost, NULL) == 0) {
        m->n_lost += lost;
        m->has_ended = true;
    }
    return 0;
}

/* A file's lines. One that is not there, or whose last stage did not end as it should, is told among the notes. */
static int file_take(struct merge *m, const char *path, json_t *notes)
{
    char *text = NULL, words[TRACE_PATH_MAX + 128];
    size_t room = 0;
    ssize_t n;
    int code = 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && code == 0 && (n = getline(&text, &room, file)) > 0) {
        bool is_whole = text[n - 1] == '\n'; /* a killed stage's last one may not be */
        text[n - is_whole] = '\0';
        if (is_whole)
            code = line_take(m, text, (size_t)n - 1);
    }
    free(text);
    if (file == NULL || !m->has_ended) {
        (void)snprintf(words, sizeof words, "stage %" PRIu32 ": %s", m->stage,
                       file == NULL ? strerror(errno)
                                    : "it did not end as it should: its last spans are missing");
        code = code != 0 ? code : json_array_append_new(notes, json_string(words));
    }
    if (file != NULL)
        (void)fclose(file);
    return code;
}

int trace_merge(const char *path, uint32_t n_stages, uint64_t *n_lost, struct error *err)
{
    static const char clock_words[] = "microseconds of CLOCK_MONOTONIC; work on a stream begins "
                                      "when the control thread put it there and ends when that "
                                      "thread saw that it had ended";
    char part[TRACE_PATH_MAX];
    json_t *events = json_array(), *notes = json_array();
    json_t *whole = json_pack("{s:o, s:s, s:{s:s, s:o}}", "traceEvents", events, "displayTimeUnit",
                              "ms", "otherData", "clock", clock_words, "notes", notes);
    int code = whole != NULL ? 0 : EBB_ENOMEM;
    *n_lost = 0;
    for (uint32_t i = 0; code == 0 && i < n_stages; i++) {
        struct merge m = {.events = events, .stage = i};
        code = trace_stage_path(path, i, part, sizeof part, err);
        if (code == 0 && file_take(&m, part, notes) != 0)
            code = EBB_ENOMEM;
        *n_lost += m.n_lost;
    }
    if (code == EBB_ENOMEM)
        (void)error_set(err, code, "--trace: no memory for it");
    if (code == 0 && json_object_set_new(json_object_get(whole, "otherData"), "lost",
                                         json_integer((json_int_t)*n_lost)) != 0)
        code = error_set(err, EBB_ENOMEM, "--trace: no memory for it");
    if (code == 0 && json_dump_file(whole, path, JSON_COMPACT) != 0)
        code = error_set(err, EBB_EIO, "--trace: %s: it could not be written", path);
    json_decref(whole);
    for (uint32_t i = 0; code == 0 && i < n_stages; i++)
        if (trace_stage_path(path, i, part, sizeof part, NULL) == 0)
            (void)unlink(part);
    return code;
}
