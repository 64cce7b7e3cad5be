/* runtime/cmd_serve.c - `ebbtide serve`: the line protocol on stdin and stdout.
 *
 * The protocol's descriptors are duplicates; fd 0 becomes /dev/null and fd 1 becomes stderr before anything else starts, so
 * that no library and no child can read or write a line of it. Descriptors made non-blocking are shared with whoever
 * started us, so their flags are put back at the end.
 */
#include "runtime/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "protocol/client.h"
#include "runtime/cmd_client.h"

struct standard_pair {
    int fd_in, fd_out;     /* the protocol's */
    int kept_in, kept_out; /* ours, to put the flags back */
    int flags_in, flags_out;
};

static int pair_take(struct standard_pair *p, struct error *err)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    p->fd_in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    p->fd_out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    p->kept_in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    p->kept_out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (null < 0 || p->fd_in < 0 || p->fd_out < 0 || p->kept_in < 0 || p->kept_out < 0)
        return error_set(err, EBB_EIO, "stdin and stdout: %s", strerror(errno));
    p->flags_in = fcntl(STDIN_FILENO, F_GETFL);
    p->flags_out = fcntl(STDOUT_FILENO, F_GETFL);
    if (dup2(null, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return error_set(err, EBB_EIO, "stdin and stdout: %s", strerror(errno));
    (void)close(null);
    return 0;
}

static void pair_restore(const struct standard_pair *p)
{
    (void)fcntl(p->kept_in, F_SETFL, p->flags_in);
    (void)fcntl(p->kept_out, F_SETFL, p->flags_out);
}

/* For a person who started this by hand. */
static void usage_say(const struct settings *s, struct console *console)
{
    char directory[4096];
    console_say(console, CONSOLE_WARN,
                "type requests after READY, one a line: GEN a 32 text=Hello, VRAM, STAT, QUIT "
                "(spaces in text are %%20)");
    if (s->control != NULL && strcmp(s->control, "none") == 0)
        console_say(console, CONSOLE_WARN, "there is no control socket (--control none)");
    else if (s->control != NULL)
        console_say(console, CONSOLE_WARN, "control socket: %s", s->control);
    else if (runtime_directory(directory, sizeof directory, false, NULL) == 0)
        console_say(console, CONSOLE_WARN, "control socket: %s/%s.sock", directory, s->name);
}

static int serve_go(const struct settings *s)
{
    struct standard_pair pair = {0};
    struct console console;
    struct error err = {0};
    bool by_hand = isatty(STDIN_FILENO) == 1;
    int code;
    console_open(&console, s->log_level);
    code = pair_take(&pair, &err);
    if (code != 0)
        return engine_status(&console, code, &err);
    if (by_hand)
        usage_say(s, &console);
    code = engine_for_controller(s, &console, pair.fd_in, pair.fd_out, &err);
    pair_restore(&pair);
    return engine_status(&console, code, &err);
}

int command_serve_run(const struct command *c, int argc, char **argv)
{
    return command_flags_only(c, argc, argv, serve_go);
}
