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

static int show(const struct kit_flags *f, const struct kit_reply *r, struct error *err)
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
    char *bare[argc + 1];
    struct kit_flags flags;
    struct kit_reply reply = {0};
    struct error err = {0};
    int code = kit_flags_parse(&flags, argc, argv, bare, "--raw", &err), status;
    if (code == 0 && flags.help) {
        help();
        return STATUS_DONE;
    }
    if (code == 0 && flags.n_bare > 0)
        code = error_set(&err, EBB_EINVAL, "wanted flags only, got '%s'", flags.bare[0]);
    if (code != 0) {
        fprintf(stderr, "ebbtide leases: %s (see ebbtide leases --help)\n", err.text);
        return STATUS_USAGE;
    }
    status = kit_ask(&flags, "LEASES", &reply, &err);
    if (status == STATUS_DONE)
        status = show(&flags, &reply, &err);
    if (err.code != 0)
        fprintf(stderr, "ebbtide leases: %s\n", err.text);
    kit_reply_free(&reply);
    return status;
}
