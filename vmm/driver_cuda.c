/* vmm/driver_cuda.c - a CUDA card: the driver table over the CUDA driver's virtual memory calls.
 *
 * One to one: cuMemAddressReserve, cuMemCreate (pinned device memory), cuMemMap, cuMemSetAccess, cuMemUnmap, cuMemRelease.
 * None of them waits for running kernels, so they may be called while tokens flow, as long as nothing queued touches the
 * segment. What another process imports is created with a file descriptor to name it by. As on a CPU card, memory that is released while it is mapped lives until it is unmapped.
 *
 * libcuda is not linked: the static runtime finds the driver when the card is opened, and hands out its entry points. Memory
 * numbers come from cuMemGetInfo; what the context itself took is the difference that NVML (vmm/nvml.h) sees while it is made.
 * Without NVML it counts as foreign. NVML also names the processes that hold memory of the card.
 *
 * With a capacity, the process acts as if the card had no more: what it created is held against it, and free memory is the smaller
 * of what the capacity leaves and what the card really has. Threads: one owner. Lifetimes: whoever created and mapped gives back;
 * close() ends nothing but the table (the process' end frees all).
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vmm/driver.h"
#include "vmm/nvml.h"

struct piece {
    vmm_handle handle;
    size_t bytes, n_mappings;
    bool destroyed, imported; /* imported: another process' bytes */
};

struct mapping {
    void *base;
    vmm_handle handle;
};

struct cuda {
    int device;
    char uuid[64];
    uint64_t capacity_bytes, context_bytes, own_bytes;
    struct piece *pieces; /* owned; released and unmapped ones leave */
    struct mapping *mappings;
    size_t n_pieces, n_mappings, pieces_capacity, mappings_capacity;
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*memory)(size_t *, size_t *);
    CUresult (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                       unsigned long long);
    CUresult (*import)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    CUresult (*words)(CUresult, const char **);
};

static struct cuda *cuda_of(struct vmm_driver *d)
{
    return d->ctx;
}

static int refused(const struct cuda *c, const char *call, CUresult rc, struct error *err)
{
    const char *words = NULL;
    if (c->words(rc, &words) != CUDA_SUCCESS || words == NULL)
        words = "unknown error";
    return error_set(err, rc == CUDA_ERROR_OUT_OF_MEMORY ? EBB_ENOMEM : EBB_EDRIVER,
                     "cuda:%d: %s: %s (%d)", c->device, call, words, (int)rc);
}

static CUmemAllocationProp allocation_of(const struct cuda *c)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->device}};
}

/* Room for one more item; as long as the most that ever lived at once. */
static int list_room(void **items, size_t n, size_t *capacity, size_t item_bytes, struct error *err)
{
    if (n < *capacity)
        return 0;
    size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL)
        return error_set(err, EBB_ENOMEM, "cuda: no memory for the driver's lists");
    *items = grown;
    *capacity = wanted;
    return 0;
}

static struct piece *piece_find(struct cuda *c, vmm_handle handle)
{
    for (size_t i = 0; i < c->n_pieces; i++)
        if (c->pieces[i].handle == handle)
            return &c->pieces[i];
    return NULL;
}

/* Bytes are the card's again when a piece is released and mapped nowhere. */
static void piece_end(struct cuda *c, struct piece *p)
{
    if (!p->destroyed || p->n_mappings > 0)
        return;
    c->own_bytes -= p->imported ? 0 : p->bytes;
    *p = c->pieces[--c->n_pieces];
}

static int cuda_reserve(struct vmm_driver *d, size_t bytes, void **base, struct error *err)
{
    struct cuda *c = cuda_of(d);
    CUdeviceptr at = 0;
    CUresult rc = c->reserve(&at, bytes, d->granularity, 0, 0);
    *base = (void *)(uintptr_t)at;
    return rc == CUDA_SUCCESS ? 0 : refused(c, "reserve", rc, err);
}

static int cuda_unreserve(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct cuda *c = cuda_of(d);
    CUresult rc = c->unreserve((CUdeviceptr)(uintptr_t)base, bytes);
    return rc == CUDA_SUCCESS ? 0 : refused(c, "unreserve", rc, err);
}

