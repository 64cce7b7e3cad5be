/* runtime/engine.h - the coordinator: starts, drives and ends the stages; serves connections that speak the line protocol.
 *
 * One event loop, one thread, poll(2). engine_open() reads the model's header, plans, opens the control socket, starts a stage
 * process per card and brings them to LOADED. engine_loop() serves until SHUTDOWN, a stop, or the controller's end of input.
 * Everything a command does goes through a connection: `ebbtide serve` attaches stdin/stdout, `ebbtide run` and `score` attach one
 * end of a socketpair and speak the protocol from another thread. Tensors never pass through here; no GPU is touched.
 * Failure: after any failure every stage is ended and reaped; nothing is left behind.
 */
#pragma once
#include "runtime/settings.h"

struct engine;

struct engine_events {
    void *ctx;
    void (*progress)(void *ctx, const char *what, uint64_t done,
                     uint64_t total); /* "load": bytes over all stages */
    void (*log)(void *ctx, const char *level, const char *text);
};

/* s is borrowed until engine_close(). Open, loop and close belong to one thread: a stage is killed when the thread that started it dies.
 * *e is set before the stages start, so that engine_stop() can end a bring-up; after a failure it is NULL. SIGPIPE may be anything. */
int engine_open(struct engine **e, const struct settings *s, const struct engine_events *events,
                struct error *err);

/* Adds a connection; the engine owns the descriptors from now on. The controller gets INFO, CARD… and READY at once, and its end of
 * input ends the engine as on_eof says; other connections just go. */
int engine_attach(struct engine *e, int fd_in, int fd_out, bool is_controller, struct error *err);

/* 0 = ended as asked; else an error code. */
int engine_loop(struct engine *e, struct error *err);

/* From a signal handler or another thread: the loop ends soon; running requests are cancelled first. Async-signal-safe. */
void engine_stop(struct engine *e);

void engine_close(
    struct engine
        *e); /* NULL is fine; stages get QUIT, then SIGTERM, then SIGKILL; sockets are unlinked */
