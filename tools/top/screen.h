/* tools/top/screen.h - the live view on a terminal: frames, keys and the clock, until q or a signal. */
#pragma once
#include "tools/top/feed.h"

#define SCREEN_INTERVAL_MIN 0.1
#define SCREEN_INTERVAL_MAX 60.0

/* Takes the terminal and gives it back as it was, whatever happens. A round of the feed is whole when it is called. Returns
 * the exit status: STATUS_DONE after q, STATUS_INTERRUPTED, STATUS_TERMINATED; STATUS_FAILED (err says why) where the
 * terminal is not known or cannot be written. */
int screen_run(struct feed *f, double interval_s, struct error *err);
