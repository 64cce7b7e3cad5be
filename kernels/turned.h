/* kernels/turned.h - rows of quantised weights, turned so that each lane is a row; after lanes_avx2.h or
 * lanes_avx512.h, which say how many.
 *
 * "Turned" means: 32-bit lane r of a vector holds four neighbouring bytes of row r. Products with four activations
 * broadcast to all lanes then give each row's integer sum in its own lane, with no horizontal additions, and the float
 * chains of NUMERICS run in the same lanes. Turning costs two shuffles for a vector of weights.
 *
 * Here: parts of turned bytes. What they mean is in small_turned.h (blocks of 32) and super_turned.h (blocks of 256);
 * sums_*.h multiply.
 */
#pragma once
#ifndef LANES
#error "turned.h comes after the lanes that it is to work in"
#endif

/* The high 16 bits of each lane, a half float, as fp32. */
INLINE lanes_float turned_half_high(lanes_int t)
{
    return turned_half(lanes_shifted(t, -16));
}

/* Byte j of each lane, unsigned, as fp32. */
INLINE lanes_float turned_byte(lanes_int t, int j)
{
    return lanes_to_float(bits_and(lanes_shifted(t, -8 * j), every_lane(255)));
}

/* Byte j of each lane, signed, as fp32. */
INLINE lanes_float turned_byte_signed(lanes_int t, int j)
{
    return lanes_to_float(lanes_down_signed(lanes_shifted(t, 24 - 8 * j), 24));
}

/* Bytes i and j of each lane, signed, as the int16 halves of the lane. */
INLINE lanes_int turned_pair(lanes_int t, int i, int j)
{
    return words_down_signed(bytes_picked(t, (i << 8 | j << 24) + 0x00800080), 8);
}

/* The low and the high nibbles of bytes. */
INLINE lanes_int nibbles_low(lanes_int t)
{
    return bits_and(t, every_byte(0x0f));
}

INLINE lanes_int nibbles_high(lanes_int t)
{
    return nibbles_low(words_shifted(t, -4));
}

/* Bits of bytes moved up (positive) or down, then kept where `mask` has them. The shift is of 16 bits at a time: the mask
 * must not have bits that come from the other byte. */
INLINE lanes_int bits_moved(lanes_int t, int up, int mask)
{
    return bits_and(words_shifted(t, up), every_byte(mask));
}

/* `into` with bits_moved(t, up, mask) added. */
INLINE lanes_int bits_merged(lanes_int into, lanes_int t, int up, int mask)
{
    return bits_or_masked(into, words_shifted(t, up), every_byte(mask));
}
