/* tools/vram/lend.h - a command that runs on memory lent to it.
 *
 * The lease is bound to this process's connection: it ends when the command has ended, and with this process whatever kills it.
 */
#pragma once
#include "tools/kit/kit.h"

struct lend {
    const struct kit_flags *flags;
    const char *line;  /* the VRAM line, with conn=1 */
    char **command;    /* ends with NULL */
    bool takes_partly; /* a shortfall does not hinder */
};

/* Takes the lease, runs the command with SIGINT and SIGTERM passed on, gives back. The status to end with: the command's own, 128 and
 * its signal, 126 or 127 where it cannot be started; or, where it was not run, STATUS_SHORTFALL, STATUS_REFUSED, STATUS_NO_ENGINE,
 * STATUS_FAILED. What went wrong is said on stderr. */
int lend_run(const struct lend *l);
