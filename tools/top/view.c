/* tools/top/view.c - draws a snapshot: per card a heading, a bar of its memory, its figures and its experts' heat, then the leases.
 *
 * The whole picture is drawn first, as long as it is, and then cut to the rows there are. Figures flow: as many to a line
 * as its width takes. Owns the frame's lines, nothing else; pure.
 */
#include "tools/top/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MIB      1048576.0
#define LOW_ROWS 12 /* a terminal lower than that has no room for the legend */

struct region {
    char letter;
    enum view_style style;
    const char *name;
};
/* In the order of a bar. What is free stands at its right end, the reserve outermost. */
static const struct region regions[] = {
    {'W', STYLE_WEIGHTS, "weights"},         {'K', STYLE_KV, "kv"},
    {'#', STYLE_RESIDENT, "experts"},        {'-', STYLE_CACHE, "empty slots"},
    {'P', STYLE_WORKSPACE, "workspace"},     {'L', STYLE_LINK, "link"},
    {'X', STYLE_CONTEXT, "context"},         {'F', STYLE_FOREIGN, "foreign"},
    {'?', STYLE_UNEXPLAINED, "unexplained"}, {'.', STYLE_FREE, "free"},
    {'r', STYLE_RESERVE, "reserve"},
};
#define N_REGIONS (sizeof regions / sizeof regions[0])

struct canvas {
    const struct view *v;
    struct frame *frame;
    size_t columns;
    bool failed;
};

static struct frame_line *line_new(struct canvas *c)
{
    struct frame *f = c->frame;
    if (f->n_lines == f->capacity) {
        size_t capacity = f->capacity == 0 ? 64 : 2 * f->capacity;
        struct frame_line *lines =
            f->n_lines < VIEW_ROWS_MAX ? realloc(f->lines, capacity * sizeof *lines) : NULL;
        if (lines == NULL) {
            c->failed = true;
            return NULL;
        }
        f->lines = lines;
        f->capacity = capacity;
    }
    memset(&f->lines[f->n_lines], 0, sizeof f->lines[0]);
    return &f->lines[f->n_lines++];
}

/* Appends what fits of the text; line NULL: nothing. */
static void put(struct canvas *c, struct frame_line *line, enum view_style style, const char *text)
{
    for (; line != NULL && *text != '\0' && line->n < c->columns; text++) {
        line->style[line->n] = (unsigned char)style;
        line->text[line->n++] = *text;
    }
}

/* Blanks up to a column, at least one. */
static void put_gap(struct canvas *c, struct frame_line *line, size_t column)
{
    do
        put(c, line, STYLE_PLAIN, " ");
    while (line != NULL && line->n < column && line->n < c->columns);
}

/* One figure of a flowing line: begins a new line where it does not fit behind the others. */
__attribute__((format(printf, 4, 5))) static void put_figure(struct canvas *c,
                                                             struct frame_line **line,
                                                             enum view_style style,
                                                             const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (*line == NULL || ((*line)->n > 2 && (*line)->n + 3 + strlen(text) > c->columns))
        *line = line_new(c);
    put(c, *line, STYLE_PLAIN, *line != NULL && (*line)->n > 0 ? "   " : "  ");
    put(c, *line, style, text);
}

static double or_zero(const struct snapshot_card *card, enum snapshot_number which)
{
    int64_t value = snapshot_number(card, which);
    return value > 0 ? (double)value : 0;
}

