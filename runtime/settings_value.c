/* runtime/settings_value.c - one value's text into its place, and the cards' memory once all of it is known.
 *
 * The words of a refusal are "wanted ..., got ..." without a place: a flag and a line of a file each put their own in front.
 * A refused value changes nothing. Pure but for the strings, which the settings own.
 */
#include "runtime/settings_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/message.h"
#include "runtime/nearest.h"

void setting_range(const struct setting *row, char *text, size_t capacity)
{
    text[0] = '\0';
    switch (row->type) {
    case SETTING_U32:
    case SETTING_U64:
    case SETTING_CARD_MIB:
    case SETTING_LATER_MIB:
        (void)snprintf(text, capacity, "%" PRIu64 "..%" PRIu64, row->min, row->max);
        break;
    case SETTING_F64: (void)snprintf(text, capacity, "%g..%g", row->real_min, row->real_max); break;
    case SETTING_CHOICE:
    case SETTING_CHOICE_INDEX: (void)snprintf(text, capacity, "%s", row->choices); break;
    case SETTING_TEXT:
    case SETTING_BOOL:
    case SETTING_CARDS: break;
    }
}

void setting_wanted(const struct setting *row, char *text, size_t capacity)
{
    char range[160];
    setting_range(row, range, sizeof range);
    switch (row->type) {
    case SETTING_U32:
    case SETTING_U64:
    case SETTING_LATER_MIB: (void)snprintf(text, capacity, "a whole number, %s", range); break;
    case SETTING_CARD_MIB:
        (void)snprintf(text, capacity, "a whole number or a list of them, %s", range);
        break;
    case SETTING_F64: (void)snprintf(text, capacity, "a number, %s", range); break;
    case SETTING_CHOICE:
    case SETTING_CHOICE_INDEX: (void)snprintf(text, capacity, "one of %s", range); break;
    case SETTING_BOOL: (void)snprintf(text, capacity, "true or false"); break;
    case SETTING_CARDS: (void)snprintf(text, capacity, "auto or a list of cards"); break;
    case SETTING_TEXT: (void)snprintf(text, capacity, "text (%s)", row->value_name); break;
    }
}

void setting_path(const struct setting *row, char *path, size_t capacity)
{
    static const char *const without[] = {"common", "inspect", "plan", "config"};
    bool has = !row->flag_only;
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++)
        has = has && strcmp(row->group, without[i]) != 0;
    (void)snprintf(path, capacity, "%s", !has ? "" : row->path != NULL ? row->path : row->key);
    for (char *c = path; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
}

static int text_set(char **text, const char *value, struct error *err)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a value");
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
    return error_set(err, EBB_EINVAL, "wanted one of %s, got '%.128s' (the nearest is %s)",
                     row->choices, value, nearest.name);
}

static int whole_set(const struct setting *row, const char *value, uint64_t *out, struct error *err)
{
    int code = parse_u64(value, row->min, row->max, out);
    if (code != 0)
        return error_set(err, code,
                         "wanted a whole number from %" PRIu64 " to %" PRIu64 ", got '%.128s'",
                         row->min, row->max, value);
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
        return error_set(err, EBB_EINVAL, "wanted a number from %g to %g, got '%.128s'",
                         row->real_min, row->real_max, value);
    if (number < row->real_min || number > row->real_max)
        return error_set(err, EBB_ERANGE, "wanted a number from %g to %g, got '%.128s'",
                         row->real_min, row->real_max, value);
    *out = number;
    return 0;
}

static int bool_set(const char *value, bool *out, struct error *err)
{
    *out = strcmp(value, "true") == 0;
    if (!*out && strcmp(value, "false") != 0)
        return error_set(err, EBB_EINVAL, "wanted true or false, got '%.128s'", value);
    return 0;
}

static struct mib_list *draft_list(struct draft *d, const struct setting *row)
{
    struct card_memory *memory = d->in_file ? &d->file : &d->flags;
    return row->offset == offsetof(struct card_setting, vram_mib) ? &memory->vram
                                                                  : &memory->reserve;
}

