/* tests/unit/vmm/account_test.c - a CPU card among several processes: they see each other's bytes,
 * and never the dead's. */
#include "tests/unit/vmm/cache_help.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "vmm/account.h"
#include "vmm/holders.h"

#define PAGE ((uint64_t)4096)

static struct host_card card;
static struct error err;

static struct vmm_memory memory(void)
{
    struct vmm_memory m;
    cr_assert_eq(card.driver.memory(&card.driver, &m, &err), 0, "%s", err.text);
    return m;
}

/* The program of another party: `pid` holds until its stdin ends. */
struct holder {
    pid_t pid;
    int stdin_fd;
};

static struct holder holder_start(const char *name_space, const char *device, const char *mib)
{
    int in[2], out[2];
    char word[8] = {0};
    cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        (void)execl(EBBTIDE_FOREIGN_HOLDER, "foreign-holder", "--namespace", name_space, "--device",
                    device, "--mib", mib, "--runtime-dir", card.directory, (char *)NULL);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    cr_assert_eq(read(out[0], word, 5), 5);
    cr_assert_str_eq(word, "held\n");
    (void)close(out[0]);
    return (struct holder){pid, in[1]};
}

static void holder_end(struct holder *h)
{
    int status;
    (void)close(h->stdin_fd);
    cr_assert_eq(waitpid(h->pid, &status, 0), h->pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Test(account, processes_see_each_others_bytes)
{
    vmm_handle handle;
    host_card_open(&card, 64 * MIB);
    struct holder a = holder_start("default", "0", "40"), b = holder_start("default", "0", "10");
    cr_assert_eq(memory().foreign_bytes, 50 * MIB);
    cr_assert_eq(memory().free_bytes, 14 * MIB);
    cr_assert_eq(card.driver.create(&card.driver, 15 * MIB, &handle, &err), EBB_ENOMEM);
    cr_assert_not_null(strstr(err.text, "others 52428800"), "%s", err.text);
    cr_assert_eq(card.driver.create(&card.driver, 14 * MIB, &handle, &err), 0);
    cr_assert_eq(memory().free_bytes, 0);
    holder_end(&a);
    cr_assert_eq(memory().foreign_bytes, 10 * MIB);
    cr_assert_eq(memory().own_bytes, 14 * MIB);
    holder_end(&b);
    cr_assert_eq(memory().free_bytes, 50 * MIB);
    host_card_close(&card);
}

Test(account, free_memory_never_goes_below_nothing)
{
    host_card_open(&card, 16 * MIB);
    struct holder h = holder_start("default", "0", "1000000");
    cr_assert_eq(memory().foreign_bytes, 1000000 * MIB);
    cr_assert_eq(memory().free_bytes, 0);
    holder_end(&h);
    cr_assert_eq(memory().free_bytes, 16 * MIB);
    host_card_close(&card);
}

Test(account, a_killed_process_is_forgotten_before_anyone_waits_for_it)
{
    siginfo_t info;
    host_card_open(&card, 64 * MIB);
    struct holder h = holder_start("default", "0", "40");
    cr_assert_eq(memory().free_bytes, 24 * MIB);
    cr_assert_eq(kill(h.pid, SIGKILL), 0);
    cr_assert_eq(waitid(P_PID, (id_t)h.pid, &info, WEXITED | WNOWAIT), 0); /* a zombie now */
    cr_assert_eq(memory().free_bytes, 64 * MIB);
    cr_assert_eq(waitpid(h.pid, NULL, 0), h.pid);
    cr_assert_eq(memory().foreign_bytes, 0);
    (void)close(h.stdin_fd);
    host_card_close(&card);
}

Test(account, a_reused_pid_is_nobody)
{
    struct account before;
    host_card_open(&card, 64 * MIB);
    cr_assert_eq(account_open(&before, card.directory, NULL, 0, &err), 0, "%s", err.text);
    before.start_time--; /* as if an earlier process had had this pid, and had been killed */
    cr_assert_eq(account_take(&before, 8 * MIB, 64 * MIB, &err), 0, "%s", err.text);
    cr_assert_eq(memory().foreign_bytes, 0);
    cr_assert_eq(memory().own_bytes, 0);
    account_close(&before);
    host_card_close(&card);
}

Test(account, a_stopped_process_still_holds_its_memory)
{
    host_card_open(&card, 64 * MIB);
    struct holder h = holder_start("default", "0", "40");
    cr_assert_eq(kill(h.pid, SIGSTOP), 0);
    cr_assert_eq(memory().foreign_bytes, 40 * MIB);
    cr_assert_eq(kill(h.pid, SIGCONT), 0);
    holder_end(&h);
    host_card_close(&card);
}

Test(account, namespaces_and_cards_do_not_meet)
{
    host_card_open(&card, 64 * MIB);
    struct holder other_space = holder_start("other_1-x", "0", "40");
    struct holder other_card = holder_start("default", "1", "30");
    cr_assert_eq(memory().foreign_bytes, 0);
    cr_assert_eq(memory().free_bytes, 64 * MIB);
    holder_end(&other_space);
    holder_end(&other_card);
    host_card_close(&card);
}

Test(account, holders_are_other_processes_of_this_card_the_largest_first_with_their_names)
{
    struct vmm_holder list[VMM_HOLDERS_MAX];
    size_t n = 9;
    vmm_handle own;
    host_card_open(&card, 64 * MIB);
    cr_assert_eq(card.driver.create(&card.driver, 2 * MIB, &own, &err), 0, "%s", err.text);
    cr_assert_eq(card.driver.holders(&card.driver, list, &n, &err), 0, "%s", err.text);
    cr_assert_eq(n, 0, "this process is no holder");
    struct holder small = holder_start("default", "0", "8"),
                  elsewhere = holder_start("default", "1", "9");
    struct holder large = holder_start("default", "0", "30");
    cr_assert_eq(card.driver.holders(&card.driver, list, &n, &err), 0, "%s", err.text);
    cr_assert_eq(n, 2);
    cr_assert_eq(list[0].pid, large.pid);
    cr_assert_eq(list[1].pid, small.pid);
    cr_assert_eq(list[0].bytes, 30 * MIB);
    cr_assert_str_eq(list[0].name, "foreign-holder");
    holder_end(&large);
    cr_assert_eq(card.driver.holders(&card.driver, list, &n, &err), 0, "%s", err.text);
    cr_assert_eq(n, 1);
    cr_assert_eq(list[0].pid, small.pid);
    holder_end(&small);
    holder_end(&elsewhere);
    host_card_close(&card);
}

/* More holders than the list has room for: the largest stay. */
Test(account, a_list_that_is_full_keeps_the_largest_holders)
{
    struct vmm_holder list[VMM_HOLDERS_MAX];
    size_t n = 0;
    for (int64_t i = 1; i <= 2 * VMM_HOLDERS_MAX; i++)
        holders_add(list, &n, -i, (uint64_t)i);
    holders_add(list, &n, -2 * VMM_HOLDERS_MAX, 5);
    holders_finish(list, n);
    cr_assert_eq(n, VMM_HOLDERS_MAX);
    cr_assert_eq(list[0].bytes, 2 * VMM_HOLDERS_MAX + 5);
    cr_assert_eq(list[n - 1].bytes, VMM_HOLDERS_MAX + 1);
    cr_assert_str_eq(list[0].name, "");
}

/* A child that takes and gives 200 times and reports how many pieces it could take at once; its
 * status tells of breaches. */
static pid_t racer_start(uint64_t capacity, int seed)
{
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid != 0)
        return pid;
    struct vmm_driver d;
    struct vmm_memory m;
    vmm_handle held[8];
    size_t n = 0;
    uint64_t random = (uint64_t)seed + 1;
    struct vmm_host_settings settings = {.capacity_bytes = capacity, .runtime_dir = card.directory};
    if (vmm_driver_host_open(&d, &settings, NULL) != 0)
        _exit(10);
    for (int i = 0; i < 200; i++) {
        if (n < 8 && random_below(&random, 2) == 0) {
            int code = d.create(&d, (size_t)PAGE, &held[n], NULL);
            if (code != 0 && code != EBB_ENOMEM)
                _exit(11);
            n += code == 0;
        } else if (n > 0 && d.destroy(&d, held[--n], NULL) != 0) {
            _exit(12);
        }
        if (d.memory(&d, &m, NULL) != 0 || m.own_bytes != n * PAGE)
            _exit(13);
        if (m.own_bytes + m.foreign_bytes > capacity)
            _exit(14);
    }
    if (seed % 2 == 0)
        d.close(&d); /* the others just end */
    _exit(0);
}

Test(account, capacity_holds_while_processes_create_at_the_same_time)
{
    enum { N = 6 };
    host_card_open(&card, 12 * PAGE);
    pid_t racers[N];
    for (int i = 0; i < N; i++)
        racers[i] = racer_start(12 * PAGE, i);
    for (int i = 0; i < N; i++) {
        int status;
        cr_assert_eq(waitpid(racers[i], &status, 0), racers[i]);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "racer %d: status %x", i, status);
    }
    cr_assert_eq(memory().foreign_bytes, 0);
    cr_assert_eq(memory().free_bytes, 12 * PAGE);
    host_card_close(&card);
}

