/* tools/kit/tool.c - how a tool begins and ends: one question asked and shown, and what went wrong in one line on stderr. */
#include "tools/kit/kit.h"

int kit_usage(const char *tool, const struct error *err)
{
    fprintf(stderr, "ebbtide %s: %s (see ebbtide %s --help)\n", tool, err->text, tool);
    return STATUS_USAGE;
}

int kit_end(const char *tool, int status, const struct error *err)
{
    if (status != STATUS_DONE && err->code != 0)
        fprintf(stderr, "ebbtide %s: %s\n", tool, err->text);
    return status;
}

int kit_flag_refuse(int flag, const char *said, struct error *err)
{
    if (flag == ':')
        return error_set(err, EBB_EINVAL, "%s: wanted a value, got none", said);
    return error_set(err, EBB_EUNKNOWN_KEY, "%s is not a flag here", said);
}

int kit_ask_and_show(const struct kit_tool *t, const struct kit_flags *f, const char *line)
{
    struct kit_reply reply = {0};
    struct error err = {0};
    int status = kit_ask(f, line, &reply, &err);
    if (status == STATUS_DONE)
        status = t->show(f, &reply, &err);
    kit_reply_free(&reply);
    return kit_end(t->name, status, &err);
}

int kit_tool_main(const struct kit_tool *t, int argc, char **argv)
{
    char *bare[argc + 1], line[256];
    struct kit_flags flags;
    struct error err = {0};
    int code = kit_flags_parse(&flags, argc, argv, bare, t->extra, &err);
    if (code == 0 && flags.help) {
        t->help();
        return STATUS_DONE;
    }
    if (code == 0)
        code = t->request(&flags, line, sizeof line, &err);
    return code == 0 ? kit_ask_and_show(t, &flags, line) : kit_usage(t->name, &err);
}