/* The bytes of every region of a card, and of the whole. What STAT alone tells is used where there is no LEDGER. */
static double region_bytes(const struct snapshot_card *card, double bytes[static N_REGIONS])
{
    double cache = or_zero(card, LEDGER_CACHE), slots = or_zero(card, STAT_SLOTS);
    double free_bytes = or_zero(card, LEDGER_FREE), whole = or_zero(card, LEDGER_TOTAL);
    double reserve = or_zero(card, STAT_RESERVE_MIB) * MIB, sum = 0;
    double resident = slots > 0 ? or_zero(card, STAT_RESIDENT) / slots : 0;
    double foreign = or_zero(card, LEDGER_FOREIGN);
    if (!card->is_known[LEDGER_TOTAL]) {
        whole = or_zero(card, STAT_TOTAL_MIB) * MIB;
        free_bytes = or_zero(card, STAT_FREE_MIB) * MIB;
        foreign = or_zero(card, STAT_FOREIGN_MIB) * MIB;
        cache = or_zero(card, STAT_CACHE_MIB) * MIB;
    }
    resident = resident > 1 ? 1 : resident;
    reserve = reserve > free_bytes ? free_bytes : reserve;
    const double all[N_REGIONS] = {
        or_zero(card, LEDGER_WEIGHTS) + or_zero(card, LEDGER_STREAM),
        or_zero(card, LEDGER_KV),
        cache * resident,
        cache * (1 - resident),
        or_zero(card, LEDGER_WORKSPACE),
        or_zero(card, LEDGER_LINK),
        or_zero(card, LEDGER_BLAS) + or_zero(card, LEDGER_CONTEXT),
        foreign,
        or_zero(card, LEDGER_UNEXPLAINED),
        free_bytes - reserve,
        reserve,
    };
    for (size_t i = 0; i < N_REGIONS; i++)
        sum += bytes[i] = all[i];
    return sum > whole ? sum : whole;
}

/* "[WWWKK##--..rr]" over the whole width. What no region explains stays blank. */
static void draw_bar(struct canvas *c, const struct snapshot_card *card)
{
    double bytes[N_REGIONS], whole = region_bytes(card, bytes), sum = 0;
    size_t width = c->columns > 4 ? c->columns - 4 : 0, column = 0;
    struct frame_line *line = line_new(c);
    put(c, line, STYLE_PLAIN, " [");
    for (size_t i = 0; i < N_REGIONS && whole > 0; i++) {
        char letter[2] = {regions[i].letter, '\0'};
        sum += bytes[i];
        if (i == N_REGIONS - 2) /* what is free ends at the right */
            for (; column < (size_t)((1 - (bytes[i] + bytes[i + 1]) / whole) * (double)width + 0.5);
                 column++)
                put(c, line, STYLE_PLAIN, " ");
        if (i >= N_REGIONS - 2)
            sum = i == N_REGIONS - 1 ? whole : whole - bytes[i + 1];
        for (; column < (size_t)(sum / whole * (double)width + 0.5); column++)
            put(c, line, regions[i].style, letter);
    }
    for (; column < width; column++)
        put(c, line, STYLE_PLAIN, " ");
    put(c, line, STYLE_PLAIN, "]");
}

static void draw_heading(struct canvas *c, const struct snapshot_card *card)
{
    char text[2 * SNAPSHOT_TEXT_BYTES + 80];
    struct frame_line *line = line_new(c);
    (void)snprintf(text, sizeof text, "card %" PRIu32, card->device);
    put(c, line, STYLE_CARD, text);
    if (card->place[0] != '\0') {
        put_gap(c, line, 8);
        put(c, line, STYLE_CARD, card->place);
    }
    put_gap(c, line, 18);
    if (card->layers[0] != '\0') {
        (void)snprintf(text, sizeof text, "layers %s", card->layers);
        put(c, line, STYLE_PLAIN, text);
        put_gap(c, line, 32);
    }
    bool is_well = strcmp(card->state, "idle") == 0 || strcmp(card->state, "running") == 0;
    put(c, line, is_well ? STYLE_PLAIN : STYLE_WARNING, card->state);
    put_gap(c, line, 42);
    if (card->is_known[STAT_TOTAL_MIB]) {
        (void)snprintf(text, sizeof text, "%" PRId64 " MiB", card->numbers[STAT_TOTAL_MIB]);
        put(c, line, STYLE_PLAIN, text);
        put_gap(c, line, 54);
    }
    put(c, line, STYLE_PLAIN, card->name);
}

