/* stages/heat_file.c - reading, merging and writing of heat files (see heat_file.h).
 *
 * Owns nothing between calls. A table of the whole model's heat is made for a call, checked, then used. Threads: the control thread,
 * at LOAD and at the end of the process.
 */
#include "stages/heat_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "protocol/line.h"
#include "protocol/message.h"

#define FILE_BYTES_MAX (UINT64_C(64) << 20)
#define LOCK_TRIES     30
#define LOCK_WAIT_NS   10000000

struct table { /* of all layers of a model */
    const char *path;
    uint64_t fingerprint;
    size_t n_layers, n_experts, n_given;
    int32_t *milli; /* owned [n_layers][n_experts] */
    bool *given;    /* owned [n_layers] */
    size_t line;    /* being read, from 1 */
    bool begun, ended;
};

static int table_open(struct table *t, const char *path, const struct experts *x, struct error *err)
{
    const struct model *m = x->set.model;
    *t = (struct table){.path = path,
                        .fingerprint = m->fingerprint,
                        .n_layers = m->geometry.n_layers,
                        .n_experts = x->n_experts};
    t->milli = calloc(t->n_layers * t->n_experts, sizeof *t->milli);
    t->given = calloc(t->n_layers, sizeof *t->given);
    if (t->milli != NULL && t->given != NULL)
        return 0;
    free(t->milli);
    free(t->given);
    return error_set(err, EBB_ENOMEM, "%s: no memory for the heat of %zu layers", path,
                     t->n_layers);
}

static void table_close(struct table *t)
{
    free(t->milli);
    free(t->given);
}

static int bad_line(const struct table *t, const struct error *why, struct error *err)
{
    return error_set(err, EBB_EFORMAT, "%s:%zu: %.300s", t->path, t->line, why->text);
}

