/* runtime/stop_match.h - where a text ends: stop strings matched over the decoded bytes, across
 * token borders.
 *
 * Bytes go in piece by piece; out come bytes that can no longer be part of a stop string. What
 * could still become one is held back. Pure. Lifetime: stop strings are copied at add; nothing is
 * allocated afterwards except when a piece is larger than any before.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/error.h"

#define STOP_STRINGS_MAX 16
#define STOP_BYTES_MAX   256

struct stop_match {
    char *strings[STOP_STRINGS_MAX]; /* owned */
    size_t lengths[STOP_STRINGS_MAX], n_strings;
    char *held; /* owned: bytes not let out yet */
    size_t n_held, capacity;
};

void stop_match_close(struct stop_match *m);
int stop_match_add(struct stop_match *m, const char *string, size_t n_bytes, struct error *err);

/* Takes a piece. *out (valid until the next call) are the bytes let out, *n_out how many. true: a
 * stop string was met; out is what stands before it, and nothing is held any more. EBB_ENOMEM comes
 * as true with nothing let out. */
bool stop_match_feed(struct stop_match *m, const char *piece, size_t n_bytes, const char **out,
                     size_t *n_out);
/* The end without a match: what was held. */
void stop_match_flush(struct stop_match *m, const char **out, size_t *n_out);
