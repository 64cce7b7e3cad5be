/* tests/fake_nccl.c - libnccl.so.2 for CPU cards: the calls that stages/nccl.h lists, over unix sockets between the stages of one host.
 *
 * It keeps to what is hard about NCCL. A call is under way until the asynchronous result was asked for a few times, and only then stands
 * on its stream; another call meanwhile is refused. What stands on a stream holds that stream until the peer's counterpart stands on its
 * own, for ever if need be, also when the peer is dead, until the communicator is aborted; and abort waits for it.
 * FAKE_NCCL_FAILS=init|send makes that call fail on its stage. FAKE_NCCL_BYTES: what a communicator takes of the card, told to the program
 * if it has device_stage_library_bytes().
 * Where it is loaded, exec_cpu_push() is the program's own. Threads: any.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "kernels/exec.h"

#define SUCCESS      0
#define SYSTEM_ERROR 2
#define BAD_ARGUMENT 4
#define BAD_USAGE    5
#define IN_PROGRESS  7
#define ASKS         3 /* of the asynchronous result, until a call is done */

struct id {
    char name[128];
};

struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct comm {
    int fd, rank;
    _Atomic int state; /* of making it */
    atomic_bool aborted;
    _Atomic int n_standing; /* calls that stand on a stream */
    bool under_way;
    int n_asks;
    struct call {
        struct comm *comm;
        unsigned char *at;
        size_t bytes;
        bool sends;
    } call;
    struct exec_stream *stream;
    struct id id;
    pthread_t maker;
    long bytes;
};

/* In the test program, if it counts. */
void device_stage_library_bytes(long bytes) __attribute__((weak));

static struct {
    pthread_mutex_t lock;
    int fd[64];
    char name[64][128];
    size_t n;
} listeners = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool fails(const char *what)
{
    const char *told = getenv("FAKE_NCCL_FAILS");
    return told != NULL && strcmp(told, what) == 0;
}

static socklen_t address_of(struct sockaddr_un *sa, const char *name)
{
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(sa->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

int ncclGetVersion(int *version);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRankConfig(struct comm **out, int n_ranks, struct id id, int rank,
                           struct config *config);
int ncclCommGetAsyncError(struct comm *c, int *result);
int ncclSend(const void *from, size_t n, int type, int peer, struct comm *c, void *stream);
int ncclRecv(void *to, size_t n, int type, int peer, struct comm *c, void *stream);
int ncclCommAbort(struct comm *c);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(struct comm *c);

int ncclGetVersion(int *version)
{
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(struct id *id)
{
    static _Atomic unsigned n_made;
    struct sockaddr_un sa;
    memset(id, 0, sizeof *id);
    (void)snprintf(id->name, sizeof id->name, "fake-nccl-%d-%u", (int)getpid(), n_made++);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t n = address_of(&sa, id->name);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, n) != 0 || listen(fd, 1) != 0)
        return SYSTEM_ERROR;
    pthread_mutex_lock(&listeners.lock);
    size_t i = listeners.n++ % 64;
    listeners.fd[i] = fd;
    memcpy(listeners.name[i], id->name, sizeof id->name);
    pthread_mutex_unlock(&listeners.lock);
    return SUCCESS;
}

/* Whose id this is listens; -1: another process does. */
static int listener_take(const char *name)
{
    int fd = -1;
    pthread_mutex_lock(&listeners.lock);
    for (size_t i = 0; i < 64; i++)
        if (strcmp(listeners.name[i], name) == 0) {
            fd = listeners.fd[i];
            listeners.name[i][0] = '\0';
        }
    pthread_mutex_unlock(&listeners.lock);
    return fd;
}

/* Readable within a while, or aborted. */
static bool wait_readable(const struct comm *c, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (!atomic_load(&c->aborted)) {
        int n = poll(&p, 1, 1);
        if (n > 0)
            return true;
    }
    return false;
}

static void *make(void *arg)
{
    struct comm *c = arg;
    struct sockaddr_un sa;
    int listener = c->rank == 1 ? listener_take(c->id.name) : -1;
    int fd = -1;
    if (c->rank == 1) {
        if (wait_readable(c, listener))
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        (void)close(listener);
    } else {
        socklen_t n = address_of(&sa, c->id.name);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, n) != 0) {
            (void)close(fd);
            fd = -1;
        }
    }
    c->fd = fd;
    atomic_store(&c->state, fd >= 0 ? SUCCESS : SYSTEM_ERROR);
    return NULL;
}

