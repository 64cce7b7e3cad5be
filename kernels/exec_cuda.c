/* exec_cuda.c - the executor of a CUDA card: streams, events, graphs and registration through the CUDA runtime.
 *
 * One device a process, its primary context: open() makes it and close() leaves it to the process' end (a context costs more to
 * make than anything that could be saved by ending it early). Modules are loaded eagerly, so that nothing is allocated at a first
 * launch. The control thread never waits in the driver, except in stream_close() and close(), which let everything queued run
 * first; it has no descriptor to wait on (wake_fd is -1): it polls.
 *
 * Memory of shared_alloc() is pinned and mapped: one address for kernels and the control thread. Registered pages are read by
 * kernels at the host's own addresses; where the driver maps them elsewhere, registration is refused.
 *
 * Errors of the driver are sticky: after a failed launch every call fails, event_query() says so, and the process must end.
 * libcuda is not linked; the static runtime looks for it when open() asks for devices.
 */
#include "kernels/exec_cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A copy must not cross from one registration into another, so their borders are kept. */
struct registered {
    const unsigned char *base, *end;
};

struct exec {
    int device, n_multiprocessors;
    struct registered *registered; /* owned, in no order */
    size_t n_registered, registered_capacity;
};

struct exec_stream {
    struct exec *e;
    cudaStream_t stream;
    bool capturing;
    int failed; /* the first launch's code since open */
};

struct exec_event {
    struct exec *e;
    cudaEvent_t event;
    bool recorded;
};

struct exec_graph {
    cudaGraphExec_t graph;
};

struct exec_doorbell {
    struct exec *e;
    _Atomic uint64_t *value; /* pinned, mapped */
    uint64_t *numbers;       /* pinned: what copies ring with */
    size_t next;
};

#define DOORBELL_NUMBERS  1024
#define REGISTER_THREADS  8
#define REGISTER_PART_MIN ((size_t)1 << 21)

