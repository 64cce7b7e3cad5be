/* tools/vram.c - `ebbtide vram`: see what the cards hold, or have some of it left free, for good, for a time, or for a command.
 *
 * A reserve is checked here for its form, so that a slip of the hand is told before any engine is asked; what a card can
 * give is the engine's to say. Ends with STATUS_SHORTFALL when a receipt says that less is free than was asked for.
 */
#include <inttypes.h>
#include <string.h>

#include "protocol/vram.h"
#include "tools/kit/kit.h"
#include "tools/vram/lend.h"

static const struct kit_column memory_columns[] = {
    {"card", "device", false, 0},         {"place", NULL, true, 0},
    {"layers", "layers", true, 0},        {"state", "state", true, 0},
    {"total MiB", "total_mib", false, 0}, {"free", "free_mib", false, 0},
    {"reserve", "reserve_mib", false, 0}, {"cache", "cache_mib", false, 0},
    {"full", "cache_full_mib", false, 0}, {"floor", "cache_floor_mib", false, 0},
    {"others", "foreign_mib", false, 0},
};

#define N_COLUMNS(columns) (sizeof(columns) / sizeof(columns)[0])

struct options {
    const char *seconds, *pid, *lease;
    bool raw, partial;
};

static void help(void)
{
    puts(
        "ebbtide vram: show the cards' memory, or have some of it left free\n\n"
        "Usage\n"
        "  ebbtide vram                      the cards and their memory, in MiB\n"
        "  ebbtide vram RESERVE [CARD]       leave RESERVE MiB free on every card, or on one\n"
        "  ebbtide vram - [CARD]             back to the reserve of the start\n"
        "  ebbtide vram RESERVE [CARD] --for SECONDS | --pid PID    a lease, which ends by itself\n"
        "  ebbtide vram RESERVE [CARD] -- COMMAND ...               a lease while a command "
        "runs\n\n"
        "Of the reserve and all leases on a card the largest is in force; see ebbtide leases.\n"
        "On a terminal receipts are a table; in a pipe they are the protocol's lines.\n\n"
        "With a command the status is the command's, 128 and its signal where one ended it, 126 "
        "or\n"
        "127 where it cannot be started. Where the memory cannot be had it is not run: 4 or 5.\n"
        "SIGINT and SIGTERM are passed on to it. However it or this program ends, killed or not,\n"
        "the memory goes back; a command whose ebbtide vram was killed gets SIGTERM.\n\n"
        "Flags");
    kit_flags_help(stdout);
    puts("  --raw            the protocol's lines, on a terminal too\n"
         "  --for SECONDS    a lease for so long [1 to 2592000]\n"
         "  --pid PID        a lease until this process of the engine's host has ended\n"
         "  --lease NAME     its name; the same name again renews it [default: one is made up]\n"
         "  --partial        with a command: run it though less is free than was asked for\n\n"
         "Examples\n"
         "  ebbtide vram 12000 1              12000 MiB free on card 1\n"
         "  ebbtide vram - 1                  and back\n"
         "  ebbtide vram 2048 && start-game   only where the whole of it is free\n"
         "  ebbtide vram 12000 1 -- python3 train.py\n"
         "  ebbtide vram 8192 --for 600 --lease render");
    exit_status_help(stdout);
}

static int bare_check(const struct kit_flags *f, struct error *err)
{
    uint64_t number;
    if (f->n_bare > 2)
        return error_set(err, EBB_EINVAL, "wanted a reserve and a card, got %zu arguments",
                         f->n_bare);
    if (strcmp(f->bare[0], "-") != 0 && parse_u64(f->bare[0], 0, UINT64_MAX, &number) != 0)
        return error_set(err, EBB_EINVAL,
                         "the reserve: wanted a whole number of MiB or -, got '%s'", f->bare[0]);
    return f->n_bare == 2 ? kit_card_check(f->bare[1], err) : 0;
}

