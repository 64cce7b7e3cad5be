/* kernels/block_bytes.cuh - the size of a quantised type's block as a constant of the compiler, for kernels that are made once for
 * each type. Internal to *.cu; the table for all other code is tensor_type.h, and experts_rows_test and its neighbours would
 * miss every row if the two differed.
 */
#pragma once
#include "kernels/tensor_type.h"

/* Bytes of a block of 32 or, from Q2_K on, 256 values. type: a quantised one. */
static __host__ __device__ constexpr unsigned block_bytes(uint32_t type)
{
    return type == TENSOR_Q4_0   ? 18
           : type == TENSOR_Q4_1 ? 20
           : type == TENSOR_Q5_0 ? 22
           : type == TENSOR_Q5_1 ? 24
           : type == TENSOR_Q8_0 ? 34
           : type == TENSOR_Q2_K ? 84
           : type == TENSOR_Q3_K ? 110
           : type == TENSOR_Q4_K ? 144
           : type == TENSOR_Q5_K ? 176
                                 : 210;
}