/* MiB with a decimal where they are few. */
static const char *mib(double bytes, char text[static 32])
{
    (void)snprintf(text, 32, bytes < 100 * MIB ? "%.1f" : "%.0f", bytes / MIB);
    return text;
}

static void draw_memory(struct canvas *c, const struct snapshot_card *card)
{
    double bytes[N_REGIONS];
    struct frame_line *line = NULL;
    char text[32];
    (void)region_bytes(card, bytes);
    for (size_t i = 0; i < N_REGIONS; i++) {
        if (regions[i].style == STYLE_RESIDENT || regions[i].style == STYLE_RESERVE)
            continue; /* told with the cache, and with what is free */
        if (regions[i].style == STYLE_CACHE) {
            double full = or_zero(card, STAT_CACHE_FULL_MIB);
            put_figure(c, &line, STYLE_PLAIN, "cache %s of %.0f",
                       mib(bytes[i] + bytes[i - 1], text), full);
        } else if (regions[i].style == STYLE_FREE) {
            put_figure(c, &line, STYLE_PLAIN, "free %s", mib(bytes[i] + bytes[i + 1], text));
        } else if (bytes[i] > 0 || regions[i].style <= STYLE_KV) {
            put_figure(c, &line,
                       regions[i].style == STYLE_UNEXPLAINED ? STYLE_WARNING : STYLE_PLAIN, "%s %s",
                       regions[i].name, mib(bytes[i], text));
        }
    }
    if (or_zero(card, LEDGER_HOST_REGISTERED) > 0)
        put_figure(c, &line, STYLE_PLAIN, "host %s",
                   mib(or_zero(card, LEDGER_HOST_REGISTERED), text));
    if (card->is_known[STAT_RESERVE_MIB]) {
        int64_t reserve = card->numbers[STAT_RESERVE_MIB], base = or_zero(card, STAT_BASE_MIB);
        bool is_short = snapshot_number(card, STAT_FREE_MIB) < reserve;
        enum view_style style = is_short ? STYLE_WARNING : STYLE_PLAIN;
        if (card->is_known[STAT_BASE_MIB] && base != reserve)
            put_figure(c, &line, style, "reserve %" PRId64 " (base %" PRId64 ")", reserve, base);
        else
            put_figure(c, &line, style, "reserve %" PRId64, reserve);
    }
}

/* Of each layer's heat, how much is resident: a column a layer, or of several where there are more layers than columns. */
static void draw_heat(struct canvas *c, const struct snapshot_card *card)
{
    char text[32];
    struct frame_line *line;
    if (card->n_heats == 0)
        return;
    line = line_new(c);
    (void)snprintf(text, sizeof text, "  heat %5.1f %% here [",
                   or_zero(card, STAT_HEAT_RESIDENT) / 10);
    put(c, line, STYLE_PLAIN, text);
    size_t room = line != NULL && c->columns > line->n + 1 ? c->columns - line->n - 1 : 0;
    size_t width = card->n_heats < room ? card->n_heats : room;
    for (size_t i = 0; i < width; i++) {
        size_t first = i * card->n_heats / width, end = (i + 1) * card->n_heats / width, sum = 0;
        for (size_t k = first; k < end; k++)
            sum += card->heat[k];
        unsigned tenths = (unsigned)(sum / (100 * (end - first)));
        char letter[2] = {tenths < 10 ? (char)('0' + tenths) : '#', '\0'};
        put(c, line,
            tenths == 10  ? STYLE_RESIDENT
            : tenths >= 5 ? STYLE_CACHE
                          : STYLE_WARNING,
            letter);
    }
    put(c, line, STYLE_PLAIN, "]");
}

