/* kernels/single_avx512.h - products of sixteen outputs with one row of activations, weights never leaving registers;
 * for *_avx512.c only. As single_avx2.h: each carries the two chains over one block of the type, the activations' blocks
 * from `block` on.
 */
#pragma once
#include "kernels/sums_avx512.h"
#include "kernels/small_turned.h"
#include "kernels/super_turned.h"

INLINE void single_small(uint32_t type, const struct lane_rows *rows, size_t at,
                         const struct activation *x, size_t block, __m512 *acc, __m512 *accm)
{
    const struct format f = format_unsigned(type);
    const int8_t *q = x->q + 32 * block;
    struct sums s = sums_begin(f, x->sum16 + 2 * block);
    struct small_block b;
    small_load(type, rows, at, &b);
    UNROLL
    for (int i = 0; i < 8; i++) {
        __m512i w = f.is_signed ? bytes_unsigned(b.w[i]) : b.w[i];
        s.half[0] = _mm512_dpbusd_epi32(s.half[0], w, four_values(q + 4 * i));
    }
    *acc = chain_step(*acc, b.a, x->d[block], sums_end(f, s, NULL));
    if (f.has_b)
        *accm = chain_step_b(f, *accm, b.b, _mm512_setzero_si512(), x, block);
}

/* The sums of a group's blocks. */
INLINE void single_group(uint32_t type, const struct lane_rows *rows, int group,
                         const struct activation *x, size_t block, struct sums s[4])
{
    const struct format f = format_unsigned(type);
    const int width = super_width(type);
    UNROLL
    for (int k = 0; k < width; k++)
        s[k] = sums_begin(f, x->sum16 + 2 * (block + (size_t)k));
    UNROLL
    for (int part = 0; part < 2; part++) {
        const int half = f.has_sub ? part : 0;
        struct super_part p;
        super_part_load(type, rows, group, part, &p);
        UNROLL
        for (int k = 0; k < width; k++) {
            const int8_t *q = x->q + 32 * (block + (size_t)k) + 16 * part;
            UNROLL
            for (int i = 0; i < 4; i++)
                s[k].half[half] = _mm512_dpbusd_epi32(
                    s[k].half[half], super_quants(type, &p, group, k, i), four_values(q + 4 * i));
        }
    }
}

INLINE void single_super(uint32_t type, const struct lane_rows *rows, const struct activation *x,
                         size_t block, __m512 *acc, __m512 *accm)
{
    const struct format f = format_unsigned(type);
    const int width = super_width(type);
    struct super_scales scales;
    super_scales_load(type, rows, &scales);
    UNROLL
    for (int group = 0; group < super_groups(type); group++) {
        const size_t first = block + (size_t)(width * group);
        struct sums s[4];
        single_group(type, rows, group, x, first, s);
        UNROLL
        for (int k = 0; k < width; k++) {
            const int j = width * group + k;
            __m512 sub[2];
            if (f.has_sub)
                super_sub(&scales, j, sub);
            *acc = chain_step(*acc, super_a(f, &scales, j), x->d[first + (size_t)k],
                              sums_end(f, s[k], sub));
            if (f.has_b)
                *accm =
                    chain_step_b(f, *accm, super_b(f, &scales, j),
                                 f.folded ? super_pair(scales.m, j, 0, 1) : _mm512_setzero_si512(),
                                 x, first + (size_t)k);
        }
    }
}
