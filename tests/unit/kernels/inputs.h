/* inputs.h - random and adversarial weights and activations for the tests of quantised
 * operations. */
#pragma once
#include <math.h>
#include <string.h>
#include "card.h"

enum input_kind {
    INPUT_RANDOM,
    INPUT_ZEROS,     /* activations 0 */
    INPUT_ONE_HUGE,  /* one value of 3e38 among small ones */
    INPUT_SUBNORMAL, /* activations below the normal range and around 2^-100 */
    INPUT_EXTREMES,  /* every quant and every scale at its largest magnitude, activations +-1 */
    INPUT_KINDS
};

static const uint32_t quantised_types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                                           TENSOR_Q8_0, TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K,
                                           TENSOR_Q5_K, TENSOR_Q6_K};
#define N_QUANTISED_TYPES (sizeof quantised_types / sizeof quantised_types[0])

static const uint32_t plain_types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
#define N_PLAIN_TYPES (sizeof plain_types / sizeof plain_types[0])
#define N_TYPES       (N_PLAIN_TYPES + N_QUANTISED_TYPES)

/* Every computed type, i < N_TYPES. */
static inline uint32_t type_at(size_t i)
{
    return i < N_PLAIN_TYPES ? plain_types[i] : quantised_types[i - N_PLAIN_TYPES];
}

/* xorshift64*: a fixed sequence for a fixed start. */
static inline uint32_t random_bits(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545f4914f6cdd1dull >> 32);
}

/* Uniform in [-1, 1). */
static inline float random_value(uint64_t *state)
{
    return (float)((double)random_bits(state) / 2147483648.0 - 1.0);
}

/* A finite half float of either sign with a magnitude in 2^-9 .. 2, or now and then a subnormal
 * one. */
static inline uint16_t random_half(uint64_t *state)
{
    uint32_t bits = random_bits(state);
    if (bits % 64 == 0)
        return (uint16_t)(bits >> 8 & 0x83ff);
    return (uint16_t)((bits >> 16 & 0x83ff) | (6 + bits % 10) << 10);
}

/* Sets the half floats of a block; `second` is dmin or m where there is one. */
static inline void halves_set(uint32_t type, uint8_t *block, uint16_t d, uint16_t second)
{
    size_t bytes = tensor_type_find(type)->block_bytes;
    bool has_second = type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q2_K ||
                      type == TENSOR_Q4_K || type == TENSOR_Q5_K;
    bool at_end = type == TENSOR_Q2_K || type == TENSOR_Q3_K || type == TENSOR_Q6_K;
    uint8_t *at = at_end ? block + bytes - (has_second ? 4 : 2) : block;
    memcpy(at, &d, sizeof d);
    if (has_second)
        memcpy(at + 2, &second, sizeof second);
}

/* Every quant and scale of a block at its largest magnitude. */
static inline void extremes_set(uint32_t type, uint8_t *block, uint64_t *state)
{
    const size_t bytes = tensor_type_find(type)->block_bytes;
    bool low = random_bits(state) % 2 != 0;
    memset(block, 0xff, bytes);
    if (type == TENSOR_Q8_0)
        memset(block, low ? 0x80 : 0x7f, bytes);
    else if (low && (type == TENSOR_Q4_0 || type == TENSOR_Q5_0))
        memset(block, 0, bytes); /* the offset is larger than what is left above it */
    else if (low && type == TENSOR_Q3_K)
        memset(block, 0, bytes); /* quants of -4, scales of -32 */
    else if (type == TENSOR_Q6_K) {
        memset(block, low ? 0 : 0xff, 192);
        memset(block + 192, 0x80,
               16); /* -32 or 31 with scales of -128: the largest integer sum there is */
    }
}

/* One value of a plain type: 2^-6 at most, so that dot products stay in range. */
static inline void plain_set(uint32_t type, uint8_t *to, uint64_t *state)
{
    float value = random_value(state) * 0x1p-6f;
    _Float16 half = (_Float16)value;
    if (type == TENSOR_F32)
        memcpy(to, &value, sizeof value);
    else if (type == TENSOR_F16)
        memcpy(to, &half, sizeof half);
    else
        memcpy(to, (const uint8_t *)&value + 2, 2);
}

/* Rows of weights; freed by the caller. */
static inline void *weights_of(uint32_t type, size_t n_in, size_t n_out, enum input_kind kind,
                               uint64_t *state)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    size_t bytes = tensor_row_bytes(type, n_in) * n_out;
    uint8_t *w = bytes_of(bytes);
    for (size_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)(random_bits(state) >> 24);
    for (size_t at = 0; at < bytes; at += info->block_bytes) {
        if (info->block_values == 1) {
            plain_set(type, w + at, state);
            continue;
        }
        if (kind == INPUT_EXTREMES)
            extremes_set(type, w + at, state);
        halves_set(type, w + at, random_half(state), random_half(state));
    }
    return w;
}

/* Rows of activations; freed by the caller. */
static inline float *values_of(size_t n, enum input_kind kind, uint64_t *state)
{
    float *x = bytes_of(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        switch (kind) {
        case INPUT_ZEROS: x[i] = random_bits(state) % 2 != 0 ? 0.0f : -0.0f; break;
        case INPUT_ONE_HUGE: x[i] = i % 97 == 5 ? 3e38f : random_value(state); break;
        case INPUT_SUBNORMAL: x[i] = ldexpf(random_value(state), -90 - (int)(i / 32 % 60)); break;
        case INPUT_EXTREMES: x[i] = random_bits(state) % 3 != 0 ? -1.0f : 1.0f; break;
        default:
            x[i] = random_value(state) * ldexpf(1.0f, (int)(random_bits(state) % 8) - 4);
            break;
        }
    return x;
}
