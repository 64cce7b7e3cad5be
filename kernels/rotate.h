/* kernels/rotate.h - internal to the room: the rotation of one head, elementwise and so the same text for the
 * reference, AVX2 and AVX-512 sets; each compiles it for its own instructions. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

static inline void rotate_pairs(float *x, const float *angles, size_t n_half, bool halves)
{
    size_t step = halves ? 1 : 2, apart = halves ? n_half : 1;
    for (size_t i = 0; i < n_half; i++) {
        float *first = x + i * step, *second = first + apart;
        float a = *first, b = *second, c = angles[2 * i], s = angles[2 * i + 1];
        *first = fmaf(-b, s, a * c);
        *second = fmaf(a, s, b * c);
    }
}
