/* runtime/launch.c - expands the launch template.
 *
 * Everything is built before the fork, in one owned text, because a child of a process with threads
 * may only exec. Values that reach a shell are quoted; a host and a card's name were checked by the
 * settings. The executable is looked for beside this program (/proc/self/exe), so that a build tree
 * and an installation both find their own.
 */
#include "runtime/launch.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAUNCH_TEXT_MAX 32768

struct text {
    char *bytes;
    size_t n, capacity;
    bool overflow;
};

static void text_add(struct text *t, const char *bytes, size_t n_bytes)
{
    if (n_bytes >= t->capacity - t->n) {
        t->overflow = true;
        return;
    }
    memcpy(t->bytes + t->n, bytes, n_bytes);
    t->n += n_bytes;
    t->bytes[t->n] = '\0';
}

static void text_put(struct text *t, const char *string)
{
    text_add(t, string, strlen(string));
}

static void text_quoted(struct text *t, const char *string)
{
    text_put(t, "'");
    for (const char *c = string; *c != '\0'; c++) {
        if (*c == '\'')
            text_put(t, "'\\''");
        else
            text_add(t, c, 1);
    }
    text_put(t, "'");
}

void card_label(const struct card_setting *card, char *label, size_t capacity)
{
    (void)snprintf(label, capacity, "%s:%" PRIu32 "%s%s", card->kind == CARD_CUDA ? "cuda" : "cpu",
                   card->ordinal, card->host[0] != '\0' ? "@" : "", card->host);
}

int launch_program(const struct card_setting *card, char *path, size_t capacity, struct error *err)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return error_set(err, EBB_EIO, "cannot read /proc/self/exe to find the stage's program");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL)
        *slash = '\0';
    (void)snprintf(path, capacity, "%s/ebbtide-stage-%s", self,
                   card->kind == CARD_CUDA ? "cuda" : "cpu");
    if (card->host[0] == '\0' && access(path, X_OK) != 0)
        return error_set(err, EBB_ENOENT,
                         "%s: not found or not executable: the stage's program stands beside this "
                         "one%s",
                         path, card->kind == CARD_CUDA ? " where it was built with nvcc" : "");
    return 0;
}

/* The stage's words: program, --device n, … */
struct stage_words {
    char path[PATH_MAX + 32], ordinal[16], vram[24];
    const char *words[LAUNCH_ARGS_MAX];
    size_t n;
};

static void words_fill(struct stage_words *w, const struct settings *s,
                       const struct card_setting *card, uint64_t vram_mib)
{
    (void)snprintf(w->ordinal, sizeof w->ordinal, "%" PRIu32, card->ordinal);
    (void)snprintf(w->vram, sizeof w->vram, "%" PRIu64, vram_mib);
    w->words[w->n++] = w->path;
    w->words[w->n++] = "--device";
    w->words[w->n++] = w->ordinal;
    if (vram_mib > 0) {
        w->words[w->n++] = "--vram-mib";
        w->words[w->n++] = w->vram;
    }
    if (s->name_space != NULL && s->name_space[0] != '\0' && card->kind == CARD_CPU) {
        w->words[w->n++] = "--namespace";
        w->words[w->n++] = s->name_space;
    }
}

static int placeholder_put(struct text *t, const char **cursor, const struct stage_words *w,
                           const struct card_setting *card, struct error *err)
{
    char label[160], *at;
    if (strncmp(*cursor, "{stage}", 7) == 0) {
        for (size_t i = 0; i < w->n; i++) {
            text_put(t, i > 0 ? " " : "");
            text_quoted(t, w->words[i]);
        }
        *cursor += 7;
        return 0;
    }
    card_label(card, label, sizeof label);
    at = strchr(label, '@');
    if (strncmp(*cursor, "{host}", 6) == 0) {
        if (card->host[0] == '\0')
            return error_set(err, EBB_EINVAL,
                             "launch: {host} is asked for, but card %s has none (write %s@host)",
                             label, label);
        text_put(t, card->host);
        *cursor += 6;
        return 0;
    }
    if (strncmp(*cursor, "{card}", 6) == 0) {
        if (at != NULL)
            *at = '\0';
        text_put(t, label);
        *cursor += 6;
        return 0;
    }
    text_add(t, (*cursor)++, 1); /* a brace of the shell's own */
    return 0;
}

static int template_expand(struct launch *l, struct text *t, const char *template,
                           const struct stage_words *w, const struct card_setting *card,
                           struct error *err)
{
    text_put(t, "exec ");
    for (const char *c = template; *c != '\0';) {
        if (*c == '{') {
            int code = placeholder_put(t, &c, w, card, err);
            if (code != 0)
                return code;
        } else {
            text_add(t, c++, 1);
        }
    }
    l->argv[0] = "/bin/sh";
    l->argv[1] = "-c";
    l->argv[2] = t->bytes;
    return 0;
}

/* argv of the executable itself: the words one after another in the text. */
static void words_lay_out(struct launch *l, struct text *t, const struct stage_words *w)
{
    for (size_t i = 0; i < w->n; i++) {
        l->argv[i] = t->bytes + t->n;
        text_add(t, w->words[i], strlen(w->words[i]) + 1);
    }
}

int launch_open(struct launch *l, const struct settings *s, const struct card_setting *card,
                uint64_t vram_mib, struct error *err)
{
    const char *template = card->launch[0] != '\0' ? card->launch
                           : s->launch != NULL     ? s->launch
                                                   : "{stage}";
    struct stage_words w = {.n = 0};
    int code = 0;
    *l = (struct launch){.text = malloc(LAUNCH_TEXT_MAX)};
    if (l->text == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a launch command");
    struct text t = {.bytes = l->text, .capacity = LAUNCH_TEXT_MAX};
    if (template[strspn(template, " ")] == '\0')
        code = error_set(err, EBB_EINVAL,
                         "launch: an empty template; wanted a command such as \"{stage}\"");
    if (code == 0 && strstr(template, "{stage}") != NULL)
        code = launch_program(card, w.path, sizeof w.path, err);
    words_fill(&w, s, card, vram_mib);
    if (code == 0 && strcmp(template, "{stage}") == 0)
        words_lay_out(l, &t, &w);
    else if (code == 0)
        code = template_expand(l, &t, template, &w, card, err);
    if (code == 0 && t.overflow)
        code = error_set(err, EBB_ERANGE, "launch: the command is longer than %d bytes",
                         LAUNCH_TEXT_MAX);
    if (code != 0)
        launch_close(l);
    return code;
}

void launch_close(struct launch *l)
{
    free(l->text);
    *l = (struct launch){0};
}
