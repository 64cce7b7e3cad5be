/* kernels/format.h - what the vector loops must know of a quantised type; internal to the room. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/blocks.h"
#include "kernels/tensor_type.h"

/* Loops over vectors are short and of constant length; they must be unrolled and inlined at any -O
 * level, or the vectors live in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

/* A type as the loops see it: a constant after inlining. Quants are the format's unsigned numbers, offset included,
 * or signed bytes. */
struct format {
    size_t block_bytes;
    int fit; /* vectors of four quants whose products with activations add up in 16 bits: 2 * largest * 127 each */
    int offset; /* what a quant is more than its value: a power of two, as its exponent; -1: nothing */
    bool is_signed;
    bool is_super; /* blocks of 256; else of 32 */
    bool has_sub;  /* 16-wide sub-scales */
    bool has_b;
    bool folded; /* b has 16-wide integers */
};

INLINE struct format format_of(uint32_t type)
{
    struct format f = {.fit = 8, .offset = -1};
    switch (type) {
    case TENSOR_Q4_0: f.block_bytes = sizeof(struct block_q4_0), f.offset = 3; break;
    case TENSOR_Q4_1: f.block_bytes = sizeof(struct block_q4_1), f.has_b = true; break;
    case TENSOR_Q5_0: f.block_bytes = sizeof(struct block_q5_0), f.fit = 4, f.offset = 4; break;
    case TENSOR_Q5_1: f.block_bytes = sizeof(struct block_q5_1), f.fit = 4, f.has_b = true; break;
    case TENSOR_Q8_0: f.block_bytes = sizeof(struct block_q8_0), f.is_signed = true; break;
    case TENSOR_Q2_K:
        f.block_bytes = sizeof(struct block_q2_k), f.is_super = f.has_sub = true;
        f.fit = 4, f.has_b = f.folded = true;
        break;
    case TENSOR_Q3_K:
        f.block_bytes = sizeof(struct block_q3_k), f.is_super = f.has_sub = true;
        f.fit = 4, f.offset = 2;
        break;
    case TENSOR_Q4_K: f.block_bytes = sizeof(struct block_q4_k), f.is_super = f.has_b = true; break;
    case TENSOR_Q5_K:
        f.block_bytes = sizeof(struct block_q5_k), f.is_super = f.has_b = true;
        f.fit = 4;
        break;
    default: /* Q6_K */
        f.block_bytes = sizeof(struct block_q6_k), f.is_super = f.has_sub = true;
        f.fit = 2, f.offset = 5;
    }
    return f;
}
