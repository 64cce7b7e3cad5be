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

static int name_check(const struct kit_flags *f, struct error *err)
{
    if (f->n_bare != 1)
        return error_set(err, EBB_EINVAL, "wanted the name of a lease, got %zu arguments",
                         f->n_bare);
    if (!tag_is_valid(f->bare[0]))
        return error_set(err, EBB_EINVAL,
                         "a lease's name has 1 to %d characters A-Z a-z 0-9 . _ : -, got '%s'",
                         LEASE_NAME_MAX, f->bare[0]);
    return 0;
}

int main(int argc, char **argv)
{
    char *bare[argc + 1], line[LEASE_NAME_MAX + 16];
    struct kit_flags flags;
    struct kit_reply reply = {0};
    struct error err = {0};
    int code = kit_flags_parse(&flags, argc, argv, bare, "--raw", &err), status;
    if (code == 0 && flags.help) {
        help();
        return STATUS_DONE;
    }
    if (code == 0)
        code = name_check(&flags, &err);
    if (code != 0) {
        fprintf(stderr, "ebbtide unlease: %s (see ebbtide unlease --help)\n", err.text);
        return STATUS_USAGE;
    }
    (void)snprintf(line, sizeof line, "UNLEASE %s", flags.bare[0]);
    status = kit_ask(&flags, line, &reply, &err);
    if (status == STATUS_DONE)
        status = kit_receipts_show(&flags, &reply, &err);
    if (status == STATUS_SHORTFALL) /* of what others ask for */
        status = STATUS_DONE;
    if (err.code != 0)
        fprintf(stderr, "ebbtide unlease: %s\n", err.text);
    kit_reply_free(&reply);
    return status;
}
