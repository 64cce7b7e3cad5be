/* runtime/settings.c - flags and defaults into struct settings, by the table in settings_table.c.
 *
 * A draft holds what cannot be placed before everything was read: the memory lists of the cards, which may come before
 * --cards, and whether kv was given. After the last flag the draft is settled. The struct owns its strings; a failed
 * parse leaves it valid, to be freed by settings_free(). Nothing here prints or exits.
 */
#include "runtime/settings_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "protocol/message.h"
#include "runtime/nearest.h"

struct mib_list {
    size_t n;
    uint64_t values[CARDS_MAX];
};

struct draft {
    struct settings *s;
    struct mib_list vram, reserve;
    bool kv_given;
};

static void *member(struct settings *s, const struct setting *row)
{
    return (char *)s + row->offset;
}

static bool owns_text(const struct setting *row)
{
    return row->type == SETTING_TEXT || row->type == SETTING_CHOICE;
}

static int text_set(char **text, const char *value, struct error *err)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return error_set(err, EBB_ENOMEM, "out of memory for the value of a flag");
    free(*text);
    *text = copy;
    return 0;
}

/* Index of value in "a|b|c", or EBB_EINVAL with the nearest. */
static int choice_find(const struct setting *row, const char *value, int *index, struct error *err)
{
    char choices[128];
    char *rest = choices;
    struct nearest nearest = {0};
    int i = 0;
    (void)snprintf(choices, sizeof choices, "%s", row->choices);
    for (char *choice; (choice = strsep(&rest, "|")) != NULL; i++) {
        if (strcmp(choice, value) == 0) {
            *index = i;
            return 0;
        }
        nearest_offer(&nearest, value, choice);
    }
    return error_set(err, EBB_EINVAL, "--%s: wanted one of %s, got '%s' (the nearest is %s)",
                     row->key, row->choices, value, nearest.name);
}

static int whole_set(const struct setting *row, const char *value, uint64_t *out, struct error *err)
{
    int code = parse_u64(value, row->min, row->max, out);
    if (code != 0)
        return error_set(err, code,
                         "--%s: wanted a whole number from %" PRIu64 " to %" PRIu64 ", got '%s'",
                         row->key, row->min, row->max, value);
    return 0;
}

static int real_set(const struct setting *row, const char *value, double *out, struct error *err)
{
    char *end;
    double number;
    bool is_decimal = value[0] != '\0' && value[strspn(value, "0123456789+-.eE")] == '\0';
    errno = 0;
    number = strtod(value, &end);
    if (!is_decimal || *end != '\0' || !isfinite(number))
        return error_set(err, EBB_EINVAL, "--%s: wanted a number from %g to %g, got '%s'", row->key,
                         row->real_min, row->real_max, value);
    if (number < row->real_min || number > row->real_max)
        return error_set(err, EBB_ERANGE, "--%s: wanted a number from %g to %g, got '%s'", row->key,
                         row->real_min, row->real_max, value);
    *out = number;
    return 0;
}

static int bool_set(const struct setting *row, const char *value, bool *out, struct error *err)
{
    *out = strcmp(value, "true") == 0;
    if (!*out && strcmp(value, "false") != 0)
        return error_set(err, EBB_EINVAL, "--%s: wanted true or false, got '%s'", row->key, value);
    return 0;
}

static struct mib_list *draft_list(struct draft *d, const struct setting *row)
{
    return row->offset == offsetof(struct card_setting, vram_mib) ? &d->vram : &d->reserve;
}

static int mib_list_set(const struct setting *row, const char *value, struct mib_list *out,
                        struct error *err)
{
    struct mib_list list = {0};
    char number[32];
    for (const char *cursor = value;; cursor++) {
        size_t n_bytes = strcspn(cursor, ",");
        if (list.n == CARDS_MAX)
            return error_set(err, EBB_ERANGE, "--%s: wanted at most %d values, got more", row->key,
                             CARDS_MAX);
        (void)snprintf(number, sizeof number, "%.*s", (int)(n_bytes < 31 ? n_bytes : 31), cursor);
        int code = whole_set(row, number, &list.values[list.n++], err);
        if (code != 0)
            return code;
        cursor += n_bytes;
        if (*cursor == '\0')
            break;
    }
    *out = list;
    return 0;
}

static int draft_set(struct draft *d, const struct setting *row, const char *value,
                     struct error *err)
{
    void *place = member(d->s, row);
    uint64_t whole;
    int index, code = 0;
    switch (row->type) {
    case SETTING_TEXT:
        if (row->check != NULL && (code = row->check(value, err)) != 0) {
            char words[sizeof err->text];
            (void)snprintf(words, sizeof words, "%s", err != NULL ? err->text : "");
            return error_set(err, code, "--%s: %s", row->key, words);
        }
        return text_set(place, value, err);
    case SETTING_CHOICE:
        code = choice_find(row, value, &index, err);
        return code != 0 ? code : text_set(place, value, err);
    case SETTING_CHOICE_INDEX:
        code = choice_find(row, value, &index, err);
        if (code == 0)
            *(enum on_eof *)place = (enum on_eof)index;
        return code;
    case SETTING_U32:
        code = whole_set(row, value, &whole, err);
        if (code == 0)
            *(uint32_t *)place = (uint32_t)whole;
        return code;
    case SETTING_U64: return whole_set(row, value, place, err);
    case SETTING_F64: return real_set(row, value, place, err);
    case SETTING_BOOL: return bool_set(row, value, place, err);
    case SETTING_CARDS: return cards_parse(d->s, value, err);
    case SETTING_CARD_MIB: return mib_list_set(row, value, draft_list(d, row), err);
    }
    return EBB_EINVAL;
}