static int read_begin(struct table *t, const struct message *m, struct error *err)
{
    const char *hex = message_key(m, "fingerprint");
    uint64_t version = 0, n_layers = 0, n_experts = 0, fingerprint = 0;
    struct error why = {0};
    if (strcmp(m->verb, "EBBTIDE-HEAT") != 0)
        return error_set(err, EBB_EFORMAT,
                         "%s: not a heat file: wants EBBTIDE-HEAT first, got \"%.40s\"", t->path,
                         m->verb);
    if (message_u64(m, "version", 1, UINT32_MAX, &version, &why) != 0 || version != 1)
        return error_set(err, EBB_EFORMAT, "%s:%zu: wants version=1, got %.20s", t->path, t->line,
                         message_key(m, "version") != NULL ? message_key(m, "version") : "none");
    if (hex == NULL || strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return error_set(err, EBB_EFORMAT, "%s:%zu: fingerprint: wants 16 hex digits, got %.40s",
                         t->path, t->line, hex != NULL ? hex : "none");
    (void)sscanf(hex, "%16" SCNx64, &fingerprint);
    if (fingerprint != t->fingerprint)
        return error_set(err, EBB_EMISMATCH,
                         "%s: the heat of another model: wants fingerprint %016" PRIx64
                         ", got %016" PRIx64,
                         t->path, t->fingerprint, fingerprint);
    if (message_u64(m, "layers", 0, UINT32_MAX, &n_layers, &why) != 0 ||
        message_u64(m, "experts", 0, UINT32_MAX, &n_experts, &why) != 0 ||
        n_layers != t->n_layers || n_experts != t->n_experts)
        return error_set(err, EBB_EMISMATCH,
                         "%s:%zu: wants layers=%zu experts=%zu, got %" PRIu64 " and %" PRIu64,
                         t->path, t->line, t->n_layers, t->n_experts, n_layers, n_experts);
    t->begun = true;
    return 0;
}

static int read_layer(struct table *t, const struct message *m, struct error *err)
{
    const char *list = message_key(m, "milli");
    uint64_t layer = 0;
    struct error why = {0};
    size_t n = 0;
    int32_t value;
    int rc = message_u64(m, "layer", 0, t->n_layers - 1, &layer, &why);
    if (rc == EBB_ENOENT || list == NULL)
        rc = error_set(&why, EBB_EFORMAT, "HEAT: wants layer= and milli=");
    else if (rc == 0 && t->given[layer])
        rc = error_set(&why, EBB_EFORMAT, "layer %" PRIu64 " comes twice", layer);
    while (rc == 0 && (rc = ids_next(&list, INT32_MAX, &value, &why)) == 1) {
        if (n < t->n_experts)
            t->milli[layer * t->n_experts + n] = value;
        n++;
        rc = 0;
    }
    if (rc == 0 && n != t->n_experts)
        rc = error_set(&why, EBB_EFORMAT, "layer %" PRIu64 ": wants %zu numbers, got %zu", layer,
                       t->n_experts, n);
    if (rc != 0)
        return bad_line(t, &why, err);
    t->given[layer] = true;
    t->n_given++;
    return 0;
}

static int read_end(struct table *t, const struct message *m, struct error *err)
{
    uint64_t lines = 0;
    struct error why = {0};
    int rc = message_u64(m, "lines", 0, UINT32_MAX, &lines, &why);
    if (rc == 0 && lines != t->n_given)
        rc = error_set(&why, EBB_EFORMAT, "END: wants lines=%zu, got %" PRIu64, t->n_given, lines);
    else if (rc == EBB_ENOENT)
        rc = error_set(&why, EBB_EFORMAT, "END: wants lines=");
    if (rc != 0)
        return bad_line(t, &why, err);
    t->ended = true;
    return 0;
}

static int read_line(struct table *t, char *line, size_t n_bytes, struct error *err)
{
    struct message m;
    struct error why = {0};
    t->line++;
    int rc = message_parse(&m, line, n_bytes, &why);
    if (!t->begun)
        return read_begin(t, rc == 0 ? &m : &(struct message){.verb = "?"}, err);
    if (rc == 0 && t->ended)
        rc = error_set(&why, EBB_EFORMAT, "a line after END");
    if (rc != 0)
        return bad_line(t, &why, err);
    if (strcmp(m.verb, "HEAT") == 0)
        return read_layer(t, &m, err);
    if (strcmp(m.verb, "END") == 0)
        return read_end(t, &m, err);
    (void)error_set(&why, EBB_EFORMAT, "wants HEAT or END, got \"%.40s\"", m.verb);
    return bad_line(t, &why, err);
}

/* All lines that are there to be had; `at_end`: the rest without an LF too. */
static int read_lines(struct table *t, struct line_reader *r, bool at_end, struct error *err)
{
    char *line;
    size_t n_bytes;
    int rc = 0;
    enum line_status status;
    while (rc == 0 && (status = line_reader_next(r, &line, &n_bytes)) != LINE_NEED_MORE)
        rc = status == LINE_READY ? read_line(t, line, n_bytes, err)
                                  : error_set(err, EBB_EFORMAT, "%s:%zu: a line may have %d bytes",
                                              t->path, t->line + 1, LINE_BYTES_MAX);
    if (rc == 0 && at_end && line_reader_finish(r, &line, &n_bytes) == LINE_READY)
        rc = read_line(t, line, n_bytes, err);
    return rc;
}

/* A descriptor of a plain file of a bearable size. */
static int read_whole(struct table *t, int fd, struct error *err)
{
    struct stat st;
    struct line_reader r;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > FILE_BYTES_MAX)
        return error_set(err, EBB_EFORMAT,
                         "%s: not a heat file: wants a plain file of 64 MiB at most", t->path);
    if (st.st_size == 0)
        return EBB_ENOENT;
    int rc = line_reader_open(&r, err);
    if (rc != 0)
        return rc;
    ssize_t n = 1;
    while (rc == 0 && n > 0) {
        char *where;
        size_t room = line_reader_room(&r, &where);
        n = read(fd, where, room);
        if (n > 0)
            line_reader_fed(&r, (size_t)n);
        if (n < 0)
            rc = error_set(err, EBB_EIO, "%s: %s", t->path, strerror(errno));
        else
            rc = read_lines(t, &r, n == 0, err);
    }
    line_reader_close(&r);
    if (rc == 0 && !t->ended)
        rc = error_set(err, EBB_EFORMAT, "%s: cut off after line %zu: wants END last", t->path,
                       t->line);
    return rc;
}

