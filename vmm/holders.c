/* vmm/holders.c - who holds a card's memory (see holders.h). A name is what the process calls itself, cut by the kernel to 15
 * bytes; a process that ended meanwhile, or whose number is not of this process' namespace, has none. Pure but for /proc.
 */
#include "vmm/holders.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void holders_add(struct vmm_holder *list, size_t *n, int64_t pid, uint64_t bytes)
{
    size_t at = 0, least = 0;
    if (pid == (int64_t)getpid())
        return;
    while (at < *n && list[at].pid != pid)
        at++;
    if (at < *n) {
        list[at].bytes = list[at].bytes > UINT64_MAX - bytes ? UINT64_MAX : list[at].bytes + bytes;
        return;
    }
    if (*n < VMM_HOLDERS_MAX) {
        list[(*n)++] = (struct vmm_holder){.pid = pid, .bytes = bytes};
        return;
    }
    for (size_t i = 1; i < *n; i++)
        if (list[i].bytes < list[least].bytes)
            least = i;
    if (list[least].bytes < bytes)
        list[least] = (struct vmm_holder){.pid = pid, .bytes = bytes};
}

static int by_bytes(const void *a, const void *b)
{
    const struct vmm_holder *x = a, *y = b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static void name_read(struct vmm_holder *h)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%lld/comm", (long long)h->pid);
    h->name[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, h->name, sizeof h->name - 1);
    (void)close(fd);
    h->name[n > 0 ? n : 0] = '\0';
    h->name[strcspn(h->name, "\n")] = '\0';
}

void holders_finish(struct vmm_holder *list, size_t n)
{
    if (n > 1)
        qsort(list, n, sizeof *list, by_bytes);
    for (size_t i = 0; i < n; i++)
        name_read(&list[i]);
}