static int piece_make(struct cuda *c, size_t bytes, const CUmemAllocationProp *prop,
                      vmm_handle *handle, struct error *err)
{
    *handle = 0;
    if (c->capacity_bytes > 0 && c->own_bytes + bytes > c->capacity_bytes)
        return error_set(err, EBB_ENOMEM,
                         "cuda:%d: create: %zu bytes are over the capacity of %llu", c->device,
                         bytes, (unsigned long long)c->capacity_bytes);
    int code =
        list_room((void **)&c->pieces, c->n_pieces, &c->pieces_capacity, sizeof *c->pieces, err);
    if (code != 0)
        return code;
    CUmemGenericAllocationHandle made = 0;
    CUresult rc = c->create(&made, bytes, prop, 0);
    if (rc != CUDA_SUCCESS)
        return refused(c, "create", rc, err);
    c->pieces[c->n_pieces++] = (struct piece){.handle = made, .bytes = bytes};
    c->own_bytes += bytes;
    *handle = made;
    return 0;
}

static int cuda_create(struct vmm_driver *d, size_t bytes, vmm_handle *handle, struct error *err)
{
    struct cuda *c = cuda_of(d);
    CUmemAllocationProp prop = allocation_of(c);
    return piece_make(c, bytes, &prop, handle, err);
}

static int cuda_destroy(struct vmm_driver *d, vmm_handle handle, struct error *err)
{
    struct cuda *c = cuda_of(d);
    struct piece *p = piece_find(c, handle);
    if (p == NULL || p->destroyed)
        return error_set(err, EBB_EDRIVER, "cuda:%d: destroy: no such memory", c->device);
    CUresult rc = c->release(handle);
    if (rc != CUDA_SUCCESS)
        return refused(c, "release", rc, err);
    p->destroyed = true;
    piece_end(c, p);
    return 0;
}