static int mib_list_set(const struct setting *row, const char *value, struct mib_list *out,
                        struct error *err)
{
    struct mib_list list = {0};
    char number[32];
    for (const char *cursor = value;; cursor++) {
        size_t n_bytes = strcspn(cursor, ",");
        if (list.n == CARDS_MAX)
            return error_set(err, EBB_ERANGE, "wanted at most %d values, got more", CARDS_MAX);
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

static int later_set(struct draft *d, const struct setting *row, const char *value,
                     struct error *err)
{
    struct card_memory *memory = d->in_file ? &d->file : &d->flags;
    int code = whole_set(row, value, &memory->reserve_later_mib, err);
    memory->later_given = memory->later_given || code == 0;
    return code;
}

static int list_of_cards_set(struct draft *d, const char *value, struct error *err)
{
    int code = cards_parse(d->s, value, err);
    if (code == 0) {
        memset(d->own_vram, 0, sizeof d->own_vram);
        memset(d->own_reserve, 0, sizeof d->own_reserve);
    }
    return code;
}

int draft_set(struct draft *d, const struct setting *row, const char *value, struct error *err)
{
    void *place = (char *)d->s + row->offset;
    uint64_t whole;
    int index = 0, code = 0;
    switch (row->type) {
    case SETTING_TEXT:
        if (row->check != NULL)
            code = row->check(value, err);
        return code != 0 ? code : text_set(place, value, err);
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
    case SETTING_BOOL: return bool_set(value, place, err);
    case SETTING_CARDS: return list_of_cards_set(d, value, err);
    case SETTING_CARD_MIB: return mib_list_set(row, value, draft_list(d, row), err);
    case SETTING_LATER_MIB: return later_set(d, row, value, err);
    }
    return EBB_EINVAL;
}

/* An error about a list as a whole: of the file with its line, else of the flag. */
static int list_refuse(const struct draft *d, const struct setting *row, uint32_t line,
                       const char *got, struct error *err)
{
    char path[64];
    setting_path(row, path, sizeof path);
    if (line != 0)
        return error_set(err, EBB_EINVAL, "%s:%" PRIu32 ": %s: expected %s", d->path, line, path,
                         got);
    return error_set(err, EBB_EINVAL, "--%s: wanted %s", row->key, got);
}

static int list_check(const struct draft *d, const struct setting *row, const struct mib_list *list,
                      uint32_t line, struct error *err)
{
    char words[160];
    if (list->n <= 1 || list->n == d->s->n_cards)
        return 0;
    (void)snprintf(words, sizeof words,
                   "one value for all or one for each of the %zu cards, got %zu", d->s->n_cards,
                   list->n);
    return list_refuse(d, row, line, words, err);
}

static int later_check(const struct draft *d, const struct setting *row,
                       const struct card_memory *memory, uint32_t line, struct error *err)
{
    if (!memory->later_given || memory->reserve.n <= 1)
        return 0;
    return list_refuse(d, row, line,
                       "to stand beside one reserve, that of the first card, got a list of them",
                       err);
}

static int lists_check(const struct draft *d, struct error *err)
{
    int code = 0;
    for (size_t i = 0; i < n_settings && code == 0; i++) {
        const struct setting *row = &settings_table[i];
        bool vram = row->offset == offsetof(struct card_setting, vram_mib);
        if (row->type == SETTING_CARD_MIB) {
            const struct mib_list *given = vram ? &d->flags.vram : &d->flags.reserve;
            code = list_check(d, row, given, 0, err);
            if (code == 0 && given->n == 0)
                code = list_check(d, row, vram ? &d->file.vram : &d->file.reserve,
                                  vram ? d->vram_line : d->reserve_line, err);
        } else if (row->type == SETTING_LATER_MIB) {
            code = later_check(d, row, &d->flags, 0, err);
            if (code == 0)
                code = later_check(d, row, &d->file, d->later_line, err);
        }
    }
    return code;
}

static bool list_place(const struct mib_list *list, size_t card, uint64_t *mib)
{
    if (list->n == 0)
        return false;
    *mib = list->values[list->n == 1 ? 0 : card];
    return true;
}

static bool reserve_place(const struct card_memory *memory, size_t card, uint64_t *mib)
{
    if (card > 0 && memory->later_given) {
        *mib = memory->reserve_later_mib;
        return true;
    }
    return list_place(&memory->reserve, card, mib);
}

int draft_settle(struct draft *d, struct error *err)
{
    if (d->s->cards_auto && d->s->cards_choose != NULL)
        d->s->cards_choose(d->s);
    int code = lists_check(d, err);
    if (code != 0)
        return code;
    for (size_t i = 0; i < d->s->n_cards; i++) {
        struct card_setting *card = &d->s->cards[i];
        if (!list_place(&d->flags.vram, i, &card->vram_mib) && !d->own_vram[i])
            (void)list_place(&d->file.vram, i, &card->vram_mib);
        if (!reserve_place(&d->flags, i, &card->reserve_mib) && !d->own_reserve[i])
            (void)reserve_place(&d->file, i, &card->reserve_mib);
    }
    code = cards_shared_check(d->s, err);
    if (code == 0 && !d->kv_given && d->s->kernels != NULL && strcmp(d->s->kernels, "float") == 0)
        code = text_set(&d->s->kv, "f32", err);
    return code;
}