Test(account, survives_processes_killed_at_any_moment)
{
    host_card_open(&card, 1000 * PAGE);
    vmm_handle handle;
    cr_assert_eq(card.driver.create(&card.driver, (size_t)PAGE, &handle, &err), 0);
    for (int i = 0; i < 60; i++) {
        pid_t pid = racer_start(1000 * PAGE, i);
        (void)usleep((useconds_t)(i * 97 % 5000));
        cr_assert_eq(kill(pid, SIGKILL), 0);
        cr_assert_eq(waitpid(pid, NULL, 0), pid);
        cr_assert_eq(memory().foreign_bytes, 0);
        cr_assert_eq(memory().own_bytes, PAGE);
    }
    host_card_close(&card);
}

static void file_path(char *path, size_t n)
{
    (void)snprintf(path, n, "%s/cards-default.lock", card.directory);
}

static void file_damage(off_t at, const char *bytes, size_t n)
{
    char path[128];
    file_path(path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pwrite(fd, bytes, n, at), (ssize_t)n);
    (void)close(fd);
}

Test(account, a_broken_entry_breaks_nobody_else)
{
    vmm_handle handle;
    host_card_open(&card, 64 * MIB);
    struct holder h = holder_start("default", "0", "8");
    cr_assert_eq(card.driver.create(&card.driver, 4 * MIB, &handle, &err), 0);
    file_damage(64 + 2 * 64, "torn", 4); /* a free entry */
    file_damage(64 + 200 * 64 + 20, "torn", 4);
    cr_assert_eq(memory().foreign_bytes, 8 * MIB);
    cr_assert_eq(memory().own_bytes, 4 * MIB);
    file_damage(64 + 1 * 64 + 24, "torn", 4); /* this process's own bytes: written again */
    cr_assert_eq(memory().own_bytes, 4 * MIB);
    cr_assert_eq(memory().foreign_bytes, 8 * MIB);
    holder_end(&h);
    host_card_close(&card);
}

