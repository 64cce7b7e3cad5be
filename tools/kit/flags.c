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

int kit_flags_parse(struct kit_flags *f, int argc, char **argv, char **bare, const char *extra,
                    struct error *err)
{
    *f = (struct kit_flags){.bare = bare};
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i], *value;
        if (!is_flag(flag)) {
            bare[f->n_bare++] = argv[i];
        } else if ((value = value_of("--control", argc, argv, &i)) != NULL) {
            f->control = value;
        } else if ((value = value_of("--name", argc, argv, &i)) != NULL) {
            f->name = value;
        } else if (strcmp(flag, "--json") == 0) {
            f->json = true;
        } else if (strcmp(flag, "-h") == 0 || strcmp(flag, "--help") == 0) {
            f->help = true;
        } else if (strcmp(flag, extra) == 0) {
            f->raw = f->raw || strcmp(flag, "--raw") == 0;
            f->ledger = f->ledger || strcmp(flag, "--ledger") == 0;
        } else {
            return error_set(
                err, EBB_EUNKNOWN_KEY,
                "%s is not a flag here; wanted --control, --name, --json, %s or --help", flag,
                extra);
        }
        if (value_is_missing(f->control) || value_is_missing(f->name))
            return error_set(err, EBB_EINVAL, "%s: wanted a value, got none", flag);
    }
    return 0;
}

void kit_flags_help(FILE *out)
{
    fputs("  --control PATH   the engine's control socket\n"
          "  --name NAME      or the engine by its name; with neither, the only one that runs\n"
          "  --json           one JSON object on one line\n"
          "  -h, --help       this page\n",
          out);
}
