/* tests/unit/vmm/failure_test.c - one long life of a card, with the Nth call of each kind refused,
 * for every N: on the card that keeps books and on a real CPU card. A refused step is reported,
 * leaves everything true, and can be done again.
 */
#include "tests/unit/vmm/cache_help.h"

#include <criterion/parameterized.h>
#include <dirent.h>
#include "vmm/ledger.h"

#define SEGMENT (2 * MIB)

static const struct cache_settings settings = {
    .slot_bytes = SEGMENT / 3 / 256 * 256, .n_groups = 2, .n_indexes = 10, .half_life_touches = 0};

struct life {
    struct vmm_driver *driver;
    struct failing *failing;
    struct fixed_block block;
    struct pool pool;
    struct region workspace;
    struct cache *cache;
    size_t n_errors;
    struct error err;
};

static uint64_t own_bytes(struct life *l)
{
    struct vmm_memory memory;
    cr_assert_eq(l->driver->memory(l->driver, &memory, &l->err), 0, "%s", l->err.text);
    return memory.own_bytes;
}

/* What must be true after every step, refused or not. */
static void check(struct life *l)
{
    size_t n_backed = l->workspace.n_backed + (l->cache != NULL ? cache_n_segments(l->cache) : 0);
    if (l->pool.segments == NULL)
        return;
    assert_pool_is_sound(&l->pool);
    cr_assert_eq(l->pool.n_held - l->pool.n_free, n_backed + l->pool.n_owed);
    cr_assert_eq(own_bytes(l), l->pool.n_held * SEGMENT + l->block.bytes);
    for (size_t i = 0; l->cache != NULL && i < 20; i++) {
        size_t slot = cache_slot_of(l->cache, key_at(&settings, i));
        cr_assert(slot == CACHE_NO_SLOT || cache_slot_address(l->cache, slot) != NULL);
    }
}

/* True when the step is done; a refusal counts, and means once more unless the driver refuses for
 * ever. */
static bool again(struct life *l, int code)
{
    check(l);
    if (code == 0)
        return false;
    cr_assert(code == EBB_EDRIVER || code == EBB_ENOMEM || code == EBB_EBUSY, "%s", l->err.text);
    l->n_errors++;
    return !l->failing->for_ever;
}

#define STEP(call) while (again(l, (call)))

static void hold(struct life *l, size_t n)
{
    size_t reached = 0;
    STEP(pool_hold(&l->pool, n, &reached, &l->err));
    cr_assert_eq(reached, l->pool.n_held);
    cr_assert(l->failing->for_ever || reached == n);
}

static void grow(struct life *l, size_t n)
{
    size_t reached = 0;
    STEP(cache_grow(l->cache, n, &reached, &l->err));
    cr_assert_eq(reached, cache_n_segments(l->cache));
    cr_assert(l->failing->for_ever || reached == n);
}

static int shrink_once(struct life *l, size_t n)
{
    struct cache_shrink_plan plan;
    size_t reached = 0;
    if (cache_n_segments(l->cache) < n)
        return 0;
    int code = cache_shrink_begin(l->cache, n, &plan, &l->err);
    cr_assert_eq(code, 0, "%s", l->err.text);
    size_t n_kept = cache_n_resident(l->cache) - plan.n_evicted;
    code = cache_shrink_end(l->cache, &reached, &l->err);
    cr_assert_eq(reached, cache_n_segments(l->cache));
    cr_assert(code != 0 || reached == n);
    cr_assert_eq(cache_n_resident(l->cache), n_kept,
                 "the plan is applied whatever the driver says");
    return code;
}

static void fill(struct life *l)
{
    for (uint32_t i = 0; i < 20; i++) {
        struct cache_key key = key_at(&settings, (i * 7) % 20), evicted;
        size_t slot;
        bool did_evict;
        cache_touch(l->cache, key, 1.0 + i);
        if (cache_slot_of(l->cache, key) == CACHE_NO_SLOT &&
            cache_insert(l->cache, key, &slot, &did_evict, &evicted, &l->err) == 0)
            cr_assert_eq(cache_publish(l->cache, slot), 0);
    }
}

static void middle(struct life *l)
{
    hold(l, 6);
    grow(l, 6);
    fill(l);
    STEP(shrink_once(l, 3));
    if (!l->failing->for_ever)
        cr_assert_eq(cache_n_resident(l->cache), 9);
    STEP(region_is_backed(&l->workspace, 1) ? 0 : region_back(&l->workspace, 1, &l->err));
    STEP(region_is_backed(&l->workspace, 2) ? 0 : region_back(&l->workspace, 2, &l->err));
    hold(l, 5);
    STEP(region_is_backed(&l->workspace, 1) ? region_unback(&l->workspace, 1, &l->err) : 0);
    hold(l, 7);
    grow(l, 5);
    fill(l);
    STEP(shrink_once(l, 1));
    if (!l->failing->for_ever)
        cr_assert_eq(cache_n_resident(l->cache), 3);
}

