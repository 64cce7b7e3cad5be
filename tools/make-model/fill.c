/* tools/make-model/fill.c - random blocks: bits from random.h, scales from the wanted spread.
 *
 * Pure functions of the key and the block's number. The standard deviation of n evenly distributed integers is
 * sqrt((n^2 - 1) / 12); where quants are not centred, either a minimum takes their mean away or the sign of the scale is
 * random, so that it cancels over a row. Every word of a block has a counter of its own: block * 32 + word.
 */
#include "tools/make-model/fill.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/tensor_type.h"
#include "tools/make-model/random.h"

#define WORDS_MAX 32 /* 64-bit words of a block, at most */

/* What the types' blocks are made of. */
struct make {
    uint32_t type;
    uint16_t n_levels;   /* of a quant */
    uint16_t at_d;       /* byte of d; a minimum follows it where there is one */
    bool has_minimum;    /* dmin or m */
    double scale_mean;   /* of a sub-block's integer scale */
    double minimum_of_d; /* the minimum that centres the quants, in units of d */
};

static const struct make makes[] = {
    {TENSOR_Q4_0, 16, 0, false, 1, 0},      {TENSOR_Q4_1, 16, 0, true, 1, -7.5},
    {TENSOR_Q5_0, 32, 0, false, 1, 0},      {TENSOR_Q5_1, 32, 0, true, 1, -15.5},
    {TENSOR_Q8_0, 256, 0, false, 1, 0},     {TENSOR_Q2_K, 4, 80, true, 11.5, 1.5},
    {TENSOR_Q3_K, 8, 108, false, 23.5, 0},  {TENSOR_Q4_K, 16, 0, true, 47.5, 7.5},
    {TENSOR_Q5_K, 32, 0, true, 47.5, 15.5}, {TENSOR_Q6_K, 64, 208, false, 95.5, 0},
};

static const struct make *make_find(uint32_t type)
{
    for (size_t i = 0; i < sizeof makes / sizeof makes[0]; i++)
        if (makes[i].type == type)
            return &makes[i];
    return NULL;
}

/* The nearest half float of a finite number; too large ones become the largest. */
static uint16_t half_of(double value)
{
    double size = fabs(value);
    unsigned sign = signbit(value) ? 0x8000u : 0;
    int exponent = size >= 0x1p-14 ? ilogb(size) : -14;
    long bits = lrint(ldexp(size, 10 - exponent)); /* 0..2048 */
    if (exponent > 15)
        return (uint16_t)(sign | 0x7bff);
    bits += (exponent + 14L) * 1024; /* a leading one carries into the exponent */
    return (uint16_t)(sign | (unsigned)(bits < 0x7bff ? bits : 0x7bff));
}

static uint16_t bfloat_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void fill_open(struct fill *f, uint32_t type, double mean, double sigma, uint64_t key)
{
    const struct make *make = make_find(type);
    double spread = sigma * sqrt(3.0); /* an even distribution over [-spread, spread] */
    memset(f, 0, sizeof *f);
    f->type = type;
    f->key = key;
    f->mean = (float)mean;
    f->spread = (float)spread;
    if (make != NULL) {
        double n = make->n_levels;
        double d = sigma / (sqrt((n * n - 1) / 12) * make->scale_mean);
        f->d = half_of(d);
        f->minimum = half_of(d * make->minimum_of_d);
    }
    for (size_t i = 0; i < FILL_LEVELS; i++) {
        double value = spread * ((2.0 * (double)i + 1) / FILL_LEVELS - 1);
        f->levels[i] = type == TENSOR_BF16 ? bfloat_of((float)value) : half_of(value);
    }
}

/* Eight scales of six bits, 32..63, which are the minima too: so every sub-block is centred. */
static void scales_of_6_bits(uint64_t random, uint8_t out[12])
{
    uint8_t scale[8];
    for (int j = 0; j < 8; j++)
        scale[j] = (uint8_t)(32 + (random >> 5 * j & 31));
    for (int j = 0; j < 4; j++) {
        uint8_t high = (uint8_t)(scale[j + 4] >> 4 << 6), low = scale[j + 4] & 15;
        out[j] = out[j + 4] = (uint8_t)(scale[j] | high);
        out[j + 8] = (uint8_t)(low | low << 4);
    }
}