static int cards_settle(struct draft *d, const struct setting *row, struct error *err)
{
    const struct mib_list *list = draft_list(d, row);
    if (list->n > 1 && list->n != d->s->n_cards)
        return error_set(err, EBB_EINVAL,
                         "--%s: wanted one value for all or one for each of the %zu cards, got %zu",
                         row->key, d->s->n_cards, list->n);
    for (size_t i = 0; list->n > 0 && i < d->s->n_cards; i++) {
        uint64_t *mib = (uint64_t *)((char *)&d->s->cards[i] + row->offset);
        *mib = list->values[list->n == 1 ? 0 : i];
    }
    return 0;
}

static int draft_settle(struct draft *d, struct error *err)
{
    int code = 0;
    for (size_t i = 0; i < n_settings && code == 0; i++)
        if (settings_table[i].type == SETTING_CARD_MIB)
            code = cards_settle(d, &settings_table[i], err);
    if (code == 0 && !d->kv_given && d->s->kernels != NULL && strcmp(d->s->kernels, "float") == 0)
        code = text_set(&d->s->kv, "f32", err);
    return code;
}

void settings_default(struct settings *s)
{
    struct draft d = {.s = s};
    char name[32];
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < n_settings; i++)
        if (settings_table[i].default_value != NULL)
            (void)draft_set(&d, &settings_table[i], settings_table[i].default_value, NULL);
    (void)snprintf(name, sizeof name, "ebbtide-%ld", (long)getpid());
    (void)text_set(&s->name, name, NULL);
}

void settings_free(struct settings *s)
{
    for (size_t i = 0; i < n_settings; i++) {
        char **text = member(s, &settings_table[i]);
        if (!owns_text(&settings_table[i]))
            continue;
        free(*text);
        *text = NULL;
    }
}

struct groups {
    const char *const *names; /* NULL: every group */
    size_t n;
};

static bool group_is_in(const struct groups *groups, const char *name)
{
    for (size_t i = 0; groups->names != NULL && i < groups->n; i++)
        if (strcmp(groups->names[i], name) == 0)
            return true;
    return groups->names == NULL;
}

static int flag_unknown(const struct groups *groups, const char *flag, struct error *err)
{
    struct nearest nearest = {0};
    for (size_t i = 0; i < n_settings; i++) {
        if (group_is_in(groups, settings_table[i].group))
            nearest_offer(&nearest, flag, settings_table[i].key);
        else if (strcmp(flag, settings_table[i].key) == 0)
            return error_set(err, EBB_EUNKNOWN_KEY, "--%s is a flag of other commands, not of this",
                             flag);
    }
    return error_set(err, EBB_EUNKNOWN_KEY, "--%s is not a flag here; the nearest is --%s", flag,
                     nearest.name != NULL ? nearest.name : "help");
}

/* The row of "--key", "--key=value" or "-k"; *value is what follows the "=", or NULL. */
static int flag_find(const struct groups *groups, const char *argument, const struct setting **row,
                     const char **value, struct error *err)
{
    bool is_long = argument[1] == '-';
    const char *name = argument + (is_long ? 2 : 1);
    size_t n_bytes = strcspn(name, "=");
    char flag[64];
    *value = name[n_bytes] == '=' ? name + n_bytes + 1 : NULL;
    (void)snprintf(flag, sizeof flag, "%.*s", (int)(n_bytes < 63 ? n_bytes : 63), name);
    for (size_t i = 0; i < n_settings; i++) {
        *row = &settings_table[i];
        bool same = is_long ? strcmp((*row)->key, flag) == 0
                            : flag[0] != '\0' && flag[1] == '\0' && flag[0] == (*row)->letter;
        if (same && group_is_in(groups, (*row)->group))
            return 0;
    }
    if (!is_long)
        return error_set(err, EBB_EUNKNOWN_KEY,
                         "-%s is not a flag here (short flags: -m, -f, -h; text that begins with a "
                         "dash goes after --)",
                         flag);
    return flag_unknown(groups, flag, err);
}

static int parse(struct draft *d, const struct groups *groups, int argc, char **argv, char **bare,
                 size_t *n_bare, struct error *err)
{
    bool flags_ended = false;
    *n_bare = 0;
    for (int i = 0; i < argc; i++) {
        const struct setting *row = NULL;
        const char *value;
        int code;
        if (flags_ended || argv[i][0] != '-' || argv[i][1] == '\0') {
            bare[(*n_bare)++] = argv[i];
            continue;
        }
        flags_ended = strcmp(argv[i], "--") == 0;
        if (flags_ended)
            continue;
        code = flag_find(groups, argv[i], &row, &value, err);
        if (code != 0)
            return code;
        if (value == NULL && row->type == SETTING_BOOL)
            value = "true";
        else if (value == NULL && i + 1 < argc)
            value = argv[++i];
        if (value == NULL)
            return error_set(err, EBB_EINVAL, "--%s: wanted a value (%s), got the end of the line",
                             row->key, row->value_name);
        code = draft_set(d, row, value, err);
        if (code != 0)
            return code;
        d->kv_given = d->kv_given || strcmp(row->key, "kv") == 0;
        if (d->s->help)
            return 0;
    }
    return draft_settle(d, err);
}

int settings_parse(struct settings *s, int argc, char **argv, char **bare, size_t *n_bare,
                   struct error *err)
{
    struct draft d = {.s = s};
    const struct groups every = {0};
    return parse(&d, &every, argc, argv, bare, n_bare, err);
}

int settings_parse_groups(struct settings *s, const char *const *groups, size_t n_groups, int argc,
                          char **argv, char **bare, size_t *n_bare, struct error *err)
{
    struct draft d = {.s = s};
    const struct groups some = {groups, n_groups};
    return parse(&d, &some, argc, argv, bare, n_bare, err);
}
