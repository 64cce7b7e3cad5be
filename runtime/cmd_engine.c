/* runtime/cmd_engine.c - the engine inside this process: its signals, its controller, the caller's thread.
 *
 * The engine belongs to the main thread from open to close. A signal handler reaches it through one pointer, which
 * engine_open() fills before it starts anything, so that loading can be stopped too; before that and after the loop there
 * is nothing to stop. The caller's thread is joined before anything is told, so errors come in one order. The
 * caller's own end of the socketpair is closed by its thread: that is the end of input which ends the engine.
 */
#include "runtime/cmd_client.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/exit_status.h"

#define CALLER_QUEUE_BYTES ((size_t)512 << 20)

static struct engine *stoppable; /* read by the handler, which only the main thread runs */
static volatile sig_atomic_t is_closing, signal_met;

static void on_signal(int number)
{
    struct engine *e = stoppable;
    int saved = errno;
    if (signal_met != 0 || (e == NULL && !is_closing)) {
        if (isatty(STDERR_FILENO) == 1)
            (void)!write(STDERR_FILENO, "\n", 1); /* off the line of progress */
        _exit(128 + number);
    }
    signal_met = number;
    if (e != NULL)
        engine_stop(e);
    errno = saved;
}

static void signals_catch(void)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&stop.sa_mask);
    sigemptyset(&ignore.sa_mask);
    (void)sigaction(SIGINT, &stop, NULL);
    (void)sigaction(SIGTERM, &stop, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL);
}

int engine_for_controller(const struct settings *s, struct console *console, int fd_in, int fd_out,
                          struct error *err)
{
    const struct engine_events events = console_events(console);
    struct engine *e;
    int code;
    signals_catch();
    code = engine_open(&stoppable, s, &events, err);
    e = stoppable;
    if (code != 0) {
        (void)close(fd_in);
        if (fd_out != fd_in)
            (void)close(fd_out);
        return code;
    }
    code = engine_attach(e, fd_in, fd_out, true, err);
    if (code == 0)
        code = engine_loop(e, err);
    is_closing = 1;
    stoppable = NULL;
    engine_close(e);
    return code;
}

struct caller_thread {
    const struct caller *caller;
    int fd; /* the thread's */
    int code;
    struct error err;
};

static void *caller_main(void *argument)
{
    struct caller_thread *t = argument;
    struct channel c;
    t->code = channel_open(&c, t->fd, t->fd, false, CALLER_QUEUE_BYTES, &t->err);
    if (t->code != 0) {
        (void)close(t->fd);
        return NULL;
    }
    t->code = t->caller->speak(t->caller->ctx, &c, &t->err);
    channel_close(&c);
    return NULL;
}

/* Signals stay the main thread's: the new thread inherits a mask without them. */
static int thread_start(pthread_t *thread, struct caller_thread *t)
{
    sigset_t stops, before;
    int code;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stops, &before);
    code = pthread_create(thread, NULL, caller_main, t);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

int engine_for_caller(const struct settings *s, struct console *console,
                      const struct caller *caller, struct error *err)
{
    struct caller_thread t = {.caller = caller};
    struct settings cancelling =
        *s; /* borrows the strings: a caller that stops early wants no rest */
    pthread_t thread;
    int pair[2], code;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return error_set(err, EBB_EIO, "socketpair: %s", strerror(errno));
    t.fd = pair[1];
    cancelling.on_eof = ON_EOF_CANCEL;
    code = thread_start(&thread, &t);
    if (code != 0) {
        (void)close(pair[0]);
        (void)close(pair[1]);
        return error_set(err, EBB_EIO, "a thread for the request: %s", strerror(code));
    }
    code = engine_for_controller(&cancelling, console, pair[0], pair[0], err);
    (void)pthread_join(thread, NULL);
    if (code == 0 && t.code != 0) {
        *err = t.err;
        code = t.code;
    }
    return code;
}

int engine_status(struct console *console, int code, const struct error *err)
{
    console_wipe(console);
    if (signal_met != 0)
        return signal_met == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED;
    if (code == 0)
        return STATUS_DONE;
    console_say(console, CONSOLE_ERROR, "%s", err->text);
    return STATUS_FAILED;
}
