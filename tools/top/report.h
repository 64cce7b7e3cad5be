/* tools/top/report.h - a snapshot as one JSON object on one line, for --json.
 *
 * Every number is typed, a rate that is not known is null, and a figure that the engine did not tell is absent. The bytes of
 * LEDGER stand in an object of their own, as the engine's names for its owners.
 */
#pragma once
#include <stdio.h>
#include "tools/top/snapshot.h"

/* EBB_ENOMEM, EBB_EIO */
int report_write(FILE *out, const struct snapshot *s, double interval_s, struct error *err);
