/* protocol/client.h - the unix-socket client that every tool uses: find the engine's control
 * socket, connect, ask, read. The one place of this room that knows sockets.
 */
#pragma once
#include "protocol/channel.h"

/* The directory of control sockets: $XDG_RUNTIME_DIR/ebbtide, else /tmp/ebbtide-<uid>. Created 0700
 * if `create`; one that somebody else owns or may write is refused (EBB_EINVAL). EBB_ENOENT: it is
 * not there and `create` is false; path is filled all the same. */
int runtime_directory(char *path, size_t capacity, bool create, struct error *err);

/* Which socket: `control` (a path) if given, else `<dir>/<name>.sock` if name is given, else the
 * only live one in the directory. Stale sockets (nobody answers) are passed over. EBB_ENOENT: none
 * ("no engine runs: start one with ebbtide serve"), or none of that name; EBB_EBUSY: several,
 * named. A `control` path is taken as it stands: client_connect() will say. */
int client_find(const char *control, const char *name, char *path, size_t capacity,
                struct error *err);
/* The channel is non-blocking: poll it, or use client_wait_line(). EBB_ENOENT: nobody answers there;
 * EBB_EBUSY, EBB_ERANGE (path too long), EBB_EIO. */
int client_connect(struct channel *c, const char *path, struct error *err);
bool client_socket_is_live(const char *path);

/* For tools. client_ask() sends a line (the LF is added where it is missing). client_wait_line()
 * writes what is still queued and waits for the next line (timeout_ms < 0: for ever), which stays
 * valid until the next call. EBB_EAGAIN: none in that time; EBB_EGONE: the connection has ended;
 * EBB_ELINE_TOO_LONG: one was discarded; EBB_EIO. */
int client_ask(struct channel *c, const char *line, struct error *err);
int client_wait_line(struct channel *c, int timeout_ms, char **line, size_t *n_bytes,
                     struct error *err);
