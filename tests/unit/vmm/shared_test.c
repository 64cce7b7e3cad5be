/* tests/unit/vmm/shared_test.c - memory of a CPU card that two drivers map: the same bytes, booked once, and nothing else is let in. */
#include "tests/unit/vmm/cache_help.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "vmm/region.h"

#define PAGE ((size_t)4096)

static struct host_card card;
static struct vmm_driver other; /* of the same account, as another process has it */
static struct error err;

static void open_both(void)
{
    host_card_open(&card, 100 * PAGE);
    host_card_open_other(&card, &other, 1, 100 * PAGE);
}

static void close_both(void)
{
    other.close(&other);
    host_card_close(&card);
}

TestSuite(shared, .init = open_both, .fini = close_both, .timeout = 20);

static uint64_t own_bytes(struct vmm_driver *d)
{
    struct vmm_memory m;
    cr_assert_eq(d->memory(d, &m, &err), 0, "%s", err.text);
    return m.own_bytes;
}

Test(shared, what_one_writes_the_other_reads_and_it_counts_for_who_made_it)
{
    struct fixed_block made, seen;
    int fd;
    cr_assert_eq(fixed_block_open_shared(&made, &card.driver, 3 * PAGE, &fd, &err), 0, "%s",
                 err.text);
    cr_assert_eq(fixed_block_open_imported(&seen, &other, 3 * PAGE, fd, &err), 0, "%s", err.text);
    (void)close(fd);
    cr_assert_neq(made.base, seen.base);
    memset(made.base, 7, 3 * PAGE);
    cr_assert_eq(memcmp(made.base, seen.base, 3 * PAGE), 0);
    ((char *)seen.base)[2 * PAGE] = 9;
    cr_assert_eq(((char *)made.base)[2 * PAGE], 9);
    cr_assert_eq(own_bytes(&card.driver), 3 * PAGE);
    cr_assert_eq(own_bytes(&other), 0);
    fixed_block_close(&made);
    cr_assert_eq(own_bytes(&card.driver), 0);
    cr_assert_eq(((char *)seen.base)[2 * PAGE], 9, "an import outlives who made it");
    fixed_block_close(&seen);
    cr_assert_eq(own_bytes(&other), 0);
}

Test(shared, its_size_can_be_changed_by_nobody)
{
    struct fixed_block made;
    int fd;
    cr_assert_eq(fixed_block_open_shared(&made, &card.driver, 2 * PAGE, &fd, &err), 0);
    cr_assert_neq(ftruncate(fd, 0), 0);
    cr_assert_neq(ftruncate(fd, 8 * PAGE), 0);
    cr_assert_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    (void)close(fd);
    fixed_block_close(&made);
}

static int sealed(size_t bytes, int seals)
{
    int fd = memfd_create("stranger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

Test(shared, a_descriptor_of_anything_else_is_refused_and_nothing_is_left)
{
    int fds[] = {
        -1,
        open("/dev/zero", O_RDWR | O_CLOEXEC),
        open("/proc/self/exe", O_RDONLY | O_CLOEXEC),
        sealed(2 * PAGE, F_SEAL_SHRINK),                             /* may grow */
        sealed(2 * PAGE, F_SEAL_GROW | F_SEAL_SEAL),                 /* may shrink */
        sealed(2 * PAGE, F_SEAL_SHRINK | F_SEAL_GROW),               /* more seals may come */
        sealed(PAGE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),     /* too small */
        sealed(3 * PAGE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), /* too large */
        sealed(2 * PAGE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)}; /* read-only */
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        struct fixed_block seen;
        cr_assert_eq(fixed_block_open_imported(&seen, &other, 2 * PAGE, fds[i], &err), EBB_EDRIVER,
                     "case %zu", i);
        cr_assert_null(seen.driver);
        if (fds[i] >= 0)
            (void)close(fds[i]);
    }
    struct fixed_block seen;
    cr_assert_eq(fixed_block_open_imported(&seen, &other, 0, -1, &err), EBB_EINVAL);
    cr_assert_eq(own_bytes(&other), 0);
}

Test(shared, a_full_card_shares_nothing_and_says_so)
{
    struct fixed_block made;
    int fd;
    cr_assert_eq(fixed_block_open_shared(&made, &card.driver, 101 * PAGE, &fd, &err), EBB_ENOMEM);
    cr_assert_eq(fd, -1);
    cr_assert_eq(own_bytes(&card.driver), 0);
}

Test(shared, a_driver_that_cannot_share_is_asked_for_nothing)
{
    struct fixed_block made;
    struct vmm_driver plain = card.driver;
    int fd;
    plain.create_shared = NULL;
    cr_assert_eq(fixed_block_open_shared(&made, &plain, PAGE, &fd, &err), EBB_EUNSUPPORTED);
    cr_assert_eq(fd, -1);
    cr_assert_null(made.driver);
}
