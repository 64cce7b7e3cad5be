/* kernels/copy_async.cuh - rows of bytes from global memory into shared memory by cp.async, from any even address. Internal to
 * *.cu. Shared memory is named by byte offsets into rows_shared.
 */
#pragma once
#include <stdint.h>

extern __shared__ __align__(16) unsigned char rows_shared[];

static __device__ __forceinline__ void copy_async16(unsigned to, const void *from)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(rows_shared) + to;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

static __device__ __forceinline__ void copy_async4(unsigned to, const void *from)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(rows_shared) + to;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most `left` groups of this thread are on their way; left <= 3. */
static __device__ __forceinline__ void copy_wait(unsigned left)
{
    if (left == 0)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (left == 1)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (left == 2)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 3;" ::: "memory");
}

/* `bytes` of a row, a multiple of 16, to a multiple of 16; one warp. */
static __device__ __forceinline__ void copy_wide(unsigned to, const unsigned char *from,
                                                 unsigned bytes)
{
    const unsigned lane = threadIdx.x % 32;
    if (((uintptr_t)from & 15) == 0)
#pragma unroll 2
        for (unsigned i = 16 * lane; i < bytes; i += 16 * 32)
            copy_async16(to + i, from + i);
    else
#pragma unroll 1
        for (unsigned i = 2 * lane; i < bytes; i += 2 * 32)
            *(uint16_t *)(rows_shared + to + i) = *(const uint16_t *)(from + i);
}

/* `bytes` of a row from an even address: the words that hold them, so that `to` gets the word of the first byte. Of words that
 * reach out of [first, last) only the half inside is read; one warp. */
static __device__ __forceinline__ void copy_narrow(unsigned to, const unsigned char *from,
                                                   unsigned bytes, const unsigned char *first,
                                                   const unsigned char *last)
{
    const unsigned off = (uintptr_t)from & 3, lane = threadIdx.x % 32;
    const unsigned end = off + bytes;
    from -= off;
    if (from >= first && from + end + 2 <= last) {
#pragma unroll 4
        for (unsigned i = 4 * lane; i < end; i += 4 * 32)
            copy_async4(to + i, from + i);
        return;
    }
#pragma unroll 1
    for (unsigned i = 4 * lane; i < end; i += 4 * 32) {
        const unsigned char *word = from + i;
        if (word >= first && word + 4 <= last)
            copy_async4(to + i, word);
        else if (word < first)
            *(uint16_t *)(rows_shared + to + i + 2) = *(const uint16_t *)(word + 2);
        else
            *(uint16_t *)(rows_shared + to + i) = *(const uint16_t *)word;
    }
}
