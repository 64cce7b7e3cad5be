/* vmm/lock_file.h - a file of the runtime directory that processes of one user lock (flock) to take turns.
 *
 * The lock goes with the process that holds it, however that ends; the file stays behind. A directory or file that belongs to somebody
 * else, that others may write, or that is a symbolic link, is refused. Threads: one owner; several of one process exclude each other.
 */
#pragma once
#include <limits.h>
#include "protocol/error.h"

struct lock_file {
    char directory[PATH_MAX];
    char file[192]; /* name inside the directory */
    int fd;         /* owned; -1 = closed */
};

/* Opens or makes `file` in `directory` (NULL: $XDG_RUNTIME_DIR/ebbtide, else /tmp/ebbtide-<uid>), which is made too. EBB_EINVAL (a name
 * or path that is too long), EBB_EDRIVER. */
int lock_file_open(struct lock_file *l, const char *directory, const char *file, struct error *err);
/* 1: locked, and the file is the one that has the name now (one that was removed is made anew). 0: somebody else holds it.
 * EBB_EDRIVER. Never waits. */
int lock_file_try(struct lock_file *l, struct error *err);
void lock_file_release(struct lock_file *l);
void lock_file_close(struct lock_file *l); /* fd -1 is fine */