int ncclCommInitRankConfig(struct comm **out, int n_ranks, struct id id, int rank,
                           struct config *config)
{
    if (n_ranks != 2 || config->magic != 0xcafebeefu || config->blocking != 0 || fails("init"))
        return BAD_ARGUMENT;
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return SYSTEM_ERROR;
    const char *bytes = getenv("FAKE_NCCL_BYTES");
    *out = c;
    c->rank = rank;
    c->id = id;
    c->fd = -1;
    c->bytes = bytes != NULL ? atol(bytes) : 0;
    if (device_stage_library_bytes != NULL)
        device_stage_library_bytes(c->bytes);
    atomic_store(&c->state, IN_PROGRESS);
    return pthread_create(&c->maker, NULL, make, c) == 0 ? IN_PROGRESS : SYSTEM_ERROR;
}

/* All of it, or the communicator was aborted. A peer that is gone is waited for like one that is late. */
static void move_all(const struct comm *c, unsigned char *at, size_t n, bool sends)
{
    size_t done = 0;
    while (done < n && !atomic_load(&c->aborted)) {
        ssize_t got = sends ? send(c->fd, at + done, n - done, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : recv(c->fd, at + done, n - done, MSG_DONTWAIT);
        if (got > 0)
            done += (size_t)got;
        else
            (void)usleep(50);
    }
}

/* The receiver says that it stands there, and only then do rows flow. Its call ends when the sender has said that it will not look at its
 * rows again: a sanitizer does not conclude that from the rows having come. */
static void run_call(const void *args, struct exec_cpu_worker *w)
{
    const struct call *call = args;
    struct comm *c = call->comm;
    (void)w;
    uint64_t bytes = call->bytes;
    unsigned char was_read = 1;
    if (call->sends) {
        move_all(c, (unsigned char *)&bytes, sizeof bytes, false);
        if (bytes != call->bytes && !atomic_load(&c->aborted))
            abort(); /* as NCCL: undefined */
        move_all(c, call->at, call->bytes, true);
        move_all(c, &was_read, sizeof was_read, true);
    } else {
        move_all(c, (unsigned char *)&bytes, sizeof bytes, true);
        move_all(c, call->at, call->bytes, false);
        move_all(c, &was_read, sizeof was_read, false);
    }
    atomic_fetch_sub(&c->n_standing, 1);
}

int ncclCommGetAsyncError(struct comm *c, int *result)
{
    *result = atomic_load(&c->state);
    if (*result != SUCCESS || !c->under_way)
        return SUCCESS;
    *result = IN_PROGRESS;
    if (--c->n_asks > 0)
        return SUCCESS;
    atomic_fetch_add(&c->n_standing, 1);
    c->under_way = false;
    *result =
        exec_cpu_push(c->stream, run_call, &c->call, sizeof c->call) == 0 ? SUCCESS : SYSTEM_ERROR;
    return SUCCESS;
}

static int call_begin(struct comm *c, unsigned char *at, size_t n, bool sends, void *stream)
{
    if (c->under_way || atomic_load(&c->state) != SUCCESS)
        return BAD_USAGE;
    if (fails("send") && sends)
        return SYSTEM_ERROR;
    c->call = (struct call){.comm = c, .at = at, .bytes = n, .sends = sends};
    c->stream = stream;
    c->under_way = true;
    c->n_asks = ASKS;
    return IN_PROGRESS;
}

int ncclSend(const void *from, size_t n, int type, int peer, struct comm *c, void *stream)
{
    if (type != 1 || peer != 1 || c->rank != 0)
        return BAD_ARGUMENT;
    return call_begin(c, (unsigned char *)(uintptr_t)from, n, true, stream);
}

int ncclRecv(void *to, size_t n, int type, int peer, struct comm *c, void *stream)
{
    if (type != 1 || peer != 0 || c->rank != 1)
        return BAD_ARGUMENT;
    return call_begin(c, to, n, false, stream);
}

int ncclCommAbort(struct comm *c)
{
    atomic_store(&c->aborted, true);
    (void)pthread_join(c->maker, NULL);
    while (atomic_load(&c->n_standing) > 0)
        (void)usleep(100);
    if (c->fd >= 0)
        (void)close(c->fd);
    if (device_stage_library_bytes != NULL)
        device_stage_library_bytes(-c->bytes);
    free(c);
    return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    return result == SYSTEM_ERROR   ? "unhandled system error"
           : result == BAD_ARGUMENT ? "invalid argument"
                                    : "invalid usage";
}

const char *ncclGetLastError(struct comm *c)
{
    (void)c;
    return "fake";
}
