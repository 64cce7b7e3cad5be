/* vmm/ledger.h - every byte of one card by owner. The owners' sum plus `foreign` and free memory is
 * the card's total; what is left over is `unexplained`, and its growing is a defect that the
 * program reports itself.
 */
#pragma once
#include <stdint.h>
#include "vmm/driver.h"

enum ledger_owner {
    LEDGER_WEIGHTS,
    LEDGER_KV,
    LEDGER_CACHE,
    LEDGER_WORKSPACE,
    LEDGER_STREAM,
    LEDGER_LINK,
    LEDGER_BLAS,
    LEDGER_CONTEXT,
    LEDGER_N_OWNERS
};

struct ledger {
    uint64_t owned_bytes[LEDGER_N_OWNERS];
    uint64_t foreign_bytes, free_bytes, total_bytes;
    int64_t unexplained_bytes; /* own bytes by the driver's count minus the owners' sum */
};

/* "weights", "kv", "cache", "workspace", "stream", "link", "blas", "context". */
const char *ledger_owner_name(enum ledger_owner owner);

/* Fills everything but owned_bytes from what the driver counts now. */
void ledger_settle(struct ledger *ledger, const struct vmm_memory *memory);
