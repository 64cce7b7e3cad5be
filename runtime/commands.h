/* runtime/commands.h - the commands of `ebbtide`: one table, one way to read flags, one way to end.
 *
 * A command gets its arguments without its own name and returns the program's exit status (protocol/exit_status.h). those
 * with a function in the table are here; every other `ebbtide X` is the program `ebbtide-X` beside this one, or in PATH. Only main exits.
 */
#pragma once
#include <stdio.h>
#include "protocol/exit_status.h"
#include "runtime/settings.h"

struct command {
    const char *name, *summary;
    const char *usage;         /* what stands after "ebbtide <name> " */
    const char *details;       /* a paragraph of its help, or NULL */
    const char *const *groups; /* of settings, ended by NULL */
    bool without_model;        /* it has the engine's flags, but needs no -m */
    const char *examples;      /* lines, indented */
    int (*run)(const struct command *c, int argc,
               char **argv); /* NULL: the program ebbtide-<name> */
};

/* The whole program: main() is this. */
int command_main(int argc, char **argv);

const struct command *command_table(size_t *n);
bool command_has_group(const struct command *c, const char *group);
/* One line on stderr: what --cards auto chose and why; only as loud as that is, or always. */
void command_cards_say(const struct settings *s, bool always);
const struct command *command_find(const char *name); /* NULL: none of the table */

/* Runs ebbtide-<name> in place of this process; argv[0] is replaced. Returns only if there is none. */
void command_exec(const char *name, char **argv);

/* Defaults and flags into s. true: go on. false: end with *status (help was printed, or the error said). */
bool command_settings(const struct command *c, struct settings *s, int argc, char **argv,
                      char **bare, size_t *n_bare, int *status);
/* Says the error on stderr, points at the command's help, and is STATUS_USAGE. */
int command_misused(const struct command *c, const char *text);
/* A whole command that takes flags and no bare argument: reads them, calls `go`, frees them. */
int command_flags_only(const struct command *c, int argc, char **argv,
                       int (*go)(const struct settings *s));

void command_help(FILE *out, const struct command *c);
void command_manual(FILE *out);     /* ebbtide.1 */
void command_completion(FILE *out); /* for bash */
int command_help_run(const struct command *c, int argc, char **argv);
int command_run_run(const struct command *c, int argc, char **argv);
int command_serve_run(const struct command *c, int argc, char **argv);
int command_score_run(const struct command *c, int argc, char **argv);
int command_inspect_run(const struct command *c, int argc, char **argv);
int command_doctor_run(const struct command *c, int argc, char **argv);
int command_plan_run(const struct command *c, int argc, char **argv);
int command_config_run(const struct command *c, int argc, char **argv);
