/* runtime/cmd_help.c - the table of commands and every page of help.
 *
 * Flags come from the settings' table and the exit statuses from theirs, so a page cannot say what the program does not
 * do. Help asked for goes to stdout, help given for want of a command to stderr.
 */
#include "runtime/commands.h"

#include <string.h>

static const char *const run_groups[] = {"engine", "prompt", "ids", "request",
                                         "output", "common", NULL};
static const char *const serve_groups[] = {"engine", "controller", "common", NULL};
static const char *const score_groups[] = {"engine", "ids", "score", "common", NULL};
static const char *const doctor_groups[] = {"engine", "common", NULL};
static const char *const plan_groups[] = {"plan", "engine", "common", NULL};
static const char *const config_groups[] = {"config", "common", NULL};
static const char *const inspect_groups[] = {"inspect", "common", NULL};

static const struct command commands[] = {
    {
        .name = "run",
        .summary = "generate text from a prompt",
        .usage = "-m FILE [flags] [\"prompt\"]",
        .details =
            "Starts an engine, streams what the model writes to stdout, and ends with a line of\n"
            "figures on stderr. While it runs, ebbtide vram gives its memory back, card by card.\n",
        .groups = run_groups,
        .examples =
            "  ebbtide run -m model.gguf \"Call me Ishmael.\"\n"
            "  ebbtide run -m model.gguf --cards cpu:0,cpu:1 --split 0-3,4-7 --max-new 48 \"…\"\n"
            "  ebbtide run -m model.gguf --chat --temperature 0.7 --seed 1 -f question.txt\n"
            "  git diff | ebbtide run -m model.gguf -f - --output jsonl\n",
        .run = command_run_run,
    },
    {
        .name = "serve",
        .summary = "serve the line protocol on stdin and stdout",
        .usage = "-m FILE [flags]",
        .details =
            "A controller writes requests to stdin and reads events from stdout; logs go to "
            "stderr.\n"
            "Others connect to the control socket. End of input ends the engine (--on-eof).\n",
        .groups = serve_groups,
        .examples = "  ebbtide serve -m model.gguf --cards cpu:0,cpu:1 --vram-mib 64,64\n"
                    "  printf 'GEN a 16 text=Hello\\n' | ebbtide serve -m model.gguf\n",
        .run = command_serve_run,
    },
    {
        .name = "score",
        .summary = "print the largest logits after every position of a text",
        .usage = "-m FILE [flags] --ids 1,2,3 | --ids-file FILE | --text TEXT",
        .details = "Prints a line for every position: pos id logit id logit …\n",
        .groups = score_groups,
        .examples = "  ebbtide score -m model.gguf --ids 3390,262,2714 --top 5\n"
                    "  ebbtide score -m model.gguf --text \"In the beginning\" --kernels float\n",
        .run = command_score_run,
    },
    {
        .name = "inspect",
        .summary = "say what a model file holds, and what a split of it would",
        .usage = "FILE [flags]",
        .details = "Reads the file's tables alone, also of models that this program does not run:\n"
                   "then it says why not. Of a split file, any part names all.\n",
        .groups = inspect_groups,
        .examples = "  ebbtide inspect model.gguf\n"
                    "  ebbtide inspect model-00001-of-00003.gguf --json --cards 8\n",
        .run = command_inspect_run,
    },
    {
        .name = "plan",
        .summary = "say which layers each card would hold, and what that would cost",
        .usage = "-m FILE --cards LIST [--vram-mib LIST] [--why] [--json]",
        .details =
            "Reads the model's tables and starts nothing: cards that are not here need\n"
            "--vram-mib. It is the plan that --split auto takes where as much is free. LOW: a\n"
            "card will have little left for others, and the reserve that keeps more.\n",
        .groups = plan_groups,
        .examples =
            "  ebbtide plan -m model.gguf --cards cuda:0,cuda:1 --vram-mib 24576,12288 --why\n"
            "  ebbtide plan -m model.gguf --cards cpu:0,cpu:1 --vram-mib 64 --json\n",
        .run = command_plan_run,
    },
    {
        .name = "config",
        .summary = "check a file of settings, or print one with every key",
        .usage = "--check FILE | --print",
        .details = "Files are YAML, for --config of the other commands. An error is one line:\n"
                   "file:line: key: expected ..., got ...\n",
        .groups = config_groups,
        .examples = "  ebbtide config --print > ebbtide.yaml\n"
                    "  ebbtide config --check ebbtide.yaml\n",
        .run = command_config_run,
    },
    {
        .name = "doctor",
        .summary = "say what of this machine will not work, and how to mend it",
        .usage = "[-m FILE] [flags of a run]",
        .details =
            "Looks at processor, memory, limits, driver, directories, programs and, where they "
            "are\n"
            "given, at the model and whether it fits the cards. Exit 1: something will not work.\n",
        .groups = doctor_groups,
        .without_model = true,
        .examples = "  ebbtide doctor\n"
                    "  ebbtide doctor -m model.gguf --cards cuda:0,cuda:1 --vram-mib 24576\n",
        .run = command_doctor_run,
    },
    {.name = "vram",
     .summary = "show the cards' memory, or have some of it left free",
     .usage = "[RESERVE|- [CARD]] [--for S | --pid PID | -- COMMAND ...] [flags]"},
    {.name = "leases",
     .summary = "show who has memory on loan, and until when",
     .usage = "[--json] [flags]"},
    {.name = "unlease", .summary = "end a lease", .usage = "NAME [flags]"},
    {.name = "stat",
     .summary = "show what a running engine's cards hold and do",
     .usage = "[CARD] [--ledger] [--json] [flags]"},
    {.name = "top",
     .summary = "watch a running engine's cards: memory, hit rate, speed, leases",
     .usage = "[--once | --json] [--interval S] [flags]"},
    {.name = "comfy-handoff",
     .summary = "lend a card's memory to ComfyUI for one workflow",
     .usage = "--reserve MIB | --learn FILE [flags] WORKFLOW.json"},
    {.name = "bench", .summary = "measure kernels, a model, links and hand-backs on this machine"},
    {.name = "make-model", .summary = "write a model file of random weights in a published shape"},
    {
        .name = "help",
        .summary = "this list, or the page of a command",
        .usage = "[command | --man | --completion]",
        .details = "--man writes this program's manual page (ebbtide.1), --completion a script for "
                   "bash.\n",
        .run = command_help_run,
    },
};

