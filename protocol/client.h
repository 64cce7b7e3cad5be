/* protocol/client.h - the unix-socket client that every tool uses: find the engine's control socket, connect, ask, read.
 * The one place of this room that knows sockets.
 */
#pragma once
#include "protocol/channel.h"

/* The directory of control sockets: $XDG_RUNTIME_DIR/ebbtide, else /tmp/ebbtide-<uid>. Created 0700 if `create`; one that somebody
 * else owns or may write is refused. */
int runtime_directory(char *path, size_t capacity, bool create, struct error *err);

/* Which socket: `control` (a path) if given, else `<dir>/<name>.sock` if name is given, else the only live one in the directory. Stale
 * sockets (nobody answers) are passed over. EBB_ENOENT: none ("no engine runs: start one with ebbtide serve"); EBB_EBUSY: several, named. */
int client_find(const char *control, const char *name, char *path, size_t capacity, struct error *err);
int client_connect(struct channel *c, const char *path, struct error *err); /* the channel stays blocking-free; poll it */
bool client_socket_is_live(const char *path);

/* For tools: sends a line and waits for the next line (timeout_ms < 0: for ever). The line stays valid until the next call. */
int client_ask(struct channel *c, const char *line, struct error *err);
int client_wait_line(struct channel *c, int timeout_ms, char **line, size_t *n_bytes, struct error *err);
