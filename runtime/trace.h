/* runtime/trace.h - one picture of a run (--trace FILE): the stages' files of spans, made into one file of Chrome's trace format.
 *
 * Every stage writes FILE.stage<N> while it runs (stages/trace.h). When all have ended, trace_merge() makes FILE of them, a process
 * for each stage and a thread for each of its tracks, and removes them. Format: the object form of "Trace Event Format", complete
 * events ("ph": "X") and metadata; ts and dur in microseconds. chrome://tracing and Perfetto read it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#define TRACE_PATH_MAX 4096

/* FILE can be written; what an earlier run left beside it is gone. EBB_EIO, EBB_ERANGE (a path too long). */
int trace_prepare(const char *path, uint32_t n_stages, struct error *err);
/* EBB_ERANGE: it does not fit. */
int trace_stage_path(const char *path, uint32_t stage, char *out, size_t room, struct error *err);
/* *n_lost: spans that had no room. A stage without a file, or one that was killed, is told in FILE. EBB_EIO, EBB_ENOMEM; the
 * stages' files are then left where they are. */
int trace_merge(const char *path, uint32_t n_stages, uint64_t *n_lost, struct error *err);