static void draw_work(struct canvas *c, const struct snapshot_card *card)
{
    struct frame_line *line = NULL;
    int64_t blocks = snapshot_number(card, STAT_KV_BLOCKS);
    if (card->hit_rate >= 0)
        put_figure(c, &line, STYLE_PLAIN, "hits %.1f %%", 100 * card->hit_rate);
    else
        put_figure(c, &line, STYLE_PLAIN, "hits -");
    if (card->tokens_per_s >= 0)
        put_figure(c, &line, STYLE_PLAIN, "%.1f tok/s", card->tokens_per_s);
    if (card->steps_per_s >= 0)
        put_figure(c, &line, STYLE_PLAIN, "%.1f steps/s", card->steps_per_s);
    if (card->is_known[STAT_SEQUENCES])
        put_figure(c, &line, STYLE_PLAIN, "sequences %" PRId64, card->numbers[STAT_SEQUENCES]);
    if (blocks >= 0 && card->is_known[STAT_KV_BLOCKS_FREE]) {
        int64_t used = blocks - card->numbers[STAT_KV_BLOCKS_FREE];
        if (snapshot_number(card, STAT_KV_BLOCKS_MAX) > blocks) /* KV may still grow */
            put_figure(c, &line, STYLE_PLAIN,
                       "kv blocks %" PRId64 " of %" PRId64 " (up to %" PRId64 ")", used, blocks,
                       card->numbers[STAT_KV_BLOCKS_MAX]);
        else
            put_figure(c, &line, STYLE_PLAIN, "kv blocks %" PRId64 " of %" PRId64, used, blocks);
    }
    if (card->is_known[STAT_RESIDENT] && card->is_known[STAT_SLOTS])
        put_figure(c, &line, STYLE_PLAIN, "experts %" PRId64 " in %" PRId64 " slots of %" PRId64,
                   card->numbers[STAT_RESIDENT], card->numbers[STAT_SLOTS],
                   snapshot_number(card, STAT_SLOTS_FULL));
    if (card->is_known[STAT_PROMPT_CHUNK])
        put_figure(c, &line, STYLE_PLAIN, "chunk %" PRId64, card->numbers[STAT_PROMPT_CHUNK]);
}

static void draw_leases(struct canvas *c, const struct snapshot *s)
{
    char text[64];
    if (!s->leases_known || s->n_leases == 0)
        return;
    put(c, line_new(c), STYLE_CARD, "leases");
    for (size_t i = 0; i < s->n_leases; i++) {
        const struct snapshot_lease *lease = &s->leases[i];
        struct frame_line *line = line_new(c);
        put(c, line, STYLE_PLAIN, "  ");
        put(c, line, STYLE_PLAIN, lease->name[0] != '\0' ? lease->name : "-");
        put_gap(c, line, 20);
        if (lease->device >= 0)
            (void)snprintf(text, sizeof text, "card %" PRId64, lease->device);
        else
            (void)snprintf(text, sizeof text, "every card");
        put(c, line, STYLE_PLAIN, text);
        put_gap(c, line, 32);
        if (lease->reserve_mib >= 0) {
            (void)snprintf(text, sizeof text, "%" PRId64 " MiB", lease->reserve_mib);
            put(c, line, STYLE_PLAIN, text);
        }
        put_gap(c, line, 44);
        put(c, line, STYLE_PLAIN, lease->rest);
    }
}

static void draw_title(struct canvas *c, const struct snapshot *s)
{
    char text[200];
    struct frame_line *line = line_new(c);
    (void)snprintf(text, sizeof text, "ebbtide top: %s", s->engine[0] != '\0' ? s->engine : "-");
    put(c, line, STYLE_TITLE, text);
    if (c->v->notice != NULL) {
        put(c, line, STYLE_PLAIN, "   ");
        put(c, line, STYLE_WARNING, c->v->notice);
    }
    (void)snprintf(text, sizeof text, "   %zu card%s%s   every %g s", s->n_cards + s->n_left_out,
                   s->n_cards == 1 ? "" : "s", s->n_left_out > 0 ? ", not all shown" : "",
                   c->v->interval_s);
    put(c, line, STYLE_PLAIN, text);
    if (s->tokens_per_s >= 0) {
        (void)snprintf(text, sizeof text, "   %.1f tok/s", s->tokens_per_s);
        put(c, line, STYLE_PLAIN, text);
    }
    if (s->leases_known) {
        (void)snprintf(text, sizeof text, "   %zu lease%s", s->n_leases,
                       s->n_leases == 1 ? "" : "s");
        put(c, line, STYLE_PLAIN, text);
    }
}

