/* tests/unit/vmm/host_test.c - a CPU card in one process: real memory, a driver's strictness,
 * nothing left behind. */
#include "tests/unit/vmm/cache_help.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "vmm/account.h"

#define PAGE ((size_t)4096)

static struct host_card card;
static struct error err;

static void *reserve(size_t bytes)
{
    void *base = NULL;
    cr_assert_eq(card.driver.reserve(&card.driver, bytes, &base, &err), 0, "%s", err.text);
    return base;
}

static vmm_handle create(size_t bytes)
{
    vmm_handle handle = 0;
    cr_assert_eq(card.driver.create(&card.driver, bytes, &handle, &err), 0, "%s", err.text);
    cr_assert_neq(handle, 0);
    return handle;
}

static void map(void *base, size_t bytes, vmm_handle handle)
{
    cr_assert_eq(card.driver.map(&card.driver, base, bytes, handle, &err), 0, "%s", err.text);
    cr_assert_eq(card.driver.set_access(&card.driver, base, bytes, &err), 0, "%s", err.text);
}

static struct vmm_memory memory(void)
{
    struct vmm_memory m;
    cr_assert_eq(card.driver.memory(&card.driver, &m, &err), 0, "%s", err.text);
    return m;
}

static bool touching_faults(volatile char *at)
{
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* whoever else wants to hear of it */
        *at = 1;
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

Test(host, memory_is_there_only_while_mapped_and_allowed)
{
    host_card_open(&card, 100 * PAGE);
    unsigned char *base = reserve(8 * PAGE);
    vmm_handle handle = create(2 * PAGE);
    volatile char *at = (volatile char *)base + 2 * PAGE;
    cr_assert(touching_faults(at), "reserved only");
    cr_assert_eq(card.driver.map(&card.driver, base + 2 * PAGE, 2 * PAGE, handle, &err), 0);
    cr_assert(touching_faults(at), "mapped, no access yet");
    cr_assert_eq(card.driver.set_access(&card.driver, base + 2 * PAGE, 2 * PAGE, &err), 0);
    cr_assert_not(touching_faults(at));
    cr_assert(touching_faults(at + 2 * PAGE));
    cr_assert_eq(card.driver.unmap(&card.driver, base + 2 * PAGE, 2 * PAGE, &err), 0);
    cr_assert(touching_faults(at), "unmapped");
    host_card_close(&card);
}

Test(host, bytes_stay_with_the_memory_when_it_is_lent_elsewhere)
{
    host_card_open(&card, 100 * PAGE);
    unsigned char *base = reserve(4 * PAGE);
    vmm_handle handle = create(PAGE);
    map(base, PAGE, handle);
    memset(base, 0x5a, PAGE);
    map(base + 2 * PAGE, PAGE, handle);
    cr_assert_eq(base[2 * PAGE + 17], 0x5a, "one piece may be seen at two places");
    cr_assert_eq(card.driver.unmap(&card.driver, base, PAGE, &err), 0);
    cr_assert_eq(base[3 * PAGE - 1], 0x5a);
    host_card_close(&card);
}

Test(host, memory_lives_until_it_is_destroyed_and_unmapped)
{
    host_card_open(&card, 4 * PAGE);
    unsigned char *base = reserve(4 * PAGE);
    vmm_handle handle = create(3 * PAGE);
    map(base, 3 * PAGE, handle);
    base[5] = 9;
    cr_assert_eq(card.driver.destroy(&card.driver, handle, &err), 0);
    cr_assert_eq(base[5], 9);
    cr_assert_eq(memory().own_bytes, 3 * PAGE);
    cr_assert_eq(card.driver.map(&card.driver, base + 3 * PAGE, 3 * PAGE, handle, &err),
                 EBB_EDRIVER);
    cr_assert_eq(card.driver.destroy(&card.driver, handle, &err), EBB_EDRIVER);
    cr_assert_eq(card.driver.unmap(&card.driver, base, 3 * PAGE, &err), 0);
    cr_assert_eq(memory().own_bytes, 0);
    cr_assert_eq(memory().free_bytes, 4 * PAGE);
    host_card_close(&card);
}

Test(host, misuse_is_refused_in_words_and_changes_nothing)
{
    struct vmm_driver *d = &card.driver;
    void *base2;
    vmm_handle handle2;
    host_card_open(&card, 100 * PAGE);
    unsigned char *base = reserve(4 * PAGE);
    vmm_handle handle = create(2 * PAGE);
    map(base, 2 * PAGE, handle);
#define REFUSED(call, words)                                                                       \
    do {                                                                                           \
        cr_assert_eq((call), EBB_EDRIVER);                                                         \
        cr_assert_not_null(strstr(err.text, words), "%s", err.text);                               \
    } while (0)
    REFUSED(d->reserve(d, 0, &base2, &err), "invalid value");
    REFUSED(d->reserve(d, PAGE + 1, &base2, &err), "invalid value");
    REFUSED(d->reserve(d, SIZE_MAX / PAGE * PAGE, &base2, &err), "invalid value");
    REFUSED(d->create(d, 0, &handle2, &err), "invalid value");
    REFUSED(d->create(d, PAGE - 1, &handle2, &err), "invalid value");
    REFUSED(d->destroy(d, 0, &err), "unknown handle");
    REFUSED(d->destroy(d, handle + 1, &err), "unknown handle");
    REFUSED(d->map(d, base + 2 * PAGE, 2 * PAGE, handle + 1, &err), "unknown handle");
    REFUSED(d->map(d, base + 2 * PAGE, PAGE, handle, &err), "has 8192 bytes");
    REFUSED(d->map(d, base + PAGE, 2 * PAGE, handle, &err), "already mapped");
    REFUSED(d->map(d, base + 3 * PAGE, 2 * PAGE, handle, &err), "not in a reserved range");
    REFUSED(d->map(d, base + 2 * PAGE + 1, 2 * PAGE, handle, &err), "no multiple");
    REFUSED(d->set_access(d, base + 2 * PAGE, 2 * PAGE, &err), "not mapped");
    REFUSED(d->unmap(d, base, PAGE, &err), "not mapped");
    REFUSED(d->unmap(d, base + PAGE, PAGE, &err), "not mapped");
    REFUSED(d->unreserve(d, base, 4 * PAGE, &err), "has memory mapped");
    REFUSED(d->unreserve(d, base, 2 * PAGE, &err), "is not reserved");
#undef REFUSED
    base[2 * PAGE - 1] = 1;
    cr_assert_eq(memory().own_bytes, 2 * PAGE);
    host_card_close(&card);
}

Test(host, a_card_is_full_at_its_capacity)
{
    vmm_handle handle;
    host_card_open(&card, 10 * PAGE + 100);
    vmm_handle first = create(7 * PAGE);
    cr_assert_eq(card.driver.create(&card.driver, 4 * PAGE, &handle, &err), EBB_ENOMEM);
    cr_assert_not_null(strstr(err.text, "out of memory"));
    (void)create(3 * PAGE);
    cr_assert_eq(memory().free_bytes, 100);
    cr_assert_eq(card.driver.create(&card.driver, PAGE, &handle, &err), EBB_ENOMEM);
    cr_assert_eq(card.driver.destroy(&card.driver, first, &err), 0);
    (void)create(7 * PAGE);
    cr_assert_eq(card.driver.create(&card.driver, (size_t)INT64_MAX / PAGE * PAGE, &handle, &err),
                 EBB_ENOMEM);
    host_card_close(&card);
}

Test(host, drivers_of_one_process_count_as_one)
{
    struct vmm_driver same, next;
    struct vmm_memory m;
    vmm_handle handle;
    host_card_open(&card, 10 * PAGE);
    host_card_open_other(&card, &same, 0, 10 * PAGE);
    host_card_open_other(&card, &next, 1, 4 * PAGE);
    (void)create(6 * PAGE);
    cr_assert_eq(same.create(&same, 5 * PAGE, &handle, &err), EBB_ENOMEM);
    cr_assert_eq(same.create(&same, 3 * PAGE, &handle, &err), 0);
    cr_assert_eq(next.create(&next, 4 * PAGE, &handle, &err), 0);
    cr_assert_eq(memory().own_bytes, 9 * PAGE);
    cr_assert_eq(memory().foreign_bytes, 0);
    cr_assert_eq(memory().free_bytes, PAGE);
    same.close(&same);
    cr_assert_eq(memory().own_bytes, 6 * PAGE);
    cr_assert_eq(next.memory(&next, &m, &err), 0);
    cr_assert_eq(m.own_bytes, 4 * PAGE);
    cr_assert_eq(m.free_bytes, 0);
    next.close(&next);
    host_card_close(&card);
}

Test(host, the_default_capacity_is_half_of_the_machine)
{
    host_card_open(&card, 0);
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    cr_assert_leq(memory().total_bytes, machine / 2);
    cr_assert_geq(memory().total_bytes + PAGE, machine / 2);
    host_card_close(&card);
}

static size_t n_memfds(void)
{
    size_t n = 0;
    DIR *directory = opendir("/proc/self/fd");
    cr_assert_not_null(directory);
    for (const struct dirent *e = readdir(directory); e != NULL; e = readdir(directory)) {
        char path[300], target[300] = {0};
        (void)snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        if (readlink(path, target, sizeof target - 1) < 0 ||
            strstr(target, "memfd:ebbtide") == NULL)
            continue;
        n++;
        cr_assert(fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC, "a child would inherit it");
    }
    (void)closedir(directory);
    return n;
}

static size_t n_entries(void)
{
    struct account account;
    struct account_sums sums;
    cr_assert_eq(account_open(&account, card.directory, NULL, 5, &err), 0, "%s", err.text);
    cr_assert_eq(account_read(&account, &sums, &err), 0, "%s", err.text);
    account_close(&account);
    return sums.n_entries;
}

Test(host, a_cycle_of_create_and_destroy_leaves_no_descriptor_and_no_entry)
{
    host_card_open(&card, 100 * PAGE);
    cr_assert_eq(n_entries(), 0);
    for (int i = 0; i < 50; i++) {
        struct fixed_block block;
        cr_assert_eq(fixed_block_open(&block, &card.driver, 3 * PAGE - 5, &err), 0);
        memset(block.base, i, block.bytes);
        cr_assert_eq(n_memfds(), 1);
        cr_assert_eq(n_entries(), 1);
        fixed_block_close(&block);
        cr_assert_eq(n_memfds(), 0);
        cr_assert_eq(n_entries(), 0);
    }
    host_card_close(&card);
}

Test(host, closing_gives_back_whatever_was_forgotten)
{
    struct account_sums sums;
    struct account account;
    host_card_open(&card, 100 * PAGE);
    unsigned char *base = reserve(8 * PAGE);
    map(base, 2 * PAGE, create(2 * PAGE));
    (void)create(PAGE);
    card.driver.close(&card.driver);
    cr_assert_eq(n_memfds(), 0);
    cr_assert(touching_faults((volatile char *)base));
    cr_assert_eq(account_open(&account, card.directory, NULL, 0, &err), 0);
    cr_assert_eq(account_read(&account, &sums, &err), 0);
    cr_assert_eq(sums.own_bytes + sums.foreign_bytes + sums.n_entries, 0);
    account_close(&account);
    host_card_close(&card);
}

Test(host, a_card_that_cannot_be_is_refused)
{
    struct vmm_driver d;
    static const struct vmm_host_settings bad[] = {
        {.device = -1},
        {.device = 1 << 20},
        {.name_space = ""},
        {.name_space = "a/b"},
        {.name_space = "../x"},
        {.name_space = "a b"},
        {.name_space = "0123456789012345678901234567890123456789012345678901234567890123456789"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct vmm_host_settings settings = bad[i];
        settings.runtime_dir = "/tmp";
        cr_assert_eq(vmm_driver_host_open(&d, &settings, &err), EBB_EINVAL, "case %zu", i);
        cr_assert_null(d.close);
    }
}
