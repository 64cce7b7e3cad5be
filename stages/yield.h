/* stages/yield.h - what a stage does, if it is told to, when other programs take memory that was promised to nobody.
 *
 * At boundaries, and every 100 ms when idle, the card's free memory is read. When less is free than is to be kept, the cache gives
 * segments up at once, down to its floor. It takes them again when foreign memory has not stirred for the quiet period, and only
 * where a segment and a margin are to spare, so that a program that comes and goes does not make it flap.
 *
 * What is kept: the reserve of the start, always; and of a larger one in force, what nobody has taken yet: a borrower that uses its
 * loan takes what was promised to it. Changes go through the ring of VRAM commands, as ones of the stage's own: one at a time, at a
 * boundary, without a receipt. A command that comes goes first, and what it decides is where yielding starts anew.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct yield {
    bool is_on;
    uint64_t quiet_us;
    uint64_t looked_us; /* free memory was read last */
    uint64_t
        stirred_us; /* foreign memory changed by more than half a segment, or a change of ours ended */
    uint64_t foreign_bytes; /* when it stirred last */
    uint64_t foreign_least; /* since the last command: what was there before any loan was taken */
    size_t n_segments;      /* given up and not taken again */
};

struct stage;
struct error;

/* From here on this is what foreign programs hold that nobody promised them: when loaded, when a VRAM command was served (read
 * before its receipt is said: then the borrower may come). */
void yield_restart(struct stage *s, uint64_t foreign_bytes);
/* At a boundary: looks, if it is time, and queues a change. */
void yield_look(struct stage *s);
/* A change of the stage's own has ended; before it the pool held n_before segments. */
void yield_ended(struct stage *s, size_t n_before, const struct error *driver);
/* Milliseconds that an idle stage may sleep, or -1. */
int yield_timeout(const struct stage *s);
