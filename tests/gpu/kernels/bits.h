/* bits.h - when two results of tier 1 are the same: every bit, except that any NaN is a NaN (IEEE 754 leaves its sign and payload
 * to the machine, and processors and cards differ). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool bits_agree(const float *a, const float *b, size_t n)
{
    if (memcmp(a, b, n * sizeof *a) == 0)
        return true;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(a[i] != a[i] && b[i] != b[i]))
            return false;
    return true;
}
