/* tests/unit/vmm/fake_driver.h - driver tables for tests: one that only keeps books, one that fails
 * on demand, and a host card in a runtime directory of its own.
 */
#pragma once
#include <stdbool.h>
#include "vmm/pool.h"

#define MIB           ((uint64_t)1 << 20)
#define FAKE_LIST_MAX 1024

struct fake_span {
    uintptr_t base;
    size_t bytes;
    vmm_handle handle;
    bool is_accessible;
};

/* A card of any size that holds no byte. As strict as a driver: misuse is EBB_EDRIVER. */
struct fake_card {
    uint64_t total_bytes, foreign_bytes, own_bytes;
    size_t n_handles, n_ranges, n_mappings;
    struct fake_span handles[FAKE_LIST_MAX], ranges[FAKE_LIST_MAX], mappings[FAKE_LIST_MAX];
    vmm_handle handle_next;
    uintptr_t address_next;
};
void fake_driver_open(struct vmm_driver *d, struct fake_card *card, uint64_t total_bytes);

enum call_kind {
    CALL_RESERVE,
    CALL_UNRESERVE,
    CALL_CREATE,
    CALL_DESTROY,
    CALL_MAP,
    CALL_SET_ACCESS,
    CALL_UNMAP,
    CALL_N_KINDS
};

/* Passes everything on to `inner`, but refuses call number `fail_at` (from 1; 0 = none) of `kind`,
 * or all from then on. */
struct failing {
    struct vmm_driver *inner;
    enum call_kind kind;
    size_t fail_at;
    bool for_ever;
    size_t n_calls[CALL_N_KINDS], n_refused;
};
void failing_driver_open(struct vmm_driver *d, struct failing *f, struct vmm_driver *inner);

/* A CPU card in a fresh directory. */
struct host_card {
    struct vmm_driver driver;
    char directory[64];
};
void host_card_open(struct host_card *card, uint64_t capacity_bytes);
void host_card_close(
    struct host_card *card); /* removes the directory; asserts that only the lock file is in it */
/* Another driver on the same account. */
void host_card_open_other(const struct host_card *card, struct vmm_driver *d, int device,
                          uint64_t capacity_bytes);

/* xorshift64*: the same numbers on every run. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}
static inline size_t random_below(uint64_t *state, size_t n)
{
    return (size_t)((random_next(state) >> 11) % n);
}

/* held = free + lent, and the table says the same. */
void assert_pool_is_sound(const struct pool *p);
