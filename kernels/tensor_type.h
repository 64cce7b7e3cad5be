/* kernels/tensor_type.h - how a tensor's values are stored: the GGUF type numbers and the geometry of their blocks.
 *
 * Header-only on purpose: with protocol/error.h one of the two headers that any room may include. The model
 * reader needs the sizes, the kernels the layouts; both must mean the same thing by a number.
 * Source of numbers and sizes: the GGUF specification (ggml-org/ggml, docs/gguf.md) and its block structures.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q2_K = 10,
    TENSOR_Q3_K = 11,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_BF16 = 30,
};

struct tensor_type_info {
    uint32_t type;
    const char *name;
    uint32_t block_values; /* values in one block; a row is a whole number of blocks */
    uint32_t block_bytes;
};

/* The type's geometry, or NULL for a number that is not computed with. */
static inline const struct tensor_type_info *tensor_type_find(uint32_t type)
{
    static const struct tensor_type_info table[] = {
        {TENSOR_F32, "F32", 1, 4},       {TENSOR_F16, "F16", 1, 2},
        {TENSOR_BF16, "BF16", 1, 2},     {TENSOR_Q4_0, "Q4_0", 32, 18},
        {TENSOR_Q4_1, "Q4_1", 32, 20},   {TENSOR_Q5_0, "Q5_0", 32, 22},
        {TENSOR_Q5_1, "Q5_1", 32, 24},   {TENSOR_Q8_0, "Q8_0", 32, 34},
        {TENSOR_Q2_K, "Q2_K", 256, 84},  {TENSOR_Q3_K, "Q3_K", 256, 110},
        {TENSOR_Q4_K, "Q4_K", 256, 144}, {TENSOR_Q5_K, "Q5_K", 256, 176},
        {TENSOR_Q6_K, "Q6_K", 256, 210},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].type == type)
            return &table[i];
    return NULL;
}

/* Bytes of one row of n_values of a known type; 0 if the row is not a whole number of blocks. */
static inline size_t tensor_row_bytes(uint32_t type, size_t n_values)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    if (info == NULL || n_values % info->block_values != 0)
        return 0;
    return n_values / info->block_values * info->block_bytes;
}
