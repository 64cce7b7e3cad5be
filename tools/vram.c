/* tools/vram.c - `ebbtide vram`: see what the cards hold, or have some of it left free.
 *
 * A reserve is checked here for its form, so that a slip of the hand is told before any engine is asked; what a card can
 * give is the engine's to say. Ends with STATUS_SHORTFALL when a receipt says that less is free than was asked for.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "protocol/vram.h"
#include "tools/kit/kit.h"

static const struct kit_column memory_columns[] = {
    {"card", "device", false, 0},         {"place", NULL, true, 0},
    {"layers", "layers", true, 0},        {"state", "state", true, 0},
    {"total MiB", "total_mib", false, 0}, {"free", "free_mib", false, 0},
    {"reserve", "reserve_mib", false, 0}, {"cache", "cache_mib", false, 0},
    {"full", "cache_full_mib", false, 0}, {"floor", "cache_floor_mib", false, 0},
    {"others", "foreign_mib", false, 0},
};

static const struct kit_column receipt_columns[] = {
    {"card", "device", false, 0},
    {"place", NULL, true, 0},
    {"reserve MiB", "reserve_mib", false, 0},
    {"freed", "freed_mib", false, 0},
    {"free before", "before_mib", false, 0},
    {"free", "free_mib", false, 0},
    {"shortfall", "shortfall_mib", false, 0},
    {"cache", "cache_mib", false, 0},
    {"of", "cache_full_mib", false, 0},
    {"others", "foreign_mib", false, 0},
    {"ms", "us", false, 1000},
    {"reason", "reason", true, 0},
};

#define N_COLUMNS(columns) (sizeof(columns) / sizeof(columns)[0])

static void help(void)
{
    puts("ebbtide vram: show the cards' memory, or have some of it left free\n\n"
         "Usage\n"
         "  ebbtide vram                      the cards and their memory, in MiB\n"
         "  ebbtide vram RESERVE [CARD]       leave RESERVE MiB free on every card, or on one\n"
         "  ebbtide vram - [CARD]             back to the reserve of the start\n\n"
         "On a terminal receipts are a table; in a pipe they are the protocol's lines.\n\n"
         "Flags");
    kit_flags_help(stdout);
    puts("  --raw            the protocol's lines, on a terminal too\n\n"
         "Examples\n"
         "  ebbtide vram 12000 1              12000 MiB free on card 1\n"
         "  ebbtide vram - 1                  and back\n"
         "  ebbtide vram 2048 && start-game   only where the whole of it is free");
    exit_status_help(stdout);
}

/* The bare arguments as a VRAM line. */
static int request_write(const struct kit_flags *f, char *line, size_t capacity, struct error *err)
{
    uint64_t number;
    if (f->n_bare > 2)
        return error_set(err, EBB_EINVAL, "wanted a reserve and a card, got %zu arguments",
                         f->n_bare);
    if (strcmp(f->bare[0], "-") != 0 && parse_u64(f->bare[0], 0, UINT64_MAX, &number) != 0)
        return error_set(err, EBB_EINVAL,
                         "the reserve: wanted a whole number of MiB or -, got '%s'", f->bare[0]);
    if (f->n_bare == 2 && parse_u64(f->bare[1], 0, UINT32_MAX, &number) != 0)
        return error_set(err, EBB_EINVAL, "the card: wanted its number, 0 is the first, got '%s'",
                         f->bare[1]);
    (void)snprintf(line, capacity, "VRAM %s%s%s", f->bare[0], f->n_bare == 2 ? " " : "",
                   f->n_bare == 2 ? f->bare[1] : "");
    return 0;
}

static int shortfall_find(const struct kit_reply *r, bool *is_short, struct error *err)
{
    *is_short = false;
    for (size_t i = 0; i < r->n_lines; i++) {
        struct vram_receipt receipt;
        int code = vram_receipt_read(&r->messages[i], &receipt, err);
        if (code != 0)
            return code;
        *is_short = *is_short || receipt.shortfall_mib > 0;
    }
    return 0;
}

static int receipts_show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    bool is_short, as_lines = !f->json && (f->raw || isatty(STDOUT_FILENO) == 0);
    int code = shortfall_find(r, &is_short, err);
    if (code != 0)
        return STATUS_FAILED;
    if (!as_lines)
        kit_places(f, r);
    if (f->json)
        code = kit_json_print(stdout, r, "receipts", err);
    else if (as_lines)
        kit_reply_print(stdout, r);
    else
        kit_table_print(stdout, r, receipt_columns, N_COLUMNS(receipt_columns));
    if (code != 0)
        return STATUS_FAILED;
    kit_attach_warn(f, r);
    return is_short ? STATUS_SHORTFALL : STATUS_DONE;
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

int main(int argc, char **argv)
{
    char *bare[argc + 1], line[96] = "STAT";
    struct kit_flags flags;
    struct kit_reply reply = {0};
    struct error err = {0};
    int code = kit_flags_parse(&flags, argc, argv, bare, "--raw", &err), status;
    if (code == 0 && flags.help) {
        help();
        return STATUS_DONE;
    }
    if (code == 0 && flags.n_bare > 0)
        code = request_write(&flags, line, sizeof line, &err);
    if (code != 0) {
        fprintf(stderr, "ebbtide vram: %s (see ebbtide vram --help)\n", err.text);
        return STATUS_USAGE;
    }
    status = kit_ask(&flags, line, &reply, &err);
    if (status == STATUS_DONE)
        status = flags.n_bare > 0 ? receipts_show(&flags, &reply, &err)
                                  : memory_show(&flags, &reply, &err);
    if (err.code != 0)
        fprintf(stderr, "ebbtide vram: %s\n", err.text);
    kit_reply_free(&reply);
    return status;
}
