/* tools/make-model/output.c - one file, written in chunks that any thread can make.
 *
 * A chunk is a few MiB of one tensor. Threads take chunks by a shared counter, make the blocks in a buffer of their own
 * and write them at their place; what lies between tensors stays zero. The first error ends all of them. The caller's
 * thread only waits and tells the progress. Signals stay with it: the others block them.
 *
 * The file is opened without a name (O_TMPFILE) and linked at the end; linking fails where something is, which makes "do
 * not overwrite" hold against other programs as well. To replace, it is linked beside and renamed.
 */
#include "tools/make-model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "runtime/model/model.h"
#include "runtime/model/tokenizer.h"

#define CHUNK_BYTES ((size_t)4 << 20)
#define THREADS_MAX 256

struct target {
    const char *path;
    int fd;
    char beside[PATH_MAX]; /* a name for the time being; "" : none */
};

struct writing {
    const struct output_settings *o;
    const struct layout *l;
    int fd;
    size_t *chunk_first; /* owned [n_tensors + 1]: number of each tensor's first chunk */
    _Atomic size_t chunk_next, bytes_done;
    atomic_int n_running;
    atomic_int failed; /* an errno */
};

static size_t chunk_blocks(const struct layout_tensor *t)
{
    return CHUNK_BYTES / tensor_type_find(t->type)->block_bytes / 4 * 4;
}

static size_t tensor_blocks(const struct layout_tensor *t)
{
    return t->bytes / tensor_type_find(t->type)->block_bytes;
}

