/* runtime/cmd_config.c - `ebbtide config`: a file of settings checked, or written as a sample. Starts nothing. */
#include "runtime/commands.h"

#include <inttypes.h>

#include "runtime/cuda_cards.h"

static int config_check(const char *path)
{
    struct settings s;
    struct error err = {0};
    size_t n_keys;
    settings_default(&s);
    s.cards_choose = cuda_cards_choose;
    int code = settings_read(&s, path, &n_keys, &err);
    if (code == 0)
        printf("%s: good: %zu keys, %zu cards%s%s\n", path, n_keys, s.n_cards,
               s.cards_auto ? ", auto: " : "", s.auto_cards);
    else
        fprintf(stderr, "ebbtide: %s\n", err.text);
    settings_free(&s);
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

/* The sample is the same on every machine; what its auto is on this one is said beside it. */
static int config_print(struct settings *s)
{
    settings_sample(stdout);
    if (fflush(stdout) != 0)
        return STATUS_FAILED;
    cuda_cards_choose(s);
    command_cards_say(s, true);
    return STATUS_DONE;
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
            status = config_print(&s);
    }
    settings_free(&s);
    return status;
}
