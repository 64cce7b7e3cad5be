/* runtime/config_read.c - a YAML file into settings, by the settings' table.
 *
 * The file is read whole (config_text.c) and walked as libyaml's events, so nothing is built that an alias or a depth could
 * blow up: one map of keys, maps for dotted groups, a list of cards; whatever else begins is refused where it begins.
 * Anchors, aliases, tags and a second document are refused. Every error is "file:line: key: expected ..., got ...".
 * Keys of settings that the command does not have are checked and left. Owns the text and the parser while it reads.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "runtime/config_card.h"
#include "runtime/nearest.h"
#include "runtime/settings_table.h"

#define PATH_BYTES_MAX  96
#define VALUE_BYTES_MAX 8192
#define ROWS_MAX        128
#define MAPS_MAX        8

struct reader {
    const char *path;
    char *text; /* owned */
    size_t n_text;
    yaml_parser_t parser;
    yaml_event_t event; /* the current one, owned */
    bool has_event;
    struct draft *d, *aside; /* settings of the command; of others, thrown away */
    const struct groups *groups;
    uint32_t rows_line[ROWS_MAX]; /* where a key was given, by row; 0: not */
    struct {
        char name[PATH_BYTES_MAX];
        uint32_t line;
    } maps[MAPS_MAX];
    size_t n_maps, n_keys;
    struct error *err;
};

static uint32_t line_now(const struct reader *r)
{
    return (uint32_t)r->event.start_mark.line + 1;
}

__attribute__((format(printf, 5, 6))) static int refuse(struct reader *r, int code, uint32_t line,
                                                        const char *key, const char *format, ...)
{
    char words[sizeof r->err->text];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words, sizeof words, format, args);
    va_end(args);
    for (char *c = words; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return error_set(r->err, code, "%s:%" PRIu32 ": %s%s%s", r->path, line, key,
                     key[0] != '\0' ? ": " : "", words);
}

/* The words of a setter, "wanted ..., got ...", at their place. */
static int refuse_value(struct reader *r, int code, uint32_t line, const char *key,
                        const struct error *why)
{
    const char *words = why->text;
    if (strncmp(words, "wanted ", 7) == 0)
        words += 7;
    return refuse(r, code, line, key, "expected %s", words);
}

static int yaml_refuse(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_READER_ERROR) {
        line = 1;
        for (size_t i = 0; i < p->problem_offset && i < r->n_text; i++)
            line += r->text[i] == '\n';
    }
    if (p->error == YAML_MEMORY_ERROR)
        return error_set(r->err, EBB_ENOMEM, "%s: no memory to read it", r->path);
    return refuse(r, EBB_EFORMAT, (uint32_t)line, "", "expected YAML, got what is none: %s",
                  p->problem != NULL ? p->problem : "unreadable text");
}

static const char *event_name(const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SEQUENCE_START_EVENT: return "a list";
    case YAML_MAPPING_START_EVENT: return "a map";
    case YAML_ALIAS_EVENT: return "an alias";
    case YAML_SCALAR_EVENT: return "a value";
    default: return "the end";
    }
}

/* What no place of the file may have. */
static int event_check(struct reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_ALIAS_EVENT)
        return refuse(r, EBB_EFORMAT, line_now(r), "", "expected a value, got the alias *%.64s",
                      (const char *)e->data.alias.anchor);
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    }
    if (anchor != NULL)
        return refuse(r, EBB_EFORMAT, line_now(r), "", "expected a value, got the anchor &%.64s",
                      (const char *)anchor);
    if (tag != NULL)
        return refuse(r, EBB_EFORMAT, line_now(r), "", "expected a value, got the tag %.64s",
                      (const char *)tag);
    return 0;
}

static int next(struct reader *r)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event) != 0;
    if (!r->has_event)
        return yaml_refuse(r);
    return event_check(r);
}

