/* tools/comfy-handoff/card.c - from a port to a process, from its settings to the card's UUID (see card.h).
 *
 * Reads /proc and runs one program, bounded in bytes and in time. ComfyUI's own --cuda-device and --default-device set
 * CUDA_VISIBLE_DEVICES inside it, where /proc does not show it: its command line does.
 */
#include "tools/comfy-handoff/card.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "protocol/message.h"

#define LIST_PROGRAM "ebbtide-stage-cuda"
#define LIST_MS      20000
#define FILE_BYTES   65536
#define DEVICES_MAX  32 /* as many as ComfyUI puts behind its --default-device */
#define SOCKETS_MAX  16

/* A whole file, as far as it fits, with a NUL. Its bytes. */
static size_t file_read(const char *path, char *out, size_t capacity)
{
    size_t n = 0;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n + 1 < capacity && (got = read(fd, out + n, capacity - 1 - n)) > 0)
        n += (size_t)got;
    if (fd >= 0)
        (void)close(fd);
    out[n] = '\0';
    return n;
}

/* Inodes of the sockets that listen at a port: lines "sl local:port remote state … inode …", state 0A. */
static size_t sockets_find(const char *table, unsigned port, unsigned long inodes[SOCKETS_MAX])
{
    FILE *f = fopen(table, "re");
    char line[512];
    size_t n = 0;
    while (f != NULL && n < SOCKETS_MAX && fgets(line, sizeof line, f) != NULL) {
        unsigned at = 0, state = 0;
        unsigned long inode = 0;
        if (sscanf(line,
                   " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu",
                   &at, &state, &inode) == 3 &&
            at == port && state == 0x0A)
            inodes[n++] = inode;
    }
    if (f != NULL)
        (void)fclose(f);
    return n;
}

static bool process_has(const char *pid, const unsigned long *inodes, size_t n_inodes)
{
    char path[512], target[64], wanted[64];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *fds = opendir(path);
    struct dirent *each;
    while (fds != NULL && !found && (each = readdir(fds)) != NULL) {
        (void)snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, each->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        for (size_t i = 0; i < n_inodes; i++) {
            (void)snprintf(wanted, sizeof wanted, "socket:[%lu]", inodes[i]);
            found = found || strcmp(target, wanted) == 0;
        }
    }
    if (fds != NULL)
        (void)closedir(fds);
    return found;
}

static bool listener_find(unsigned port, char pid[static 24])
{
    unsigned long inodes[2 * SOCKETS_MAX];
    size_t n = sockets_find("/proc/net/tcp", port, inodes);
    bool found = false;
    n += sockets_find("/proc/net/tcp6", port, inodes + n);
    DIR *all = n > 0 ? opendir("/proc") : NULL;
    struct dirent *each;
    while (all != NULL && !found && (each = readdir(all)) != NULL) {
        if (!isdigit((unsigned char)each->d_name[0]) || !process_has(each->d_name, inodes, n))
            continue;
        (void)snprintf(pid, 24, "%.20s", each->d_name);
        found = true;
    }
    if (all != NULL)
        (void)closedir(all);
    return found;
}

/* The value behind `name` in a list of NUL-ended strings: of "name=value", or for a flag also of the string after it. */
static const char *value_find(const char *list, size_t n_bytes, const char *name)
{
    size_t n_name = strlen(name);
    for (const char *at = list; at < list + n_bytes; at += strlen(at) + 1) {
        if (strncmp(at, name, n_name) != 0)
            continue;
        if (at[n_name] == '=')
            return at + n_name + 1;
        if (at[n_name] == '\0' && name[0] == '-' && at + n_name + 1 < list + n_bytes)
            return at + n_name + 1;
    }
    return NULL;
}

struct seen { /* what a process sees of the cards; "": not set */
    char visible[1024], order[64];
};