static int refused(struct error *err, const char *what, cudaError_t rc)
{
    int code = rc == cudaErrorMemoryAllocation ? EBB_ENOMEM : EBB_EDRIVER;
    (void)cudaGetLastError();
    return error_set(err, code, "%s: %s (%s)", what, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

static int code_of(cudaError_t rc)
{
    if (rc == cudaSuccess)
        return 0;
    return rc == cudaErrorMemoryAllocation ? EBB_ENOMEM : EBB_EDRIVER;
}

/* rc of a launch on s. A Debug build waits for it and says what came of it, at the launch that it came of. */
static int launch_checked(struct exec_stream *s, int rc)
{
#ifdef EBBTIDE_CHECK_LAUNCHES
    if (rc == 0 && !s->capturing)
        rc = code_of(cudaStreamSynchronize(s->stream));
#endif
    if (rc != 0 && s->failed == 0)
        s->failed = rc;
    return rc;
}

static int device_check(int device, struct error *err)
{
    int n = 0, major = 0, minor = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaErrorInsufficientDriver || rc == cudaErrorNoDevice ||
        (rc == cudaSuccess && n == 0))
        return error_set(err, EBB_EDRIVER, "no CUDA card: %s",
                         rc == cudaErrorInsufficientDriver
                             ? "there is no NVIDIA driver here, or it is too old for CUDA 13.0"
                             : "the driver lists none");
    if (rc != cudaSuccess)
        return refused(err, "cuda: counting cards", rc);
    if (device >= n)
        return error_set(err, EBB_ENOENT, "cuda:%d: this machine shows %d CUDA cards", device, n);
    rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (rc != cudaSuccess)
        return refused(err, "cuda: reading the card", rc);
    if (major < 8) {
        struct cudaDeviceProp p;
        bool named = cudaGetDeviceProperties(&p, device) == cudaSuccess;
        return error_set(err, EBB_EUNSUPPORTED,
                         "cuda:%d: %s has compute capability %d.%d; 8.0 or newer is needed", device,
                         named ? p.name : "this card", major, minor);
    }
    return 0;
}

static int cuda_open(struct exec **out, const struct exec_settings *settings, struct error *err)
{
    *out = NULL;
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    int code = device_check(settings->device, err);
    if (code != 0)
        return code;
    cudaError_t rc = cudaInitDevice(settings->device, cudaDeviceScheduleYield | cudaDeviceMapHost,
                                    cudaInitDeviceFlagsAreValid);
    if (rc == cudaSuccess)
        rc = cudaSetDevice(settings->device);
    if (rc != cudaSuccess)
        return refused(err, "cuda: opening the card", rc);
    struct exec *e = calloc(1, sizeof *e);
    if (e == NULL)
        return error_set(err, EBB_ENOMEM, "cuda: no memory for the executor");
    e->device = settings->device;
    rc = cudaDeviceGetAttribute(&e->n_multiprocessors, cudaDevAttrMultiProcessorCount,
                                settings->device);
    if (rc != cudaSuccess) {
        free(e);
        return refused(err, "cuda: reading the card", rc);
    }
    *out = e;
    return 0;
}

static void cuda_close(struct exec *e)
{
    if (e == NULL)
        return;
    (void)cudaDeviceSynchronize();
    free(e->registered);
    free(e);
}

static int cuda_stream_open(struct exec *e, struct exec_stream **out, struct error *err)
{
    *out = NULL;
    struct exec_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(err, EBB_ENOMEM, "cuda: no memory for a stream");
    s->e = e;
    cudaError_t rc = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    if (rc != cudaSuccess) {
        free(s);
        return refused(err, "cuda: opening a stream", rc);
    }
    *out = s;
    return 0;
}

static void cuda_stream_close(struct exec_stream *s)
{
    (void)cudaStreamSynchronize(s->stream);
    (void)cudaStreamDestroy(s->stream);
    free(s);
}

static void *cuda_stream_handle(struct exec_stream *s)
{
    return s->stream;
}

/* A thread begins on device 0, and a library that asks for the device and sets it again would make a context there. */
static int cuda_thread_enter(struct exec *e)
{
    return code_of(cudaSetDevice(e->device));
}

static int cuda_event_open(struct exec *e, struct exec_event **out, struct error *err)
{
    *out = NULL;
    struct exec_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return error_set(err, EBB_ENOMEM, "cuda: no memory for an event");
    event->e = e;
    cudaError_t rc = cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
    if (rc != cudaSuccess) {
        free(event);
        return refused(err, "cuda: opening an event", rc);
    }
    *out = event;
    return 0;
}

static void cuda_event_close(struct exec_event *event)
{
    (void)cudaEventDestroy(event->event);
    free(event);
}

static int cuda_event_record(struct exec_event *event, struct exec_stream *s)
{
    event->recorded = true;
    int rc = code_of(cudaEventRecord(event->event, s->stream));
    return s->failed != 0 ? s->failed : rc;
}

static int cuda_event_query(struct exec_event *event)
{
    cudaError_t rc = event->recorded ? cudaEventQuery(event->event) : cudaSuccess;
    if (rc == cudaSuccess)
        return 1;
    if (rc != cudaErrorNotReady)
        return code_of(rc);
    (void)cudaGetLastError();
    return 0;
}

static int cuda_stream_wait(struct exec_stream *s, struct exec_event *event)
{
    return event->recorded ? code_of(cudaStreamWaitEvent(s->stream, event->event, 0)) : 0;
}

/* Bytes from `from` on that lie on one side of every registration's borders. */
static size_t bytes_in_one(const struct exec *e, const unsigned char *from, size_t bytes)
{
    for (size_t i = 0; i < e->n_registered; i++) {
        const struct registered *r = &e->registered[i];
        const unsigned char *end = from + bytes;
        if (from < r->base && end > r->base)
            end = r->base;
        else if (from >= r->base && from < r->end && end > r->end)
            end = r->end;
        bytes = (size_t)(end - from);
    }
    return bytes;
}

static int cuda_copy(struct exec_stream *s, void *to, const void *from, size_t bytes)
{
    unsigned char *at = to;
    const unsigned char *source = from;
    int rc = 0;
    while (rc == 0 && bytes > 0) {
        size_t n = bytes_in_one(s->e, source, bytes);
        rc = code_of(cudaMemcpyAsync(at, source, n, cudaMemcpyDefault, s->stream));
        at += n;
        source += n;
        bytes -= n;
    }
    return rc;
}

static int cuda_fill(struct exec_stream *s, void *to, int byte, size_t bytes)
{
    return bytes == 0 ? 0 : code_of(cudaMemsetAsync(to, byte, bytes, s->stream));
}

static int cuda_capture_begin(struct exec_stream *s)
{
    if (s->capturing)
        return EBB_EINVAL;
    int rc = code_of(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    s->capturing = rc == 0;
    return rc;
}

static int cuda_capture_end(struct exec_stream *s, struct exec_graph **out, struct error *err)
{
    cudaGraph_t recorded = NULL;
    *out = NULL;
    if (!s->capturing)
        return error_set(err, EBB_EINVAL, "cuda: no capture runs on this stream");
    s->capturing = false;
    struct exec_graph *graph = calloc(1, sizeof *graph);
    cudaError_t rc = cudaStreamEndCapture(s->stream, &recorded);
    if (rc == cudaSuccess && graph != NULL)
        rc = cudaGraphInstantiate(&graph->graph, recorded, 0);
    if (rc == cudaSuccess && graph != NULL)
        rc = cudaGraphUpload(graph->graph, s->stream);
    if (recorded != NULL)
        (void)cudaGraphDestroy(recorded);
    if (rc != cudaSuccess || graph == NULL) {
        if (graph != NULL && graph->graph != NULL)
            (void)cudaGraphExecDestroy(graph->graph);
        free(graph);
        if (rc == cudaSuccess)
            return error_set(err, EBB_ENOMEM, "cuda: no memory for a graph");
        return refused(err, "cuda: making a graph", rc);
    }
    *out = graph;
    return 0;
}

static int cuda_graph_launch(struct exec_graph *graph, struct exec_stream *s)
{
    if (s->capturing)
        return EBB_EUNSUPPORTED;
    return launch_checked(s, code_of(cudaGraphLaunch(graph->graph, s->stream)));
}

static void cuda_graph_close(struct exec_graph *graph)
{
    if (graph == NULL)
        return;
    (void)cudaGraphExecDestroy(graph->graph);
    free(graph);
}

/* Registers part of a range, on a thread of its own: pinning is the kernel's work a page at a time, and several threads
 * do it several times as fast. */
struct registration {
    pthread_t thread;
    bool started;
    int device;
    unsigned char *base;
    size_t bytes;
    cudaError_t rc;
    bool moved; /* the card sees it at another address */
};

static void *registration_run(void *arg)
{
    struct registration *r = arg;
    void *seen = NULL;
    unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable | cudaHostRegisterReadOnly;
    r->rc = cudaSetDevice(r->device);
    if (r->rc == cudaSuccess)
        r->rc = cudaHostRegister(r->base, r->bytes, flags);
    if (r->rc != cudaSuccess)
        return NULL;
    r->rc = cudaHostGetDevicePointer(&seen, r->base, 0);
    r->moved = seen != r->base;
    if (r->rc != cudaSuccess || r->moved)
        (void)cudaHostUnregister(r->base);
    return NULL;
}

/* Room for the pieces of one range more. */
static int registered_room(struct exec *e, struct error *err)
{
    if (e->n_registered + REGISTER_THREADS <= e->registered_capacity)
        return 0;
    size_t wanted = 2 * e->registered_capacity + REGISTER_THREADS;
    struct registered *grown = realloc(e->registered, wanted * sizeof *grown);
    if (grown == NULL)
        return error_set(err, EBB_ENOMEM, "cuda: no memory for the list of registrations");
    e->registered = grown;
    e->registered_capacity = wanted;
    return 0;
}

static void registered_drop(struct exec *e, const unsigned char *base, const unsigned char *end)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->n_registered; i++) {
        struct registered r = e->registered[i];
        if (r.base < base || r.base >= end)
            e->registered[kept++] = r;
        else if (cudaHostUnregister((void *)(uintptr_t)r.base) != cudaSuccess)
            (void)cudaGetLastError();
    }
    e->n_registered = kept;
}

