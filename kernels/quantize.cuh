/* kernels/quantize.cuh - one block of 32 activations, quantised by one warp (NUMERICS rule 1). Internal to *.cu.
 *
 * The bits of tile_reference.c: amax is the largest magnitude with a NaN above infinity; a block whose amax is not finite has
 * quants of 0 and a scale that is infinite or NaN.
 */
#pragma once
#include <stdint.h>

struct quantized {
    int q;        /* this lane's quant */
    float d, sx;  /* of the block, in every lane */
    int sum16[2]; /* sums of the quants of lanes 0..15 and 16..31, in every lane */
};

/* x: this lane's value; all 32 lanes call. */
static __device__ __forceinline__ struct quantized quantize_lane(float x)
{
    struct quantized z;
    unsigned lane = threadIdx.x % 32;
    unsigned largest = __reduce_max_sync(0xffffffffu, __float_as_uint(x) & 0x7fffffffu);
    float amax = __uint_as_float(largest);
    bool tiny = amax < 0x1p-100f, finite = largest < 0x7f800000u;
    float v = tiny || !finite ? 0.0f : rintf(x * (127.0f / amax));
    z.q = (int)fminf(fmaxf(v, -127.0f), 127.0f);
    z.sum16[0] = __reduce_add_sync(0xffffffffu, lane < 16 ? z.q : 0);
    z.sum16[1] = __reduce_add_sync(0xffffffffu, lane < 16 ? 0 : z.q);
    z.d = tiny ? 0.0f : amax / 127.0f;
    z.sx = z.d * (float)(z.sum16[0] + z.sum16[1]);
    return z;
}