/* The current scalar's text, which must be one for `key`. */
static int scalar_text(struct reader *r, const char *key, const char *wanted, bool is_text,
                       char *text)
{
    const yaml_event_t *e = &r->event;
    if (e->type != YAML_SCALAR_EVENT)
        return refuse(r, EBB_EINVAL, line_now(r), key, "expected %s, got %s", wanted,
                      event_name(e));
    const char *value = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (n == 0 || strcmp(value, "~") == 0 || strcmp(value, "null") == 0))
        return refuse(r, EBB_EINVAL, line_now(r), key, "expected %s, got nothing", wanted);
    if (strlen(value) != n)
        return refuse(r, EBB_EINVAL, line_now(r), key, "expected %s, got text with a NUL", wanted);
    if (n >= VALUE_BYTES_MAX)
        return refuse(r, EBB_ERANGE, line_now(r), key, "expected at most %d bytes, got %zu",
                      VALUE_BYTES_MAX - 1, n);
    if (!plain && !is_text)
        return refuse(r, EBB_EINVAL, line_now(r), key, "expected %s, got the text \"%.64s\"",
                      wanted, value);
    memcpy(text, value, n + 1);
    return 0;
}

static int key_text(struct reader *r, const char *map, char *key)
{
    const yaml_event_t *e = &r->event;
    if (e->type != YAML_SCALAR_EVENT)
        return refuse(r, EBB_EFORMAT, line_now(r), map, "expected a key, got %s", event_name(e));
    const char *value = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    if (n == 0 || n >= PATH_BYTES_MAX / 2 || strlen(value) != n)
        return refuse(r, EBB_EUNKNOWN_KEY, line_now(r), map, "expected a key, got '%.48s'", value);
    memcpy(key, value, n + 1);
    for (char *c = key; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    return 0;
}

static int given_twice(struct reader *r, const char *key, uint32_t *line)
{
    if (*line != 0)
        return refuse(r, EBB_EINVAL, line_now(r), key,
                      "expected once, got again (first on line %" PRIu32 ")", *line);
    *line = line_now(r);
    return 0;
}

static int value_set(struct reader *r, struct draft *d, const struct setting *row, uint32_t line,
                     const char *path, const char *text)
{
    struct error why = {0};
    int code = draft_set(d, row, text, &why);
    if (code != 0)
        return refuse_value(r, code, line, path, &why);
    if (strcmp(row->key, "kv") == 0)
        d->kv_given = true;
    return 0;
}

/* A list of whole numbers, as the flag writes it. */
static int read_numbers(struct reader *r, struct draft *d, const struct setting *row,
                        const char *path)
{
    char text[VALUE_BYTES_MAX], list[VALUE_BYTES_MAX] = "", wanted[200];
    uint32_t line = line_now(r);
    size_t n = 0;
    setting_wanted(row, wanted, sizeof wanted);
    for (;;) {
        int code = next(r);
        if (code != 0)
            return code;
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        code = scalar_text(r, path, wanted, false, text);
        if (code == 0)
            code = value_set(r, d, row, line_now(r), path, text);
        if (code != 0)
            return code;
        size_t n_text = strlen(text);
        if (n_text + n + 2 > sizeof list)
            return refuse(r, EBB_ERANGE, line, path, "expected %s, got too many", wanted);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n > 0 ? "," : "", text);
    }
    return value_set(r, d, row, line, path, list);
}

static int read_card_map(struct reader *r, struct config_card *card, const char *path)
{
    uint32_t lines[CONFIG_CARD_KEYS] = {0};
    for (;;) {
        char key[PATH_BYTES_MAX], full[2 * PATH_BYTES_MAX], text[VALUE_BYTES_MAX];
        struct nearest nearest = {0};
        struct error why = {0};
        int code = next(r);
        if (code != 0 || r->event.type == YAML_MAPPING_END_EVENT)
            return code;
        code = key_text(r, path, key);
        if (code != 0)
            return code;
        int at = config_card_find(key, &nearest);
        (void)snprintf(full, sizeof full, "%s.%s", path, key);
        if (at < 0)
            return refuse(r, EBB_EUNKNOWN_KEY, line_now(r), full,
                          "expected a key of a card (the nearest is %s), got '%s'", nearest.name,
                          key);
        code = given_twice(r, full, &lines[at]);
        if (code == 0)
            code = next(r);
        if (code == 0)
            code = scalar_text(r, full, config_card_keys[at].wanted, config_card_keys[at].is_text,
                               text);
        if (code != 0)
            return code;
        code = config_card_set(card, (size_t)at, text, &why);
        if (code != 0)
            return refuse_value(r, code, line_now(r), full, &why);
    }
}

