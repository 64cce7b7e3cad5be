/* runtime/cuda_cards.c - asks ebbtide-stage-cuda for the machine's cards (see cuda_cards.h).
 *
 * What it prints is read to its end or to the time limit, at most OUTPUT_MAX bytes, and only then looked at: a list counts whole or
 * not at all. Its last line on stderr is the reason of a failure.
 */
#include "runtime/cuda_cards.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "protocol/message.h"
#include "runtime/launch.h"
#include "runtime/supervisor.h"

#define OUTPUT_MAX 65536
#define PROGRAM    "ebbtide-stage-cuda"

struct output {
    char out[OUTPUT_MAX], err[1024]; /* of stderr the first kilobyte */
    size_t n_out, n_err;
    char how[80]; /* its end */
    bool timed_out, too_much;
};

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* What is there; false at the end. Bytes beyond the capacity are dropped. */
static bool take(int fd, char *to, size_t capacity, size_t *n, bool *dropped)
{
    char bytes[4096];
    ssize_t got = read(fd, bytes, sizeof bytes);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    size_t room = capacity - 1 - *n, kept = (size_t)got < room ? (size_t)got : room;
    memcpy(to + *n, bytes, kept);
    *n += kept;
    to[*n] = '\0';
    *dropped = *dropped || kept < (size_t)got;
    return got > 0;
}

static void output_read(const struct process *p, struct output *o, int64_t until)
{
    struct pollfd fds[] = {{.fd = p->fd_out, .events = POLLIN},
                           {.fd = p->fd_err, .events = POLLIN}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        bool ignored = false;
        int64_t left = until - now_ms();
        o->timed_out = left <= 0;
        if (o->timed_out)
            return;
        if (poll(fds, 2, (int)left) < 0)
            continue;
        if (fds[0].revents != 0 && !take(p->fd_out, o->out, sizeof o->out, &o->n_out, &o->too_much))
            fds[0].fd = -1;
        if (fds[1].revents != 0 && !take(p->fd_err, o->err, sizeof o->err, &o->n_err, &ignored))
            fds[1].fd = -1;
    }
}

/* Exit status 0 in time? */
static bool process_finish(struct process *p, struct output *o, int64_t until)
{
    (void)snprintf(o->how, sizeof o->how, "did not end");
    while (!o->timed_out && !process_is_dead(p, o->how, sizeof o->how)) {
        struct pollfd end = {.fd = p->pidfd, .events = POLLIN};
        int64_t left = until - now_ms();
        o->timed_out = left <= 0;
        if (!o->timed_out)
            (void)poll(&end, 1, p->pidfd >= 0 ? (int)left : 2);
    }
    process_close_fds(p);
    process_signal(p, SIGKILL);
    process_end_all(&p, 1, 2000, 100);
    return !o->timed_out && strcmp(o->how, "exited with status 0") == 0;
}

static void words_set(struct cuda_cards *l, enum cuda_cards_state state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void words_set(struct cuda_cards *l, enum cuda_cards_state state, const char *format, ...)
{
    va_list args;
    l->state = state;
    l->n = 0;
    va_start(args, format);
    (void)vsnprintf(l->why, sizeof l->why, format, args);
    va_end(args);
}

/* Its first line on stderr without the program's name, fit to be shown. */
static const char *reason_of(struct output *o)
{
    char *text = o->err;
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return strncmp(text, PROGRAM ": ", sizeof PROGRAM + 1) == 0 ? text + sizeof PROGRAM + 1 : text;
}

static int text_take(const struct message *m, const char *key, char *to, size_t capacity,
                     struct error *err)
{
    size_t n = 0;
    int code = message_text(m, key, to, capacity - 1, &n, err);
    to[code == 0 ? n : 0] = '\0';
    for (size_t i = 0; code == 0 && i < n; i++)
        if ((unsigned char)to[i] < 0x20 || to[i] == 0x7f)
            to[i] = '?';
    return code;
}

static int card_take(struct cuda_cards *l, char *line, struct error *err)
{
    struct message m;
    uint64_t device = 0, usable = 0;
    int code = message_parse(&m, line, strlen(line), err);
    if (code != 0)
        return code;
    if (strcmp(m.verb, "CARD") != 0)
        return error_set(err, EBB_EPEER, "a line is no CARD: %.60s", m.verb);
    if (l->n == CARDS_MAX)
        return error_set(err, EBB_ERANGE, "more than %d cards", CARDS_MAX);
    struct cuda_card *card = &l->cards[l->n];
    *card = (struct cuda_card){0};
    if ((code = message_u64(&m, "device", 0, 1023, &device, err)) != 0 ||
        (code = message_u64(&m, "usable", 0, 1, &usable, err)) != 0 ||
        (code = message_u64(&m, "total_mib", 0, UINT64_C(1) << 30, &card->total_mib, err)) != 0 ||
        (code = message_u64(&m, "free_mib", 0, UINT64_C(1) << 30, &card->free_mib, err)) != 0 ||
        (code = text_take(&m, "name", card->name, sizeof card->name, err)) != 0)
        return code;
    if (text_take(&m, "compute", card->compute, sizeof card->compute, NULL) != 0)
        card->compute[0] = '\0';
    if (usable == 0 && text_take(&m, "why", card->why, sizeof card->why, NULL) != 0)
        (void)snprintf(card->why, sizeof card->why, "cuda:%" PRIu64 " cannot be used", device);
    card->device = (uint32_t)device;
    card->usable = usable == 1;
    l->n++;
    return 0;
}

static void lines_take(struct cuda_cards *l, struct output *o)
{
    struct error err = {0};
    char *rest = o->out;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[strspn(line, " \r")] == '\0')
            continue;
        if (card_take(l, line, &err) != 0) {
            words_set(l, CUDA_CARDS_BROKEN,
                      PROGRAM " --list wrote what is no list of cards: %.200s", err.text);
            return;
        }
    }
}

