/* runtime/doctor_gpu.c - the checks that concern GPUs: the driver's files, and the cards as the stage's program sees them (see
 * doctor.h).
 *
 * Where no CUDA card is wanted, one that is missing is no failure. Half of a driver is worth a word even then.
 */
#include "runtime/cuda_cards.h"
#include "runtime/doctor.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/launch.h"

bool doctor_wants_cuda(const struct settings *s)
{
    for (size_t i = 0; i < s->n_cards; i++)
        if (s->cards[i].kind == CARD_CUDA && s->cards[i].host[0] == '\0')
            return true;
    return false;
}

/* Which cards the run has, and where they were chosen, why these. */
void doctor_cards(const struct settings *s, struct finding *f)
{
    char list[400] = "";
    size_t n = 0;
    if (s->cards_auto && s->auto_why[0] != '\0')
        finding_set(f, s->auto_level == AUTO_WARNING ? FINDING_MIND : FINDING_OK, NULL,
                    "auto: %s (%s)", s->auto_cards, s->auto_why);
    else if (s->cards_auto)
        finding_set(f, FINDING_OK, NULL, "auto: %s", s->auto_cards);
    if (s->cards_auto)
        return;
    for (size_t i = 0; i < s->n_cards && n < sizeof list; i++) {
        char label[160];
        card_label(&s->cards[i], label, sizeof label);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i > 0 ? "," : "", label);
    }
    finding_set(f, FINDING_OK, NULL, "%s", list);
}

void doctor_cuda_driver(const struct settings *s, struct finding *f)
{
    enum finding_level lacking = doctor_wants_cuda(s) ? FINDING_FAILS : FINDING_OK;
    char line[160] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    if (file != NULL && fgets(line, sizeof line, file) == NULL)
        line[0] = '\0';
    if (file != NULL)
        (void)fclose(file);
    line[strcspn(line, "\n")] = '\0';
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library != NULL)
        (void)dlclose(library);
    if (file == NULL && library == NULL)
        finding_set(f, lacking, lacking == FINDING_OK ? NULL : "install the NVIDIA driver",
                    "no NVIDIA driver: CPU cards only");
    else if (file == NULL || library == NULL)
        finding_set(f, lacking == FINDING_OK ? FINDING_MIND : lacking,
                    file == NULL ? "load the kernel module (modprobe nvidia), or pass the device "
                                   "into the container"
                                 : "install the driver's user library, or start the container "
                                   "with --gpus",
                    "half of an NVIDIA driver: %s",
                    file == NULL ? "libcuda.so.1 without the kernel module"
                                 : "the kernel module without libcuda.so.1");
    else if (access("/dev/nvidiactl", R_OK | W_OK) != 0)
        finding_set(f, lacking == FINDING_OK ? FINDING_MIND : lacking,
                    "join the group that owns /dev/nvidia*", "/dev/nvidiactl: %s", strerror(errno));
    else
        finding_set(f, FINDING_OK, NULL, "%.150s", line);
}

static const struct cuda_card *card_find(const struct cuda_cards *l, uint32_t device)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->cards[i].device == device)
            return &l->cards[i];
    return NULL;
}

/* Every card with its memory and, where it cannot be used, the reason. */
static void cards_words(const struct cuda_cards *l, char *text, size_t capacity)
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < l->n && n < capacity; i++) {
        const struct cuda_card *c = &l->cards[i];
        const char *between = i > 0 ? "; " : "";
        if (c->usable)
            n += (size_t)snprintf(
                text + n, capacity - n,
                "%scuda:%" PRIu32 " %s, compute capability %s, %" PRIu64 " of %" PRIu64 " MiB free",
                between, c->device, c->name, c->compute, c->free_mib, c->total_mib);
        else
            n += (size_t)snprintf(text + n, capacity - n, "%s%s", between, c->why);
    }
}

/* The first card of the run that is not there or cannot be used; false: all can. */
static bool wanted_missing(const struct settings *s, const struct cuda_cards *l, struct finding *f)
{
    for (size_t i = 0; i < s->n_cards; i++) {
        const struct card_setting *card = &s->cards[i];
        if (card->kind != CARD_CUDA || card->host[0] != '\0')
            continue;
        const struct cuda_card *seen = card_find(l, card->ordinal);
        if (seen != NULL && seen->usable && card->vram_mib <= seen->total_mib)
            continue;
        if (seen == NULL)
            finding_set(f, FINDING_FAILS,
                        "nvidia-smi -L lists them; CUDA_VISIBLE_DEVICES and a container's --gpus "
                        "hide cards",
                        "cuda:%" PRIu32 ": the NVIDIA driver shows %zu card(s), numbered from 0",
                        card->ordinal, l->n);
        else if (!seen->usable)
            finding_set(f, FINDING_FAILS,
                        "leave it out of --cards; kernels are made for compute capability 8.0 "
                        "(A100, RTX 30) and newer",
                        "%s", seen->why);
        else
            finding_set(f, FINDING_MIND, "a smaller --vram-mib, or 0: all that is free",
                        "cuda:%" PRIu32 ": --vram-mib %" PRIu64 ", it has %" PRIu64 " MiB",
                        card->ordinal, card->vram_mib, seen->total_mib);
        return true;
    }
    return false;
}

void doctor_cuda_cards(const struct settings *s, struct finding *f)
{
    struct cuda_cards *l = calloc(1, sizeof *l);
    bool wanted = doctor_wants_cuda(s);
    char text[sizeof f->text];
    if (l == NULL) {
        finding_set(f, FINDING_FAILS, NULL, "no memory for the list of cards");
        return;
    }
    cuda_cards_list(l);
    if (l->state == CUDA_CARDS_NO_PROGRAM)
        finding_set(f, wanted ? FINDING_FAILS : FINDING_OK,
                    wanted ? "build it: cmake finds nvcc on PATH or by CMAKE_CUDA_COMPILER" : NULL,
                    "not looked at: ebbtide-stage-cuda does not stand beside this program");
    else if (l->state == CUDA_CARDS_NO_DRIVER)
        finding_set(f, wanted ? FINDING_FAILS : FINDING_OK,
                    !wanted                             ? NULL
                    : strstr(l->why, "too old") != NULL ? "install a newer NVIDIA driver"
                                                        : "see what is said of the driver above",
                    "%s", l->why);
    else if (l->state == CUDA_CARDS_BROKEN)
        finding_set(f, wanted ? FINDING_FAILS : FINDING_MIND,
                    "run ebbtide-stage-cuda --list and nvidia-smi by hand: does the driver answer?",
                    "%s", l->why);
    else if (!wanted_missing(s, l, f)) {
        cards_words(l, text, sizeof text);
        finding_set(f, FINDING_OK, NULL, "%s", l->n > 0 ? text : "none");
    }
    free(l);
}