int heat_file_read(const char *path, struct experts *x, struct error *err)
{
    struct table t;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? EBB_ENOENT
                               : error_set(err, EBB_EIO, "%s: %s", path, strerror(errno));
    int rc = table_open(&t, path, x, err);
    if (rc != 0) {
        (void)close(fd);
        return rc;
    }
    rc = read_whole(&t, fd, err);
    (void)close(fd);
    for (uint32_t group = 0; rc == 0 && group < x->n_groups; group++) {
        size_t layer = x->set.layer_first + x->layers[group];
        for (uint32_t e = 0; t.given[layer] && e < x->n_experts; e++)
            cache_warm(x->cache, (struct cache_key){group, e},
                       t.milli[layer * t.n_experts + e] / 1000.0);
    }
    table_close(&t);
    return rc;
}

/* The stage's own layers in place of what the file had. */
static void table_take(struct table *t, const struct experts *x)
{
    for (uint32_t group = 0; group < x->n_groups; group++) {
        size_t layer = x->set.layer_first + x->layers[group];
        t->n_given += !t->given[layer];
        t->given[layer] = true;
        for (uint32_t e = 0; e < x->n_experts; e++) {
            double milli = 1000.0 * cache_heat(x->cache, (struct cache_key){group, e}) + 0.5;
            t->milli[layer * t->n_experts + e] =
                milli < (double)INT32_MAX ? (int32_t)milli : INT32_MAX;
        }
    }
}

static void put_line(FILE *out, struct line_writer *w, bool *whole)
{
    int n = line_end(w);
    *whole = *whole && n > 0 && fwrite(w->buffer, 1, (size_t)n, out) == (size_t)n;
}

/* Whether everything was written. */
static bool table_put(const struct table *t, FILE *out)
{
    static char line[LINE_BYTES_MAX];
    struct line_writer w;
    char fingerprint[20];
    bool whole = true;
    (void)snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, t->fingerprint);
    line_begin(&w, line, sizeof line, "EBBTIDE-HEAT");
    line_u64(&w, "version", 1);
    line_key(&w, "fingerprint", fingerprint);
    line_u64(&w, "layers", t->n_layers);
    line_u64(&w, "experts", t->n_experts);
    put_line(out, &w, &whole);
    for (size_t layer = 0; layer < t->n_layers; layer++) {
        if (!t->given[layer])
            continue;
        line_begin(&w, line, sizeof line, "HEAT");
        line_u64(&w, "layer", layer);
        line_ids(&w, "milli", t->milli + layer * t->n_experts, t->n_experts);
        put_line(out, &w, &whole);
    }
    line_begin(&w, line, sizeof line, "END");
    line_u64(&w, "lines", t->n_given);
    put_line(out, &w, &whole);
    return whole;
}

static int replace(const struct table *t, struct error *err)
{
    char temporary[4200];
    (void)snprintf(temporary, sizeof temporary, "%s.new-%ld", t->path, (long)getpid());
    FILE *out = fopen(temporary, "we");
    bool whole = out != NULL && table_put(t, out);
    whole = out != NULL && fclose(out) == 0 && whole;
    if (whole && rename(temporary, t->path) == 0)
        return 0;
    int rc = error_set(err, EBB_EIO, "%s: %s", temporary, strerror(errno));
    if (out != NULL)
        (void)unlink(temporary);
    return rc;
}

/* Opens the file with its lock held, made if need be: the file that has this name while the lock is held. */
static int lock_open(const char *path, int *fd, struct error *err)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        struct stat held, named;
        *fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
        if (*fd < 0)
            return error_set(err, EBB_EIO, "%s: %s", path, strerror(errno));
        bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        if (locked && fstat(*fd, &held) == 0 && stat(path, &named) == 0 &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev)
            return 0;
        (void)close(*fd);
        if (!locked)
            (void)nanosleep(&(struct timespec){.tv_nsec = LOCK_WAIT_NS}, NULL);
    }
    return error_set(err, EBB_EBUSY, "%s: another process holds its lock", path);
}

int heat_file_write(const char *path, const struct experts *x, struct error *err)
{
    struct table t;
    int fd, rc = table_open(&t, path, x, err);
    if (rc != 0)
        return rc;
    rc = lock_open(path, &fd, err);
    if (rc == 0) {
        rc = read_whole(&t, fd, err);
        if (rc == 0 || rc == EBB_ENOENT) {
            table_take(&t, x);
            rc = replace(&t, err);
        }
        (void)close(fd);
    }
    table_close(&t);
    return rc;
}
