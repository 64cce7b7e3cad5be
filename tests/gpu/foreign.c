/* tests/gpu/foreign.c - a program that has nothing to do with ebbtide and uses the same card.
 *
 *   gpu-foreign [--uuid GPU-...]    the card, by its UUID; default: the driver's first
 *   gpu-foreign --list              every card: "card <number> <uuid> <total MiB>"
 *
 * Reads a line, does it, answers with one line:
 *   attach       makes its context on the card (before that it holds nothing)
 *   allocate N   takes N MiB more by one cudaMalloc and writes to every page of it
 *   free         gives all of it back
 *   memory       changes nothing
 *   quit         ends, as the end of input does
 * The answer is "holds <MiB> free <MiB> total <MiB>", the last two by the driver, rounded down; or "refused <words>", and nothing
 * has changed. Exit: 0, 2 for a wrong call, 3 where no driver or no such card is.
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB        ((size_t)1 << 20)
#define BLOCKS_MAX 256
#define UUID_BYTES 48

struct foreign {
    int device;
    bool attached;
    void *blocks[BLOCKS_MAX];
    size_t n_blocks, held_mib;
};

static void uuid_write(const struct cudaDeviceProp *p, char uuid[UUID_BYTES])
{
    const unsigned char *b = (const unsigned char *)p->uuid.bytes;
    (void)snprintf(uuid, UUID_BYTES,
                   "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
}

/* The number of the card of that UUID (NULL: of the first), or -1. Lists them all where asked. */
static int card_find(const char *uuid, bool list)
{
    int n = 0, found = -1;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess)
        (void)fprintf(stderr, "gpu-foreign: %s\n", cudaGetErrorString(rc));
    for (int i = 0; rc == cudaSuccess && i < n; i++) {
        struct cudaDeviceProp p;
        char own[UUID_BYTES];
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess)
            continue;
        uuid_write(&p, own);
        if (list)
            (void)printf("card %d %s %zu\n", i, own, p.totalGlobalMem / MIB);
        if (found < 0 && (uuid == NULL || strcmp(uuid, own) == 0))
            found = i;
    }
    return found;
}

static cudaError_t attach(struct foreign *f)
{
    if (f->attached)
        return cudaSuccess;
    cudaError_t rc = cudaSetDevice(f->device);
    if (rc == cudaSuccess)
        rc = cudaFree(NULL);
    f->attached = rc == cudaSuccess;
    return rc;
}

static cudaError_t allocate(struct foreign *f, const char *number)
{
    char *end;
    size_t mib = strtoul(number, &end, 10);
    void *block = NULL;
    if (end == number || *end != '\0' || mib == 0 || mib > SIZE_MAX / MIB ||
        f->n_blocks == BLOCKS_MAX)
        return cudaErrorInvalidValue;
    cudaError_t rc = attach(f);
    if (rc == cudaSuccess)
        rc = cudaMalloc(&block, mib * MIB);
    if (rc == cudaSuccess) {
        f->blocks[f->n_blocks++] = block;
        f->held_mib += mib;
        rc = cudaMemset(block, 0xa5, mib * MIB);
    }
    return rc == cudaSuccess ? cudaDeviceSynchronize() : rc;
}

static cudaError_t give_back(struct foreign *f)
{
    cudaError_t rc = cudaSuccess;
    while (f->n_blocks > 0 && rc == cudaSuccess)
        rc = cudaFree(f->blocks[--f->n_blocks]);
    f->held_mib = 0;
    return rc;
}

/* What it holds and what the driver says is free; without a context there is nobody to ask. */
static void answer(const struct foreign *f, cudaError_t rc)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (rc == cudaSuccess && f->attached)
        rc = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (rc == cudaSuccess)
        (void)printf("holds %zu free %zu total %zu\n", f->held_mib, free_bytes / MIB,
                     total_bytes / MIB);
    else
        (void)printf("refused %s\n", cudaGetErrorString(rc));
    (void)fflush(stdout);
    (void)cudaGetLastError();
}

static void serve(struct foreign *f)
{
    char line[128];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (strcmp(line, "quit") == 0)
            return;
        if (strcmp(line, "attach") == 0)
            answer(f, attach(f));
        else if (strncmp(line, "allocate ", 9) == 0)
            answer(f, allocate(f, line + 9));
        else if (strcmp(line, "free") == 0)
            answer(f, give_back(f));
        else
            answer(f, strcmp(line, "memory") == 0 ? cudaSuccess : cudaErrorInvalidValue);
    }
}

int main(int argc, char **argv)
{
    struct foreign f = {.device = -1};
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    bool named = argc == 3 && strcmp(argv[1], "--uuid") == 0;
    if (argc > 1 && !list && !named) {
        (void)fputs("usage: gpu-foreign [--uuid GPU-... | --list]\n", stderr);
        return 2;
    }
    f.device = card_find(named ? argv[2] : NULL, list);
    if (f.device < 0) {
        (void)fputs("gpu-foreign: there is no such card\n", stderr);
        return 3;
    }
    if (!list)
        serve(&f);
    return 0;
}
