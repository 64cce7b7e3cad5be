/* runtime/supervisor.h - child processes: start one with pipes, learn of its death, end it for
 * certain.
 *
 * A child leads a process group of its own (the terminal's Ctrl-C is the coordinator's to handle),
 * inherits three descriptors and no other, and is killed by the kernel when the thread that started
 * it dies. Its stderr comes through a pipe too, so that its last words can be told. Threads: start
 * and end a process on one thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "protocol/error.h"

struct process {
    pid_t pid;  /* 0: none */
    int pidfd;  /* readable once it is dead; -1: the kernel has none */
    int fd_in;  /* its stdin, to write; -1: handed to a channel or closed */
    int fd_out; /* its stdout, to read */
    int fd_err; /* its stderr, to read, non-blocking */
};

/* EBB_EIO: no pipe, no process; EBB_ENOENT: argv[0] cannot be run (its errno in the text). */
int process_start(struct process *p, char *const argv[], struct error *err);
bool process_is_dead(
    struct process *p, char *how,
    size_t capacity); /* reaps; `how`: "exited with status 3", "killed by signal 9" */
void process_signal(const struct process *p, int signal); /* to its whole group */
void process_close_fds(struct process *p);
/* Waits up to wait_ms for all to die by themselves, then SIGTERM and term_ms, then SIGKILL; all are
 * reaped afterwards. */
void process_end_all(struct process **processes, size_t n, int wait_ms, int term_ms);
