/* tools/top/screen.c - ncurses around the frames of view.c.
 *
 * One loop waits for keys, the engine's answers and the next round at once, so a key or a resize is served while the engine
 * says nothing. An engine that ends leaves its last frame with a notice, and is looked for again every round. ncurses' own
 * handler sees SIGWINCH; the handlers for SIGINT and SIGTERM here only set a flag.
 */
#include "tools/top/screen.h"

#include <curses.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol/exit_status.h"
#include "tools/top/view.h"

#define SILENT_S 5.0 /* a round without an answer for so long is told */

static volatile sig_atomic_t stopped_by;

static void stop(int number)
{
    stopped_by = number;
}

struct screen {
    struct feed *feed;
    struct frame frame;
    double interval_s, next_round;
    size_t scroll;
    bool has_colours, wants_end;
    attr_t styles[VIEW_STYLES];
};

static void styles_choose(struct screen *s)
{
    static const short colours[VIEW_STYLES] = {
        [STYLE_WARNING] = COLOR_RED,    [STYLE_WEIGHTS] = COLOR_BLUE,
        [STYLE_KV] = COLOR_CYAN,        [STYLE_RESIDENT] = COLOR_GREEN,
        [STYLE_CACHE] = COLOR_GREEN,    [STYLE_WORKSPACE] = COLOR_MAGENTA,
        [STYLE_LINK] = COLOR_YELLOW,    [STYLE_CONTEXT] = COLOR_YELLOW,
        [STYLE_FOREIGN] = COLOR_RED,    [STYLE_UNEXPLAINED] = COLOR_RED,
        [STYLE_RESERVE] = COLOR_YELLOW,
    };
    s->has_colours = has_colors() && start_color() == OK;
    if (s->has_colours)
        (void)use_default_colors();
    for (short i = 0; i < VIEW_STYLES; i++) {
        s->styles[i] = A_NORMAL;
        if (s->has_colours && colours[i] != 0 && init_pair(i + 1, colours[i], -1) == OK)
            s->styles[i] = COLOR_PAIR(i + 1);
    }
    s->styles[STYLE_TITLE] |= A_BOLD;
    s->styles[STYLE_CARD] |= A_BOLD;
    s->styles[STYLE_WARNING] |= A_BOLD;
}

static void frame_show(struct screen *s)
{
    (void)erase();
    for (size_t row = 0; row < s->frame.n_lines && row < (size_t)LINES; row++) {
        const struct frame_line *line = &s->frame.lines[row];
        for (size_t i = 0; i < line->n && i < (size_t)COLS; i++)
            (void)mvaddch((int)row, (int)i,
                          (chtype)(unsigned char)line->text[i] | s->styles[line->style[i]]);
    }
    (void)refresh();
}

static void draw(struct screen *s)
{
    char notice[80] = "";
    double silent = feed_now() - s->feed->asked_at;
    if (s->feed->state == FEED_CLOSED)
        (void)snprintf(notice, sizeof notice, "engine gone, waiting for it");
    else if (s->feed->state == FEED_WAITING && silent > SILENT_S)
        (void)snprintf(notice, sizeof notice, "no answer for %.0f s", silent);
    struct view v = {.columns = (size_t)COLS,
                     .rows = (size_t)LINES,
                     .scroll = s->scroll,
                     .interval_s = s->interval_s,
                     .notice = notice[0] != '\0' ? notice : NULL,
                     .keys = true};
    (void)view_render(&s->feed->last, &v, &s->frame, NULL);
    s->scroll = s->scroll < s->frame.scroll_max ? s->scroll : s->frame.scroll_max;
    frame_show(s);
}

static void interval_set(struct screen *s, double interval_s)
{
    s->interval_s = interval_s < SCREEN_INTERVAL_MIN   ? SCREEN_INTERVAL_MIN
                    : interval_s > SCREEN_INTERVAL_MAX ? SCREEN_INTERVAL_MAX
                                                       : interval_s;
    if (s->next_round > feed_now() + s->interval_s)
        s->next_round = feed_now() + s->interval_s;
}

static void key_take(struct screen *s, int key)
{
    size_t page = LINES > 3 ? (size_t)LINES - 3 : 1;
    switch (key) {
    case 'q':
    case 'Q': s->wants_end = true; break;
    case KEY_DOWN: s->scroll++; break;
    case KEY_UP: s->scroll -= s->scroll > 0; break;
    case KEY_NPAGE: s->scroll += page; break;
    case KEY_PPAGE: s->scroll -= s->scroll < page ? s->scroll : page; break;
    case KEY_HOME: s->scroll = 0; break;
    case '+': interval_set(s, s->interval_s * 2); break;
    case '-': interval_set(s, s->interval_s / 2); break;
    case KEY_RESIZE: (void)clear(); break;
    default: break;
    }
}

/* Waits for a key, the engine or the clock. */
static void wait_for_something(struct screen *s)
{
    double left = s->next_round - feed_now();
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    if (s->feed->state != FEED_CLOSED) {
        p[1].fd = s->feed->channel.fd_in;
        p[1].events |= channel_wants_write(&s->feed->channel) ? POLLOUT : 0;
    }
    if (poll(p, 2, left > 0 ? (int)(left * 1000) + 1 : 0) < 0 && errno != EINTR)
        s->wants_end = true;
    if ((p[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
        s->wants_end = true; /* the terminal is gone */
    if (p[1].revents != 0)
        (void)feed_read(s->feed, feed_now(), NULL);
}

static void loop(struct screen *s)
{
    while (!s->wants_end && stopped_by == 0) {
        int key;
        while ((key = getch()) != ERR)
            key_take(s, key);
        if (feed_now() >= s->next_round) {
            (void)feed_ask(s->feed, feed_now(), NULL);
            s->next_round = feed_now() + s->interval_s;
        }
        draw(s);
        if (!s->wants_end && stopped_by == 0)
            wait_for_something(s);
    }
}

int screen_run(struct feed *f, double interval_s, struct error *err)
{
    struct sigaction act = {.sa_handler = stop};
    struct screen s = {.feed = f, .interval_s = interval_s, .next_round = feed_now() + interval_s};
    SCREEN *terminal;
    const char *term = getenv("TERM");
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGHUP, &act, NULL);
    terminal = newterm(NULL, stdout, stdin);
    if (terminal == NULL) {
        (void)error_set(err, EBB_EUNSUPPORTED,
                        "the terminal (TERM=%.40s) is not known here; --once prints one frame",
                        term != NULL ? term : "");
        return STATUS_FAILED;
    }
    (void)cbreak();
    (void)noecho();
    (void)keypad(stdscr, TRUE);
    (void)nodelay(stdscr, TRUE);
    (void)curs_set(0);
    styles_choose(&s);
    loop(&s);
    (void)endwin();
    delscreen(terminal);
    frame_free(&s.frame);
    if (stopped_by == 0)
        return STATUS_DONE;
    return stopped_by == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED;
}
