/* vmm/account.c - the shared account of CPU cards: a table in a lock file.
 *
 * Every operation is one act under the file's lock (flock on this account's own open file, so that
 * accounts of one process exclude each other too): read the whole table, forget the dead, sum,
 * write at most one's own entry with one pwrite. A process killed anywhere in between leaves an
 * entry that is old, new or broken; the first two have an owner who is dead, the third fails its
 * check sum, and the lock goes with the process. A process that is stopped while it holds the lock
 * would stop every other, so waiting is bounded and ends in an error that says so.
 *
 * Refuses: a directory or file of another user or writable by others, a symbolic link in their
 * place, use by a forked child. Lifetimes: the account owns its descriptor; if the file is removed
 * under it, the next call makes a new one.
 */
#include "vmm/account.h"
#include "vmm/holders.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TABLE_MAGIC     0x73647261632d6265u /* "eb-cards" */
#define TABLE_VERSION   1u
#define TABLE_N_ENTRIES 256u
#define LOCK_WAIT_MS    5000
#define NO_ENTRY        SIZE_MAX

struct table_header {
    uint64_t magic;
    uint32_t version, n_entries;
    uint64_t check; /* of the fields above */
    uint64_t unused[5];
};

struct table_entry { /* all zero = free */
    int32_t pid, device;
    uint64_t start_time, instance, bytes;
    uint64_t check; /* of the fields above */
    uint64_t unused[3];
};

struct table {
    struct table_header header;
    struct table_entry entries[TABLE_N_ENTRIES];
};

static_assert(sizeof(struct table_header) == 64 && sizeof(struct table_entry) == 64,
              "the file's layout is the same for every build");

/* FNV-1a, so that a zeroed or half-written record is not taken for a whole one. */
static uint64_t check_of(const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ b[i]) * 0x100000001b3u;
    return sum;
}

static bool header_is_whole(const struct table_header *h)
{
    return h->magic == TABLE_MAGIC && h->version == TABLE_VERSION &&
           h->n_entries == TABLE_N_ENTRIES &&
           h->check == check_of(h, offsetof(struct table_header, check));
}

static bool entry_is_whole(const struct table_entry *e)
{
    return e->pid > 0 && e->check == check_of(e, offsetof(struct table_entry, check));
}

/* State, number of threads and start time (in ticks since boot) of a process, from
 * /proc/<pid>/stat: fields 3, 20 and 22 of proc(5). The name in field 2 may hold anything, so
 * counting starts after the last ')'. 0, or an errno. */
static int process_stat(pid_t pid, char *state, long *n_threads, uint64_t *start_time)
{
    char path[64], text[2048];
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    ssize_t n = read(fd, text, sizeof text - 1);
    int code = n < 0 ? errno : 0;
    (void)close(fd);
    if (code != 0)
        return code;
    text[n] = '\0';
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ' || at[2] == '\0')
        return EPROTO;
    *state = at[2];
    at += 2;
    for (int field = 3; field < 22; field++) {
        if (field == 20)
            *n_threads = strtol(at, NULL, 10);
        at = strchr(at, ' ');
        if (at == NULL)
            return EPROTO;
        at++;
    }
    *start_time = strtoull(at, NULL, 10);
    return 0;
}

/* A zombie has given its memory back already; a dead first thread with others still running has
 * not. What cannot be found out (no descriptor left to read /proc with) counts as alive: too little
 * free is safe, too much is not. */
static bool owner_lives(const struct table_entry *e)
{
    char state = '?';
    long n_threads = 0;
    uint64_t start_time = 0;
    int code = process_stat((pid_t)e->pid, &state, &n_threads, &start_time);
    if (code == ENOENT || code == ESRCH)
        return false;
    if (code != 0)
        return true;
    if ((state == 'Z' || state == 'X') && n_threads <= 1)
        return false;
    return start_time == e->start_time;
}

