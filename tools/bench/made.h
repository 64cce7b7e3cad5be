/* tools/bench/made.h - models made for a run, in a temporary file that is gone afterwards, also after Ctrl-C. */
#pragma once
#include <stdint.h>
#include "protocol/error.h"

#define MADE_PATH_BYTES 4096

/* Fills path with the file's. n_layers 0: all of the shape. At most two at a time. */
int made_model(char path[MADE_PATH_BYTES], const char *shape, uint32_t n_layers, struct error *err);
void made_remove(char path[MADE_PATH_BYTES]); /* also of an empty path */

/* From then on SIGINT, SIGTERM and SIGHUP take the files away and end the program. */
void made_watch_signals(void);