const struct command *command_table(size_t *n)
{
    *n = sizeof commands / sizeof commands[0];
    return commands;
}

const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void program_help(FILE *out)
{
    fputs("ebbtide " EBBTIDE_VERSION
          ": a Mixture-of-Experts model split over several cards, which gives "
          "memory back while\nit generates.\n\n"
          "Usage\n  ebbtide <command> [flags]\n  ebbtide --version | --help\n\nCommands\n",
          out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-13s  %s\n", commands[i].name, commands[i].summary);
    fputs("\nebbtide X runs the program ebbtide-X. Every command has --help.\n\nExamples\n"
          "  ebbtide run -m model.gguf --cards cpu:0,cpu:1 \"Call me Ishmael.\"\n"
          "  ebbtide vram 12000 1      leave 12000 MiB free on card 1\n"
          "  ebbtide vram - 1          and take them back\n",
          out);
    exit_status_help(out);
}

void command_help(FILE *out, const struct command *c)
{
    size_t n_groups = 0;
    if (c == NULL) {
        program_help(out);
        return;
    }
    fprintf(out, "ebbtide %s: %s\n\nUsage\n  ebbtide %s %s\n", c->name, c->summary, c->name,
            c->usage);
    if (c->details != NULL)
        fprintf(out, "\n%s", c->details);
    while (c->groups != NULL && c->groups[n_groups] != NULL)
        n_groups++;
    settings_help(out, c->groups, n_groups);
    if (c->examples != NULL)
        fprintf(out, "\nExamples\n%s", c->examples);
    exit_status_help(out);
}

int command_help_run(const struct command *c, int argc, char **argv)
{
    const struct command *asked;
    if (argc == 0 || strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "--help") == 0) {
        command_help(stdout, NULL);
        return STATUS_DONE;
    }
    if (argc == 1 && strcmp(argv[0], "--man") == 0) {
        command_manual(stdout);
        return STATUS_DONE;
    }
    if (argc == 1 && strcmp(argv[0], "--completion") == 0) {
        command_completion(stdout);
        return STATUS_DONE;
    }
    if (argc > 1)
        return command_misused(c, "help: wanted one command, got several");
    asked = command_find(argv[0]);
    if (asked == NULL || asked->run == NULL) {
        char *page[] = {"ebbtide", argv[0], "--help", NULL};
        return command_main(3, page);
    }
    command_help(stdout, asked);
    return STATUS_DONE;
}
