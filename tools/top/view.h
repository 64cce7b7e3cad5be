/* tools/top/view.h - the picture of a snapshot: lines of plain ASCII, with a style for every column. No terminal here.
 *
 * A frame has exactly the lines that are to be shown, each as wide as the terminal (style) or shorter (text). The first line
 * says which engine, the last ones what the letters of the bars mean and which keys there are; what does not fit in between
 * is cut there, and `scroll` says from where it is shown. Letters carry all that colours carry: the frame reads the same
 * without them. At any size from 1 x 1 on a frame is a frame.
 */
#pragma once
#include "tools/top/snapshot.h"

#define VIEW_COLUMNS_MAX 500
#define VIEW_ROWS_MAX    2000

/* A column's style: the regions of a bar in their order in it, and what else stands out. */
enum view_style {
    STYLE_PLAIN,
    STYLE_TITLE,
    STYLE_CARD,
    STYLE_WARNING,
    STYLE_WEIGHTS,
    STYLE_KV,
    STYLE_RESIDENT,
    STYLE_CACHE,
    STYLE_WORKSPACE,
    STYLE_LINK,
    STYLE_CONTEXT,
    STYLE_FOREIGN,
    STYLE_UNEXPLAINED,
    STYLE_FREE,
    STYLE_RESERVE,
    VIEW_STYLES,
};

struct view {
    size_t columns, rows; /* rows 0: as many as it takes; columns are cut to VIEW_COLUMNS_MAX */
    size_t scroll;        /* lines of the middle that are left out at its top */
    double interval_s;
    const char *notice; /* stands out in the first line: "engine gone"; NULL: none */
    bool keys;          /* the last line tells the keys */
};

struct frame_line {
    size_t n; /* text without its NUL */
    char text[VIEW_COLUMNS_MAX + 1];
    unsigned char style[VIEW_COLUMNS_MAX];
};

struct frame {
    size_t n_lines, capacity;
    struct frame_line *lines; /* owned */
    size_t scroll_max;        /* a larger scroll shows the same */
};

/* Renders into a frame that was zeroed or rendered before. EBB_ENOMEM: what could be rendered stands. */
int view_render(const struct snapshot *s, const struct view *v, struct frame *frame,
                struct error *err);
void frame_free(struct frame *frame);
