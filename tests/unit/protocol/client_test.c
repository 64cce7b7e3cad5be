/* tests/unit/protocol/client_test.c - finding, reaching and asking an engine, in a runtime
 * directory of the test's own. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "protocol/client.h"

static struct error err;
static char base[64], directory[128], path[512];

static void setup(void)
{
    strcpy(base, "/tmp/ebbtide-test-XXXXXX");
    cr_assert_not_null(mkdtemp(base));
    cr_assert_eq(setenv("XDG_RUNTIME_DIR", base, 1), 0);
    snprintf(directory, sizeof directory, "%s/ebbtide", base);
}

static void teardown(void)
{
    struct stat st;
    DIR *dir;
    struct dirent *entry;

    /* A test may have left a link there: nothing behind it is ours. */
    (void)unlink(directory);
    dir = lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(directory) : NULL;
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    (void)rmdir(directory);
    (void)rmdir(base);
}

TestSuite(client, .init = setup, .fini = teardown);

/* A socket that listens under this name; closing it leaves a stale one. */
static int listening(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), 0, "%s", err.text);
    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/%.20s", directory, name);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, 8), 0);
    return fd;
}

Test(client, runtime_directory_is_made_for_its_owner_alone)
{
    struct stat st;

    cr_assert_eq(runtime_directory(path, sizeof path, false, &err), EBB_ENOENT);
    cr_assert_str_eq(path, directory);
    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), 0);
    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), 0);
    cr_assert_eq(runtime_directory(path, sizeof path, false, &err), 0);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0700);
    cr_assert_eq(runtime_directory(path, 10, true, &err), EBB_ERANGE);
}

Test(client, runtime_directory_falls_back_to_one_per_user)
{
    char wanted[64];

    snprintf(wanted, sizeof wanted, "/tmp/ebbtide-%lu", (unsigned long)geteuid());
    unsetenv("XDG_RUNTIME_DIR");
    (void)runtime_directory(path, sizeof path, false, &err);
    cr_assert_str_eq(path, wanted);
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    (void)runtime_directory(path, sizeof path, false, &err);
    cr_assert_str_eq(path, wanted);
}

Test(client, runtime_directory_that_others_may_write_or_own_is_refused)
{
    cr_assert_eq(mkdir(directory, 0700), 0);
    cr_assert_eq(chmod(directory, 0770), 0);
    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "others may write"), "%s", err.text);
    cr_assert_eq(chmod(directory, 0700), 0);
    if (geteuid() == 0) {
        cr_assert_eq(chown(directory, 12345, (gid_t)-1), 0);
        cr_assert_eq(runtime_directory(path, sizeof path, true, &err), EBB_EINVAL);
        cr_assert_not_null(strstr(err.text, "12345"), "%s", err.text);
    }
    cr_assert_eq(rmdir(directory), 0);
    cr_assert_eq(symlink(base, directory), 0);
    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), EBB_EINVAL);
    cr_assert_not_null(strstr(err.text, "something else"), "%s", err.text);
}

Test(client, finds_nothing_where_nothing_runs_and_says_how_to_start)
{
    cr_assert_eq(client_find(NULL, NULL, path, sizeof path, &err), EBB_ENOENT);
    cr_assert_not_null(strstr(err.text, "no engine runs: start one with ebbtide serve"), "%s",
                       err.text);
    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), 0);
    cr_assert_eq(client_find(NULL, NULL, path, sizeof path, &err), EBB_ENOENT);
    cr_assert_eq(client_find(NULL, "demo", path, sizeof path, &err), EBB_ENOENT);
}

Test(client, passes_over_stale_sockets_and_finds_the_only_live_one)
{
    char file[256];
    int stale = listening("old.sock"), live;

    close(stale);
    cr_assert_eq(client_find(NULL, NULL, path, sizeof path, &err), EBB_ENOENT);
    snprintf(file, sizeof file, "%s/not-a-socket.sock", directory);
    fclose(fopen(file, "w"));
    live = listening("new.sock");
    cr_assert_eq(client_find(NULL, NULL, path, sizeof path, &err), 0, "%s", err.text);
    cr_assert_not_null(strstr(path, "/ebbtide/new.sock"), "%s", path);
    cr_assert_eq(client_find(NULL, "new", path, sizeof path, &err), 0);
    cr_assert_eq(client_find(NULL, "old", path, sizeof path, &err), EBB_ENOENT);
    cr_assert_eq(client_find(NULL, NULL, path, 20, &err), EBB_ERANGE);
    close(live);
}

