/* vmm/lock_file.c - taking turns by flock on a file of the runtime directory (see lock_file.h).
 *
 * A lock holds for the file, not for its name: whoever removes the file while it is in use would split those who take turns in two
 * camps. So a lock counts only while the file that was locked still has a name; else the new one is opened.
 */
#include "vmm/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOVED_MAX 8 /* times in a row that the file may vanish under us */

/* Ours, and nobody else may write there. */
static int ownership_check(const char *path, const struct stat *st, struct error *err)
{
    if (st->st_uid != geteuid())
        return error_set(err, EBB_EDRIVER, "%s: belongs to user %ld, wanted %ld", path,
                         (long)st->st_uid, (long)geteuid());
    if ((st->st_mode & 022) != 0)
        return error_set(err, EBB_EDRIVER, "%s: others may write to it (mode %03o)", path,
                         (unsigned)(st->st_mode & 0777));
    return 0;
}

static int directory_open(const char *path, int *fd, struct error *err)
{
    struct stat st;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return error_set(err, EBB_EDRIVER, "%s: cannot make the directory: %s", path,
                         strerror(errno));
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0)
        return error_set(err, EBB_EDRIVER, "%s: wants a directory: %s", path, strerror(errno));
    int code = fstat(*fd, &st) == 0 ? ownership_check(path, &st, err)
                                    : error_set(err, EBB_EDRIVER, "%s: %s", path, strerror(errno));
    if (code != 0)
        (void)close(*fd);
    return code;
}

/* Puts the file that has the name now into l->fd; after a failure that is as it was. */
static int file_open(struct lock_file *l, struct error *err)
{
    int directory = -1;
    struct stat st;
    int code = directory_open(l->directory, &directory, err);
    if (code != 0)
        return code;
    int fd = openat(directory, l->file, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) != 0)
        code = error_set(err, EBB_EDRIVER, "%s/%s: cannot open it: %s", l->directory, l->file,
                         strerror(errno));
    else if (!S_ISREG(st.st_mode))
        code = error_set(err, EBB_EDRIVER, "%s/%s: wants a regular file", l->directory, l->file);
    else
        code = ownership_check(l->file, &st, err);
    (void)close(directory);
    if (code != 0 && fd >= 0)
        (void)close(fd);
    if (code == 0)
        l->fd = fd;
    return code;
}

static int directory_choose(struct lock_file *l, const char *directory, struct error *err)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    int n;
    if (directory != NULL && directory[0] != '\0')
        n = snprintf(l->directory, sizeof l->directory, "%s", directory);
    else if (xdg != NULL && xdg[0] == '/')
        n = snprintf(l->directory, sizeof l->directory, "%s/ebbtide", xdg);
    else
        n = snprintf(l->directory, sizeof l->directory, "/tmp/ebbtide-%ld", (long)geteuid());
    if (n < 0 || (size_t)n >= sizeof l->directory)
        return error_set(err, EBB_EINVAL, "runtime directory: its path is longer than %zu bytes",
                         sizeof l->directory - 1);
    return 0;
}

int lock_file_open(struct lock_file *l, const char *directory, const char *file, struct error *err)
{
    *l = (struct lock_file){.fd = -1};
    int n = snprintf(l->file, sizeof l->file, "%s", file);
    if (n < 0 || (size_t)n >= sizeof l->file)
        return error_set(err, EBB_EINVAL, "a lock file's name may have %zu bytes, got %d",
                         sizeof l->file - 1, n);
    int code = directory_choose(l, directory, err);
    return code == 0 ? file_open(l, err) : code;
}

int lock_file_try(struct lock_file *l, struct error *err)
{
    for (int attempt = 0; attempt < REMOVED_MAX; attempt++) {
        struct stat st;
        if (flock(l->fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK || errno == EINTR)
                return 0;
            return error_set(err, EBB_EDRIVER, "%s/%s: cannot lock it: %s", l->directory, l->file,
                             strerror(errno));
        }
        if (fstat(l->fd, &st) == 0 && st.st_nlink > 0)
            return 1;
        int old = l->fd;
        int code = file_open(l, err);
        if (code != 0) {
            lock_file_release(l);
            return code;
        }
        (void)close(old);
    }
    return error_set(err, EBB_EDRIVER, "%s/%s: is removed again and again", l->directory, l->file);
}

void lock_file_release(struct lock_file *l)
{
    (void)flock(l->fd, LOCK_UN);
}

void lock_file_close(struct lock_file *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    *l = (struct lock_file){.fd = -1};
}
