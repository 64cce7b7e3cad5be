/* runtime/config_text.c - a file of settings as bytes: a regular file of at most 1 MiB, read whole.
 *
 * Whatever else stands under the name (a directory, a pipe, a device) is refused without being waited for.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/settings_table.h"

#define FILE_BYTES_MAX (1u << 20)

static int read_all(int fd, const char *path, char *text, size_t *n_bytes, struct error *err)
{
    while (*n_bytes < FILE_BYTES_MAX) {
        ssize_t n = read(fd, text + *n_bytes, FILE_BYTES_MAX - *n_bytes);
        if (n < 0 && errno != EINTR)
            return error_set(err, EBB_EIO, "%s: %s", path, strerror(errno));
        if (n == 0)
            break;
        *n_bytes += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int config_text_read(const char *path, char **text, size_t *n_bytes, struct error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int code;
    if (fd < 0)
        return error_set(err, errno == ENOENT ? EBB_ENOENT : EBB_EIO, "%s: %s", path,
                         strerror(errno));
    *text = NULL;
    *n_bytes = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        code = error_set(err, EBB_EIO, "%s: expected a file, got something else", path);
    else if (st.st_size > FILE_BYTES_MAX)
        code = error_set(err, EBB_ERANGE, "%s: expected at most %u bytes, got %lld", path,
                         FILE_BYTES_MAX, (long long)st.st_size);
    else if ((*text = malloc(FILE_BYTES_MAX)) == NULL)
        code = error_set(err, EBB_ENOMEM, "%s: no memory to read it", path);
    else
        code = read_all(fd, path, *text, n_bytes, err);
    (void)close(fd);
    return code;
}
