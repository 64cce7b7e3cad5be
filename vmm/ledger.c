/* vmm/ledger.c - the names of the owners and the one sum of the ledger.
 *
 * Owns nothing and allocates nothing. Who counts the bytes of each owner is the stage; here they
 * are held against what the driver counts. Nothing refuses; a difference is a number, not an error.
 */
#include "vmm/ledger.h"

const char *ledger_owner_name(enum ledger_owner owner)
{
    static const char *const names[LEDGER_N_OWNERS] = {
        [LEDGER_WEIGHTS] = "weights",     [LEDGER_KV] = "kv",           [LEDGER_CACHE] = "cache",
        [LEDGER_WORKSPACE] = "workspace", [LEDGER_STREAM] = "stream",   [LEDGER_LINK] = "link",
        [LEDGER_BLAS] = "blas",           [LEDGER_CONTEXT] = "context",
    };
    return (unsigned)owner < LEDGER_N_OWNERS ? names[owner] : "unknown";
}

void ledger_settle(struct ledger *ledger, const struct vmm_memory *memory)
{
    uint64_t sum = 0;
    for (int owner = 0; owner < LEDGER_N_OWNERS; owner++)
        sum += ledger->owned_bytes[owner];
    ledger->foreign_bytes = memory->foreign_bytes;
    ledger->free_bytes = memory->free_bytes;
    ledger->total_bytes = memory->total_bytes;
    ledger->unexplained_bytes = (int64_t)(memory->own_bytes - sum);
}
