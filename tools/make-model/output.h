/* tools/make-model/output.h - writes a laid-out model to a file, by several threads, all or nothing.
 *
 * The file has no name until it is whole and the model reader has opened it: a failure, a stop or a kill leaves nothing.
 * (Where the file system cannot do that it has a name of its own, which is taken away on failure and on a stop.)
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include "tools/make-model/layout.h"

struct output_settings {
    const char *path;
    bool replace; /* a file of that name may be there */
    int n_threads;
    atomic_int *stop;                            /* not 0: give up. A signal's handler may set it */
    void (*progress)(size_t done, size_t total); /* from one thread, some times a second; NULL */
};

/* EBB_EINVAL (something is there), EBB_ENOMEM (no room on the disk, or no memory), EBB_EIO, EBB_ECANCEL, or what the
 * reader said of the finished file. */
int output_write(const struct output_settings *o, const struct layout *l, struct error *err);
