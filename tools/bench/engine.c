/* tools/bench/engine.c - starts `ebbtide serve`, waits for its lines, ends it.
 *
 * The child gets two pipes and our stderr. Its end comes from the end of its input; one that does not end in time is
 * killed. Prompts are random ids below 256, which every vocabulary has, and new for every request, so that nothing could be
 * reused from a former one.
 */
#include "tools/bench/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/make-model/random.h"

#define ANSWER_MS 600000
#define ENDING_S  10.0
#define IDS       256
#define PART_IDS  1024

/* The program beside this one. */
static int program_path(char *path, size_t capacity, struct error *err)
{
    ssize_t n = readlink("/proc/self/exe", path, capacity - 16);
    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n <= 0)
        return error_set(err, EBB_EIO, "where this program lies: %s", strerror(errno));
    (void)snprintf(path + n, capacity - (size_t)n, "ebbtide");
    if (access(path, X_OK) != 0)
        return error_set(err, EBB_ENOENT, "%s: %s; the engine must lie beside this program", path,
                         strerror(errno));
    return 0;
}

/* A path for each engine that is started. */
static const char *trace_path(const char *path, char *numbered, size_t capacity)
{
    static unsigned n_engines;
    if (path == NULL || ++n_engines == 1)
        return path;
    int n = snprintf(numbered, capacity, "%s.%u", path, n_engines);
    return n > 0 && (size_t)n < capacity ? numbered : NULL;
}

static void child_run(const char *path, const struct bench_settings *s,
                      const struct engine_flags *f, const char *trace, int in, int out)
{
    char name_space[32];
    const struct {
        const char *flag, *value;
    } more[] = {
        {"--threads", s->threads},   {"--segment-mib", f->segment_mib}, {"--context", f->context},
        {"--parallel", f->parallel}, {"--kv-tokens", f->kv_tokens},     {"--chunk", f->chunk},
        {"--trace", trace}};
    const char *argv[32] = {path,          "serve",     "--model",   f->model,      "--cards",
                            f->cards,      "--control", "none",      "--namespace", name_space,
                            "--log-level", "error",     "--kernels", s->kernels};
    size_t n = 14;
    (void)snprintf(name_space, sizeof name_space, "bench-%ld", (long)getpid());
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (more[i].value != NULL)
            argv[n++] = more[i].flag, argv[n++] = more[i].value;
    if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
        execv(path, (char *const *)argv);
    _exit(127);
}

static int child_start(struct engine *e, const char *path, const struct bench_settings *s,
                       const struct engine_flags *f, struct error *err)
{
    char numbered[PATH_MAX];
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0)
        return error_set(err, EBB_EIO, "pipe: %s", strerror(errno));
    if (pipe2(from, O_CLOEXEC) != 0) {
        (void)close(to[0]), (void)close(to[1]);
        return error_set(err, EBB_EIO, "pipe: %s", strerror(errno));
    }
    const char *trace = trace_path(s->trace, numbered, sizeof numbered);
    e->pid = fork();
    if (e->pid == 0)
        child_run(path, s, f, trace, to[0], from[1]);
    (void)close(to[0]), (void)close(from[1]);
    int code = e->pid > 0 ? channel_open(&e->channel, from[0], to[1], false, 0, err)
                          : error_set(err, EBB_EIO, "fork: %s", strerror(errno));
    if (code != 0)
        (void)close(to[1]), (void)close(from[0]);
    e->is_open = code == 0;
    return code;
}

/* The next line, parsed. */
static int line_take(struct engine *e, struct error *err)
{
    char *line;
    size_t n_bytes;
    const char *tag;
    int code = client_wait_line(&e->channel, ANSWER_MS, &line, &n_bytes, err);
    if (code == EBB_EGONE)
        return error_set(err, EBB_EPEER, "the engine ended before it answered");
    if (code == 0)
        code = message_parse(&e->message, line, n_bytes, err);
    if (code == 0 && message_error(&e->message, &tag, err))
        return err->code;
    return code;
}

static int line_wait(struct engine *e, const char *verb, struct error *err)
{
    int code;
    do
        code = line_take(e, err);
    while (code == 0 && strcmp(e->message.verb, verb) != 0);
    return code;
}

int engine_open(struct engine *e, const struct bench_settings *s, const struct engine_flags *f,
                struct error *err)
{
    char path[PATH_MAX];
    memset(e, 0, sizeof *e);
    int code = program_path(path, sizeof path, err);
    if (code == 0)
        code = child_start(e, path, s, f, err);
    if (code == 0)
        code = line_wait(e, "READY", err);
    if (code != 0)
        engine_close(e);
    return code;
}

