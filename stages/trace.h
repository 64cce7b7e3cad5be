/* stages/trace.h - what a stage did and when, as lines of a file (LOAD trace=), for a picture of a run.
 *
 * A span is one line of the line protocol's form: `SPAN track= at= us= name= …`, at in microseconds of CLOCK_MONOTONIC, which all
 * processes of a host share. The file begins with a STAGE line and ends with a LOST line; the coordinator makes one picture of all
 * stages' files. Times are the control thread's: work on a stream begins when it was put there and ends when the thread saw that
 * it had ended, so what waits behind other work on a card looks longer than it computed.
 *
 * Lines gather in a buffer made at LOAD and go to the file when the stage has nothing to do, or when the buffer is nearly full; so
 * a stage that dies leaves all but the last of it. What has no room, in the buffer or in a file of TRACE_FILE_MAX bytes, is counted.
 * Off (all zero) it costs a look at a pointer. Threads: the control thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#define TRACE_BUFFER_BYTES (1u << 20)
#define TRACE_FILE_MAX     (16u << 20)

/* Spans of one track never overlap but by lying inside each other. */
enum trace_track { TRACE_CONTROL, TRACE_COMPUTE, TRACE_UPLOAD, TRACE_LINK, TRACE_VRAM };

struct trace {
    char *buffer; /* owned [TRACE_BUFFER_BYTES]; NULL: off */
    size_t n_used;
    int fd;
    uint64_t file_bytes, n_lost;
    /* What is on the compute stream, one piece at a time: layers first..last, or no layers where first > last. */
    const char *piece;
    uint64_t piece_us, upload_us, upload_bytes, upload_promoted, phase_us, moves_us;
    size_t piece_first, piece_last;
};

/* Appends to the file: a stage that was started again goes on where its predecessor ended. `head`: the STAGE line, with its LF.
 * EBB_EIO, EBB_ENOMEM. */
int trace_open(struct trace *t, const char *path, const char *head, struct error *err);
void trace_close(struct trace *t); /* also of one that is off */
static inline bool trace_is_on(const struct trace *t)
{
    return t->buffer != NULL;
}
/* The format makes `name=… key=value …`: words and numbers that need no encoding. Nothing happens where it is off. */
void trace_span(struct trace *t, enum trace_track track, uint64_t begin_us, uint64_t end_us,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
void trace_flush(struct trace *t);