static bool entry_is_of_process(const struct account *a, const struct table_entry *e)
{
    return e->pid == (int32_t)a->pid && e->start_time == a->start_time;
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int table_lock(struct account *a, struct error *err)
{
    int64_t end = now_ms() + LOCK_WAIT_MS;
    long pause_ns = 20000;
    int got;
    while ((got = lock_file_try(&a->lock, err)) == 0) {
        if (now_ms() >= end)
            return error_set(err, EBB_EBUSY,
                             "%s/%s: another process has kept it locked for %d ms (is it stopped?)",
                             a->lock.directory, a->lock.file, LOCK_WAIT_MS);
        (void)nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns < 1000000 ? pause_ns * 2 : pause_ns;
    }
    return got < 0 ? got : 0;
}

static void table_unlock(struct account *a)
{
    lock_file_release(&a->lock);
}

static int write_at(struct account *a, const void *bytes, size_t n, size_t offset,
                    struct error *err)
{
    ssize_t written = pwrite(a->lock.fd, bytes, n, (off_t)offset);
    if (written == (ssize_t)n)
        return 0;
    return error_set(err, EBB_EDRIVER, "%s/%s: cannot write %zu bytes: %s", a->lock.directory,
                     a->lock.file, n, written < 0 ? strerror(errno) : "short write");
}

static int entry_write(struct account *a, struct table *t, size_t index, struct error *err)
{
    return write_at(a, &t->entries[index], sizeof t->entries[index],
                    offsetof(struct table, entries) + index * sizeof t->entries[index], err);
}

/* An empty file is a new one. A broken one is made anew, unless that would forget somebody who is
 * still there. */
static int table_make(struct account *a, struct table *t, struct error *err)
{
    for (size_t i = 0; i < TABLE_N_ENTRIES; i++) {
        const struct table_entry *e = &t->entries[i];
        if (entry_is_whole(e) && !entry_is_of_process(a, e) && owner_lives(e))
            return error_set(err, EBB_EDRIVER,
                             "%s/%s: its header is damaged and process %ld still has memory in it: "
                             "end that process, or remove the file",
                             a->lock.directory, a->lock.file, (long)e->pid);
    }
    memset(t, 0, sizeof *t);
    t->header.magic = TABLE_MAGIC;
    t->header.version = TABLE_VERSION;
    t->header.n_entries = TABLE_N_ENTRIES;
    t->header.check = check_of(&t->header, offsetof(struct table_header, check));
    if (ftruncate(a->lock.fd, 0) != 0)
        return error_set(err, EBB_EDRIVER, "%s/%s: cannot empty it: %s", a->lock.directory,
                         a->lock.file, strerror(errno));
    return write_at(a, t, sizeof *t, 0, err);
}

static int table_read(struct account *a, struct table *t, struct error *err)
{
    struct stat st;
    memset(t, 0, sizeof *t);
    ssize_t n = pread(a->lock.fd, t, sizeof *t, 0);
    if (n < 0 || fstat(a->lock.fd, &st) != 0)
        return error_set(err, EBB_EDRIVER, "%s/%s: cannot read it: %s", a->lock.directory,
                         a->lock.file, strerror(errno));
    if (st.st_size == (off_t)sizeof *t && n == (ssize_t)sizeof *t && header_is_whole(&t->header))
        return 0;
    return table_make(a, t, err);
}

struct table_scan {
    size_t mine, unused;   /* entry numbers or NO_ENTRY */
    uint64_t own, foreign; /* bytes on the account's device, without `mine` */
    size_t n_others;
};

static uint64_t add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Sums up the living and clears the entries of the dead (in the file too: best effort, they count
 * for nothing). */
static void table_scan(struct account *a, struct table *t, struct table_scan *s)
{
    *s = (struct table_scan){.mine = NO_ENTRY, .unused = NO_ENTRY};
    for (size_t i = 0; i < TABLE_N_ENTRIES; i++) {
        struct table_entry *e = &t->entries[i];
        bool whole = entry_is_whole(e);
        bool own = whole && entry_is_of_process(a, e);
        if (own && e->instance == a->instance) {
            s->mine = i;
        } else if (own || (whole && owner_lives(e))) {
            uint64_t bytes = e->device == a->device ? e->bytes : 0;
            s->own = add_capped(s->own, own ? bytes : 0);
            s->foreign = add_capped(s->foreign, own ? 0 : bytes);
            s->n_others++;
        } else {
            static const struct table_entry none;
            if (memcmp(e, &none, sizeof none) != 0) {
                *e = none;
                (void)entry_write(a, t, i, NULL);
            }
            s->unused = s->unused == NO_ENTRY ? i : s->unused;
        }
    }
}

/* Makes the file say that this owner holds `bytes`: an entry, or none for 0. */
static int entry_put(struct account *a, struct table *t, const struct table_scan *s, uint64_t bytes,
                     struct error *err)
{
    size_t index = s->mine != NO_ENTRY ? s->mine : s->unused;
    if (s->mine == NO_ENTRY && bytes == 0)
        return 0;
    if (index == NO_ENTRY)
        return error_set(err, EBB_EDRIVER, "%s/%s: full: %u owners hold memory", a->lock.directory,
                         a->lock.file, TABLE_N_ENTRIES);
    struct table_entry *e = &t->entries[index];
    if (s->mine != NO_ENTRY && e->bytes == bytes && e->device == a->device)
        return 0;
    memset(e, 0, sizeof *e);
    if (bytes > 0) {
        e->pid = (int32_t)a->pid;
        e->device = a->device;
        e->start_time = a->start_time;
        e->instance = a->instance;
        e->bytes = bytes;
        e->check = check_of(e, offsetof(struct table_entry, check));
    }
    return entry_write(a, t, index, err);
}

/* The one act: sum up under the lock, and say `bytes` if what it adds stays within `capacity`. */
static int account_update(struct account *a, uint64_t bytes, uint64_t capacity,
                          struct account_sums *sums, struct error *err)
{
    struct table t;
    struct table_scan s;
    if (a->pid != getpid())
        return error_set(err, EBB_EDRIVER, "cpu:%d: opened by process %ld, used by its child %ld",
                         a->device, (long)a->pid, (long)getpid());
    int code = table_lock(a, err);
    if (code != 0)
        return code;
    code = table_read(a, &t, err);
    if (code != 0)
        goto unlock;
    table_scan(a, &t, &s);
    uint64_t others = add_capped(s.own, s.foreign);
    if (bytes > a->bytes && add_capped(others, bytes) > capacity) {
        code = error_set(
            err, EBB_ENOMEM,
            "cpu:%d: out of memory: wants %llu bytes more, capacity %llu, this process "
            "holds %llu, others %llu",
            a->device, (unsigned long long)(bytes - a->bytes), (unsigned long long)capacity,
            (unsigned long long)add_capped(s.own, a->bytes), (unsigned long long)s.foreign);
        goto unlock;
    }
    code = entry_put(a, &t, &s, bytes, err);
    if (code == 0 && sums != NULL)
        *sums = (struct account_sums){.own_bytes = add_capped(s.own, bytes),
                                      .foreign_bytes = s.foreign,
                                      .n_entries = s.n_others + (bytes > 0)};
unlock:
    table_unlock(a);
    return code;
}

static int name_space_check(const char *name, struct error *err)
{
    size_t n = strlen(name);
    if (n == 0 || n > 64)
        return error_set(err, EBB_EINVAL, "namespace: wants 1 to 64 characters, got %zu", n);
    size_t n_good =
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");
    if (n_good != n)
        return error_set(err, EBB_EINVAL,
                         "namespace: wants letters, digits, '-' and '_', got another at %zu",
                         n_good);
    return 0;
}

int account_open(struct account *a, const char *directory, const char *name_space, int device,
                 struct error *err)
{
    static _Atomic uint64_t n_opened;
    char state;
    long n_threads;
    *a = (struct account){.lock.fd = -1, .device = device, .pid = getpid()};
    if (device < 0 || device > 4095)
        return error_set(err, EBB_EINVAL, "cpu:%d: wants a card number from 0 to 4095", device);
    const char *name = name_space != NULL ? name_space : "default";
    int code = name_space_check(name, err);
    if (code != 0)
        return code;
    char file[96];
    (void)snprintf(file, sizeof file, "cards-%s.lock", name);
    int system_code = process_stat(a->pid, &state, &n_threads, &a->start_time);
    if (system_code != 0)
        return error_set(err, EBB_EDRIVER, "/proc/%ld/stat: %s", (long)a->pid,
                         strerror(system_code));
    a->instance = atomic_fetch_add(&n_opened, 1) + 1;
    code = lock_file_open(&a->lock, directory, file, err);
    if (code != 0)
        return code;
    /* Reading it now tells of a damaged file at the start, not at the first allocation. */
    code = account_update(a, 0, 0, NULL, err);
    if (code != 0)
        lock_file_close(&a->lock);
    return code;
}

void account_close(struct account *a)
{
    if (a->pid == 0 || a->lock.fd < 0)
        return;
    if (a->pid == getpid()) {
        a->bytes = 0;
        (void)account_update(a, 0, 0, NULL, NULL);
    }
    lock_file_close(&a->lock);
    *a = (struct account){.lock.fd = -1};
}

int account_take(struct account *a, uint64_t bytes, uint64_t capacity_bytes, struct error *err)
{
    int code = account_update(a, add_capped(a->bytes, bytes), capacity_bytes, NULL, err);
    if (code == 0)
        a->bytes += bytes;
    return code;
}

void account_give(struct account *a, uint64_t bytes)
{
    assert(bytes <= a->bytes);
    a->bytes -= bytes;
    (void)account_update(a, a->bytes, 0, NULL, NULL);
}

int account_read(struct account *a, struct account_sums *sums, struct error *err)
{
    return account_update(a, a->bytes, 0, sums, err);
}

int account_holders(struct account *a, struct vmm_holder *list, size_t *n, struct error *err)
{
    struct table t;
    *n = 0;
    int code = table_lock(a, err);
    if (code != 0)
        return code;
    code = table_read(a, &t, err);
    for (size_t i = 0; code == 0 && i < TABLE_N_ENTRIES; i++) {
        const struct table_entry *e = &t.entries[i];
        if (entry_is_whole(e) && e->device == a->device && owner_lives(e))
            holders_add(list, n, e->pid, e->bytes);
    }
    table_unlock(a);
    holders_finish(list, *n);
    return code;
}
