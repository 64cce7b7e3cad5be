/* vmm/account.h - who holds how much of which CPU card: one small table in a lock file, shared by
 * the processes of one user on one host, so that a card made of ordinary memory can be full, and
 * full because of somebody else.
 *
 * The file `cards-<name_space>.lock` holds a header and a fixed number of entries {pid, start time,
 * device, bytes}. It is read and written only under its lock. An entry counts while its process
 * lives: the pid exists, is no zombie and has the start time written down, so a killed owner is
 * forgotten at once and a reused pid is nobody. Each owner writes its own entry only, as an
 * absolute number, and writes it again whenever it finds it missing. Entries and header carry check
 * sums; a broken entry is a free one, a broken header is made anew unless a living process still
 * has memory in it. The file stays behind; it is the only thing that does.
 *
 * Threads: an account belongs to one thread; any number of accounts may be open in one process.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "protocol/error.h"
#include "vmm/driver.h"
#include "vmm/lock_file.h"

struct account {
    struct lock_file lock; /* the table is in it */
    int device;
    pid_t pid; /* who opened it: a forked child has no share in it */
    uint64_t start_time, instance;
    uint64_t bytes; /* held by this owner on `device` */
};

struct account_sums {
    uint64_t own_bytes;     /* of this process on the device, all its accounts */
    uint64_t foreign_bytes; /* of other living processes on the device */
    size_t n_entries;       /* in the file, every device */
};

/* Opens or makes the file; NULL stands for the defaults of vmm_host_settings. No entry is written
 * until something is taken. EBB_EINVAL (device, name_space), EBB_EDRIVER (directory or file that
 * cannot be had or is not ours). */
int account_open(struct account *a, const char *directory, const char *name_space, int device,
                 struct error *err);
/* Removes the entry. A zeroed or closed account is fine. */
void account_close(struct account *a);

/* Adds `bytes` to the entry if everybody's sum stays within `capacity_bytes`, else EBB_ENOMEM and
 * no change. */
int account_take(struct account *a, uint64_t bytes, uint64_t capacity_bytes, struct error *err);
/* Subtracts. Never fails: where the file cannot be had now, it shows too much until the account's
 * next call. */
void account_give(struct account *a, uint64_t bytes);
int account_read(struct account *a, struct account_sums *sums, struct error *err);
/* Other living processes that hold memory of the device (vmm/holders.h): *n of list[VMM_HOLDERS_MAX]. */
int account_holders(struct account *a, struct vmm_holder *list, size_t *n, struct error *err);
