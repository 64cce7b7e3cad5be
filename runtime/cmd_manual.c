/* runtime/cmd_manual.c - the manual page and the shell's completion, from the tables of commands and settings.
 *
 * `ebbtide help --man` writes ebbtide.1, `ebbtide help --completion` a script for bash. Both say what --help says, since
 * nothing in them is written by hand but the frame.
 */
#include "runtime/commands.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/settings_table.h"

/* Text as roff takes it: dashes that can be copied, no line that looks like a request. */
static void roff(FILE *out, const char *text)
{
    bool at_start = true;
    for (const char *c = text; *c != '\0'; c++) {
        if (at_start && (*c == '.' || *c == '\''))
            fputs("\\&", out);
        at_start = *c == '\n';
        if (*c == '-')
            fputs("\\-", out);
        else if (*c == '\\')
            fputs("\\e", out);
        else
            fputc(*c, out);
    }
}

static void roff_flag(FILE *out, const struct setting *row)
{
    const char *is = row->default_words != NULL ? row->default_words : row->default_value;
    char range[160];
    setting_range(row, range, sizeof range);
    fputs(".TP\n.B ", out);
    if (row->letter != 0)
        fprintf(out, "\\-%c, ", row->letter);
    fputs("\\-\\-", out);
    roff(out, row->key);
    if (row->value_name != NULL)
        fprintf(out, " \\fI%s\\fR", row->value_name);
    fputc('\n', out);
    roff(out, row->help);
    if (range[0] != '\0' || (is != NULL && row->type != SETTING_BOOL)) {
        fputs(" [", out);
        roff(out, range);
        fprintf(out, "%s", range[0] != '\0' && is != NULL ? "; " : "");
        if (is != NULL) {
            fputs("default: ", out);
            roff(out, is);
        }
        fputc(']', out);
    }
    fputc('\n', out);
}

static void roff_command(FILE *out, const struct command *c)
{
    fputs(".SS ", out);
    roff(out, c->name);
    fputc('\n', out);
    if (c->usage != NULL) {
        fputs(".B ebbtide ", out);
        roff(out, c->name);
        fputs("\n", out);
        roff(out, c->usage);
        fputs("\n.PP\n", out);
    }
    roff(out, c->summary);
    fputs(".\n", out);
    if (c->details != NULL) {
        fputs(".PP\n", out);
        roff(out, c->details);
    }
    if (c->groups != NULL && c->groups[0] != NULL) {
        fputs(".PP\nFlags:", out);
        for (size_t g = 0; c->groups[g] != NULL; g++) {
            fprintf(out, "%s ", g > 0 ? "," : "");
            roff(out, settings_group_title(c->groups[g]));
        }
        fputs(".\n", out);
    } else if (c->run == NULL) {
        fprintf(out, ".PP\nA program of its own; see ebbtide %s \\-\\-help.\n", c->name);
    }
    if (c->examples != NULL) {
        fputs(".PP\n.nf\n", out);
        roff(out, c->examples);
        fputs(".fi\n", out);
    }
}

/* Whether the group is the first of its name among the rows before i. */
static bool is_first_of_group(size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (strcmp(settings_table[j].group, settings_table[i].group) == 0)
            return false;
    return true;
}

static void roff_status(FILE *out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&text, &n);
    if (memory == NULL)
        return;
    exit_status_help(memory);
    (void)fclose(memory);
    const char *body = strstr(text, "  ");
    fputs(".SH EXIT STATUS\n.nf\n", out);
    roff(out, body != NULL ? body : text);
    fputs(".fi\n", out);
    free(text);
}

