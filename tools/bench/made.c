/* tools/bench/made.c - makes a model by tools/make-model into a temporary file, and takes it away.
 *
 * The paths of files that are there stand in a table that a signal's handler reads: unlink() and _exit() are all it does.
 * A path gets its place before the file gets its name.
 */
#include "tools/bench/made.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/make-model/output.h"

#define MADE_MAX 2

static char paths[MADE_MAX][MADE_PATH_BYTES]; /* "": none */
static unsigned n_made;

static void on_signal(int number)
{
    for (size_t i = 0; i < MADE_MAX; i++)
        if (paths[i][0] != '\0')
            (void)unlink(paths[i]);
    _exit(128 + number);
}

void made_watch_signals(void)
{
    struct sigaction stop = {.sa_handler = on_signal};
    sigemptyset(&stop.sa_mask);
    (void)sigaction(SIGINT, &stop, NULL);
    (void)sigaction(SIGTERM, &stop, NULL);
    (void)sigaction(SIGHUP, &stop, NULL);
}

/* A free place in the table, with the path of a new file in it. */
static char *place_take(const char *shape)
{
    const char *folder = getenv("TMPDIR");
    for (size_t i = 0; i < MADE_MAX; i++)
        if (paths[i][0] == '\0') {
            (void)snprintf(paths[i], sizeof paths[i], "%s/ebbtide-bench-%ld-%u-%s.gguf",
                           folder != NULL && folder[0] != '\0' ? folder : "/tmp", (long)getpid(),
                           n_made++, shape);
            return paths[i];
        }
    return NULL;
}

int made_model(char path[MADE_PATH_BYTES], const char *shape, uint32_t n_layers, struct error *err)
{
    static atomic_int never;
    struct layout_settings settings = {.seed = 1};
    const struct shape *found;
    struct layout l;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    char *place = place_take(shape);
    path[0] = '\0';
    if (place == NULL)
        return error_set(err, EBB_EBUSY, "two models are made already");
    struct output_settings output = {
        .path = place, .n_threads = n > 0 ? (int)n : 1, .stop = &never};
    int code = shape_find(&found, shape, err);
    if (code == 0)
        code = type_mix_find(&settings.mix, "q4_k_m", err);
    if (code == 0) {
        settings.shape = *found;
        settings.shape.n_layers = n_layers > 0 ? n_layers : found->n_layers;
        code = layout_open(&l, &settings, err);
    }
    if (code == 0) {
        code = output_write(&output, &l, err);
        layout_close(&l);
    }
    if (code == 0)
        memcpy(path, place, MADE_PATH_BYTES);
    else
        place[0] = '\0';
    return code;
}

void made_remove(char path[MADE_PATH_BYTES])
{
    for (size_t i = 0; i < MADE_MAX; i++)
        if (path[0] != '\0' && strcmp(paths[i], path) == 0) {
            (void)unlink(paths[i]);
            paths[i][0] = '\0';
        }
    path[0] = '\0';
}
