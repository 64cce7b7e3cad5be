/* stages/turn.h - stages that share one physical card change its memory one after the other.
 *
 * Each holds the lock of the card's file in the runtime directory (vmm/lock_file.h) from before it reads what is free until its receipt
 * has been read, so that no receipt counts what a neighbour did meanwhile, and two that give way to the same program do not both do so.
 * A stage tries at boundaries and goes on with its steps in between; it waits for a turn no longer than TURN_WAIT_US, after which it goes
 * on without and says so: its neighbour is stopped. A lock that cannot be had at all is told once and then done without.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "vmm/lock_file.h"

#define TURN_WAIT_US UINT64_C(1000000)

struct turn {
    struct lock_file lock;
    bool held, in_vain; /* in_vain: the last wait was; until a lock is had there is no other */
    uint64_t asked_us;  /* of a turn that is waited for; 0: none is */
};

struct stage;

void turn_open(struct stage *s); /* after the card was described; once */
void turn_close(struct stage *s);
/* At a boundary. True: the card's memory is this stage's to change, until turn_give(). False: try again at the next one. */
bool turn_take(struct stage *s);
void turn_give(struct stage *s); /* also where none is held or waited for */
