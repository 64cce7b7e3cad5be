/* runtime/cmd_client.h - what run, serve and score share: stderr, the engine in this process, and a caller that talks to it.
 *
 * The engine's loop runs in the main thread. run and score speak the line protocol from a second thread over a socketpair,
 * exactly as a controller would from another process, so there is one way to make a request. stderr belongs to the main
 * thread, stdout to the caller's.
 */
#pragma once
#include <time.h>
#include "protocol/channel.h"
#include "runtime/engine.h"

/* cmd_console.c: progress and logs on stderr, as --log-level and the kind of stderr want them. */
enum console_level { CONSOLE_ERROR, CONSOLE_WARN, CONSOLE_INFO, CONSOLE_DEBUG };
struct console {
    enum console_level level;
    bool is_terminal;
    size_t n_shown; /* columns of the progress line that stands there now */
    struct timespec began, shown_at;
};
void console_open(struct console *c, const char *log_level);
void console_wipe(struct console *c); /* the progress line goes, if one stands there */
struct engine_events console_events(struct console *c); /* borrows c */
__attribute__((format(printf, 3, 4))) void console_say(struct console *c, enum console_level level,
                                                       const char *format, ...);

/* cmd_engine.c. One engine per process. SIGINT and SIGTERM: the first ends it cleanly, the second ends the process. */
struct caller {
    int (*speak)(void *ctx, struct channel *c,
                 struct error *err); /* in its own thread; the end of it ends the engine */
    void *ctx;
};
/* Serves a controller on these descriptors, which it takes, until the engine ends. 0 or an error code. */
int engine_for_controller(const struct settings *s, struct console *console, int fd_in, int fd_out,
                          struct error *err);
/* The same with the caller at the other end. The engine's own failure is told before the caller's. */
int engine_for_caller(const struct settings *s, struct console *console,
                      const struct caller *caller, struct error *err);
/* The exit status after either of the two; a failure is told on stderr, unless a signal asked for the end. */
int engine_status(struct console *console, int code, const struct error *err);

/* cmd_request.c: a request's lines out, its events in. */
int bytes_read(const char *path, char **bytes, size_t *n_bytes,
               struct error *err); /* "-" = stdin; *bytes is the caller's */
int ids_read(const struct settings *s, char **list,
             struct error *err); /* of --ids or --ids-file: "1,2,3", the caller's */
/* The whole text as one prompt (s->chat: a user's turn), however long. */
int request_text(struct channel *c, const char *tag, const struct settings *s, const char *bytes,
                 size_t n_bytes, struct error *err);
int request_ids(struct channel *c, const char *tag, const char *list, struct error *err);
int request_line(struct channel *c, struct line_writer *w,
                 struct error *err); /* ends and queues it */
/* The next event into m (valid until the next call), writing what is still to be written meanwhile. An ERR becomes a failure with
 * its words; so does the end of input. */
int event_next(struct channel *c, struct message *m, struct error *err);
int event_text(const struct message *m, const char *key, char *bytes, size_t capacity,
               size_t *n_bytes);                              /* decoded; none: 0 bytes */
uint64_t event_u64(const struct message *m, const char *key); /* 0: not there */
double event_f64(const struct message *m, const char *key);
/* Of a DONE: 0 where the request ended well or was cancelled (which the exit status of a signal tells), else its failure. */
int event_done(const struct message *m, struct error *err);

/* cmd_output.c: what stdout gets of a request's events. */
enum output_form { OUTPUT_TEXT, OUTPUT_IDS, OUTPUT_JSONL };
struct output {
    enum output_form form;
    size_t n_tokens;
    bool line_is_open; /* what was written last did not end its line */
};
void output_open(struct output *o, const char *form);
int output_event(struct output *o, const struct message *m,
                 struct error *err); /* EBB_EIO: stdout */
int output_end(struct output *o, struct error *err);