static int cuda_host_register(struct exec *e, const void *base, size_t bytes, struct error *err)
{
    struct registration parts[REGISTER_THREADS] = {{0}};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0, at = 0;
    size_t part = (bytes / REGISTER_THREADS + REGISTER_PART_MIN) / page * page;
    int code = registered_room(e, err);
    if (code != 0)
        return code;
    for (; at < bytes; at += parts[n++].bytes) {
        struct registration *r = &parts[n];
        size_t left = bytes - at;
        *r = (struct registration){.device = e->device,
                                   .base = (unsigned char *)(uintptr_t)base + at,
                                   .bytes = left < part || n + 1 == REGISTER_THREADS ? left : part};
        r->started = pthread_create(&r->thread, NULL, registration_run, r) == 0;
        if (!r->started)
            registration_run(r);
    }
    for (size_t i = 0; i < n; i++) {
        struct registration *r = &parts[i];
        if (r->started)
            (void)pthread_join(r->thread, NULL);
        if (r->rc == cudaSuccess && !r->moved)
            e->registered[e->n_registered++] =
                (struct registered){.base = r->base, .end = r->base + r->bytes};
        else if (code == 0 && r->rc != cudaSuccess)
            code = refused(err, "cuda: registering host memory", r->rc);
        else if (code == 0)
            code = error_set(err, EBB_EUNSUPPORTED,
                             "cuda: registered host memory has another address on the card");
    }
    if (code != 0)
        registered_drop(e, base, (const unsigned char *)base + bytes);
    return code;
}