void cuda_cards_list(struct cuda_cards *l)
{
    const struct card_setting any = {.kind = CARD_CUDA};
    char path[4096 + 32];
    struct error err = {0};
    struct process process;
    struct output *o = calloc(1, sizeof *o);
    *l = (struct cuda_cards){.state = CUDA_CARDS_LISTED};
    if (o == NULL || launch_program(&any, path, sizeof path, &err) != 0) {
        words_set(l, CUDA_CARDS_NO_PROGRAM, "%.290s", o == NULL ? "no memory" : err.text);
        free(o);
        return;
    }
    int64_t until = now_ms() + CUDA_CARDS_WAIT_S * 1000;
    char list[] = "--list", *argv[] = {path, list, NULL};
    if (process_start(&process, argv, &err) != 0) {
        words_set(l, CUDA_CARDS_BROKEN, "%.290s", err.text);
        free(o);
        return;
    }
    output_read(&process, o, until);
    bool good = process_finish(&process, o, until);
    if (o->timed_out)
        words_set(l, CUDA_CARDS_BROKEN, PROGRAM " --list gave no answer within %d s",
                  CUDA_CARDS_WAIT_S);
    else if (!good && strcmp(o->how, "exited with status 1") == 0 && o->err[0] != '\0')
        words_set(l, CUDA_CARDS_NO_DRIVER, "%.290s", reason_of(o));
    else if (!good)
        words_set(l, CUDA_CARDS_BROKEN, PROGRAM " --list %s%s%.160s", o->how,
                  o->err[0] != '\0' ? ": " : "", reason_of(o));
    else if (o->too_much)
        words_set(l, CUDA_CARDS_BROKEN, PROGRAM " --list wrote more than %d bytes", OUTPUT_MAX - 1);
    else
        lines_take(l, o);
    free(o);
}

/* "cuda:0,cuda:1", with dots at the end where not all fit. */
static void chosen_words(struct settings *s)
{
    size_t n = 0, capacity = sizeof s->auto_cards;
    for (size_t i = 0; i < s->n_cards; i++) {
        char label[160];
        card_label(&s->cards[i], label, sizeof label);
        if (n + strlen(label) + 8 >= capacity) {
            (void)snprintf(s->auto_cards + n, capacity - n, ",...");
            return;
        }
        n += (size_t)snprintf(s->auto_cards + n, capacity - n, "%s%s", i > 0 ? "," : "", label);
    }
}

static void reason_set(struct settings *s, enum auto_level level, const char *why)
{
    s->auto_level = level;
    (void)snprintf(s->auto_why, sizeof s->auto_why, "%s", why);
}

static void cards_fill(struct settings *s, const struct cuda_cards *l)
{
    s->cards[0] = (struct card_setting){.kind = CARD_CPU};
    s->n_cards = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->cards[i].usable)
            s->cards[s->n_cards++] = (struct card_setting){
                .kind = CARD_CUDA, .ordinal = l->cards[i].device, .seen_mib = l->cards[i].free_mib};
    s->n_cards = s->n_cards > 0 ? s->n_cards : 1;
}

void cuda_cards_choose(struct settings *s)
{
    struct cuda_cards *l = calloc(1, sizeof *l);
    const char *why = NULL;
    bool cpu_kernels = s->kernels != NULL && strcmp(s->kernels, "auto") != 0;
    s->auto_cards[0] = s->auto_why[0] = '\0';
    s->auto_level = AUTO_QUIET;
    if (l == NULL)
        return;
    if (!cpu_kernels)
        cuda_cards_list(l);
    cards_fill(s, l);
    chosen_words(s);
    for (size_t i = 0; i < l->n && why == NULL; i++)
        why = l->cards[i].usable ? NULL : l->cards[i].why;
    if (cpu_kernels)
        reason_set(s, AUTO_QUIET, "--kernels names a set of CPU cards");
    else if (l->state != CUDA_CARDS_LISTED)
        reason_set(s, l->state == CUDA_CARDS_BROKEN ? AUTO_WARNING : AUTO_QUIET, l->why);
    else if (why != NULL)
        reason_set(s, s->cards[0].kind == CARD_CUDA ? AUTO_CHOSEN : AUTO_WARNING, why);
    else if (l->n == 0)
        reason_set(s, AUTO_QUIET, "the NVIDIA driver shows no card");
    else
        s->auto_level = AUTO_CHOSEN;
    free(l);
}
