/* embed.cu - rows of the embedding table as fp32, of any type. Tier 1: the values of dequantise.c, built by weights.h.
 *
 * table [n_vocab][d_model], hidden [n_rows][d_model]. One thread a block of 32 values (plain types: values in turn). Tokens
 * outside the vocabulary give zeros. The table may lie anywhere that the card reads, at any even address.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/launch.cuh"
#include "kernels/ops_cuda.h"
#include "kernels/weights.h"

#define EMBED_THREADS 64
#define EMBED_VALUES  512 /* of a block, where a thread takes values */

struct embed_job {
    struct embed_args args;
    size_t row_bytes; /* of the table */
};

/* The row's place in the table, or NULL for a token outside the vocabulary. */
static __device__ const unsigned char *embed_row(const struct embed_job &job)
{
    const struct embed_args &p = job.args;
    int32_t token = p.tokens[blockIdx.x];
    if (token < 0 || (size_t)token >= p.n_vocab)
        return NULL;
    return (const unsigned char *)p.table + (size_t)token * job.row_bytes;
}

template <uint32_t TYPE> static __global__ void embed_blocks_kernel(const struct embed_job job)
{
    const struct embed_args &p = job.args;
    overlap_wait();
    overlap_announce();
    size_t k = (size_t)blockIdx.y * EMBED_THREADS + threadIdx.x;
    if (k >= p.d_model / 32)
        return;
    const unsigned char *from = embed_row(job);
    float *to = p.hidden + blockIdx.x * p.d_model + 32 * k;
    if (from == NULL) {
        for (int i = 0; i < 32; i++)
            to[i] = 0.0f;
        return;
    }
    struct weights w = weights_load(TYPE, from, k);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float value = w.a * (float)w.scale[i / 16] * (float)w.q[i];
        to[i] = w.minima ? value - w.b * (float)w.minimum[i / 16] : value;
    }
}

template <uint32_t TYPE> static __device__ float embed_value(const unsigned char *from, size_t i)
{
    if (TYPE == TENSOR_F32)
        return ((const float *)from)[i];
    uint16_t bits = ((const uint16_t *)from)[i];
    return TYPE == TENSOR_F16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <uint32_t TYPE> static __global__ void embed_plain_kernel(const struct embed_job job)
{
    const struct embed_args &p = job.args;
    overlap_wait();
    overlap_announce();
    const unsigned char *from = embed_row(job);
    size_t i = (size_t)blockIdx.y * EMBED_VALUES + threadIdx.x;
#pragma unroll
    for (int j = 0; j < EMBED_VALUES / EMBED_THREADS; j++, i += EMBED_THREADS)
        if (i < p.d_model)
            p.hidden[blockIdx.x * p.d_model + i] = from == NULL ? 0.0f : embed_value<TYPE>(from, i);
}

template <uint32_t TYPE>
static int embed_launch(const struct embed_args *args, size_t row_bytes, struct exec_stream *s)
{
    struct embed_job job = {*args, row_bytes};
    constexpr bool plain = TYPE == TENSOR_F32 || TYPE == TENSOR_F16 || TYPE == TENSOR_BF16;
    constexpr size_t block = plain ? EMBED_VALUES : 32 * EMBED_THREADS; /* values */
    dim3 grid((unsigned)args->n_rows, (unsigned)((args->d_model + block - 1) / block));
    if constexpr (plain)
        launch(embed_plain_kernel<TYPE>, grid, EMBED_THREADS, &job, s);
    else
        launch(embed_blocks_kernel<TYPE>, grid, EMBED_THREADS, &job, s);
    return exec_cuda_launched(s);
}

int embed_cuda(const struct embed_args *args, struct exec_stream *s)
{
    size_t row_bytes = tensor_row_bytes(args->type, args->d_model);
    if (row_bytes == 0)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    switch (args->type) {
    case TENSOR_F32: return embed_launch<TENSOR_F32>(args, row_bytes, s);
    case TENSOR_F16: return embed_launch<TENSOR_F16>(args, row_bytes, s);
    case TENSOR_BF16: return embed_launch<TENSOR_BF16>(args, row_bytes, s);
    case TENSOR_Q4_0: return embed_launch<TENSOR_Q4_0>(args, row_bytes, s);
    case TENSOR_Q4_1: return embed_launch<TENSOR_Q4_1>(args, row_bytes, s);
    case TENSOR_Q5_0: return embed_launch<TENSOR_Q5_0>(args, row_bytes, s);
    case TENSOR_Q5_1: return embed_launch<TENSOR_Q5_1>(args, row_bytes, s);
    case TENSOR_Q8_0: return embed_launch<TENSOR_Q8_0>(args, row_bytes, s);
    case TENSOR_Q2_K: return embed_launch<TENSOR_Q2_K>(args, row_bytes, s);
    case TENSOR_Q3_K: return embed_launch<TENSOR_Q3_K>(args, row_bytes, s);
    case TENSOR_Q4_K: return embed_launch<TENSOR_Q4_K>(args, row_bytes, s);
    case TENSOR_Q5_K: return embed_launch<TENSOR_Q5_K>(args, row_bytes, s);
    case TENSOR_Q6_K: return embed_launch<TENSOR_Q6_K>(args, row_bytes, s);
    }
    return EBB_EUNSUPPORTED;
}