static int cuda_create_shared(struct vmm_driver *d, size_t bytes, vmm_handle *handle, int *fd,
                              struct error *err)
{
    struct cuda *c = cuda_of(d);
    CUmemAllocationProp prop = allocation_of(c);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int code = piece_make(c, bytes, &prop, handle, err);
    if (code != 0)
        return code;
    CUresult rc = c->export(fd, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (rc == CUDA_SUCCESS)
        return 0;
    (void)cuda_destroy(d, *handle, NULL);
    *handle = 0;
    return refused(c, "export", rc, err);
}

/* The driver takes no size: one that is not the memory's is refused when it is mapped. */
static int cuda_import(struct vmm_driver *d, int fd, size_t bytes, vmm_handle *handle,
                       struct error *err)
{
    struct cuda *c = cuda_of(d);
    CUmemGenericAllocationHandle got = 0;
    *handle = 0;
    int code =
        list_room((void **)&c->pieces, c->n_pieces, &c->pieces_capacity, sizeof *c->pieces, err);
    if (code != 0)
        return code;
    CUresult rc = c->import(&got, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (rc != CUDA_SUCCESS)
        return refused(c, "import", rc, err);
    c->pieces[c->n_pieces++] = (struct piece){.handle = got, .bytes = bytes, .imported = true};
    *handle = got;
    return 0;
}

static int cuda_map(struct vmm_driver *d, void *base, size_t bytes, vmm_handle handle,
                    struct error *err)
{
    struct cuda *c = cuda_of(d);
    struct piece *p = piece_find(c, handle);
    if (p == NULL || p->destroyed)
        return error_set(err, EBB_EDRIVER, "cuda:%d: map: no such memory", c->device);
    int code = list_room((void **)&c->mappings, c->n_mappings, &c->mappings_capacity,
                         sizeof *c->mappings, err);
    if (code != 0)
        return code;
    CUresult rc = c->map((CUdeviceptr)(uintptr_t)base, bytes, 0, handle, 0);
    if (rc != CUDA_SUCCESS)
        return refused(c, "map", rc, err);
    c->mappings[c->n_mappings++] = (struct mapping){.base = base, .handle = handle};
    p->n_mappings++;
    return 0;
}

static int cuda_set_access(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct cuda *c = cuda_of(d);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult rc = c->set_access((CUdeviceptr)(uintptr_t)base, bytes, &access, 1);
    return rc == CUDA_SUCCESS ? 0 : refused(c, "set_access", rc, err);
}

static int cuda_unmap(struct vmm_driver *d, void *base, size_t bytes, struct error *err)
{
    struct cuda *c = cuda_of(d);
    size_t i = 0;
    while (i < c->n_mappings && c->mappings[i].base != base)
        i++;
    if (i == c->n_mappings)
        return error_set(err, EBB_EDRIVER, "cuda:%d: unmap: %p + %zu is not mapped", c->device,
                         base, bytes);
    CUresult rc = c->unmap((CUdeviceptr)(uintptr_t)base, bytes);
    if (rc != CUDA_SUCCESS)
        return refused(c, "unmap", rc, err);
    struct piece *p = piece_find(c, c->mappings[i].handle);
    c->mappings[i] = c->mappings[--c->n_mappings];
    p->n_mappings--;
    piece_end(c, p);
    return 0;
}

static int cuda_memory(struct vmm_driver *d, struct vmm_memory *out, struct error *err)
{
    struct cuda *c = cuda_of(d);
    size_t free_bytes = 0, total_bytes = 0;
    CUresult rc = c->memory(&free_bytes, &total_bytes);
    if (rc != CUDA_SUCCESS)
        return refused(c, "memory", rc, err);
    *out = (struct vmm_memory){.total_bytes = total_bytes,
                               .free_bytes = free_bytes,
                               .own_bytes = c->own_bytes,
                               .beside_bytes = total_bytes - free_bytes - c->own_bytes,
                               .context_bytes = c->context_bytes};
    if (c->capacity_bytes > 0 && c->capacity_bytes < total_bytes) {
        /* create() keeps own below it, a library's bytes may be more */
        uint64_t left = c->own_bytes < c->capacity_bytes ? c->capacity_bytes - c->own_bytes : 0;
        out->total_bytes = c->capacity_bytes;
        out->free_bytes = left < free_bytes ? left : free_bytes;
        out->context_bytes = 0; /* beside what was allowed, not of it */
    }
    uint64_t told = out->free_bytes + out->own_bytes + out->context_bytes;
    out->foreign_bytes = told < out->total_bytes ? out->total_bytes - told : 0;
    return 0;
}

static void cuda_adopt(struct vmm_driver *d, int64_t bytes)
{
    cuda_of(d)->own_bytes += (uint64_t)bytes;
}

static void cuda_close(struct vmm_driver *d)
{
    struct cuda *c = cuda_of(d);
    if (c != NULL) {
        free(c->pieces);
        free(c->mappings);
        free(c);
    }
    *d = (struct vmm_driver){0};
}

static int entry_find(void **entry, const char *name, struct error *err)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t rc =
        cudaGetDriverEntryPointByVersion(name, entry, 12000, cudaEnableDefault, &found);
    if (rc == cudaSuccess && found == cudaDriverEntryPointSuccess)
        return 0;
    (void)cudaGetLastError();
    return error_set(err, EBB_EUNSUPPORTED, "cuda: this driver has no %s: it is too old", name);
}

static int entries_find(struct cuda *c, struct error *err)
{
    struct {
        void **entry;
        const char *name;
    } all[] = {{(void **)&c->reserve, "cuMemAddressReserve"},
               {(void **)&c->unreserve, "cuMemAddressFree"},
               {(void **)&c->create, "cuMemCreate"},
               {(void **)&c->release, "cuMemRelease"},
               {(void **)&c->map, "cuMemMap"},
               {(void **)&c->set_access, "cuMemSetAccess"},
               {(void **)&c->unmap, "cuMemUnmap"},
               {(void **)&c->granularity, "cuMemGetAllocationGranularity"},
               {(void **)&c->memory, "cuMemGetInfo"},
               {(void **)&c->export, "cuMemExportToShareableHandle"},
               {(void **)&c->import, "cuMemImportFromShareableHandle"},
               {(void **)&c->words, "cuGetErrorString"}};
    int code = 0;
    for (size_t i = 0; code == 0 && i < sizeof all / sizeof all[0]; i++)
        code = entry_find(all[i].entry, all[i].name, err);
    return code;
}

static int cuda_holders(struct vmm_driver *d, struct vmm_holder *out, size_t *n, struct error *err)
{
    (void)err;
    nvml_holders_read(cuda_of(d)->uuid, out, n);
    return 0;
}

static uint64_t nvml_used_bytes(const char *uuid)
{
    struct nvml_memory memory;
    return nvml_memory_read(uuid, &memory) ? memory.used : 0;
}

/* Versions are thousands and tens: 12040 is 12.4. */
static int driver_check(struct error *err)
{
    int has = 0, wants = 0;
    bool told =
        cudaDriverGetVersion(&has) == cudaSuccess && cudaRuntimeGetVersion(&wants) == cudaSuccess;
    (void)cudaGetLastError(); /* of a machine without a driver */
    if (!told || has == 0)
        return error_set(err, EBB_EDRIVER, "there is no NVIDIA driver here");
    if (has / 1000 < wants / 1000)
        return error_set(err, EBB_EDRIVER,
                         "the NVIDIA driver is too old: it is made for CUDA %d.%d, this program "
                         "for %d.%d",
                         has / 1000, has % 1000 / 10, wants / 1000, wants % 1000 / 10);
    return 0;
}

int vmm_cuda_count(int *n, struct error *err)
{
    *n = 0;
    int code = driver_check(err);
    if (code != 0)
        return code;
    cudaError_t rc = cudaGetDeviceCount(n);
    (void)cudaGetLastError();
    if (rc == cudaErrorNoDevice || (rc == cudaSuccess && *n == 0))
        return error_set(err, EBB_EDRIVER, "the NVIDIA driver shows no card");
    if (rc != cudaSuccess)
        return error_set(err, EBB_EDRIVER, "the NVIDIA driver: %s", cudaGetErrorString(rc));
    return 0;
}

int vmm_cuda_look(int device, struct vmm_cuda_card *card, struct error *err)
{
    struct cudaDeviceProp p;
    struct nvml_memory memory;
    struct error why = {0};
    int n;
    int code = vmm_cuda_count(&n, &why);
    if (code != 0)
        return error_set(err, code, "cuda:%d: %s", device, why.text);
    if (device >= n)
        return error_set(err, EBB_ENOENT, "cuda:%d: the NVIDIA driver shows %d card%s%s", device, n,
                         n == 1 ? "" : "s", n == 1 ? ", cuda:0" : ", numbered from 0");
    cudaError_t rc = cudaGetDeviceProperties(&p, device);
    if (rc != cudaSuccess)
        return error_set(err, EBB_EDRIVER, "cuda:%d: %s", device, cudaGetErrorString(rc));
    *card = (struct vmm_cuda_card){.major = p.major,
                                   .minor = p.minor,
                                   .total_bytes = p.totalGlobalMem,
                                   .free_bytes = p.totalGlobalMem};
    (void)snprintf(card->name, sizeof card->name, "%s", p.name);
    const unsigned char *b = (const unsigned char *)p.uuid.bytes;
    (void)snprintf(card->uuid, sizeof card->uuid,
                   "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
    if (nvml_memory_read(card->uuid, &memory) && memory.free < card->total_bytes)
        card->free_bytes = memory.free;
    return 0;
}

int vmm_cuda_check(int device, const struct vmm_cuda_card *card, struct error *err)
{
    if (card->major >= 8)
        return 0;
    return error_set(err, EBB_EUNSUPPORTED,
                     "cuda:%d: %s has compute capability %d.%d; 8.0 or newer is needed", device,
                     card->name, card->major, card->minor);
}

/* The primary context, with what it cost. */
static int context_open(struct cuda *c, struct error *err)
{
    struct vmm_cuda_card card;
    int code = vmm_cuda_look(c->device, &card, err);
    if (code == 0)
        code = vmm_cuda_check(c->device, &card, err);
    if (code != 0)
        return code;
    memcpy(c->uuid, card.uuid, sizeof c->uuid);
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    uint64_t before = nvml_used_bytes(card.uuid);
    cudaError_t rc = cudaInitDevice(c->device, cudaDeviceScheduleYield | cudaDeviceMapHost,
                                    cudaInitDeviceFlagsAreValid);
    if (rc == cudaSuccess)
        rc = cudaSetDevice(c->device);
    if (rc == cudaSuccess)
        rc = cudaFree(NULL);
    if (rc != cudaSuccess)
        return error_set(err, rc == cudaErrorMemoryAllocation ? EBB_ENOMEM : EBB_EDRIVER,
                         "cuda:%d: opening the card: %s", c->device, cudaGetErrorString(rc));
    uint64_t after = nvml_used_bytes(card.uuid);
    c->context_bytes = before > 0 && after > before ? after - before : 0;
    return 0;
}

int vmm_driver_cuda_open(struct vmm_driver *d, const struct vmm_cuda_settings *settings,
                         struct error *err)
{
    *d = (struct vmm_driver){0};
    struct cuda *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, EBB_ENOMEM, "cuda:%d: no memory for the driver", settings->device);
    c->device = settings->device;
    c->capacity_bytes = settings->capacity_bytes;
    size_t granularity = 0;
    int code = context_open(c, err);
    if (code == 0)
        code = entries_find(c, err);
    if (code == 0) {
        CUmemAllocationProp prop = allocation_of(c);
        CUresult rc = c->granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        if (rc != CUDA_SUCCESS)
            code = refused(c, "granularity", rc, err);
    }
    if (code != 0) {
        free(c);
        return code;
    }
    *d = (struct vmm_driver){.name = "cuda",
                             .granularity = granularity,
                             .ctx = c,
                             .reserve = cuda_reserve,
                             .unreserve = cuda_unreserve,
                             .create = cuda_create,
                             .destroy = cuda_destroy,
                             .map = cuda_map,
                             .set_access = cuda_set_access,
                             .unmap = cuda_unmap,
                             .memory = cuda_memory,
                             .holders = cuda_holders,
                             .adopt = cuda_adopt,
                             .close = cuda_close,
                             .create_shared = cuda_create_shared,
                             .import = cuda_import};
    return 0;
}
