/* kernels/single_avx512.h - products of sixteen outputs with one row of activations, weights never leaving registers;
 * for *_avx512.c only. As single_avx2.h: each carries the two chains over one block of the type, the activations' blocks
 * from `block` on.
 *
 * What is read from memory next is asked for in small portions between the sums: a core has few lines under way at once,
 * and asking for many in one go makes it wait for them (NOTES.md).
 */
#pragma once
#include "kernels/sums_avx512.h"
#include "kernels/small_turned.h"
#include "kernels/super_turned.h"

/* The two chains of sixteen outputs, and where the memory begins that is read next. */
struct chain {
    __m512 acc, accm;
    uintptr_t ahead;
};

/* Asks for `bytes` of what is ahead, into the second-level cache: two tiles may be more than the first holds. */
INLINE void ahead_ask(uintptr_t *ahead, size_t bytes)
{
    UNROLL
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const void *)(*ahead + i), _MM_HINT_T1);
    *ahead += bytes;
}

/* What is asked for with a part of a group: as many bytes as such parts have in sixteen rows. */
INLINE size_t ahead_part_bytes(uint32_t type)
{
    return LANES * format_of(type).block_bytes / (size_t)(2 * super_groups(type));
}

INLINE void single_small(uint32_t type, const struct lane_rows *rows, size_t at,
                         const struct activation *x, size_t block, struct chain *c)
{
    const struct format f = format_unsigned(type);
    const int8_t *q = x->q + 32 * block;
    struct sums s = sums_begin(f, x->sum16 + 2 * block);
    struct small_block b;
    ahead_ask(&c->ahead, LANES * f.block_bytes);
    small_load(type, rows, at, &b);
    UNROLL
    for (int i = 0; i < 8; i++) {
        __m512i w = f.is_signed ? bytes_unsigned(b.w[i]) : b.w[i];
        s.half[0] = _mm512_dpbusd_epi32(s.half[0], w, four_values(q + 4 * i));
    }
    c->acc = chain_step(c->acc, b.a, x->d[block], sums_end(f, s, NULL));
    if (f.has_b)
        c->accm = chain_step_b(f, c->accm, b.b, _mm512_setzero_si512(), x, block);
}

/* The sums of a group's blocks. */
INLINE void single_group(uint32_t type, const struct lane_rows *rows, int group,
                         const struct activation *x, size_t block, uintptr_t *ahead,
                         struct sums s[4])
{
    const struct format f = format_unsigned(type);
    const int width = super_width(type);
    UNROLL
    for (int k = 0; k < width; k++)
        s[k] = sums_begin(f, x->sum16 + 2 * (block + (size_t)k));
    UNROLL
    for (int part = 0; part < 2; part++) {
        const int half = sums_half(f, 4 * part);
        struct super_part p;
        ahead_ask(ahead, ahead_part_bytes(type));
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
                         size_t block, struct chain *c)
{
    const struct format f = format_unsigned(type);
    const int width = super_width(type);
    struct super_scales scales;
    super_scales_load(type, rows, &scales);
    UNROLL
    for (int group = 0; group < super_groups(type); group++) {
        const size_t first = block + (size_t)(width * group);
        struct sums s[4];
        single_group(type, rows, group, x, first, &c->ahead, s);
        UNROLL
        for (int k = 0; k < width; k++) {
            const int j = width * group + k;
            __m512 sub[2];
            if (f.has_sub)
                super_sub(&scales, j, sub);
            c->acc = chain_step(c->acc, super_a(f, &scales, j), x->d[first + (size_t)k],
                                sums_end(f, s[k], sub));
            if (f.has_b)
                c->accm =
                    chain_step_b(f, c->accm, super_b(f, &scales, j),
                                 f.folded ? super_pair(scales.m, j, 0, 1) : _mm512_setzero_si512(),
                                 x, first + (size_t)k);
        }
    }
}
