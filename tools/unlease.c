/* tools/unlease.c - `ebbtide unlease`: ends a lease, whoever made it, and shows what its cards took back. */
#include "protocol/vram.h"
#include "tools/kit/kit.h"

static void help(void)
{
    puts(
        "ebbtide unlease: end a lease\n\n"
        "Usage\n"
        "  ebbtide unlease NAME             as ebbtide leases calls it\n\n"
        "Its cards keep free what their reserve and their other leases ask for, and take the rest\n"
        "back. On a terminal receipts are a table; in a pipe they are the protocol's lines.\n\n"
        "Flags");
    kit_flags_help(stdout);
    puts("  --raw            the protocol's lines, on a terminal too\n\n"
         "Examples\n"
         "  ebbtide unlease render");
    exit_status_help(stdout);
}

static int request_write(const struct kit_flags *f, char *line, size_t capacity, struct error *err)
{
    if (f->n_bare != 1)
        return error_set(err, EBB_EINVAL, "wanted the name of a lease, got %zu arguments",
                         f->n_bare);
    if (!tag_is_valid(f->bare[0]))
        return error_set(err, EBB_EINVAL,
                         "a lease's name has 1 to %d characters A-Z a-z 0-9 . _ : -, got '%s'",
                         LEASE_NAME_MAX, f->bare[0]);
    (void)snprintf(line, capacity, "UNLEASE %s", f->bare[0]);
    return 0;
}

/* A shortfall is of what others ask for. */
static int show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    int status = kit_receipts_show(f, r, err);
    return status == STATUS_SHORTFALL ? STATUS_DONE : status;
}

int main(int argc, char **argv)
{
    const struct kit_tool tool = {
        .name = "unlease", .extra = "--raw", .help = help, .request = request_write, .show = show};
    return kit_tool_main(&tool, argc, argv);
}
