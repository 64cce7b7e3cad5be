/* runtime/settings.c - defaults, a file and flags into struct settings, by the table in settings_table.c.
 *
 * A draft holds what cannot be placed before everything was read: the memory lists of the cards, which may come before
 * --cards, and whether kv was given. After the last flag the draft is settled. The struct owns its strings; a failed
 * parse leaves it valid, to be freed by settings_free(). Nothing here prints or exits.
 */
#include "runtime/settings_table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/nearest.h"

static void *member(struct settings *s, const struct setting *row)
{
    return (char *)s + row->offset;
}

static bool owns_text(const struct setting *row)
{
    return row->type == SETTING_TEXT || row->type == SETTING_CHOICE;
}

int settings_default(struct settings *s)
{
    struct draft d = {.s = s};
    char name[32];
    int code = 0;
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < n_settings; i++)
        if (settings_table[i].default_value != NULL)
            code |= draft_set(&d, &settings_table[i], settings_table[i].default_value, NULL);
    code |= draft_settle(&d, NULL);
    (void)snprintf(name, sizeof name, "ebbtide-%ld", (long)getpid());
    s->name = strdup(name);
    return code == 0 && s->name != NULL ? 0 : EBB_ENOMEM;
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

bool group_is_in(const struct groups *groups, const char *name)
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

static int flag_refused(const struct setting *row, struct error *err, int code)
{
    char words[sizeof err->text];
    if (err == NULL)
        return code;
    memcpy(words, err->text, sizeof words);
    return error_set(err, code, "--%s: %s", row->key, words);
}

/* The file of the last --config, NULL: none. What is wrong with the flags is found by the reading that follows. */
static const char *config_find(const struct groups *groups, int argc, char **argv)
{
    const char *file = NULL;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct setting *row = NULL;
        const char *value;
        if (argv[i][0] != '-' || argv[i][1] == '\0')
            continue;
        if (flag_find(groups, argv[i], &row, &value, NULL) != 0 || strcmp(row->key, "help") == 0)
            break;
        if (value == NULL && row->type != SETTING_BOOL && i + 1 < argc)
            value = argv[++i];
        if (strcmp(row->key, "config") == 0)
            file = value;
    }
    return file;
}

static int parse(struct draft *d, const struct groups *groups, int argc, char **argv, char **bare,
                 size_t *n_bare, struct error *err)
{
    const char *file = config_find(groups, argc, argv);
    bool flags_ended = false;
    size_t n_keys;
    int file_code = file != NULL ? config_read(d, file, groups, &n_keys, err) : 0;
    *n_bare = 0;
    if (file_code != 0)
        return file_code;
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
            return flag_refused(row, err, code);
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

int settings_read(struct settings *s, const char *path, size_t *n_keys, struct error *err)
{
    struct draft d = {.s = s};
    const struct groups every = {0};
    int code = config_read(&d, path, &every, n_keys, err);
    return code != 0 ? code : draft_settle(&d, err);
}
