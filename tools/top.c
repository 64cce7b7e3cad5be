/* tools/top.c - `ebbtide top`: a running engine's cards, live: what their memory is used for, hit rate, speed, leases.
 *
 * On a terminal the view of tools/top/screen.h; in a pipe, with --once or with --json, one measurement over one interval, and
 * the end.
 */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/kit/kit.h"
#include "tools/top/feed.h"
#include "tools/top/report.h"
#include "tools/top/screen.h"
#include "tools/top/view.h"

#define ANSWER_S 120.0

struct flags {
    const char *control, *name;
    bool once, json, help;
    double interval_s;
    uint64_t columns;
};

static void help(void)
{
    puts(
        "ebbtide top: a running engine's cards, live\n\n"
        "Usage\n"
        "  ebbtide top [flags]       until q; in a pipe one frame, as with --once\n\n"
        "A card's bar is its memory: dense weights, KV, experts in the cache and its empty slots,\n"
        "workspace, links, the driver's context, other programs, what is free, and in it the "
        "reserve.\n"
        "Rates are those of the last interval. Keys: q ends, + and - double and halve the "
        "interval,\n"
        "arrows, Page and Home scroll. An engine that ends is waited for.\n\n"
        "Flags\n"
        "  --control PATH   the engine's control socket\n"
        "  --name NAME      or the engine by its name; with neither, the only one that runs\n"
        "  --once           one frame as plain text, after one interval\n"
        "  --json           one JSON object on one line, after one interval\n"
        "  --interval S     seconds between two looks [0.1 to 60; with --once and --json from 0,\n"
        "                   which gives no rates; default: 1]\n"
        "  --columns N      of --once [20 to 500; default: 80]\n"
        "  -h, --help       this page\n\n"
        "Examples\n"
        "  ebbtide top\n"
        "  ebbtide top --once --columns 120 --name big\n"
        "  ebbtide top --json --interval 5 | jq .cards[].hit_rate");
    exit_status_help(stdout);
}

static int interval_read(const char *text, double *value, struct error *err)
{
    char *end;
    *value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*value) || *value < 0 ||
        *value > SCREEN_INTERVAL_MAX)
        return error_set(err, EBB_ERANGE, "--interval: wanted seconds from 0 to %g, got '%s'",
                         SCREEN_INTERVAL_MAX, text);
    return 0;
}

static int flag_take(struct flags *f, int flag, const char *said, struct error *err)
{
    switch (flag) {
    case 'c': f->control = optarg; break;
    case 'n': f->name = optarg; break;
    case 'o': f->once = true; break;
    case 'j': f->json = true; break;
    case 'h': f->help = true; break;
    case 'i': return interval_read(optarg, &f->interval_s, err);
    case 'w':
        if (parse_u64(optarg, 20, VIEW_COLUMNS_MAX, &f->columns) != 0)
            return error_set(err, EBB_ERANGE, "--columns: wanted a number from 20 to %d, got '%s'",
                             VIEW_COLUMNS_MAX, optarg);
        break;
    default: return kit_flag_refuse(flag, said, err);
    }
    return 0;
}

static int flags_read(struct flags *f, int argc, char **argv, struct error *err)
{
    static const struct option options[] = {
        {"control", required_argument, NULL, 'c'},  {"name", required_argument, NULL, 'n'},
        {"once", no_argument, NULL, 'o'},           {"json", no_argument, NULL, 'j'},
        {"interval", required_argument, NULL, 'i'}, {"columns", required_argument, NULL, 'w'},
        {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
    };
    int flag, code = 0;
    *f = (struct flags){.interval_s = 1, .columns = 80};
    opterr = 0;
    while (code == 0 && (flag = getopt_long(argc, argv, ":h", options, NULL)) != -1)
        code = flag_take(f, flag, argv[optind - 1], err);
    if (code == 0 && optind < argc)
        code = error_set(err, EBB_EINVAL, "wanted flags only, got '%s'", argv[optind]);
    if (code == 0 &&
        ((f->control != NULL && f->control[0] == '\0') || (f->name != NULL && f->name[0] == '\0')))
        code = error_set(err, EBB_EINVAL, "--control, --name: wanted a value, got none");
    return code;
}

static int round_take(struct feed *feed, struct error *err)
{
    int code = feed_ask(feed, feed_now(), err);
    return code == 0 ? feed_wait(feed, ANSWER_S, err) : code;
}

/* One measurement. */
static int measure(struct feed *feed, const struct flags *f, struct error *err)
{
    struct timespec pause = {.tv_sec = (time_t)f->interval_s};
    pause.tv_nsec = (long)((f->interval_s - (double)pause.tv_sec) * 1e9);
    if (f->interval_s == 0)
        return 0;
    (void)nanosleep(&pause, NULL);
    return round_take(feed, err);
}

static int show(const struct feed *feed, const struct flags *f, struct error *err)
{
    struct frame frame = {0};
    struct view v = {.columns = f->columns, .interval_s = f->interval_s};
    int code;
    if (f->json)
        return report_write(stdout, &feed->last, f->interval_s, err);
    code = view_render(&feed->last, &v, &frame, err);
    for (size_t i = 0; i < frame.n_lines; i++)
        puts(frame.lines[i].text);
    frame_free(&frame);
    if (code == 0 && fflush(stdout) != 0)
        code = error_set(err, EBB_EIO, "the frame could not be written");
    return code;
}

static int top(const struct flags *f, struct error *err)
{
    static struct feed feed; /* large: two snapshots */
    int code, status;
    feed_init(&feed, f->control, f->name);
    code = round_take(&feed, err);
    if (code == EBB_ENOENT || code == EBB_EBUSY) {
        feed_close(&feed);
        return STATUS_NO_ENGINE;
    }
    if (code == 0 && !f->once && !f->json && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO)) {
        double interval_s =
            f->interval_s < SCREEN_INTERVAL_MIN ? SCREEN_INTERVAL_MIN : f->interval_s;
        status = screen_run(&feed, interval_s, err);
    } else {
        code = code == 0 ? measure(&feed, f, err) : code;
        code = code == 0 ? show(&feed, f, err) : code;
        status = code == 0 ? STATUS_DONE : STATUS_FAILED;
    }
    feed_close(&feed);
    return status;
}

int main(int argc, char **argv)
{
    struct flags flags;
    struct error err = {0};
    if (flags_read(&flags, argc, argv, &err) != 0)
        return kit_usage("top", &err);
    if (flags.help) {
        help();
        return STATUS_DONE;
    }
    return kit_end("top", top(&flags, &err), &err);
}
