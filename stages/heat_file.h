/* stages/heat_file.h - the heat of a model's experts in a file, so that the next start begins with the experts that were hot.
 *
 * One file holds all layers of one model, whatever the split: a stage reads the lines of its own layers at LOAD, and at its end
 * writes its own anew and keeps the others'. Lines as in the protocol, heat in thousandths of a use:
 *
 *     EBBTIDE-HEAT version=1 fingerprint=<16 hex> layers=<n> experts=<n>
 *     HEAT layer=<n> milli=<one number per expert: 1500,0,…>           one per layer with routed experts
 *     END lines=<n>
 *
 * Nothing of a file counts before its last line was read and everything fits the model; a file that is not whole and this model's
 * is never written over. Writing goes to a temporary file beside it that takes its name; stages that end at the same time take
 * turns by a lock on the file.
 */
#pragma once
#include "stages/experts.h"

/* Adds the heat of the stage's layers to its cache. 0; EBB_ENOENT: there is no file yet, or it is empty; EBB_EIO, EBB_EFORMAT,
 * EBB_EMISMATCH (another model's), EBB_ENOMEM: err names file, line, wanted and got, and no heat was changed. */
int heat_file_read(const char *path, struct experts *x, struct error *err);
/* Writes the heat of the stage's layers. The same errors, EBB_EBUSY: another process holds its lock too long; the file is then as
 * it was. */
int heat_file_write(const char *path, const struct experts *x, struct error *err);