/* The last lines: what the letters of the bars mean and, undermost, the keys. Their number. */
static size_t draw_legend(struct canvas *c, bool has_heat)
{
    size_t n_before = c->frame->n_lines;
    struct frame_line *line = NULL;
    bool is_low = c->v->rows > 0 && c->v->rows < LOW_ROWS;
    for (size_t i = 0; i < N_REGIONS && !is_low; i++) {
        char letter[2] = {regions[i].letter, '\0'};
        size_t wanted = strlen(regions[i].name) + 4;
        if (line == NULL || line->n + wanted > c->columns)
            line = line_new(c);
        put(c, line, STYLE_PLAIN, line != NULL && line->n > 0 ? "  " : " ");
        put(c, line, regions[i].style, letter);
        put(c, line, STYLE_PLAIN, " ");
        put(c, line, STYLE_PLAIN, regions[i].name);
    }
    if (has_heat && !is_low)
        put(c, line_new(c), STYLE_PLAIN,
            " heat: a layer each: # all of its experts' heat is here, 9 to 0 tenths of it");
    if (c->v->keys)
        put(c, line_new(c), STYLE_TITLE, " q quit   +/- interval   up/down scroll");
    return c->frame->n_lines - n_before;
}

/* Cuts the middle so that the first line and the last n_tail stay. */
static void frame_fit(struct frame *f, const struct view *v, size_t n_tail)
{
    size_t rows = v->rows, middle, shown, scroll;
    f->scroll_max = 0;
    if (rows == 0 || f->n_lines <= rows)
        return;
    if (rows < n_tail + 2 || f->n_lines < n_tail + 2) { /* what there is room for, from the top */
        f->n_lines = rows;
        return;
    }
    middle = f->n_lines - 1 - n_tail;
    shown = rows - 1 - n_tail;
    f->scroll_max = middle - shown;
    scroll = v->scroll < f->scroll_max ? v->scroll : f->scroll_max;
    memmove(&f->lines[1], &f->lines[1 + scroll], shown * sizeof f->lines[0]);
    memmove(&f->lines[1 + shown], &f->lines[f->n_lines - n_tail], n_tail * sizeof f->lines[0]);
    f->n_lines = rows;
}

int view_render(const struct snapshot *s, const struct view *v, struct frame *frame,
                struct error *err)
{
    struct canvas c = {.v = v, .frame = frame};
    size_t n_tail;
    bool has_heat = false;
    c.columns = v->columns < 1 ? 1 : v->columns > VIEW_COLUMNS_MAX ? VIEW_COLUMNS_MAX : v->columns;
    frame->n_lines = 0;
    draw_title(&c, s);
    for (size_t i = 0; i < s->n_cards; i++) {
        if (i > 0)
            (void)line_new(&c);
        draw_heading(&c, &s->cards[i]);
        draw_bar(&c, &s->cards[i]);
        draw_memory(&c, &s->cards[i]);
        draw_heat(&c, &s->cards[i]);
        draw_work(&c, &s->cards[i]);
    }
    for (size_t i = 0; i < s->n_cards; i++)
        has_heat = has_heat || s->cards[i].n_heats > 0;
    if (s->n_leases > 0)
        (void)line_new(&c);
    draw_leases(&c, s);
    (void)line_new(&c);
    n_tail = draw_legend(&c, has_heat);
    frame_fit(frame, v, n_tail);
    return c.failed ? error_set(err, EBB_ENOMEM, "out of memory for a frame of %zu lines",
                                frame->n_lines)
                    : 0;
}

void frame_free(struct frame *frame)
{
    free(frame->lines);
    memset(frame, 0, sizeof *frame);
}
