/* runtime/doctor_machine.c - the checks that concern the machine: processor, cores, kernel calls, limits (see doctor.h). */
#include "protocol/pin.h"
#include "runtime/doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB           (UINT64_C(1) << 20)
#define SHM_MIB_LEAST 64u
#define FILES_LEAST   256u

void doctor_processor(const struct settings *s, struct finding *f)
{
    (void)s;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vnni");
    if (avx2)
        finding_set(f, FINDING_OK, NULL, "AVX2 and FMA%s: the fast CPU kernels run",
                    avx512 ? ", AVX-512 with VNNI" : "");
    else
        finding_set(f, FINDING_MIND,
                    "CPU cards want a processor with AVX2 (in a virtual machine: "
                    "pass the host's through)",
                    "no AVX2: CPU cards run the reference kernels, which are slow");
#else
    finding_set(f, FINDING_MIND, "CPU cards want an x86-64 processor with AVX2",
                "not x86-64: CPU cards run the reference kernels, which are slow");
#endif
}

/* Processors that a control group lets this process use at once, 0: not limited. */
static double group_limit(void)
{
    double quota = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file == NULL)
        return 0;
    int n = fscanf(file, "%lf %lf", &quota, &period);
    (void)fclose(file);
    return n == 2 && period > 0 ? quota / period : 0;
}

/* How many of the processors are the first of their core. */
static int cores_count(const cpu_set_t *set)
{
    int n = 0, first;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        char path[96];
        if (!CPU_ISSET((size_t)i, set))
            continue;
        (void)snprintf(path, sizeof path,
                       "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        FILE *file = fopen(path, "re");
        n += file == NULL || fscanf(file, "%d", &first) != 1 || first == i;
        if (file != NULL)
            (void)fclose(file);
    }
    return n;
}

static int memory_nodes_count(void)
{
    char path[64];
    int n = 0;
    for (int i = 0; i < PIN_PROCESSORS_MAX; i++) {
        (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%d", i);
        n += access(path, F_OK) == 0;
    }
    return n > 0 ? n : 1;
}

/* The first listed processor that this process may not use, or -1. */
static int pin_missing(const char *text, const cpu_set_t *set)
{
    struct pin pin;
    if (text == NULL || pin_parse(&pin, text, NULL) != 0 || pin.how != PIN_LIST)
        return -1;
    for (int i = 0; i < PIN_PROCESSORS_MAX; i++)
        if (pin.listed[i] && !CPU_ISSET((size_t)i, set))
            return i;
    return -1;
}

void doctor_cores(const struct settings *s, struct finding *f)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    double limit = group_limit();
    uint32_t n_local = 0;
    int missing = -1;
    for (size_t i = 0; i < s->n_cards; i++) {
        const struct card_setting *card = &s->cards[i];
        if (card->kind != CARD_CPU || card->host[0] != '\0')
            continue;
        n_local++;
        if (missing < 0)
            missing = pin_missing(card->pin[0] != '\0' ? card->pin : s->pin, &set);
    }
    if (missing >= 0)
        finding_set(f, FINDING_FAILS, "list processors that this process may use (nproc, taskset)",
                    "pin names processor %d, which may not be used here", missing);
    else if (limit > 0 && limit < n)
        finding_set(f, FINDING_MIND, "set --threads to what the group may use, or widen its quota",
                    "%d processors, but the control group lets %.1f run at once", n, limit);
    else if (s->threads > (uint32_t)n)
        finding_set(f, FINDING_MIND, "more threads than processors only wait for each other",
                    "%d processors, --threads %" PRIu32, n, s->threads);
    else
        finding_set(f, FINDING_OK, NULL,
                    "%d processors, %d cores, %d memory node(s) for %" PRIu32 " CPU card(s)", n,
                    cores_count(&set), memory_nodes_count(), n_local);
}

/* The calls that cards and supervision rest on. */
void doctor_kernel(const struct settings *s, struct finding *f)
{
    (void)s;
    int memory = memfd_create("ebbtide-doctor", MFD_CLOEXEC);
    int code = errno;
    bool mapped = false;
    if (memory >= 0 && ftruncate(memory, 4096) == 0) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        mapped = page != MAP_FAILED;
        if (mapped)
            (void)munmap(page, 4096);
    }
    if (memory >= 0)
        (void)close(memory);
    long pidfd = syscall(SYS_pidfd_open, getpid(), 0);
    int pidfd_code = errno;
    if (pidfd >= 0)
        (void)close((int)pidfd);
    if (!mapped)
        finding_set(f, FINDING_FAILS, "CPU cards need it: allow memfd_create in the sandbox",
                    "memfd_create: %s", strerror(code));
    else if (pidfd < 0)
        finding_set(f, FINDING_FAILS, "Linux 5.3 or newer is needed, and a sandbox that allows it",
                    "pidfd_open: %s", strerror(pidfd_code));
    else
        finding_set(f, FINDING_OK, NULL, "memfd_create and pidfd_open work");
}

static bool limit_is_below(int resource, uint64_t least, uint64_t *soft, bool *endless)
{
    struct rlimit limit;
    *endless = false;
    *soft = 0;
    if (getrlimit(resource, &limit) != 0)
        return false;
    *endless = limit.rlim_cur == RLIM_INFINITY;
    *soft = (uint64_t)limit.rlim_cur;
    return !*endless && *soft < least;
}

void doctor_limits(const struct settings *s, struct finding *f)
{
    uint64_t soft;
    bool endless;
    uint64_t least = FILES_LEAST + 16 * s->n_cards;
    if (limit_is_below(RLIMIT_NOFILE, least, &soft, &endless))
        finding_set(f, FINDING_MIND, "ulimit -n 4096, or LimitNOFILE=4096 in the unit",
                    "%" PRIu64 " files may be open; a run with clients wants %" PRIu64, soft,
                    least);
    else
        finding_set(f, FINDING_OK, NULL, "%" PRIu64 " files may be open", soft);
}

void doctor_memlock(const struct settings *s, struct finding *f)
{
    uint64_t soft;
    bool endless, cuda = false;
    for (size_t i = 0; i < s->n_cards; i++)
        cuda = cuda || s->cards[i].kind == CARD_CUDA;
    bool low = limit_is_below(RLIMIT_MEMLOCK, UINT64_MAX, &soft, &endless);
    if (low && cuda)
        finding_set(f, FINDING_MIND, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
                    "%" PRIu64
                    " MiB may be locked; the driver locks the model file's pages for CUDA "
                    "cards, which read experts that miss from there, and may hold to it",
                    soft / MIB);
    else if (endless)
        finding_set(f, FINDING_OK, NULL, "without a limit");
    else
        finding_set(f, FINDING_OK, NULL, "%" PRIu64 " MiB, enough for CPU cards", soft / MIB);
}

void doctor_shm(const struct settings *s, struct finding *f)
{
    struct statvfs v;
    (void)s;
    if (statvfs("/dev/shm", &v) != 0) {
        finding_set(f, FINDING_MIND, "mount -t tmpfs tmpfs /dev/shm", "/dev/shm: %s",
                    strerror(errno));
        return;
    }
    uint64_t mib = (uint64_t)v.f_bavail * v.f_frsize / MIB;
    if (mib < SHM_MIB_LEAST)
        finding_set(f, FINDING_MIND, "start the container with --shm-size=1g (or --ipc=host)",
                    "%" PRIu64 " MiB free; links between several GPUs want %u", mib, SHM_MIB_LEAST);
    else
        finding_set(f, FINDING_OK, NULL, "%" PRIu64 " MiB free", mib);
}
