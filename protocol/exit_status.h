/* protocol/exit_status.h - how every program of this project ends, in one table that every --help prints.
 *
 * Scripts rely on these numbers. Header-only: the engine's commands and the tools share it and nothing else. A program
 * killed by a signal it does not catch ends as its shell says (128 + signal), which is what the last two rows are too.
 */
#pragma once
#include <stddef.h>
#include <stdio.h>

enum exit_status {
    STATUS_DONE = 0,
    STATUS_FAILED = 1,
    STATUS_USAGE = 2,
    STATUS_NO_ENGINE = 3,
    STATUS_SHORTFALL = 4,
    STATUS_REFUSED = 5,
    STATUS_INTERRUPTED = 130,
    STATUS_TERMINATED = 143,
};

static inline void exit_status_help(FILE *out)
{
    static const struct {
        int status;
        const char *means;
    } rows[] = {
        {STATUS_DONE, "done"},
        {STATUS_FAILED, "the run failed, or the model file is bad; one line on stderr says what"},
        {STATUS_USAGE, "bad usage: a command, flag or argument; nothing was started"},
        {STATUS_NO_ENGINE,
         "no running engine was found, or several (vram, leases, stat, top, ...)"},
        {STATUS_SHORTFALL, "served, but less memory is free than was asked for (ebbtide vram)"},
        {STATUS_REFUSED,
         "the engine refused, the command was not run (ebbtide vram ... -- COMMAND)"},
        {STATUS_INTERRUPTED, "interrupted (SIGINT)"},
        {STATUS_TERMINATED, "terminated (SIGTERM)"},
    };
    fputs("\nExit status\n", out);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(out, "  %3d  %s\n", rows[i].status, rows[i].means);
}
