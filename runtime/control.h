/* runtime/control.h - the control socket, and the guard process that removes it if this process is
 * killed. */
#pragma once
#include "runtime/engine_state.h"

/* EBB_EBUSY: an engine answers there already. `--control none` opens nothing. */
int control_open(struct engine *e, struct error *err);
void control_close(struct engine *e);
void control_accept(struct engine *e);