static void cuda_host_unregister(struct exec *e, const void *base, size_t bytes)
{
    registered_drop(e, base, (const unsigned char *)base + bytes);
}

static int cuda_shared_alloc(struct exec *e, size_t bytes, void **base, struct error *err)
{
    (void)e;
    *base = NULL;
    cudaError_t rc =
        cudaHostAlloc(base, bytes > 0 ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable);
    if (rc != cudaSuccess) {
        *base = NULL;
        (void)refused(err, "cuda: shared memory", rc);
        return error_set(err, EBB_ENOMEM, "cuda: %zu bytes of shared memory: %s", bytes,
                         cudaGetErrorString(rc));
    }
    memset(*base, 0, bytes);
    return 0;
}

static void cuda_shared_free(struct exec *e, void *base)
{
    (void)e;
    if (base != NULL && cudaFreeHost(base) != cudaSuccess)
        (void)cudaGetLastError();
}

static int cuda_doorbell_open(struct exec *e, struct exec_doorbell **out, struct error *err)
{
    void *base = NULL;
    *out = NULL;
    int rc = cuda_shared_alloc(e, (1 + DOORBELL_NUMBERS) * sizeof(uint64_t), &base, err);
    if (rc != 0)
        return rc;
    struct exec_doorbell *bell = calloc(1, sizeof *bell);
    if (bell == NULL) {
        cuda_shared_free(e, base);
        return error_set(err, EBB_ENOMEM, "cuda: no memory for a doorbell");
    }
    bell->e = e;
    bell->value = base;
    bell->numbers = (uint64_t *)base + 1;
    *out = bell;
    return 0;
}

static void cuda_doorbell_close(struct exec_doorbell *bell)
{
    cuda_shared_free(bell->e, (void *)bell->value);
    free(bell);
}

/* A copy of 8 bytes between pinned places, in stream order. At most DOORBELL_NUMBERS rings may be queued. */
static int cuda_doorbell_ring(struct exec_doorbell *bell, struct exec_stream *s, uint64_t value)
{
    uint64_t *from = &bell->numbers[bell->next++ % DOORBELL_NUMBERS];
    *from = value;
    return cuda_copy(s, (void *)bell->value, from, sizeof *from);
}

static uint64_t cuda_doorbell_read(const struct exec_doorbell *bell)
{
    return atomic_load_explicit(bell->value, memory_order_acquire);
}

static int cuda_wake_fd(struct exec *e)
{
    (void)e;
    return -1;
}

static void cuda_wake_clear(struct exec *e)
{
    (void)e;
}

cudaStream_t exec_cuda_stream(const struct exec_stream *s)
{
    return s->stream;
}

int exec_cuda_n_multiprocessors(const struct exec_stream *s)
{
    return s->e->n_multiprocessors;
}

int exec_cuda_launched(struct exec_stream *s)
{
    return launch_checked(s, code_of(cudaGetLastError()));
}

const struct exec_driver exec_cuda = {
    .name = "cuda",
    .is_device = true,
    .open = cuda_open,
    .close = cuda_close,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_handle = cuda_stream_handle,
    .thread_enter = cuda_thread_enter,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .stream_wait = cuda_stream_wait,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_close = cuda_graph_close,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .shared_alloc = cuda_shared_alloc,
    .shared_free = cuda_shared_free,
    .doorbell_open = cuda_doorbell_open,
    .doorbell_close = cuda_doorbell_close,
    .doorbell_ring = cuda_doorbell_ring,
    .doorbell_read = cuda_doorbell_read,
    .wake_fd = cuda_wake_fd,
    .wake_clear = cuda_wake_clear,
};