/* Sixteen scales of 16..31 or -17..-32, stored with 32 added. */
static void scales_of_q3_k(uint64_t random, uint8_t out[12])
{
    uint64_t signs = random_mix(random);
    memset(out, 0, 12);
    for (unsigned j = 0; j < 16; j++) {
        unsigned magnitude = random >> 4 * j & 15;
        bool is_negative = signs >> j & 1;
        unsigned scale = is_negative ? 15 - magnitude : 48 + magnitude;
        out[j % 8] |= (uint8_t)((scale & 15) << j / 8 * 4);
        out[8 + j % 4] |= (uint8_t)(scale >> 4 << j / 4 * 2);
    }
}

/* What random bits alone would make wrong; `block` is full of them. `random` are further ones. */
static void scales_set(uint32_t type, uint64_t random, uint8_t *block)
{
    switch (type) {
    case TENSOR_Q2_K:
        for (int j = 0; j < 16; j++) {
            uint8_t scale = (uint8_t)(8 + (random >> 3 * j & 7));
            block[j] = (uint8_t)(scale | scale << 4);
        }
        break;
    case TENSOR_Q3_K: scales_of_q3_k(random, block + 96); break;
    case TENSOR_Q4_K:
    case TENSOR_Q5_K: scales_of_6_bits(random, block + 4); break;
    case TENSOR_Q6_K: /* 64..127, or its negative */
        for (int j = 0; j < 16; j++) {
            int8_t scale = (int8_t)(64 + (block[192 + j] & 63));
            if (block[192 + j] & 64)
                scale = (int8_t)-scale;
            memcpy(block + 192 + j, &scale, 1);
        }
        break;
    default: break;
    }
}

static void block_make(const struct fill *f, const struct make *make, size_t n_bytes, uint64_t at,
                       uint8_t *out)
{
    uint64_t words[WORDS_MAX], counter = at * WORDS_MAX;
    size_t n_words = (n_bytes + 7) / 8;
    uint16_t d = f->d;
    for (size_t i = 0; i < n_words; i++)
        words[i] = random_word(f->key, counter + i);
    memcpy(out, words, n_bytes);
    uint64_t random = random_word(f->key, counter + WORDS_MAX - 1);
    scales_set(f->type, random, out);
    if (!make->has_minimum && random >> 63)
        d |= 0x8000;
    memcpy(out + make->at_d, &d, sizeof d);
    if (make->has_minimum)
        memcpy(out + make->at_d + 2, &f->minimum, sizeof f->minimum);
}

static void floats_make(const struct fill *f, uint64_t first, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        int32_t random = (int32_t)(uint32_t)(random_word(f->key, at / 2) >> 32 * (at % 2));
        out[i] = f->mean + f->spread * (float)random * 0x1p-31f;
        if (f->row_scale != NULL)
            out[i] *= f->row_scale[at / f->row_values];
    }
}

static void halves_make(const struct fill *f, uint64_t first, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i += 4) {
        uint64_t random = random_word(f->key, (first + i) / 4);
        for (size_t k = 0; k < 4 && i + k < n; k++)
            out[i + k] = f->levels[random >> 16 * k & (FILL_LEVELS - 1)];
    }
}

void fill_blocks(const struct fill *f, uint64_t first, size_t n_blocks, void *out)
{
    const struct tensor_type_info *info = tensor_type_find(f->type);
    const struct make *make = make_find(f->type);
    assert(info != NULL && (make != NULL || first % 4 == 0));
    if (f->type == TENSOR_F32)
        floats_make(f, first, n_blocks, out);
    else if (make == NULL)
        halves_make(f, first, n_blocks, out);
    for (size_t i = 0; make != NULL && i < n_blocks; i++)
        block_make(f, make, info->block_bytes, first + i, (uint8_t *)out + i * info->block_bytes);
}
