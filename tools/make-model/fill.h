/* tools/make-model/fill.h - random blocks of any type whose values have a wanted spread.
 *
 * The quants of a block are random bits, so its values are evenly distributed over their range; what is chosen are
 * the scales: such that the mean is 0 and the standard deviation `sigma`. Scales of sub-blocks vary by a factor of 2,
 * as they do in real files. Block b is a function of (key, b) alone.
 *
 * Layouts: ggml-org/ggml's block structures, of which kernels/blocks.h says the meaning.
 * Threads: filling only reads. Lifetime: row_scale is borrowed.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define FILL_LEVELS 1024

struct fill {
    uint32_t type; /* enum tensor_type */
    uint64_t key;
    uint16_t d, minimum;          /* half floats: of a block */
    uint16_t levels[FILL_LEVELS]; /* F16, BF16: the values there are, one drawn like the other */
    float mean, spread;           /* F32: mean + spread * [-1, 1) */
    const float *row_scale;       /* F32: rows are multiplied by it; NULL: they are not */
    size_t row_values;
};

/* sigma > 0; mean is for F32 only. */
void fill_open(struct fill *f, uint32_t type, double mean, double sigma, uint64_t key);

/* Blocks first .. first + n_blocks - 1 into `out`; of types without blocks a value counts as one, and `first` is a
 * multiple of 4. */
void fill_blocks(const struct fill *f, uint64_t first, size_t n_blocks, void *out);