static bool settings_read(const char *pid, struct seen *seen)
{
    static char bytes[FILE_BYTES];
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    if (access(path, R_OK) != 0)
        return false;
    size_t n = file_read(path, bytes, sizeof bytes);
    const char *visible = value_find(bytes, n, "CUDA_VISIBLE_DEVICES"),
               *order = value_find(bytes, n, "CUDA_DEVICE_ORDER");
    (void)snprintf(seen->visible, sizeof seen->visible, "%s", visible != NULL ? visible : "");
    (void)snprintf(seen->order, sizeof seen->order, "%s", order != NULL ? order : "");
    (void)snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    n = file_read(path, bytes, sizeof bytes);
    const char *first = value_find(bytes, n, "--default-device"),
               *only = value_find(bytes, n, "--cuda-device");
    uint64_t number;
    if (first != NULL && parse_u64(first, 0, DEVICES_MAX - 1, &number) == 0) {
        size_t at = (size_t)snprintf(seen->visible, sizeof seen->visible, "%s", first);
        for (unsigned i = 0; i < DEVICES_MAX; i++)
            if (i != number)
                at += (size_t)snprintf(seen->visible + at, sizeof seen->visible - at, ",%u", i);
    }
    if (only != NULL)
        (void)snprintf(seen->visible, sizeof seen->visible, "%s", only);
    return true;
}

/* Beside this program, else wherever PATH says. */
static void program_find(char *path, size_t capacity)
{
    ssize_t n = readlink("/proc/self/exe", path, capacity - sizeof LIST_PROGRAM - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        (void)snprintf(slash + 1, capacity - (size_t)(slash + 1 - path), LIST_PROGRAM);
    if (slash == NULL || access(path, X_OK) != 0)
        (void)snprintf(path, capacity, LIST_PROGRAM);
}

static void name_set(const char *name, const char *value)
{
    if (value[0] != '\0')
        (void)setenv(name, value, 1);
    else
        (void)unsetenv(name);
}

/* Starts the lister under these settings; its stdout, or -1. */
static int list_start(const struct seen *seen, pid_t *pid)
{
    char path[4096], *argv[] = {path, "--list", NULL};
    posix_spawn_file_actions_t actions;
    extern char **environ;
    int out[2];
    program_find(path, sizeof path);
    name_set("CUDA_VISIBLE_DEVICES", seen->visible);
    name_set("CUDA_DEVICE_ORDER", seen->order);
    if (pipe2(out, O_CLOEXEC) != 0)
        return -1;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int code = posix_spawnp(pid, path, &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(out[1]);
    if (code == 0)
        return out[0];
    (void)close(out[0]);
    return -1;
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* What it says up to its end; false: it failed, or took too long and was killed. */
static bool list_read(int fd, pid_t pid, char *out, size_t capacity)
{
    int64_t until = now_ms() + LIST_MS, left = LIST_MS;
    size_t n = 0;
    ssize_t got = 1;
    int status = 0;
    while (got != 0 && n + 1 < capacity && (left = until - now_ms()) > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)left) <= 0)
            continue;
        got = read(fd, out + n, capacity - 1 - n);
        n += got > 0 ? (size_t)got : 0;
    }
    out[n] = '\0';
    (void)close(fd);
    if (got != 0)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return got == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool card_uuid_find(unsigned port, uint32_t index, char *uuid, size_t capacity)
{
    static char list[FILE_BYTES];
    struct seen seen;
    char pid[24];
    pid_t lister;
    uuid[0] = '\0';
    if (port == 0 || !listener_find(port, pid) || !settings_read(pid, &seen))
        return false;
    int fd = list_start(&seen, &lister);
    if (fd < 0 || !list_read(fd, lister, list, sizeof list))
        return false;
    char *rest = list, *line;
    while (uuid[0] == '\0' && (line = strsep(&rest, "\n")) != NULL) {
        struct message m;
        uint64_t device;
        if (message_parse(&m, line, strlen(line), NULL) == 0 && strcmp(m.verb, "CARD") == 0 &&
            message_u64(&m, "device", 0, UINT32_MAX, &device, NULL) == 0 && device == index)
            message_text_take(&m, "uuid", uuid, capacity);
    }
    return uuid[0] != '\0';
}
