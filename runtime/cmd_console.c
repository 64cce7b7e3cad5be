/* runtime/cmd_console.c - stderr of a command: one progress line that renews itself, and whole lines for the rest.
 *
 * On a terminal the progress line is overwritten in place and wiped before anything else is said; elsewhere there are
 * only whole lines, without control characters. One thread (the engine's) calls all of it.
 */
#include "runtime/cmd_client.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define RENEW_MS 100

static double seconds_since(const struct timespec *then)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) / 1e9;
}

static enum console_level level_of(const char *name)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return (enum console_level)i;
    return CONSOLE_WARN;
}

void console_open(struct console *c, const char *log_level)
{
    memset(c, 0, sizeof *c);
    c->level = level_of(log_level);
    c->is_terminal = isatty(STDERR_FILENO) == 1;
    (void)clock_gettime(CLOCK_MONOTONIC, &c->began);
}

void console_wipe(struct console *c)
{
    if (c->n_shown > 0)
        fprintf(stderr, "\r%*s\r", (int)c->n_shown, "");
    c->n_shown = 0;
}

void console_say(struct console *c, enum console_level level, const char *format, ...)
{
    va_list args;
    if (level > c->level)
        return;
    console_wipe(c);
    fputs("ebbtide: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

static void log_line(void *ctx, const char *level, const char *text)
{
    console_say(ctx, level_of(level), "%s", text);
}

static void progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct console *c = ctx;
    double mib = (double)total / (1 << 20);
    if (done >= total) {
        console_wipe(c);
        console_say(c, CONSOLE_INFO, "%s: %.1f MiB in %.2f s", what, mib, seconds_since(&c->began));
        return;
    }
    if (!c->is_terminal || c->level < CONSOLE_WARN ||
        (c->n_shown > 0 && seconds_since(&c->shown_at) * 1000 < RENEW_MS))
        return;
    console_wipe(c);
    int n = fprintf(stderr, "ebbtide: %s: %.0f of %.0f MiB, %.0f %%", what,
                    (double)done / (1 << 20), mib, 100.0 * (double)done / (double)total);
    c->n_shown = n > 0 ? (size_t)n : 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &c->shown_at);
}

struct engine_events console_events(struct console *c)
{
    return (struct engine_events){.ctx = c, .progress = progress, .log = log_line};
}
