/* tests/unit/model/patched.c - see patched.h. Fails the test at once when the demo file is not
 * what it expects. */
#include "tests/unit/model/patched.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void patched_open(struct patched *p)
{
    int demo = open(DEMO, O_RDONLY | O_CLOEXEC);
    cr_assert(demo >= 0 && pread(demo, p->demo, DEMO_TABLE_BYTES, 0) == DEMO_TABLE_BYTES);
    close(demo);
    p->fd = memfd_create("patched", MFD_CLOEXEC);
    cr_assert(p->fd >= 0);
    (void)snprintf(p->path, sizeof p->path, "/proc/self/fd/%d", p->fd);
    patched_restore(p);
}

void patched_close(struct patched *p)
{
    close(p->fd);
}

void patched_restore(struct patched *p)
{
    cr_assert(ftruncate(p->fd, DEMO_BYTES) == 0);
    patched_bytes(p, 0, p->demo, DEMO_TABLE_BYTES);
}

void patched_truncate(struct patched *p, size_t bytes)
{
    cr_assert(ftruncate(p->fd, (off_t)bytes) == 0);
}

void patched_bytes(struct patched *p, size_t at, const void *bytes, size_t n)
{
    cr_assert(pwrite(p->fd, bytes, n, (off_t)at) == (ssize_t)n);
}

void patched_number(struct patched *p, size_t at, uint64_t value, size_t n)
{
    patched_bytes(p, at, &value, n);
}

size_t patched_behind(const struct patched *p, const char *name)
{
    char wanted[128];
    uint64_t n = strlen(name);
    cr_assert(n + sizeof n <= sizeof wanted);
    memcpy(wanted, &n, sizeof n);
    memcpy(wanted + sizeof n, name, n);
    const unsigned char *at = memmem(p->demo, DEMO_TABLE_BYTES, wanted, n + sizeof n);
    cr_assert(at != NULL, "the demo file has no %s", name);
    return (size_t)(at - p->demo) + sizeof n + n;
}
