/* runtime/config_print.c - the sample file of settings, from the settings' table: it can neither lack a key nor show
 * another default than the one that holds. What has no default, or a computed one, stands there as a comment.
 */
#include <string.h>

#include "runtime/config_card.h"
#include "runtime/settings_table.h"

static bool is_plain(const char *value)
{
    return value[strspn(value,
                        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/")] ==
               '\0' &&
           value[0] != '\0';
}

static void print_cards(FILE *out)
{
    fputs("cards: auto\n# or one by one, each with keys of its own:\n# cards:\n", out);
    for (int i = 0; i < CONFIG_CARD_KEYS; i++) {
        const struct config_card_key *key = &config_card_keys[i];
        char pair[96];
        (void)snprintf(pair, sizeof pair, "%s%s: %s", i == 0 ? "- " : "  ", key->key, key->sample);
        fprintf(out, "#   %-36s # %s\n", pair, key->help);
    }
}

static void print_row(FILE *out, const struct setting *row, const char *name, const char *indent)
{
    const char *is = row->default_value;
    const char *quote = is != NULL && (!is_plain(is) || row->type == SETTING_CARDS) ? "\"" : "";
    char range[160];
    setting_range(row, range, sizeof range);
    fprintf(out, "%s# %s", indent, row->help);
    if (range[0] != '\0' || row->default_words != NULL)
        fprintf(out, " [%s%s%s%s]", range,
                range[0] != '\0' && row->default_words != NULL ? ", " : "",
                row->default_words != NULL ? "default: " : "",
                row->default_words != NULL ? row->default_words : "");
    fputc('\n', out);
    if (row->type == SETTING_CARDS)
        print_cards(out);
    else if (is != NULL)
        fprintf(out, "%s%s: %s%s%s\n", indent, name, quote, is, quote);
    else
        fprintf(out, "%s# %s: %s\n", indent, name, row->value_name);
}

void settings_sample(FILE *out)
{
    char map[96] = "";
    fputs(
        "# Every setting of ebbtide with its default; `ebbtide config --print` writes this file.\n"
        "# Used by: ebbtide run --config FILE (serve, score and plan too). Flags win over it.\n"
        "# Checked by: ebbtide config --check FILE. Keys may be left out, in any order.\n",
        out);
    for (size_t i = 0; i < n_settings; i++) {
        char path[96];
        setting_path(&settings_table[i], path, sizeof path);
        char *dot = strchr(path, '.');
        if (path[0] == '\0')
            continue;
        if (dot == NULL) {
            map[0] = '\0';
            fputc('\n', out);
            print_row(out, &settings_table[i], path, "");
            continue;
        }
        *dot = '\0';
        if (strcmp(map, path) != 0)
            fprintf(out, "\n%s:\n", path);
        (void)snprintf(map, sizeof map, "%s", path);
        print_row(out, &settings_table[i], dot + 1, "  ");
    }
}
