/* kernels/single_avx2.h - products of eight outputs with one row of activations, weights never
 * leaving registers; for *_avx2.c only.
 *
 * Decode is bound by unpacking: each weight is used once. Storing unpacked weights first, as
 * tile_avx2.c does for more rows, takes longer here (NOTES.md), so these loops multiply what they
 * have just unpacked. Same bits. Each carries the two chains over one block of the type, the
 * activations' blocks from `block` on.
 */
#pragma once
#include "kernels/sums_avx2.h"
#include "kernels/small_turned.h"
#include "kernels/super_turned.h"

INLINE void single_small(uint32_t type, const struct lane_rows *rows, size_t at,
                         const struct activation *x, size_t block, __m256 *acc, __m256 *accm)
{
    const struct format f = format_of(type);
    const int8_t *q = x->q + 32 * block;
    const __m256i none = _mm256_setzero_si256();
    struct small_block w;
    __m256i isum;
    small_load(type, rows, at, &w);
    if (f.is_signed) {
        sums_signed(w.w, &q, 1, &isum);
    } else {
        isum = sum_offset(f, none, x->sum16 + 2 * block);
        sums_add(f, w.w, 8, &q, 1, _mm256_set1_epi16(1), &isum);
    }
    *acc = chain_step(*acc, w.a, x->d[block], isum);
    if (f.has_b)
        *accm = chain_step_b(f, *accm, w.b, none, x, block);
}

/* The sums of a group; where eight vectors fit in 16 bits, `pairs` run over both parts. */
INLINE void single_group(uint32_t type, const struct lane_rows *rows, int group,
                         const struct super_scales *s, const struct activation *x, size_t block,
                         __m256i isum[4])
{
    const struct format f = format_of(type);
    const int width = super_width(type);
    UNROLL
    for (int k = 0; k < width; k++)
        isum[k] = f.has_sub ? sum_offset(f, super_pair(s->sc, width * group + k, 0, 1),
                                         x->sum16 + 2 * (block + (size_t)k))
                            : _mm256_setzero_si256();
    UNROLL
    for (int part = 0; part < 2; part++) {
        struct super_part p;
        super_part_load(type, rows, group, part, &p);
        UNROLL
        for (int k = 0; k < width; k++) {
            const int8_t *q = x->q + 32 * (block + (size_t)k) + 16 * part;
            __m256i w[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                w[i] = super_quants(type, &p, group, k, i);
            sums_add(f, w, 4, &q, 1,
                     f.has_sub ? super_pair(s->sc, width * group + k, part, part)
                               : _mm256_set1_epi16(1),
                     &isum[k]);
        }
    }
}

INLINE void single_super(uint32_t type, const struct lane_rows *rows, const struct activation *x,
                         size_t block, __m256 *acc, __m256 *accm)
{
    const struct format f = format_of(type);
    const int width = super_width(type);
    struct super_scales s;
    super_scales_load(type, rows, &s);
    UNROLL
    for (int group = 0; group < super_groups(type); group++) {
        const size_t first = block + (size_t)(width * group);
        __m256i isum[4];
        single_group(type, rows, group, &s, x, first, isum);
        UNROLL
        for (int k = 0; k < width; k++) {
            const int j = width * group + k;
            *acc = chain_step(*acc, super_a(f, &s, j), x->d[first + (size_t)k], isum[k]);
            if (f.has_b)
                *accm = chain_step_b(f, *accm, super_b(f, &s, j),
                                     f.folded ? super_pair(s.m, j, 0, 1) : _mm256_setzero_si256(),
                                     x, first + (size_t)k);
        }
    }
}
