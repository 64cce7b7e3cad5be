/* tools/stat.c - `ebbtide stat`: what the cards of a running engine hold and do, and who owns every byte.
 *
 * Two views of the engine's own answers: STAT, and with --ledger the LEDGER. Asks once and ends.
 */
#include <string.h>

#include "tools/kit/kit.h"

#define MIB ((uint64_t)1 << 20)

static const struct kit_column stat_columns[] = {
    {"card", "device", false, 0},
    {"place", NULL, true, 0},
    {"layers", "layers", true, 0},
    {"state", "state", true, 0},
    {"total MiB", "total_mib", false, 0},
    {"free", "free_mib", false, 0},
    {"cache", "cache_mib", false, 0},
    {"of", "cache_full_mib", false, 0},
    {"experts", "resident", false, 0},
    {"slots", "slots", false, 0},
    {"kv free", "kv_blocks_free", false, 0},
    {"kv", "kv_blocks", false, 0},
    {"seqs", "sequences", false, 0},
    {"steps", "steps", false, 0},
    {"hits", "hits", false, 0},
    {"lookups", "lookups", false, 0},
};

static const struct kit_column ledger_columns[] = {
    {"card", "device", false, 0},
    {"total MiB", "total", false, MIB},
    {"free", "free", false, MIB},
    {"others", "foreign", false, MIB},
    {"unexplained", "unexplained", false, MIB},
    {"weights", "weights", false, MIB},
    {"kv", "kv", false, MIB},
    {"cache", "cache", false, MIB},
    {"workspace", "workspace", false, MIB},
    {"stream", "stream", false, MIB},
    {"link", "link", false, MIB},
    {"blas", "blas", false, MIB},
    {"context", "context", false, MIB},
};

static void help(void)
{
    puts("ebbtide stat: what a running engine's cards hold and do\n\n"
         "Usage\n"
         "  ebbtide stat [CARD]              memory in MiB, the expert cache, KV blocks, steps\n"
         "  ebbtide stat --ledger [CARD]     every byte of a card by its owner, in MiB\n\n"
         "Flags");
    kit_flags_help(stdout);
    puts("  --ledger         who owns the memory (in --json: bytes)\n\n"
         "Examples\n"
         "  ebbtide stat\n"
         "  ebbtide stat 1 --json | jq .cards[0].hits\n"
         "  ebbtide stat --ledger --name big");
    exit_status_help(stdout);
}

static int request_write(const struct kit_flags *f, char *line, size_t capacity, struct error *err)
{
    if (f->n_bare > 1)
        return error_set(err, EBB_EINVAL, "wanted one card, got %zu arguments", f->n_bare);
    if (f->n_bare == 1 && kit_card_check(f->bare[0], err) != 0)
        return err->code;
    (void)snprintf(line, capacity, "%s%s%s", f->ledger ? "LEDGER" : "STAT",
                   f->n_bare == 1 ? " " : "", f->n_bare == 1 ? f->bare[0] : "");
    return 0;
}

static int show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    kit_places(f, r);
    if (f->json)
        return kit_json_print(stdout, r, "cards", err) == 0 ? STATUS_DONE : STATUS_FAILED;
    if (f->ledger)
        kit_table_print(stdout, r, ledger_columns,
                        sizeof ledger_columns / sizeof ledger_columns[0]);
    else
        kit_table_print(stdout, r, stat_columns, sizeof stat_columns / sizeof stat_columns[0]);
    return STATUS_DONE;
}

int main(int argc, char **argv)
{
    const struct kit_tool tool = {
        .name = "stat", .extra = "--ledger", .help = help, .request = request_write, .show = show};
    return kit_tool_main(&tool, argc, argv);
}
