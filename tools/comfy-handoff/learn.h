/* tools/comfy-handoff/learn.h - what workflows needed before, in a JSON file: {"version":1,"workflows":{"<name>":{…}}}.
 *
 * A workflow goes by its file's name. Its entry has the largest peak of its runs in MiB, how many there were, and the reserve
 * for the next run: the peak and an eighth of it, at least LEARN_MARGIN_MIB. The file is replaced whole or not at all.
 */
#pragma once
#include <stdint.h>
#include "protocol/error.h"

#define LEARN_MARGIN_MIB 256

/* *reserve_mib: 0 where the file or the workflow's entry is not there. EBB_EFORMAT: it is there and no such file. */
int learn_read(const char *path, const char *workflow, uint64_t *reserve_mib, struct error *err);
/* Adds a run. EBB_EIO, EBB_EFORMAT, EBB_ENOMEM: the file is as it was. */
int learn_write(const char *path, const char *workflow, uint64_t peak_mib, uint64_t *reserve_mib,
                struct error *err);
