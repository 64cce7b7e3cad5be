/* kernels/half.h - fp32 to half float without special instructions; blocks.h has the way back. */
#pragma once
#include <stdint.h>
#include <string.h>

/* To nearest, ties to even; 65520 and more is infinity; a NaN keeps its sign and upper bits and is quiet. Exactly
 * what the F16C instruction gives. */
static inline uint16_t float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    if (bits >= 0x477ff000)
        return sign | 0x7c00;
    if (bits < 0x38800000) {
        /* Below 2^-14 a half's unit is 2^-24, the unit of fp32 values in [0.5, 1): adding 0.5 rounds there. */
        float shifted;
        memcpy(&shifted, &bits, sizeof bits);
        shifted += 0.5f;
        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - (112u << 23)) >> 13);
}
