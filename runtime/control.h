/* runtime/control.h - the control socket, and the guard process that removes it if this process is
 * killed. */
#pragma once
#include "runtime/engine_state.h"

/* EBB_EBUSY: an engine answers there already. `--control none` opens nothing. */
int control_open(struct engine *e, struct error *err);
void control_close(struct engine *e);
/* Takes a client that waits. Where the process or the machine has no descriptor left, it waits on, and nobody is asked again for
 * CONTROL_PAUSE_US (engine's accept_us): the socket stays readable all the while. */
#define CONTROL_PAUSE_US 100000
void control_accept(struct engine *e);
