/* runtime/settings_help.c - the flags' part of every --help, printed from the table.
 *
 * One flag to a line where it fits 96 columns, its help in a column of its own and wrapped there; then what it may be and
 * what it is when not given.
 */
#include "runtime/settings_table.h"

#include <string.h>

#define HELP_COLUMN 28
#define LAST_COLUMN 96

/* Bytes as columns: the table's words are ASCII. What stands in brackets is not broken. */
static void print_wrapped(FILE *out, const char *text)
{
    size_t column = HELP_COLUMN;
    while (*text != '\0') {
        size_t n_bytes = strcspn(text, text[0] == '[' ? "]" : " ");
        n_bytes += text[n_bytes] == ']';
        if (column > HELP_COLUMN && column + 1 + n_bytes > LAST_COLUMN) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)n_bytes, text);
        column += n_bytes;
        text += n_bytes;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_flag(FILE *out, const struct setting *row)
{
    const char *is = row->default_words != NULL ? row->default_words : row->default_value;
    char letter[8] = "", left[HELP_COLUMN * 2], range[96], text[512];
    int n;
    setting_range(row, range, sizeof range);
    if (row->letter != 0)
        (void)snprintf(letter, sizeof letter, "-%c, ", row->letter);
    n = snprintf(left, sizeof left, "  %4s--%s %s", letter, row->key,
                 row->value_name != NULL ? row->value_name : "");
    if (n < HELP_COLUMN)
        fprintf(out, "%-*s", HELP_COLUMN, left);
    else
        fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
    if (row->type == SETTING_BOOL || is == NULL)
        (void)snprintf(text, sizeof text, "%s", row->help);
    else
        (void)snprintf(text, sizeof text, "%s [%s%sdefault: %s]", row->help, range,
                       range[0] != '\0' ? ", " : "", is);
    print_wrapped(out, text);
}

const char *settings_group_title(const char *group)
{
    static const struct {
        const char *group, *title;
    } titles[] = {{"engine", "Engine"},      {"prompt", "Prompt"},
                  {"ids", "Token ids"},      {"score", "Scoring"},
                  {"output", "Output"},      {"inspect", "Inspecting"},
                  {"request", "Generation"}, {"controller", "Controller"},
                  {"plan", "Planning"},      {"config", "Configuration"},
                  {"common", "Help"}};
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        if (strcmp(titles[i].group, group) == 0)
            return titles[i].title;
    return group;
}

void settings_help(FILE *out, const char *const *groups, size_t n_groups)
{
    for (size_t g = 0; g < n_groups; g++) {
        fprintf(out, "\n%s\n", settings_group_title(groups[g]));
        for (size_t i = 0; i < n_settings; i++)
            if (strcmp(settings_table[i].group, groups[g]) == 0)
                print_flag(out, &settings_table[i]);
    }
}
