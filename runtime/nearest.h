/* runtime/nearest.h - the name somebody probably meant, for the errors about unknown flags, values and commands. */
#pragma once
#include <stddef.h>

/* Edit distance where a swap of two neighbours counts once. Names longer than 63 bytes count as far away. */
size_t name_distance(const char *a, const char *b);

/* The candidate to name: keeps the nearest of all that were offered. Start with { .name = NULL }. */
struct nearest {
    const char *name; /* borrowed from the caller of nearest_offer(); NULL: nothing offered */
    size_t distance;
};
void nearest_offer(struct nearest *n, const char *got, const char *candidate);
