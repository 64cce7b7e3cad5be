/* runtime/cmd_config.c - `ebbtide config`: a file of settings checked, or written as a sample. Starts nothing. */
#include "runtime/commands.h"

#include <inttypes.h>

static int config_check(const char *path)
{
    struct settings s;
    struct error err = {0};
    size_t n_keys;
    settings_default(&s);
    int code = settings_read(&s, path, &n_keys, &err);
    if (code == 0)
        printf("%s: good: %zu keys, %zu cards\n", path, n_keys, s.n_cards);
    else
        fprintf(stderr, "ebbtide: %s\n", err.text);
    settings_free(&s);
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

int command_config_run(const struct command *c, int argc, char **argv)
{
    char *bare[argc + 1];
    size_t n_bare;
    struct settings s;
    int status;
    if (command_settings(c, &s, argc, argv, bare, &n_bare, &status)) {
        if (n_bare > 0)
            status = command_misused(c, "config: wanted --check FILE or --print, got an argument");
        else if (s.config_print == (s.config_checked != NULL))
            status = command_misused(c, "config: wanted one of --check FILE and --print");
        else if (s.config_checked != NULL)
            status = config_check(s.config_checked);
        else
            settings_sample(stdout), status = STATUS_DONE;
    }
    settings_free(&s);
    return status;
}