/* Opens, lives, closes. Whatever could not be opened is left out of the rest. */
static void live(struct life *l)
{
    STEP(fixed_block_open(&l->block, l->driver, SEGMENT / 2, &l->err));
    cr_assert_eq(pool_open(&l->pool, l->driver, SEGMENT, 8, &l->err), 0);
    STEP(cache_open(&l->cache, &l->pool, &settings, 7, &l->err));
    STEP(region_open(&l->workspace, &l->pool, 3, &l->err));
    if (l->cache != NULL && l->workspace.pool != NULL)
        middle(l);
    cache_close(l->cache);
    l->cache = NULL;
    region_close(&l->workspace);
    cr_assert_eq(l->pool.n_held - l->pool.n_free, l->pool.n_owed);
    pool_close(&l->pool);
    fixed_block_close(&l->block);
}

struct failure_case {
    enum call_kind kind;
    int on_host, for_ever;
};

ParameterizedTestParameters(failure, survives_the_nth_refusal_of_every_driver_call)
{
    static struct failure_case cases[CALL_N_KINDS * 4];
    for (size_t i = 0; i < CALL_N_KINDS * 4; i++)
        cases[i] = (struct failure_case){(enum call_kind)(i / 4), i % 4 / 2, i % 2};
    return cr_make_param_array(struct failure_case, cases, CALL_N_KINDS * 4);
}

static size_t n_open_files(void)
{
    size_t n = 0;
    DIR *directory = opendir("/proc/self/fd");
    cr_assert_not_null(directory);
    while (readdir(directory) != NULL)
        n++;
    (void)closedir(directory);
    return n;
}

/* One life with call `n` refused; false when the life has fewer such calls. */
static bool live_with(struct failure_case *c, size_t n)
{
    static struct fake_card card;
    struct host_card host;
    struct vmm_driver fake, driver;
    struct failing failing;
    size_t n_files = n_open_files();
    if (c->on_host)
        host_card_open(&host, 100 * MIB);
    else
        fake_driver_open(&fake, &card, 100 * MIB);
    failing_driver_open(&driver, &failing, c->on_host ? &host.driver : &fake);
    failing.kind = c->kind;
    failing.fail_at = n;
    failing.for_ever = c->for_ever;
    struct life life = {.driver = &driver, .failing = &failing};
    live(&life);
    /* Left may be only what a driver goes on refusing to take back while everything closes. */
    bool may_keep = failing.n_refused > 0 && c->for_ever;
    if (!may_keep || (c->kind != CALL_DESTROY && c->kind != CALL_UNMAP))
        cr_assert_eq(own_bytes(&life), 0, "kind %d, call %zu", c->kind, n);
    if (!c->on_host && (!may_keep || (c->kind != CALL_UNMAP && c->kind != CALL_UNRESERVE)))
        cr_assert_eq(card.n_ranges + card.n_mappings, 0, "kind %d, call %zu", c->kind, n);
    if (c->on_host)
        host_card_close(&host);
    cr_assert_eq(n_open_files(), n_files);
    return failing.n_refused > 0;
}

ParameterizedTest(struct failure_case *c, failure, survives_the_nth_refusal_of_every_driver_call)
{
    size_t n = 1;
    while (live_with(c, n))
        n++;
    cr_assert_gt(n, 2, "the life makes such calls");
}

Test(ledger, every_owner_has_a_name)
{
    static const char *const names[] = {"weights", "kv",   "cache", "workspace",
                                        "stream",  "link", "blas",  "context"};
    for (int i = 0; i < LEDGER_N_OWNERS; i++)
        cr_assert_str_eq(ledger_owner_name((enum ledger_owner)i), names[i]);
    cr_assert_str_eq(ledger_owner_name(LEDGER_N_OWNERS), "unknown");
}

Test(ledger, what_no_owner_claims_is_unexplained)
{
    struct ledger ledger = {0};
    struct vmm_memory memory = {
        .total_bytes = 100, .free_bytes = 30, .own_bytes = 50, .foreign_bytes = 20};
    ledger.owned_bytes[LEDGER_CACHE] = 40;
    ledger.owned_bytes[LEDGER_KV] = 7;
    ledger_settle(&ledger, &memory);
    cr_assert_eq(ledger.unexplained_bytes, 3);
    cr_assert_eq(ledger.total_bytes, 100);
    cr_assert_eq(ledger.free_bytes, 30);
    cr_assert_eq(ledger.foreign_bytes, 20);
    ledger.owned_bytes[LEDGER_LINK] = 10;
    ledger_settle(&ledger, &memory);
    cr_assert_eq(ledger.unexplained_bytes, -7);
}
