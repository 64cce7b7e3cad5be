/* tests/unit/vmm/lock_file_test.c - taking turns by a lock file: nobody waits, and nobody is locked out for good. */
#include "tests/unit/vmm/cache_help.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "vmm/lock_file.h"

static char directory[] = "/tmp/ebbtide-lock-XXXXXX", path[64];
static struct lock_file first, second;
static struct error err;

static void two_open(void)
{
    cr_assert_not_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/a.lock", directory);
    cr_assert_eq(lock_file_open(&first, directory, "a.lock", &err), 0, "%s", err.text);
    cr_assert_eq(lock_file_open(&second, directory, "a.lock", &err), 0, "%s", err.text);
}

static void two_close(void)
{
    lock_file_close(&first);
    lock_file_close(&second);
    lock_file_close(&second);
    (void)unlink(path);
    cr_assert_eq(rmdir(directory), 0);
}

Test(lock_file, one_holds_it_at_a_time)
{
    two_open();
    cr_assert_eq(lock_file_try(&first, &err), 1);
    cr_assert_eq(lock_file_try(&second, &err), 0);
    lock_file_release(&first);
    cr_assert_eq(lock_file_try(&second, &err), 1);
    lock_file_close(&second);
    cr_assert_eq(lock_file_try(&first, &err), 1, "a closed one holds nothing");
    two_close();
}

Test(lock_file, a_killed_holder_frees_it)
{
    int out[2], status;
    char word;
    two_open();
    cr_assert_eq(pipe(out), 0);
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        struct lock_file own;
        bool held =
            lock_file_open(&own, directory, "a.lock", NULL) == 0 && lock_file_try(&own, NULL) == 1;
        (void)!write(out[1], held ? "y" : "n", 1);
        (void)pause();
        _exit(0);
    }
    cr_assert_eq(read(out[0], &word, 1), 1);
    cr_assert_eq(word, 'y');
    cr_assert_eq(lock_file_try(&first, &err), 0);
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(lock_file_try(&first, &err), 1);
    (void)close(out[0]);
    (void)close(out[1]);
    two_close();
}

Test(lock_file, a_file_that_was_removed_splits_nobody)
{
    struct stat st;
    two_open();
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(lock_file_try(&first, &err), 1);
    cr_assert_eq(stat(path, &st), 0, "it is there again");
    cr_assert_eq(lock_file_try(&second, &err), 0, "and both mean the new one");
    two_close();
}

Test(lock_file, what_others_may_write_or_have_put_there_is_refused)
{
    struct lock_file other;
    two_open();
    cr_assert_eq(chmod(path, 0666), 0);
    cr_assert_eq(lock_file_open(&other, directory, "a.lock", &err), EBB_EDRIVER);
    cr_assert_not_null(strstr(err.text, "others may write to it"));
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(symlink("/dev/null", path), 0);
    cr_assert_eq(lock_file_open(&other, directory, "a.lock", &err), EBB_EDRIVER);
    two_close();
}

Test(lock_file, a_name_that_is_too_long_is_refused)
{
    struct lock_file other;
    char name[sizeof other.file + 1];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    cr_assert_eq(lock_file_open(&other, "/tmp", name, &err), EBB_EINVAL);
    cr_assert_lt(other.fd, 0);
}