Test(account, a_damaged_file_is_made_anew_once_nobody_living_is_in_it)
{
    struct vmm_memory m;
    vmm_handle handle;
    host_card_open(&card, 64 * MIB);
    cr_assert_eq(card.driver.create(&card.driver, 4 * MIB, &handle, &err), 0);
    struct holder h = holder_start("default", "0", "8");
    file_damage(3, "????????", 8);
    cr_assert_eq(card.driver.memory(&card.driver, &m, &err), EBB_EDRIVER);
    cr_assert_not_null(strstr(err.text, "damaged"), "%s", err.text);
    cr_assert_eq(kill(h.pid, SIGKILL), 0);
    cr_assert_eq(waitpid(h.pid, NULL, 0), h.pid);
    (void)close(h.stdin_fd);
    cr_assert_eq(memory().own_bytes, 4 * MIB);
    cr_assert_eq(memory().foreign_bytes, 0);
    host_card_close(&card);
}

Test(account, a_file_of_any_length_is_no_danger)
{
    char path[128];
    host_card_open(&card, 64 * MIB);
    vmm_handle handle;
    cr_assert_eq(card.driver.create(&card.driver, 4 * MIB, &handle, &err), 0);
    file_path(path, sizeof path);
    for (off_t n = 0; n < 20000; n = n * 2 + 31) {
        cr_assert_eq(truncate(path, n), 0);
        cr_assert_eq(memory().own_bytes, 4 * MIB);
    }
    host_card_close(&card);
}