Test(client, names_the_engines_where_there_are_several)
{
    int a = listening("a.sock"), b = listening("b.sock");

    cr_assert_eq(client_find(NULL, NULL, path, sizeof path, &err), EBB_EBUSY);
    cr_assert(strstr(err.text, "a, b") != NULL || strstr(err.text, "b, a") != NULL, "%s", err.text);
    cr_assert_not_null(strstr(err.text, "--name"));
    cr_assert_eq(client_find(NULL, "b", path, sizeof path, &err), 0);
    cr_assert_not_null(strstr(path, "/b.sock"));
    close(a);
    close(b);
}

Test(client, takes_a_path_as_it_stands_and_no_name_that_leaves_the_directory)
{
    cr_assert_eq(client_find("/nowhere/x.sock", NULL, path, sizeof path, &err), 0);
    cr_assert_str_eq(path, "/nowhere/x.sock");
    cr_assert_eq(runtime_directory(path, sizeof path, true, &err), 0);
    cr_assert_eq(client_find(NULL, "../x", path, sizeof path, &err), EBB_EINVAL);
    cr_assert_eq(client_find(NULL, "..", path, sizeof path, &err), EBB_EINVAL);
    cr_assert_eq(client_find(NULL, "", path, sizeof path, &err), EBB_EINVAL);
}

Test(client, connecting_says_why_it_cannot)
{
    char long_path[200];
    struct channel c;
    int stale = listening("old.sock");

    close(stale);
    snprintf(path, sizeof path, "%s/old.sock", directory);
    cr_assert_eq(client_connect(&c, path, &err), EBB_ENOENT);
    cr_assert_not_null(strstr(err.text, "nobody answers"), "%s", err.text);
    cr_assert_eq(client_connect(&c, "/nowhere/x.sock", &err), EBB_ENOENT);
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = '\0';
    cr_assert_eq(client_connect(&c, long_path, &err), EBB_ERANGE);
    cr_assert_not(client_socket_is_live(long_path));
}

Test(client, asks_and_waits_for_answers)
{
    struct channel c;
    int server = listening("e.sock"), peer;
    char seen[64] = "", *line;
    size_t n;

    cr_assert_eq(client_find(NULL, NULL, path, sizeof path, &err), 0);
    close(accept(server, NULL, NULL)); /* the look whether somebody answers */
    cr_assert_eq(client_connect(&c, path, &err), 0, "%s", err.text);
    peer = accept(server, NULL, NULL);
    cr_assert_eq(client_ask(&c, "PING a", &err), 0);
    cr_assert_eq(client_ask(&c, "PING b\n", &err), 0);
    cr_assert_eq(read(peer, seen, sizeof seen - 1), 14);
    cr_assert_str_eq(seen, "PING a\nPING b\n");
    cr_assert_eq(client_wait_line(&c, 10, &line, &n, &err), EBB_EAGAIN);
    cr_assert_eq(write(peer, "PONG a\nPONG b\nBYE", 17), 17);
    close(peer);
    cr_assert_eq(client_wait_line(&c, 1000, &line, &n, &err), 0);
    cr_assert_str_eq(line, "PONG a");
    cr_assert_eq(client_wait_line(&c, -1, &line, &n, &err), 0);
    cr_assert_str_eq(line, "PONG b");
    cr_assert_eq(client_wait_line(&c, -1, &line, &n, &err), 0);
    cr_assert_str_eq(line, "BYE");
    cr_assert_eq(client_wait_line(&c, -1, &line, &n, &err), EBB_EGONE);
    cr_assert_eq(client_ask(&c, "PING c", &err), EBB_EGONE);
    channel_close(&c);
    close(server);
}

Test(client, refuses_to_ask_a_line_that_is_too_long)
{
    static char text[LINE_BYTES_MAX + 1];
    struct channel c;
    int server = listening("e.sock");

    snprintf(path, sizeof path, "%s/e.sock", directory);
    cr_assert_eq(client_connect(&c, path, &err), 0);
    memset(text, 'x', LINE_BYTES_MAX);
    cr_assert_eq(client_ask(&c, text, &err), EBB_ELINE_TOO_LONG);
    text[LINE_BYTES_MAX - 1] = '\0';
    cr_assert_eq(client_ask(&c, text, &err), 0);
    channel_close(&c);
    close(server);
}