void command_manual(FILE *out)
{
    size_t n;
    const struct command *table = command_table(&n);
    fputs(".TH EBBTIDE 1 \"\" \"ebbtide " EBBTIDE_VERSION "\" \"User Commands\"\n"
          ".SH NAME\nebbtide \\- a Mixture\\-of\\-Experts model split over several cards, which "
          "gives memory back while it generates\n"
          ".SH SYNOPSIS\n.B ebbtide\n.I command\n[\\fIflags\\fR]\n.br\n.B ebbtide \\-\\-version | "
          "\\-\\-help\n.SH COMMANDS\n",
          out);
    for (size_t i = 0; i < n; i++)
        roff_command(out, &table[i]);
    fputs(".SH FLAGS\nA value follows as \\-\\-key value or \\-\\-key=value.\n", out);
    for (size_t i = 0; i < n_settings; i++) {
        if (!is_first_of_group(i))
            continue;
        fputs(".SS ", out);
        roff(out, settings_group_title(settings_table[i].group));
        fputc('\n', out);
        for (size_t j = i; j < n_settings; j++)
            if (strcmp(settings_table[j].group, settings_table[i].group) == 0)
                roff_flag(out, &settings_table[j]);
    }
    fputs(
        ".SH FILES\n.TP\n.I $XDG_RUNTIME_DIR/ebbtide/<name>.sock\nthe control socket of a running "
        "engine (without XDG_RUNTIME_DIR: /tmp/ebbtide\\-<uid>)\n.TP\n.I FILE.yaml\nsettings, "
        "for \\-\\-config; ebbtide config \\-\\-print writes one with every key\n",
        out);
    roff_status(out);
}

/* "a|b" as "a b". */
static void print_choices(FILE *out, const char *choices)
{
    for (const char *c = choices; *c != '\0'; c++)
        fputc(*c == '|' ? ' ' : *c, out);
}

static void completion_values(FILE *out)
{
    for (size_t i = 0; i < n_settings; i++) {
        const struct setting *row = &settings_table[i];
        if (row->choices == NULL)
            continue;
        fprintf(out, "    --%s) words=\"", row->key);
        print_choices(out, row->choices);
        fputs("\" ;;\n", out);
    }
    fputs("    --model | -m | --config | --check | --file | -f | --ids-file | --control)\n"
          "        compopt -o default\n        COMPREPLY=()\n        return\n        ;;\n",
          out);
}

void command_completion(FILE *out)
{
    size_t n;
    const struct command *table = command_table(&n);
    fputs("# Completion of ebbtide's commands and flags for bash; written by: ebbtide help "
          "--completion\n"
          "_ebbtide() {\n    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD "
          "- 1]} words=\n    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"",
          out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%s", table[i].name, i + 1 < n ? " " : "");
    fputs(" --help --version\" -- \"$word\"))\n        return\n    fi\n    case $before in\n", out);
    completion_values(out);
    fputs("    esac\n    [ -n \"$words\" ] || case ${COMP_WORDS[1]} in\n", out);
    for (size_t i = 0; i < n; i++) {
        if (table[i].groups == NULL)
            continue;
        fprintf(out, "    %s) words=\"", table[i].name);
        for (size_t j = 0; j < n_settings; j++)
            if (command_has_group(&table[i], settings_table[j].group))
                fprintf(out, "--%s ", settings_table[j].key);
        fputs("\" ;;\n", out);
    }
    fputs("    help) words=\"", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s ", table[i].name);
    fputs("--man --completion\" ;;\n    ", out);
    for (size_t i = 0, n_tools = 0; i < n; i++)
        if (table[i].run == NULL)
            fprintf(out, "%s%s", n_tools++ > 0 ? " | " : "", table[i].name);
    fputs(")\n        # a program of its own: its page has its flags\n"
          "        words=$(\"${COMP_WORDS[0]}\" \"${COMP_WORDS[1]}\" --help 2>/dev/null </dev/null "
          "|\n"
          "            grep -oE -- '--[a-z][a-z-]*' | sort -u)\n        ;;\n"
          "    *) words=--help ;;\n    esac\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
          "complete -F _ebbtide -o default ebbtide\n",
          out);
}
