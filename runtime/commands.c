/* runtime/commands.c - which command runs: the table's own, or a program beside this one.
 *
 * Owns nothing. The directory of this program comes from /proc/self/exe, so that a build tree's commands find each
 * other; PATH is the second choice.
 */
#include "runtime/commands.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cmd_client.h"
#include "runtime/cuda_cards.h"
#include "runtime/nearest.h"

#define PATH_BYTES_MAX 4096

static bool tool_name_is_valid(const char *name)
{
    for (const char *c = name; *c != '\0'; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '-')
            return false;
    return name[0] != '\0' && name[0] != '-' && strlen(name) < 64;
}

void command_exec(const char *name, char **argv)
{
    char path[PATH_BYTES_MAX + 80], tool[80];
    ssize_t n_bytes = readlink("/proc/self/exe", path, PATH_BYTES_MAX);
    if (!tool_name_is_valid(name))
        return;
    (void)snprintf(tool, sizeof tool, "ebbtide-%s", name);
    argv[0] = tool;
    while (n_bytes > 0 && path[n_bytes - 1] != '/')
        n_bytes--;
    if (n_bytes > 0) {
        (void)snprintf(path + n_bytes, sizeof path - (size_t)n_bytes, "%s", tool);
        execv(path, argv);
    }
    execvp(tool, argv);
}

static int command_unknown(const char *name)
{
    size_t n;
    const struct command *table = command_table(&n);
    struct nearest nearest = {0};
    for (size_t i = 0; i < n; i++)
        nearest_offer(&nearest, name, table[i].name);
    fprintf(stderr,
            "ebbtide: no command '%s', and no program ebbtide-%s; the nearest is '%s' "
            "(ebbtide help lists them)\n",
            name, name, nearest.name);
    return STATUS_USAGE;
}

static int tool_run(const char *name, char **argv)
{
    command_exec(name, argv);
    if (command_find(name) == NULL)
        return command_unknown(name);
    fprintf(stderr, "ebbtide: ebbtide-%s: not found beside this program or in PATH: %s\n", name,
            strerror(errno));
    return STATUS_FAILED;
}

int command_main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "help";
    const struct command *c;
    if (strcmp(name, "--version") == 0) {
        puts("ebbtide " EBBTIDE_VERSION);
        return STATUS_DONE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    c = command_find(name);
    if (c == NULL || c->run == NULL)
        return tool_run(name, argv + 1);
    if (argc < 2) {
        command_help(stderr, NULL);
        return STATUS_USAGE;
    }
    return c->run(c, argc - 2, argv + 2);
}

int command_misused(const struct command *c, const char *text)
{
    fprintf(stderr, "ebbtide: %s (see ebbtide %s --help)\n", text, c->name);
    return STATUS_USAGE;
}

bool command_has_group(const struct command *c, const char *group)
{
    for (size_t i = 0; c->groups != NULL && c->groups[i] != NULL; i++)
        if (strcmp(c->groups[i], group) == 0)
            return true;
    return false;
}

void command_cards_say(const struct settings *s, bool always)
{
    static const enum console_level levels[] = {
        [AUTO_QUIET] = CONSOLE_DEBUG, [AUTO_CHOSEN] = CONSOLE_INFO, [AUTO_WARNING] = CONSOLE_WARN};
    struct console console;
    console_open(&console, s->log_level);
    console_say(&console, always ? CONSOLE_ERROR : levels[s->auto_level], "--cards auto: %s%s%s%s",
                s->auto_cards, s->auto_why[0] != '\0' ? " (" : "", s->auto_why,
                s->auto_why[0] != '\0' ? ")" : "");
}

bool command_settings(const struct command *c, struct settings *s, int argc, char **argv,
                      char **bare, size_t *n_bare, int *status)
{
    struct error err = {0};
    size_t n_groups = 0;
    int code = settings_default(s);
    while (c->groups[n_groups] != NULL)
        n_groups++;
    s->cards_choose = command_has_group(c, "engine") ? cuda_cards_choose : NULL;
    if (code != 0)
        code = error_set(&err, EBB_ENOMEM, "no memory for the settings");
    else
        code = settings_parse_groups(s, c->groups, n_groups, argc, argv, bare, n_bare, &err);
    if (code == 0 && s->help) {
        command_help(stdout, c);
        *status = STATUS_DONE;
        return false;
    }
    if (code == 0 && s->model == NULL && !c->without_model && command_has_group(c, "engine"))
        code = error_set(&err, EBB_EINVAL, "a model is needed: -m FILE.gguf");
    if (code == EBB_ENOMEM) {
        fprintf(stderr, "ebbtide: %s\n", err.text);
        *status = STATUS_FAILED;
    } else if (code != 0) {
        *status = command_misused(c, err.text);
    }
    if (code == 0 && s->auto_cards[0] != '\0')
        command_cards_say(s, false);
    return code == 0;
}

int command_flags_only(const struct command *c, int argc, char **argv,
                       int (*go)(const struct settings *s))
{
    char *bare[argc + 1], text[80];
    size_t n_bare;
    struct settings s;
    int status;
    if (command_settings(c, &s, argc, argv, bare, &n_bare, &status)) {
        (void)snprintf(text, sizeof text, "%s: wanted flags only, got an argument", c->name);
        status = n_bare > 0 ? command_misused(c, text) : go(&s);
    }
    settings_free(&s);
    return status;
}