static int read_cards(struct reader *r, struct draft *d)
{
    struct card_setting cards[CARDS_MAX] = {0};
    struct config_card own[CARDS_MAX] = {0};
    uint32_t line = line_now(r);
    size_t n = 0;
    for (;;) {
        struct config_card card = {0};
        struct error why = {0};
        char path[PATH_BYTES_MAX], text[VALUE_BYTES_MAX];
        int code = next(r);
        if (code != 0)
            return code;
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        uint32_t card_line = line_now(r);
        (void)snprintf(path, sizeof path, "cards[%zu]", n);
        if (r->event.type == YAML_MAPPING_START_EVENT) {
            code = read_card_map(r, &card, path);
        } else {
            code = scalar_text(r, path, "a card such as cpu:0, or a map", true, text);
            if (code == 0)
                code = config_card_set(&card, CONFIG_CARD_NAME, text, &why);
        }
        if (code != 0)
            return why.code != 0 ? refuse_value(r, code, card_line, path, &why) : code;
        code = config_card_add(&card, cards, &n, &why);
        if (code != 0)
            return refuse_value(r, code, card_line, path, &why);
        own[n - 1] = card;
    }
    if (n == 0)
        return refuse(r, EBB_EINVAL, line, "cards", "expected a card at least, got an empty list");
    memcpy(d->s->cards, cards, sizeof cards);
    d->s->n_cards = n;
    d->s->cards_auto = false;
    for (size_t i = 0; i < n; i++) {
        d->own_vram[i] = own[i].has_vram;
        d->own_reserve[i] = own[i].has_reserve;
    }
    return 0;
}

/* The current event is the value's first. */
static int read_value(struct reader *r, const struct setting *row, const char *path)
{
    struct draft *d = group_is_in(r->groups, row->group) ? r->d : r->aside;
    char text[VALUE_BYTES_MAX], wanted[200];
    uint32_t line = line_now(r);
    bool is_text = row->type == SETTING_TEXT || row->type == SETTING_CHOICE ||
                   row->type == SETTING_CHOICE_INDEX || row->type == SETTING_CARDS;
    setting_wanted(row, wanted, sizeof wanted);
    if (row->type == SETTING_CARD_MIB) {
        *(row->offset == offsetof(struct card_setting, vram_mib) ? &d->vram_line
                                                                 : &d->reserve_line) = line;
        if (r->event.type == YAML_SEQUENCE_START_EVENT)
            return read_numbers(r, d, row, path);
    }
    if (row->type == SETTING_LATER_MIB)
        d->later_line = line;
    if (row->type == SETTING_CARDS && r->event.type == YAML_SEQUENCE_START_EVENT)
        return read_cards(r, d);
    int code = scalar_text(r, path, wanted, is_text, text);
    return code != 0 ? code : value_set(r, d, row, line, path, text);
}

/* The row of a path or of a flag's own name at the top, and the nearest if there is none. */
static const struct setting *row_find(const char *path, size_t *index, char *nearest,
                                      size_t capacity)
{
    struct nearest best = {0};
    char candidate[PATH_BYTES_MAX], key[PATH_BYTES_MAX];
    nearest[0] = '\0';
    for (size_t i = 0; i < n_settings && i < ROWS_MAX; i++) {
        setting_path(&settings_table[i], candidate, sizeof candidate);
        (void)snprintf(key, sizeof key, "%s", settings_table[i].key);
        for (char *c = key; *c != '\0'; c++)
            *c = *c == '-' ? '_' : *c;
        if (candidate[0] == '\0')
            continue;
        if (strcmp(candidate, path) == 0 || strcmp(key, path) == 0) {
            *index = i;
            return &settings_table[i];
        }
        size_t distance = best.distance;
        bool first = best.name == NULL;
        nearest_offer(&best, path, candidate);
        if (first || best.distance < distance)
            (void)snprintf(nearest, capacity, "%s", candidate);
    }
    return NULL;
}

static bool is_map_of_keys(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < n_settings; i++)
        if (settings_table[i].path != NULL && strncmp(settings_table[i].path, path, n) == 0 &&
            settings_table[i].path[n] == '.')
            return true;
    return false;
}

static int read_map(struct reader *r, const char *prefix);

