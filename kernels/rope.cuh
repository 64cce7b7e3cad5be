/* kernels/rope.cuh - one head, normed and rotated by one warp. Internal to *.cu. Tier 2.
 *
 * Lane l has values l, l + 32, ...; it adds their squares in ascending order with fmaf, and the lanes are joined by halving
 * distances, so a head's bits depend on head_dim alone. The normed head waits in shared memory for its rotation, since the two
 * values of a pair belong to different lanes. Everything that is read is on its way before the first of it is used.
 */
#pragma once
#include "kernels/kernels.h"

#define ROPE_WARPS 4 /* heads of a block */
#define ROPE_EACH  (HEAD_DIM_MAX / 32)
#define ROPE_PAIRS (ROPE_EACH / 2)

/* Rotates head `number` of row `row` into `head`, the warp's [head_dim] values of shared memory; all 32 lanes call. */
static __device__ __forceinline__ void head_turn(const struct head_rope_args *a, unsigned row,
                                                 unsigned number, float *head)
{
    int lane = threadIdx.x % 32, head_dim = (int)a->head_dim, n_half = (int)a->n_half;
    const float *x = a->x + ((size_t)row * a->n_heads + number) * head_dim;
    const float2 *angles = (const float2 *)a->angles + (size_t)row * n_half;
    float v[ROPE_EACH], w[ROPE_EACH], sum = 0, r = 1;
    float2 turn[ROPE_PAIRS];
#pragma unroll
    for (int i = 0; i < ROPE_EACH; i++) {
        int d = lane + 32 * i;
        v[i] = d < head_dim ? x[d] : 0;
        w[i] = a->norm_weight != NULL && d < head_dim ? a->norm_weight[d] : 1;
    }
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++)
        turn[i] = lane + 32 * i < n_half ? angles[lane + 32 * i] : make_float2(1, 0);
    if (a->norm_weight != NULL) {
#pragma unroll
        for (int i = 0; i < ROPE_EACH; i++)
            if (lane + 32 * i < head_dim)
                sum = __fmaf_rn(v[i], v[i], sum);
        for (int apart = 16; apart > 0; apart /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, apart);
        r = 1.0f / sqrtf(sum / (float)head_dim + a->eps);
    }
#pragma unroll
    for (int i = 0; i < ROPE_EACH; i++)
        if (lane + 32 * i < head_dim)
            head[lane + 32 * i] = a->norm_weight != NULL ? v[i] * r * w[i] : v[i];
    __syncwarp();
    int step = a->halves ? 1 : 2, apart = a->halves ? n_half : 1;
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++)
        if (lane + 32 * i < n_half) {
            float *first = head + (lane + 32 * i) * step, *second = first + apart;
            float p = *first, q = *second;
            *first = __fmaf_rn(-q, turn[i].y, p * turn[i].x);
            *second = __fmaf_rn(p, turn[i].y, q * turn[i].x);
        }
    __syncwarp();
}