static bool write_all(int fd, const unsigned char *data, size_t n, size_t at)
{
    while (n > 0) {
        ssize_t written = pwrite(fd, data, n, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        data += written;
        at += (size_t)written;
        n -= (size_t)written;
    }
    return true;
}

/* The tensor that has the chunk. */
static size_t chunk_tensor(const struct writing *w, size_t chunk)
{
    size_t low = 0, high = w->l->n_tensors;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (w->chunk_first[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool chunk_write(struct writing *w, size_t chunk, unsigned char *buffer)
{
    size_t i = chunk_tensor(w, chunk);
    const struct layout_tensor *t = &w->l->tensors[i];
    size_t block_bytes = tensor_type_find(t->type)->block_bytes;
    size_t first = (chunk - w->chunk_first[i]) * chunk_blocks(t);
    size_t n =
        tensor_blocks(t) - first < chunk_blocks(t) ? tensor_blocks(t) - first : chunk_blocks(t);
    fill_blocks(&t->fill, first, n, buffer);
    if (!write_all(w->fd, buffer, n * block_bytes,
                   w->l->header.n + t->offset + first * block_bytes))
        return false;
    w->bytes_done += n * block_bytes;
    return true;
}

static void *writer_main(void *argument)
{
    struct writing *w = argument;
    size_t n_chunks = w->chunk_first[w->l->n_tensors];
    unsigned char *buffer = malloc(CHUNK_BYTES);
    if (buffer == NULL)
        w->failed = ENOMEM;
    while (buffer != NULL && w->failed == 0 && *w->o->stop == 0) {
        size_t chunk = w->chunk_next++;
        if (chunk >= n_chunks)
            break;
        if (!chunk_write(w, chunk, buffer))
            w->failed = errno != 0 ? errno : EIO;
    }
    free(buffer);
    w->n_running--;
    return NULL;
}

static int threads_run(struct writing *w, struct error *err)
{
    pthread_t threads[THREADS_MAX];
    int n_wanted = w->o->n_threads < THREADS_MAX ? w->o->n_threads : THREADS_MAX, n = 0;
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; n < n_wanted; n++) {
        w->n_running++;
        if (pthread_create(&threads[n], NULL, writer_main, w) != 0) {
            w->n_running--;
            break;
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (n == 0)
        return error_set(err, EBB_ENOMEM, "%s: no thread to write it", w->o->path);
    while (w->n_running > 0) {
        struct timespec moment = {0, 20000000};
        (void)nanosleep(&moment, NULL);
        if (w->o->progress != NULL)
            w->o->progress(w->bytes_done, w->l->file_bytes);
    }
    while (n > 0)
        (void)pthread_join(threads[--n], NULL);
    return 0;
}

static int weights_write(const struct output_settings *o, const struct layout *l, int fd,
                         struct error *err)
{
    struct writing w = {.o = o, .l = l, .fd = fd};
    int code;
    w.chunk_first = calloc(l->n_tensors + 1, sizeof *w.chunk_first);
    if (w.chunk_first == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for %zu tensors", l->n_tensors);
    for (size_t i = 0; i < l->n_tensors; i++) {
        size_t per_chunk = chunk_blocks(&l->tensors[i]);
        w.chunk_first[i + 1] =
            w.chunk_first[i] + (tensor_blocks(&l->tensors[i]) + per_chunk - 1) / per_chunk;
    }
    code = threads_run(&w, err);
    free(w.chunk_first);
    if (code == 0 && *o->stop != 0)
        return error_set(err, EBB_ECANCEL, "%s: stopped, nothing is left of it", o->path);
    if (code == 0 && w.failed != 0)
        return error_set(err, w.failed == ENOMEM ? EBB_ENOMEM : EBB_EIO, "%s: writing: %s", o->path,
                         strerror(w.failed));
    return code;
}

static int room_check(const struct layout *l, const char *path, const char *folder,
                      struct error *err)
{
    struct statvfs vfs;
    if (statvfs(folder, &vfs) != 0)
        return error_set(err, EBB_EIO, "%s: %s: %s", path, folder, strerror(errno));
    uint64_t free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    if (free_bytes < l->file_bytes)
        return error_set(err, EBB_ENOMEM, "%s: wants %zu MiB, its disk has %llu free", path,
                         (l->file_bytes >> 20) + 1, (unsigned long long)(free_bytes >> 20));
    return 0;
}

static int target_check(const struct output_settings *o, struct error *err)
{
    struct stat st;
    if (lstat(o->path, &st) != 0)
        return 0;
    if (!o->replace)
        return error_set(err, EBB_EINVAL, "%s: is there already; --force replaces it", o->path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, EBB_EINVAL, "%s: is no plain file: it is not replaced", o->path);
    return 0;
}

static int target_open(struct target *t, const struct output_settings *o, const char *folder,
                       struct error *err)
{
    int n = snprintf(t->beside, sizeof t->beside, "%s.%ld.part", o->path, (long)getpid());
    t->path = o->path;
    if (n < 0 || (size_t)n >= sizeof t->beside)
        return error_set(err, EBB_EINVAL, "%s: the name is too long", o->path);
    t->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (t->fd >= 0) {
        t->beside[0] = '\0';
        return 0;
    }
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)
        return error_set(err, EBB_EIO, "%s: %s", o->path, strerror(errno));
    t->fd = open(t->beside, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (t->fd >= 0)
        return 0;
    t->beside[0] = '\0';
    return error_set(err, EBB_EIO, "%s: %s", o->path, strerror(errno));
}

/* Without a trace where the file was not given its name. */
static void target_close(struct target *t)
{
    if (t->beside[0] != '\0')
        (void)unlink(t->beside);
    if (t->fd >= 0)
        (void)close(t->fd);
}

/* The file gets its name. */
static int target_name(struct target *t, bool replace, struct error *err)
{
    char from[64];
    bool is_named = t->beside[0] != '\0';
    (void)snprintf(from, sizeof from, "/proc/self/fd/%d", t->fd);
    if (replace && !is_named) {
        (void)snprintf(t->beside, sizeof t->beside, "%s.%ld.part", t->path, (long)getpid());
        if (linkat(AT_FDCWD, from, AT_FDCWD, t->beside, AT_SYMLINK_FOLLOW) != 0)
            return error_set(err, EBB_EIO, "%s: %s", t->beside, strerror(errno));
    }
    int code = replace    ? rename(t->beside, t->path)
               : is_named ? link(t->beside, t->path)
                          : linkat(AT_FDCWD, from, AT_FDCWD, t->path, AT_SYMLINK_FOLLOW);
    if (code != 0 && errno == EEXIST)
        return error_set(err, EBB_EINVAL, "%s: is there by now; --force replaces it", t->path);
    if (code != 0)
        return error_set(err, EBB_EIO, "%s: %s", t->path, strerror(errno));
    if (replace)
        t->beside[0] = '\0';
    return 0;
}

/* What is written is a model, and its vocabulary one. */
static int result_check(const struct target *t, struct error *err)
{
    char path[64];
    struct model *m = NULL;
    struct tokenizer *tokenizer = NULL;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", t->fd);
    int code = model_open(&m, path, err);
    if (code == 0)
        code = tokenizer_open(&tokenizer, m->gguf, err);
    tokenizer_close(tokenizer);
    model_close(m);
    return code;
}

/* Cuts the path behind its last slash. */
static const char *folder_of(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return ".";
    slash[1] = '\0';
    return path;
}

int output_write(const struct output_settings *o, const struct layout *l, struct error *err)
{
    struct target target = {.fd = -1};
    char copy[PATH_MAX];
    int n = snprintf(copy, sizeof copy, "%s", o->path);
    if (n <= 0 || (size_t)n >= sizeof copy)
        return error_set(err, EBB_EINVAL, "-o: wants the name of a file, got '%.40s'", o->path);
    const char *folder = folder_of(copy);
    int code = target_check(o, err);
    if (code == 0)
        code = room_check(l, o->path, folder, err);
    if (code == 0)
        code = target_open(&target, o, folder, err);
    if (code == 0 && (ftruncate(target.fd, (off_t)l->file_bytes) != 0 ||
                      !write_all(target.fd, l->header.data, l->header.n, 0)))
        code = error_set(err, EBB_EIO, "%s: writing: %s", o->path, strerror(errno));
    if (code == 0)
        code = weights_write(o, l, target.fd, err);
    if (code == 0)
        code = result_check(&target, err);
    if (code == 0)
        code = target_name(&target, o->replace, err);
    target_close(&target);
    return code;
}
