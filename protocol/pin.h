/* protocol/pin.h - where the threads of a CPU card may run, in the one form that settings and LOAD lines have.
 *
 *   none    where the system puts them
 *   cores   each thread on a core of its own, of the cores that are this card's share of the host's
 *   numa    all of them on the card's share of the host's memory nodes
 *   0-7,16  all of them on these processors, by the system's numbers
 *
 * What `cores` and `numa` come to is known on the card's host alone (stages/pin.h).
 */
#pragma once
#include <stdbool.h>
#include "protocol/error.h"

#define PIN_PROCESSORS_MAX 1024 /* numbers below it */
#define PIN_TEXT_MAX       256  /* bytes, the terminator included */

enum pin_how { PIN_NONE, PIN_CORES, PIN_NUMA, PIN_LIST };

struct pin {
    enum pin_how how;
    bool listed[PIN_PROCESSORS_MAX]; /* PIN_LIST */
};

/* EBB_EINVAL (no such form), EBB_ERANGE (too long, a number too high); "wanted ..., got ..." in err. */
int pin_parse(struct pin *pin, const char *text, struct error *err);
