/* tools/leases.c - `ebbtide leases`: who has memory of a running engine's cards on loan, and until when. */
#include "tools/kit/kit.h"

static const struct kit_column columns[] = {
    {"lease", "lease", true, 0},
    {"card", "device", false, 0},
    {"reserve MiB", "reserve_mib", false, 0},
    {"seconds left", "for", false, 0},
    {"process", "pid", false, 0},
    {"connection", "conn", false, 0},
};

static void help(void)
{
    puts("ebbtide leases: the memory that is lent, and until when\n\n"
         "Usage\n"
         "  ebbtide leases                   every lease, the oldest first\n\n"
         "A lease without a card is one on every card. It ends when its seconds have passed, with\n"
         "its process, or with its connection (1); or by ebbtide unlease. Leases are made by\n"
         "ebbtide vram --for, --pid and -- COMMAND.\n\n"
         "Flags");
    kit_flags_help(stdout);
    puts("  --raw            the protocol's lines\n\n"
         "Examples\n"
         "  ebbtide leases\n"
         "  ebbtide leases --json | jq -r .leases[].lease");
    exit_status_help(stdout);
}

static int request_write(const struct kit_flags *f, char *line, size_t capacity, struct error *err)
{
    if (f->n_bare > 0)
        return error_set(err, EBB_EINVAL, "wanted flags only, got '%s'", f->bare[0]);
    (void)snprintf(line, capacity, "LEASES");
    return 0;
}

static int show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    if (f->json)
        return kit_json_print(stdout, r, "leases", err) == 0 ? STATUS_DONE : STATUS_FAILED;
    if (f->raw)
        kit_reply_print(stdout, r);
    else if (r->n_lines == 0)
        puts("no leases");
    else
        kit_table_print(stdout, r, columns, sizeof columns / sizeof columns[0]);
    return STATUS_DONE;
}

int main(int argc, char **argv)
{
    const struct kit_tool tool = {
        .name = "leases", .extra = "--raw", .help = help, .request = request_write, .show = show};
    return kit_tool_main(&tool, argc, argv);
}
