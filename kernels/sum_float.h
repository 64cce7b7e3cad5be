/* kernels/sum_float.h - internal to the room: the fp64 dot product of the float set. */
#pragma once
#include <math.h>
#include <stddef.h>

static inline double sum_float_dot(const float *a, const float *b, size_t n)
{
    double s[16] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++)
            s[j] += (double)a[i + j] * b[i + j];
    for (; i < n; i++)
        sum += (double)a[i] * b[i];
    for (size_t j = 0; j < 16; j++)
        sum += s[j];
    return sum;
}
