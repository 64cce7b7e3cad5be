/* kernels/sums_avx512.h - the integer sums of turned weights with rows of activations by VNNI, and the steps of the
 * float chains; for *_avx512.c only.
 *
 * vpdpbusd multiplies unsigned bytes with signed ones and adds four products to an int32, exactly: |sum| <= 32 * 255 * 128.
 * Weights are the unsigned side: quants with their format's offset in them, signed ones with 128 added. What the offset o
 * adds to a sum, o times a known sum of activations, is taken off at the sum's beginning: (q + o) x - o x = q x.
 *
 * Two sums with sub-scales become one in fp32: every factor, product and sum is an integer below 2^24 (NUMERICS rule 2),
 * so nothing rounds. A zero may come out as -0, which changes no chain: acc begins as +0, and no step makes it -0.
 */
#pragma once
#include "kernels/activation.h"
#include "kernels/lanes_avx512.h"

/* As format_of(), seen by the loops here: signed quants have 128 added. */
INLINE struct format format_unsigned(uint32_t type)
{
    struct format f = format_of(type);
    if (f.is_signed)
        f.offset = 7;
    return f;
}

/* Signed bytes with 128 added. */
INLINE __m512i bytes_unsigned(__m512i w)
{
    return _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
}

/* Sums of a block of 32 values, one a lane: of both halves in half[0], or, with sub-scales, of each. */
struct sums {
    __m512i half[2];
};

/* What they begin with: the offset's part, taken off. sum16 are the two sums of activations. */
INLINE struct sums sums_begin(struct format f, const int16_t *sum16)
{
    struct sums s = {{_mm512_setzero_si512(), _mm512_setzero_si512()}};
    if (f.offset < 0)
        return s;
    const int o = -(1 << f.offset), low = o & 0xffff, high = (int)((uint32_t)o << 16);
    const __m512i x = four_values(sum16);
    s.half[0] = _mm512_dpwssd_epi32(s.half[0], _mm512_set1_epi32(f.has_sub ? low : low | high), x);
    if (f.has_sub)
        s.half[1] = _mm512_dpwssd_epi32(s.half[1], _mm512_set1_epi32(high), x);
    return s;
}

/* Which of the two sums values 4i .. 4i + 3 of a block belong to. */
INLINE int sums_half(struct format f, int i)
{
    return f.has_sub ? i / 4 : 0;
}

/* A block's sum as the chains take it; `sub` are the two sub-scales where there are. */
INLINE __m512 sums_end(struct format f, struct sums s, const __m512 sub[2])
{
    __m512 first = _mm512_cvtepi32_ps(s.half[0]);
    if (!f.has_sub)
        return first;
    return _mm512_fmadd_ps(sub[1], _mm512_cvtepi32_ps(s.half[1]), _mm512_mul_ps(sub[0], first));
}

/* One step of acc: NUMERICS rule 3. */
INLINE __m512 chain_step(__m512 acc, __m512 a, float dx, __m512 isum)
{
    return _mm512_fmadd_ps(_mm512_mul_ps(a, _mm512_set1_ps(dx)), isum, acc);
}

/* One step of accm for block k of x; `minima` are the two folded ones. */
INLINE __m512 chain_step_b(struct format f, __m512 accm, __m512 b, __m512i minima,
                           const struct activation *x, size_t k)
{
    __m512 sx = _mm512_set1_ps(f.folded ? x->d[k] : x->sx[k]);
    if (f.folded) {
        __m512i sum =
            _mm512_dpwssd_epi32(_mm512_setzero_si512(), minima, four_values(x->sum16 + 2 * k));
        sx = _mm512_mul_ps(sx, _mm512_cvtepi32_ps(sum));
    }
    return _mm512_fmadd_ps(b, sx, accm);
}
