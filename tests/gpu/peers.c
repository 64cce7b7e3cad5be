/* tests/gpu/peers.c - copies between two cards: into plain memory of the second, and into memory shared as a link's ring is.
 *
 *   gpu-peers A B      the cards' numbers, as the driver counts
 *
 * Prints "<plain|link> <bytes> <us of a copy> <GB/s>" a line: copies of the first card's stream, one behind the other, the best of
 * five rounds. The link's memory is made, named by a descriptor and mapped by the calls that stages make (vmm/region.h); one process
 * plays both sides. Exit: 0, 1 where a call fails (its words on stderr), 2 for a wrong call.
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "vmm/region.h"

#define BUFFER_BYTES ((size_t)256 << 20)
#define ROUNDS       5

static const size_t sizes[] = {4096, 8192, (size_t)1 << 20, (size_t)4 << 20, BUFFER_BYTES};

struct pair {
    int from, to;
    struct vmm_driver driver_from, driver_to;
    struct fixed_block ring, mapped;
    void *source, *plain;
    cudaStream_t stream;
    cudaEvent_t begin, end;
};

static bool is_good(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess)
        (void)fprintf(stderr, "gpu-peers: %s: %s\n", what, cudaGetErrorString(rc));
    return rc == cudaSuccess;
}

/* The ring is the second card's, and the first one maps it. */
static bool ring_open(struct pair *p)
{
    struct vmm_cuda_settings from = {.device = p->from}, to = {.device = p->to};
    struct error err = {0};
    int fd = -1;
    int rc = vmm_driver_cuda_open(&p->driver_to, &to, &err);
    if (rc == 0)
        rc = fixed_block_open_shared(&p->ring, &p->driver_to, BUFFER_BYTES, &fd, &err);
    if (rc == 0)
        rc = vmm_driver_cuda_open(&p->driver_from, &from, &err);
    if (rc == 0)
        rc = fixed_block_open_imported(&p->mapped, &p->driver_from, BUFFER_BYTES, fd, &err);
    if (rc != 0)
        (void)fprintf(stderr, "gpu-peers: %s\n", err.text);
    return rc == 0;
}

static bool pair_open(struct pair *p)
{
    return ring_open(p) && is_good(cudaSetDevice(p->to), "the second card") &&
           is_good(cudaMalloc(&p->plain, BUFFER_BYTES), "its memory") &&
           is_good(cudaSetDevice(p->from), "the first card") &&
           is_good(cudaMalloc(&p->source, BUFFER_BYTES), "its memory") &&
           is_good(cudaDeviceEnablePeerAccess(p->to, 0), "access to the other card") &&
           is_good(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking), "a stream") &&
           is_good(cudaEventCreate(&p->begin), "an event") &&
           is_good(cudaEventCreate(&p->end), "an event");
}

/* Milliseconds of n copies; < 0: a call failed. */
static float copies_time(struct pair *p, void *to, size_t bytes, int n)
{
    float ms = -1;
    bool good = is_good(cudaEventRecord(p->begin, p->stream), "recording");
    for (int i = 0; good && i < n; i++)
        good =
            is_good(cudaMemcpyAsync(to, p->source, bytes, cudaMemcpyDefault, p->stream), "a copy");
    good = good && is_good(cudaEventRecord(p->end, p->stream), "recording") &&
           is_good(cudaStreamSynchronize(p->stream), "copying") &&
           is_good(cudaEventElapsedTime(&ms, p->begin, p->end), "timing");
    return good ? ms : -1;
}

static bool place_time(struct pair *p, const char *name, void *to, size_t bytes)
{
    int n = bytes > ((size_t)1 << 22) ? 10 : 200;
    float best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        float ms = copies_time(p, to, bytes, n);
        if (ms < 0)
            return false;
        best = round == 0 || ms < best ? ms : best;
    }
    double us = (double)best * 1e3 / n;
    (void)printf("%s %zu %.3f %.2f\n", name, bytes, us, (double)bytes / us * 1e-3);
    return true;
}

int main(int argc, char **argv)
{
    struct pair p = {0};
    bool good = argc == 3;
    if (!good) {
        (void)fputs("usage: gpu-peers A B\n", stderr);
        return 2;
    }
    p.from = atoi(argv[1]);
    p.to = atoi(argv[2]);
    good = pair_open(&p);
    for (size_t i = 0; good && i < sizeof sizes / sizeof sizes[0]; i++)
        good = place_time(&p, "plain", p.plain, sizes[i]) &&
               place_time(&p, "link", p.mapped.base, sizes[i]);
    return good ? 0 : 1;
}