Test(account, goes_on_when_its_file_is_removed)
{
    char path[128];
    host_card_open(&card, 64 * MIB);
    vmm_handle handle;
    struct vmm_driver other;
    cr_assert_eq(card.driver.create(&card.driver, 4 * MIB, &handle, &err), 0);
    file_path(path, sizeof path);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(memory().own_bytes, 4 * MIB);
    host_card_open_other(&card, &other, 0, 5 * MIB);
    cr_assert_eq(other.create(&other, 2 * MIB, &handle, &err), EBB_ENOMEM, "it sees the 4 MiB");
    other.close(&other);
    host_card_close(&card);
}

Test(account, its_file_and_directory_are_the_users_own)
{
    struct stat st;
    struct account account;
    char path[160], directory[128];
    host_card_open(&card, 64 * MIB);
    file_path(path, sizeof path);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_eq(chmod(path, 0666), 0);
    cr_assert_eq(account_open(&account, card.directory, NULL, 0, &err), EBB_EDRIVER);
    cr_assert_eq(chmod(path, 0600), 0);
    cr_assert_eq(chmod(card.directory, 0777), 0);
    cr_assert_eq(account_open(&account, card.directory, NULL, 0, &err), EBB_EDRIVER);
    cr_assert_eq(chmod(card.directory, 0700), 0);
    (void)snprintf(directory, sizeof directory, "%s/new", card.directory);
    cr_assert_eq(account_open(&account, directory, "x", 0, &err), 0, "%s", err.text);
    account_close(&account);
    cr_assert_eq(stat(directory, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0700);
    (void)snprintf(path, sizeof path, "%s/cards-x.lock", directory);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(symlink("/dev/null", path), 0);
    cr_assert_eq(account_open(&account, directory, "x", 0, &err), EBB_EDRIVER);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(directory), 0);
    host_card_close(&card);
}

Test(account, a_forked_child_has_no_share_in_it)
{
    int status;
    vmm_handle handle;
    host_card_open(&card, 64 * MIB);
    cr_assert_eq(card.driver.create(&card.driver, 4 * MIB, &handle, &err), 0);
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        int code = card.driver.create(&card.driver, MIB, &handle, NULL);
        card.driver.close(&card.driver);
        _exit(code == EBB_EDRIVER ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(memory().own_bytes, 4 * MIB, "the child's close took nothing away");
    host_card_close(&card);
}

Test(account, defaults_to_the_users_runtime_directory)
{
    char path[128];
    struct account account;
    host_card_open(&card, 64 * MIB);
    cr_assert_eq(setenv("XDG_RUNTIME_DIR", card.directory, 1), 0);
    cr_assert_eq(account_open(&account, NULL, "here", 0, &err), 0, "%s", err.text);
    account_close(&account);
    (void)snprintf(path, sizeof path, "%s/ebbtide/cards-here.lock", card.directory);
    cr_assert_eq(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/ebbtide", card.directory);
    cr_assert_eq(rmdir(path), 0);
    host_card_close(&card);
}
