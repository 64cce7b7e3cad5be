/* kernels/small_turned.h - turned blocks of 32 values: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0; after the lanes, as turned.h. */
#pragma once
#include "kernels/turned.h"

/* One block of each row: lane r of w[i] = quants 4i .. 4i + 3 of row r; a and b as NUMERICS rule 2 has them. */
struct small_block {
    lanes_int w[8];
    lanes_float a, b;
};

/* Puts the fifth bits, 32 in a lane, into quants of 4 bits. Quant 4i + j has its bit in byte i / 2 at 4 (i % 2) + j. */
INLINE void small_fifth(lanes_int bits, lanes_int w[8])
{
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        lanes_int byte = bytes_picked(bits, i / 2 * 0x01010101);
        w[i] = bytes_flagged(w[i], byte, every_lane(0x08040201), every_byte(0x10));
        w[i + 1] = bytes_flagged(w[i + 1], byte, every_lane((int)0x80402010), every_byte(0x10));
    }
}

/* The block `at` bytes into each row. */
INLINE void small_load(uint32_t type, const struct lane_rows *rows, size_t at,
                       struct small_block *block)
{
    const struct format f = format_of(type);
    const size_t q_bytes = f.is_signed ? 32 : 16;
    lanes_int head[4], t[4];
    turned_load(rows, at, head);
    block->a = turned_half(head[0]);
    if (f.has_b) /* value = a q + m: b = -m */
        block->b = lanes_negated(turned_half_high(head[0]));
    if (f.is_signed) {
        turned_load(rows, at + f.block_bytes - q_bytes, &block->w[0]);
        turned_load(rows, at + f.block_bytes - q_bytes + 16, &block->w[4]);
        return;
    }
    turned_load(rows, at + f.block_bytes - q_bytes, t);
    UNROLL
    for (int i = 0; i < 4; i++) {
        block->w[i] = nibbles_low(t[i]);
        block->w[4 + i] = nibbles_high(t[i]);
    }
    if (type == TENSOR_Q5_1)
        small_fifth(head[1], block->w);
    if (type == TENSOR_Q5_0) /* two bytes of the bits are in each of the first lanes */
        small_fifth(bits_or(lanes_shifted(head[0], -16), lanes_shifted(head[1], 16)), block->w);
}