static int read_group(struct reader *r, const char *path)
{
    size_t at = 0;
    while (at < r->n_maps && strcmp(r->maps[at].name, path) != 0)
        at++;
    if (at == r->n_maps && r->n_maps < MAPS_MAX)
        (void)snprintf(r->maps[r->n_maps++].name, PATH_BYTES_MAX, "%.90s", path);
    int code = at < MAPS_MAX ? given_twice(r, path, &r->maps[at].line) : 0;
    if (code == 0)
        code = next(r);
    if (code == 0 && r->event.type != YAML_MAPPING_START_EVENT)
        return refuse(r, EBB_EINVAL, line_now(r), path, "expected a map of keys, got %s",
                      event_name(&r->event));
    return code == 0 ? read_map(r, path) : code;
}

/* One key and its value; the key is the current event. */
static int read_pair(struct reader *r, const char *prefix)
{
    char key[PATH_BYTES_MAX], path[2 * PATH_BYTES_MAX], nearest[PATH_BYTES_MAX];
    size_t index = 0;
    int code = key_text(r, prefix, key);
    if (code != 0)
        return code;
    (void)snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", key);
    if (prefix[0] == '\0' && is_map_of_keys(path))
        return read_group(r, path);
    const struct setting *row = row_find(path, &index, nearest, sizeof nearest);
    if (row == NULL)
        return refuse(r, EBB_EUNKNOWN_KEY, line_now(r), path,
                      "expected a known key (the nearest is %s), got '%s'", nearest, key);
    setting_path(row, path, sizeof path);
    code = given_twice(r, path, &r->rows_line[index]);
    if (code == 0)
        code = next(r);
    if (code == 0)
        code = read_value(r, row, path);
    r->n_keys += code == 0;
    return code;
}

static int read_map(struct reader *r, const char *prefix)
{
    for (;;) {
        int code = next(r);
        if (code == 0 && r->event.type == YAML_MAPPING_END_EVENT)
            return 0;
        if (code == 0)
            code = read_pair(r, prefix);
        if (code != 0)
            return code;
    }
}

static int read_document(struct reader *r)
{
    int code = next(r); /* stream start */
    if (code == 0)
        code = next(r);
    if (code != 0 || r->event.type == YAML_STREAM_END_EVENT)
        return code; /* nothing but comments: the defaults */
    code = next(r);
    if (code == 0 && r->event.type != YAML_MAPPING_START_EVENT)
        return refuse(r, EBB_EFORMAT, line_now(r), "", "expected a map of keys, got %s",
                      event_name(&r->event));
    if (code == 0)
        code = read_map(r, "");
    if (code == 0)
        code = next(r); /* document end */
    if (code == 0)
        code = next(r);
    if (code == 0 && r->event.type != YAML_STREAM_END_EVENT)
        return refuse(r, EBB_EFORMAT, line_now(r), "", "expected one document, got another");
    return code;
}

int config_read(struct draft *d, const char *path, const struct groups *groups, size_t *n_keys,
                struct error *err)
{
    struct settings scratch;
    struct draft aside = {.s = &scratch, .in_file = true, .path = path};
    struct error why = {0};
    struct reader *r = calloc(1, sizeof *r);
    *n_keys = 0;
    if (r == NULL)
        return error_set(err, EBB_ENOMEM, "%s: no memory to read it", path);
    r->path = path;
    r->d = d;
    r->aside = &aside;
    r->groups = groups;
    r->err = &why;
    d->path = path;
    d->in_file = true;
    settings_default(&scratch);
    int code = config_text_read(path, &r->text, &r->n_text, &why);
    bool parsing = code == 0 && yaml_parser_initialize(&r->parser) != 0;
    if (code == 0 && !parsing)
        code = error_set(&why, EBB_ENOMEM, "%s: no memory to read it", path);
    if (parsing) {
        yaml_parser_set_input_string(&r->parser, (const unsigned char *)r->text, r->n_text);
        code = read_document(r);
        if (r->has_event)
            yaml_event_delete(&r->event);
        yaml_parser_delete(&r->parser);
    }
    *n_keys = r->n_keys;
    d->in_file = false;
    settings_free(&scratch);
    free(r->text);
    free(r);
    if (err != NULL)
        *err = why;
    return code;
}
