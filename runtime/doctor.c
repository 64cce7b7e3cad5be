/* runtime/doctor.c - the checks that concern this program: its directory, its parts, its cards, its model (see doctor.h).
 *
 * What concerns the machine alone is in doctor_machine.c, its GPUs in doctor_gpu.c.
 */
#include "runtime/doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "protocol/client.h"
#include "runtime/plan_report.h"

#define MIB (UINT64_C(1) << 20)

void finding_set(struct finding *f, enum finding_level level, const char *fix, const char *format,
                 ...)
{
    va_list args;
    f->level = level;
    va_start(args, format);
    (void)vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    (void)snprintf(f->fix, sizeof f->fix, "%s", fix != NULL ? fix : "");
}

static void look_directory(const struct settings *s, struct finding *f)
{
    char path[4096];
    struct error err = {0};
    (void)s;
    if (runtime_directory(path, sizeof path, true, &err) != 0)
        finding_set(f, FINDING_FAILS,
                    "set XDG_RUNTIME_DIR to a directory of yours that only you may write, or "
                    "--control PATH",
                    "%.380s", err.text);
    else if (access(path, W_OK | X_OK) != 0)
        finding_set(f, FINDING_FAILS, "give it back to yourself: chmod 700", "%.300s: %s", path,
                    strerror(errno));
    else if (strlen(path) > 60)
        finding_set(f, FINDING_MIND, "set XDG_RUNTIME_DIR to a shorter one, or --control PATH",
                    "%.300s: %zu bytes; a socket's whole path has at most 107", path, strlen(path));
    else
        finding_set(f, FINDING_OK, NULL, "%.300s, for control sockets", path);
}

/* A program beside this one. */
static bool part_is_there(const char *name)
{
    char path[4096 + 64];
    ssize_t n = readlink("/proc/self/exe", path, 4096);
    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n <= 0)
        return false;
    (void)snprintf(path + n, sizeof path - (size_t)n, "%s", name);
    return access(path, X_OK) == 0;
}

static void look_parts(const struct settings *s, struct finding *f)
{
    static const char *const parts[] = {"ebbtide-stage-cpu", "ebbtide-stage-cuda", "ebbtide-vram",
                                        "ebbtide-stat"};
    char missing[200] = "";
    bool fails = false;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool is_cuda = strstr(parts[i], "cuda") != NULL;
        if (part_is_there(parts[i]) || (is_cuda && !doctor_wants_cuda(s)))
            continue;
        fails = fails || i < 2;
        (void)snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " %s",
                       parts[i]);
    }
    if (missing[0] != '\0')
        finding_set(f, fails ? FINDING_FAILS : FINDING_MIND,
                    "install or build them into the directory of this program",
                    "missing beside this program:%s", missing);
    else
        finding_set(f, FINDING_OK, NULL,
                    "the stage's program and the tools stand beside this one (libyaml %s, Jansson "
                    "%s)",
                    yaml_get_version_string(), jansson_version_str());
}

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static void look_page_cache(const struct settings *s, struct finding *f)
{
    uint64_t mib = s->model != NULL ? file_bytes(s->model) / MIB : 0,
             available = sizing_available_mib(), cards = 0;
    if (s->model == NULL) {
        finding_set(f, FINDING_OK, NULL,
                    "%" PRIu64 " MiB of memory are free (say -m FILE to hold "
                    "a model against it)",
                    available);
        return;
    }
    for (size_t i = 0; i < s->n_cards; i++)
        if (s->cards[i].kind == CARD_CPU && s->cards[i].host[0] == '\0')
            cards += s->cards[i].vram_mib;
    if (mib + cards > available)
        finding_set(f, FINDING_MIND,
                    "free memory, add some, or use smaller --vram-mib of CPU cards: experts that "
                    "miss are read from disk again and again",
                    "%" PRIu64 " MiB of memory are free; the model's file has %" PRIu64
                    ", the CPU cards take %" PRIu64,
                    available, mib, cards);
    else
        finding_set(f, FINDING_OK, NULL,
                    "%" PRIu64 " MiB of memory are free for a model of %" PRIu64
                    " and CPU cards of %" PRIu64,
                    available, mib, cards);
}

static void look_model(const struct settings *s, struct finding *f)
{
    struct model *m = NULL;
    struct error err = {0};
    if (s->model == NULL) {
        finding_set(f, FINDING_OK, NULL, "none given (-m FILE)");
        return;
    }
    if (model_open(&m, s->model, &err) != 0) {
        finding_set(f, FINDING_FAILS, "ebbtide inspect says more of the file", "%.390s", err.text);
        return;
    }
    finding_set(f, FINDING_OK, NULL, "%.250s: %s, %" PRIu32 " layers, %" PRIu32 " experts",
                s->model, m->architecture, m->geometry.n_layers, m->geometry.n_experts);
    model_close(m);
}

/* Whether the model fits the cards, as far as their memory is known. */
static void look_plan(const struct settings *s, struct finding *f)
{
    static struct plan_report report;
    struct model *m = NULL;
    struct error err = {0};
    if (s->model == NULL || model_open(&m, s->model, &err) != 0) {
        finding_set(f, FINDING_OK, NULL, "no model to plan");
        return;
    }
    int code = plan_report_make(&report, s, m, &err);
    if (code == 0)
        finding_set(f, FINDING_OK, NULL, "the model fits the %zu card(s); ebbtide plan says how",
                    s->n_cards);
    else if (code == EBB_EINVAL)
        finding_set(f, FINDING_MIND, "say --vram-mib, then this is checked too", "%.390s",
                    err.text);
    else
        finding_set(f, FINDING_FAILS, "ebbtide plan shows what would fit", "%.390s", err.text);
    model_close(m);
}

/* A reserve that no other program could use. */
static void look_reserves(const struct settings *s, struct finding *f)
{
    for (size_t i = 0; i < s->n_cards; i++) {
        uint64_t attach = card_attach_mib(s, &s->cards[i], 0);
        if (s->cards[i].reserve_mib == 0 || s->cards[i].reserve_mib >= attach)
            continue;
        finding_set(f, FINDING_MIND, "a larger --reserve-mib, or none",
                    "card %zu: a reserve of %" PRIu64 " MiB; another program needs %" PRIu64
                    " just to attach",
                    i, s->cards[i].reserve_mib, attach);
        return;
    }
    finding_set(f, FINDING_OK, NULL, "none is below what another program needs to attach");
}

const struct doctor_check doctor_checks[] = {
    {"processor", doctor_processor},
    {"cores", doctor_cores},
    {"kernel", doctor_kernel},
    {"page cache", look_page_cache},
    {"locked memory", doctor_memlock},
    {"/dev/shm", doctor_shm},
    {"open files", doctor_limits},
    {"directory", look_directory},
    {"programs", look_parts},
    {"cards", doctor_cards},
    {"reserves", look_reserves},
    {"CUDA driver", doctor_cuda_driver},
    {"CUDA cards", doctor_cuda_cards},
    {"model", look_model},
    {"plan", look_plan},
};
const size_t n_doctor_checks = sizeof doctor_checks / sizeof doctor_checks[0];
