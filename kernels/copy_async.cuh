/* kernels/copy_async.cuh - bytes from global memory into shared memory by cp.async, from any even address. Internal to *.cu.
 * Shared memory is named by byte offsets into rows_shared.
 */
#pragma once
#include <stdint.h>

extern __shared__ __align__(16) unsigned char rows_shared[];

static __device__ __forceinline__ void copy_async16(unsigned to, const void *from)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(rows_shared) + to;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
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

/* The bytes [from, from + bytes) two by two; all threads. */
static __device__ __noinline__ void copy_pairs(unsigned to, const unsigned char *from,
                                               unsigned bytes)
{
    for (unsigned i = 2 * threadIdx.x; i < bytes; i += 2 * blockDim.x)
        *(uint16_t *)(rows_shared + to + i) = *(const uint16_t *)(from + i);
}

/* `bytes` of a matrix [first, last) from an even address to `to`, a multiple of 16, where they keep their place within 16 bytes:
 * byte 0 goes to to + (from & 15). Nothing outside the matrix is read. All threads. */
static __device__ __forceinline__ void copy_in_place(unsigned to, const unsigned char *from,
                                                     unsigned bytes, const unsigned char *first,
                                                     const unsigned char *last)
{
    const unsigned off = (uintptr_t)from & 15;
    const unsigned char *base = from - off;
    unsigned whole = (off + bytes + 15) & ~15u; /* bytes of words that cp.async may take */
    if (base < first) {                         /* the matrix begins within a word */
        copy_pairs(to + off, from, min(16 - off, bytes));
        to += 16, base += 16, whole -= 16;
    }
    if (whole != 0 && base + whole > last) { /* or ends in one */
        whole -= 16;
        copy_pairs(to + whole, base + whole, (unsigned)(last - (base + whole)));
    }
#pragma unroll 4
    for (unsigned i = 16 * threadIdx.x; i < whole; i += 16 * blockDim.x)
        copy_async16(to + i, base + i);
}

/* The same to `to` itself; fast where `from` is a multiple of 16. `bytes` is one. */
static __device__ __forceinline__ void copy_aligned(unsigned to, const unsigned char *from,
                                                    unsigned bytes)
{
    if (((uintptr_t)from & 15) != 0) {
        copy_pairs(to, from, bytes);
        return;
    }
#pragma unroll 4
    for (unsigned i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        copy_async16(to + i, from + i);
}