static int options_check(const struct kit_flags *f, const struct options *o, struct error *err)
{
    uint64_t number;
    int n_terms = (o->seconds != NULL) + (o->pid != NULL) + (f->command != NULL);
    if (f->command != NULL && f->command[0] == NULL)
        return error_set(err, EBB_EINVAL, "--: wanted a command behind it, got none");
    if (n_terms > 0 && f->n_bare == 0)
        return error_set(err, EBB_EINVAL, "a lease: wanted its reserve in MiB, or -, got none");
    if (n_terms > 1)
        return error_set(err, EBB_EINVAL,
                         "--for, --pid and a command exclude each other: one thing ends a lease");
    if (o->lease != NULL && n_terms == 0)
        return error_set(err, EBB_EINVAL,
                         "--lease: wanted --for, --pid or a command too, which ends the lease");
    if (o->lease != NULL && !tag_is_valid(o->lease))
        return error_set(err, EBB_EINVAL,
                         "--lease: wanted 1 to %d characters A-Z a-z 0-9 . _ : -, got '%s'",
                         LEASE_NAME_MAX, o->lease);
    if (o->seconds != NULL && parse_u64(o->seconds, 1, LEASE_SECONDS_MAX, &number) != 0)
        return error_set(err, EBB_EINVAL, "--for: wanted seconds from 1 to %u, got '%s'",
                         LEASE_SECONDS_MAX, o->seconds);
    if (o->pid != NULL && parse_u64(o->pid, 1, INT32_MAX, &number) != 0)
        return error_set(err, EBB_EINVAL, "--pid: wanted the number of a process, got '%s'",
                         o->pid);
    if (o->partial && f->command == NULL)
        return error_set(err, EBB_EINVAL, "--partial: wanted a command behind --, got none");
    if (f->command != NULL && (f->json || o->raw))
        return error_set(err, EBB_EINVAL,
                         "--json and --raw show receipts; with a command none are shown");
    return 0;
}

/* The arguments as a VRAM line; all of them were checked. */
static int request_write(const struct kit_flags *f, const struct options *o, char *line,
                         size_t capacity, struct error *err)
{
    const char *card = f->n_bare == 2 ? f->bare[1] : NULL;
    int n =
        snprintf(line, capacity, "VRAM %s%s%s%s%s%s%s%s%s%s", f->bare[0], card != NULL ? " " : "",
                 card != NULL ? card : "", o->seconds != NULL ? " for=" : "",
                 o->seconds != NULL ? o->seconds : "", o->pid != NULL ? " pid=" : "",
                 o->pid != NULL ? o->pid : "", f->command != NULL ? " conn=1" : "",
                 o->lease != NULL ? " lease=" : "", o->lease != NULL ? o->lease : "");
    if (n < 0 || (size_t)n >= capacity)
        return error_set(err, EBB_EINVAL, "a number of the arguments has too many digits");
    return 0;
}

static int memory_show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    int code = 0;
    if (!f->raw)
        kit_places(f, r);
    if (f->json)
        code = kit_json_print(stdout, r, "cards", err);
    else if (f->raw)
        kit_reply_print(stdout, r);
    else
        kit_table_print(stdout, r, memory_columns, N_COLUMNS(memory_columns));
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

static int show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    if (f->n_bare == 0)
        return memory_show(f, r, err);
    int status = kit_receipts_show(f, r, err);
    if (status == STATUS_DONE || status == STATUS_SHORTFALL)
        kit_attach_warn(f, r);
    return status;
}

int main(int argc, char **argv)
{
    char *bare[argc + 1], line[256] = "STAT";
    struct kit_flags flags;
    struct options o = {0};
    const struct kit_option options[] = {
        {"--raw", NULL, &o.raw},     {"--for", &o.seconds, NULL},     {"--pid", &o.pid, NULL},
        {"--lease", &o.lease, NULL}, {"--partial", NULL, &o.partial}, {"--", NULL, NULL},
        {NULL, NULL, NULL},
    };
    struct error err = {0};
    int code = kit_flags_parse_with(&flags, argc, argv, bare, options, &err);
    if (code == 0 && flags.help) {
        help();
        return STATUS_DONE;
    }
    flags.raw = o.raw;
    if (code == 0 && flags.n_bare > 0)
        code = bare_check(&flags, &err);
    if (code == 0)
        code = options_check(&flags, &o, &err);
    if (code == 0 && flags.n_bare > 0)
        code = request_write(&flags, &o, line, sizeof line, &err);
    if (code != 0)
        return kit_usage("vram", &err);
    if (flags.command == NULL)
        return kit_ask_and_show(&(struct kit_tool){.name = "vram", .show = show}, &flags, line);
    return lend_run(&(struct lend){
        .flags = &flags, .line = line, .command = flags.command, .takes_partly = o.partial});
}
