/* tools/kit/flags.c - the flags that every tool has. Borrowed pointers into argv, no state. */
#include "tools/kit/kit.h"

#include <ctype.h>
#include <string.h>

/* Of "--key value" or "--key=value". NULL where argv[*i] is another flag; a missing value is "". */
static const char *value_of(const char *flag, int argc, char **argv, int *i)
{
    size_t n_bytes = strlen(flag);
    if (strncmp(argv[*i], flag, n_bytes) != 0)
        return NULL;
    if (argv[*i][n_bytes] == '=')
        return argv[*i] + n_bytes + 1;
    if (argv[*i][n_bytes] != '\0')
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

static bool value_is_missing(const char *value)
{
    return value != NULL && value[0] == '\0';
}

static bool is_flag(const char *argument)
{
    return argument[0] == '-' && argument[1] != '\0' && !isdigit((unsigned char)argument[1]);
}

/* Whether argv[*i] is this option; its value, "" where it lacks one, is stored. */
static bool option_take(const struct kit_option *o, int argc, char **argv, int *i)
{
    const char *value;
    if (o->value == NULL) {
        if (strcmp(argv[*i], o->name) != 0)
            return false;
        *o->is_set = true;
        return true;
    }
    value = value_of(o->name, argc, argv, i);
    if (value != NULL)
        *o->value = value;
    return value != NULL;
}

static int flag_unknown(const char *flag, const struct kit_option *options, struct error *err)
{
    char names[200] = "";
    size_t n = 0;
    for (const struct kit_option *o = options; o->name != NULL; o++)
        if (strcmp(o->name, "--") != 0 && n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, " %s,", o->name);
    if (n > 0 && n < sizeof names)
        names[n - 1] = '\0'; /* its comma */
    return error_set(err, EBB_EUNKNOWN_KEY,
                     "%s is not a flag here; wanted --control, --name, --json,%s or --help", flag,
                     names);
}

/* argv[*i] is a flag. */
static int flag_take(struct kit_flags *f, int argc, char **argv, int *i,
                     const struct kit_option *options)
{
    const char *flag = argv[*i], *value;
    if ((value = value_of("--control", argc, argv, i)) != NULL)
        f->control = value;
    else if ((value = value_of("--name", argc, argv, i)) != NULL)
        f->name = value;
    else if (strcmp(flag, "--json") == 0)
        f->json = true;
    else if (strcmp(flag, "-h") == 0 || strcmp(flag, "--help") == 0)
        f->help = true;
    else {
        const struct kit_option *o = options;
        while (o->name != NULL && !option_take(o, argc, argv, i))
            o++;
        return o->name != NULL ? 0 : EBB_EUNKNOWN_KEY;
    }
    return 0;
}

static bool takes_command(const struct kit_option *options)
{
    while (options->name != NULL && strcmp(options->name, "--") != 0)
        options++;
    return options->name != NULL;
}

int kit_flags_parse_with(struct kit_flags *f, int argc, char **argv, char **bare,
                         const struct kit_option *options, struct error *err)
{
    *f = (struct kit_flags){.bare = bare};
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--") == 0 && takes_command(options)) {
            f->command = argv + i + 1;
            return 0;
        }
        if (!is_flag(flag)) {
            bare[f->n_bare++] = argv[i];
            continue;
        }
        if (flag_take(f, argc, argv, &i, options) != 0)
            return flag_unknown(flag, options, err);
        bool lacks = value_is_missing(f->control) || value_is_missing(f->name);
        for (const struct kit_option *o = options; o->name != NULL; o++)
            lacks = lacks || (o->value != NULL && value_is_missing(*o->value));
        if (lacks)
            return error_set(err, EBB_EINVAL, "%s: wanted a value, got none", flag);
    }
    return 0;
}

int kit_flags_parse(struct kit_flags *f, int argc, char **argv, char **bare, const char *extra,
                    struct error *err)
{
    bool is_set = false;
    const struct kit_option options[] = {{extra, NULL, &is_set}, {0}};
    int code = kit_flags_parse_with(f, argc, argv, bare, options, err);
    f->raw = is_set && strcmp(extra, "--raw") == 0;
    f->ledger = is_set && strcmp(extra, "--ledger") == 0;
    return code;
}

void kit_flags_help(FILE *out)
{
    fputs("  --control PATH   the engine's control socket\n"
          "  --name NAME      or the engine by its name; with neither, the only one that runs\n"
          "  --json           one JSON object on one line\n"
          "  -h, --help       this page\n",
          out);
}
