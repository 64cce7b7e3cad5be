/* tools/comfy-handoff/learn.c - reads and replaces the file of what was learned. Holds no state. */
#include "tools/comfy-handoff/learn.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB_MAX ((uint64_t)1 << 40)

static const char *entry_name(const char *workflow)
{
    const char *slash = strrchr(workflow, '/');
    return slash != NULL ? slash + 1 : workflow;
}

/* A document with an object "workflows"; a new one where there is no file. */
static int document_read(const char *path, json_t **document, struct error *err)
{
    json_error_t why;
    json_t *version;
    *document = NULL;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        *document = json_pack("{s:i, s:{}}", "version", 1, "workflows");
        return *document != NULL ? 0 : error_set(err, EBB_ENOMEM, "out of memory for %s", path);
    }
    *document = json_load_file(path, 0, &why);
    if (*document == NULL)
        return error_set(err, EBB_EFORMAT, "%s:%d: %s", path, why.line, why.text);
    version = json_object_get(*document, "version");
    if (json_integer_value(version) == 1 && json_is_object(json_object_get(*document, "workflows")))
        return 0;
    json_decref(*document);
    *document = NULL;
    return error_set(err, EBB_EFORMAT, "%s: no file of learned reserves (version 1)", path);
}

static uint64_t number_of(json_t *entry, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(entry, key));
    return value > 0 && (uint64_t)value < MIB_MAX ? (uint64_t)value : 0;
}

int learn_read(const char *path, const char *workflow, uint64_t *reserve_mib, struct error *err)
{
    json_t *document;
    int code = document_read(path, &document, err);
    *reserve_mib = 0;
    if (code != 0)
        return code;
    *reserve_mib =
        number_of(json_object_get(json_object_get(document, "workflows"), entry_name(workflow)),
                  "reserve_mib");
    json_decref(document);
    return 0;
}

/* To a file beside it, then in its place. */
static int document_write(const char *path, json_t *document, struct error *err)
{
    char beside[4096];
    FILE *out;
    int failed;
    if ((size_t)snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid()) >= sizeof beside)
        return error_set(err, EBB_ERANGE, "--learn: the name is too long");
    out = fopen(beside, "w");
    if (out == NULL)
        return error_set(err, EBB_EIO, "%s: %s", beside, strerror(errno));
    failed = json_dumpf(document, out, JSON_INDENT(2) | JSON_SORT_KEYS) != 0;
    failed |= fputc('\n', out) == EOF;
    failed |= fflush(out) != 0 || fsync(fileno(out)) != 0;
    failed |= fclose(out) != 0;
    if (failed == 0 && rename(beside, path) == 0)
        return 0;
    (void)error_set(err, EBB_EIO, "%s: could not be written: %s", path, strerror(errno));
    (void)unlink(beside);
    return EBB_EIO;
}

int learn_write(const char *path, const char *workflow, uint64_t peak_mib, uint64_t *reserve_mib,
                struct error *err)
{
    const char *name = entry_name(workflow);
    json_t *document, *workflows, *entry;
    uint64_t n_runs, peak, margin;
    int code = document_read(path, &document, err);
    if (code != 0)
        return code;
    workflows = json_object_get(document, "workflows");
    entry = json_object_get(workflows, name);
    n_runs = number_of(entry, "runs") + 1;
    peak = number_of(entry, "peak_mib");
    peak = peak > peak_mib ? peak : peak_mib;
    margin = peak / 8 > LEARN_MARGIN_MIB ? peak / 8 : LEARN_MARGIN_MIB;
    *reserve_mib = peak + margin;
    entry = json_pack("{s:I, s:I, s:I}", "runs", (json_int_t)n_runs, "peak_mib", (json_int_t)peak,
                      "reserve_mib", (json_int_t)*reserve_mib);
    if (json_object_set_new(workflows, name, entry) != 0)
        code = error_set(err, EBB_ENOMEM, "out of memory for %s", path);
    else
        code = document_write(path, document, err);
    json_decref(document);
    return code;
}