void engine_close(struct engine *e)
{
    double begin = bench_now();
    bool is_killed = false;
    if (e->is_open)
        channel_close(&e->channel);
    while (e->pid > 0 && waitpid(e->pid, NULL, WNOHANG) == 0) {
        if (!is_killed && bench_now() - begin > ENDING_S) {
            is_killed = true;
            (void)kill(e->pid, SIGKILL);
        }
        (void)poll(NULL, 0, 2);
    }
    memset(e, 0, sizeof *e);
}

int engine_ask(struct engine *e, const char *line, const char *verb, struct error *err)
{
    int code = client_ask(&e->channel, line, err);
    return code == 0 ? line_wait(e, verb, err) : code;
}

static int prompt_send(struct engine *e, const struct generation *g, const char *tag,
                       struct error *err)
{
    char buffer[8 * PART_IDS + 256];
    int32_t ids[PART_IDS];
    uint64_t key = random_key(g->seed, e->n_requests);
    for (uint64_t sent = 0; sent < g->n_prompt;) {
        struct line_writer w;
        size_t n = 0;
        for (; n < PART_IDS && sent < g->n_prompt; n++)
            ids[n] = (int32_t)(random_word(key, sent++) % IDS);
        line_begin(&w, buffer, sizeof buffer, "PART");
        line_bare(&w, tag);
        line_ids(&w, "ids", ids, n);
        int code = line_end(&w);
        code = code < 0 ? error_set(err, code, "a prompt of too many ids")
                        : client_ask(&e->channel, buffer, err);
        if (code != 0)
            return code;
    }
    return 0;
}

/* The DONE that was just taken must be a good one. */
static int ending_check(struct engine *e, struct error *err)
{
    const char *how = message_bare(&e->message, 1);
    if (how != NULL && (strcmp(how, "length") == 0 || strcmp(how, "stop") == 0))
        return 0;
    return error_set(err, EBB_EPEER, "a generation ended with %s", how != NULL ? how : "nothing");
}

/* Sends a generation's prompt and its GEN; its tag is b<number>. */
static int generation_send(struct engine *e, const struct generation *g, uint64_t *number,
                           struct error *err)
{
    char tag[32], line[96];
    *number = e->n_requests++;
    (void)snprintf(tag, sizeof tag, "b%llu", (unsigned long long)*number);
    (void)snprintf(line, sizeof line, "GEN %s %llu ignore_eos=1", tag,
                   (unsigned long long)g->n_new);
    int code = prompt_send(e, g, tag, err);
    return code == 0 ? client_ask(&e->channel, line, err) : code;
}

int engine_generate(struct engine *e, struct generation *g, struct error *err)
{
    uint64_t number;
    int code = generation_send(e, g, &number, err);
    double begin = bench_now(), first = 0;
    if (code == 0)
        code = line_wait(e, "T", err);
    first = bench_now();
    g->n_decoded = 0;
    while (code == 0 && strcmp(e->message.verb, "DONE") != 0) {
        code = line_take(e, err);
        g->n_decoded += code == 0 && strcmp(e->message.verb, "T") == 0;
    }
    if (code == 0)
        code = ending_check(e, err);
    if (code == 0)
        code = message_u64(&e->message, "hits", 0, UINT64_MAX, &g->hits, err);
    if (code == 0)
        code = message_u64(&e->message, "lookups", 0, UINT64_MAX, &g->lookups, err);
    g->prefill_s = first - begin;
    g->decode_s = bench_now() - first;
    return code;
}

/* The tag's number less `first`, or n for a tag of another kind. */
static size_t side_of(const struct engine *e, uint64_t first, size_t n)
{
    const char *tag = message_bare(&e->message, 0);
    uint64_t number;
    if (tag == NULL || tag[0] != 'b' || parse_u64(tag + 1, first, first + n - 1, &number) != 0)
        return n;
    return (size_t)(number - first);
}

int engine_generate_side_by_side(struct engine *e, const struct generation *g, size_t n,
                                 double *tokens_a_second, struct error *err)
{
    bool has_begun[ENGINE_SIDE_BY_SIDE_MAX] = {false};
    size_t n_begun = 0, n_done = 0, n_tokens = 0;
    uint64_t first = e->n_requests, number;
    double since = 0, until = 0;
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++)
        code = generation_send(e, g, &number, err);
    while (code == 0 && n_done < n) {
        code = line_take(e, err);
        size_t side = code == 0 ? side_of(e, first, n) : n;
        if (side == n)
            continue;
        if (strcmp(e->message.verb, "T") == 0) {
            n_tokens += n_begun == n && n_done == 0;
            n_begun += !has_begun[side];
            since = !has_begun[side] ? bench_now() : since;
            has_begun[side] = true;
        } else if (strcmp(e->message.verb, "DONE") == 0) {
            until = n_done++ == 0 ? bench_now() : until;
            code = ending_check(e, err);
        }
    }
    if (code == 0 && (n_tokens == 0 || until <= since))
        return error_set(err, EBB_EPEER, "%zu sequences were never under way all at once", n);
    *tokens_a_second = (double)n_tokens / (until - since);
    return code;
}
