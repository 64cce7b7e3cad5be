/* What a shared ring adds to a link's promises: it becomes a socket where it cannot be had, and believes nothing that a peer says. The peer
 * is this test, at a socket of its own. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "stages/link.h"
#include "vmm/region.h"

#define ROW_VALUES 96
#define TILE_ROWS  8
#define TILES      4
#define TILE_BYTES ((uint64_t)TILE_ROWS * ROW_VALUES * 4)
#define ROW_BYTES  ((uint32_t)ROW_VALUES * 4)
#define MAGIC      0x4c424245u

static struct exec *card;
static struct vmm_driver memory;
static struct fixed_block block;
static struct link_ring ring;
static struct link *in, *out;
static char address[LINK_ADDRESS_MAX], key[LINK_KEY_MAX];
static unsigned char wire_memory[2][TILES * TILE_ROWS * ROW_VALUES * 4];
static struct error err;

static struct link_settings settings(int side)
{
    return (struct link_settings){.exec = &exec_cpu,
                                  .card = card,
                                  .row_values = ROW_VALUES,
                                  .tile_rows = TILE_ROWS,
                                  .tiles = TILES,
                                  .memory = wire_memory[side],
                                  .ring = side == 0 ? &ring : NULL,
                                  .vmm = side == 1 ? &memory : NULL};
}

static void open_all(void)
{
    struct vmm_host_settings host = {.name_space = "link-test"};
    cr_assert_eq(vmm_driver_host_open(&memory, &host, &err), 0, "%s", err.text);
    cr_assert_eq(exec_cpu.open(&card, &(struct exec_settings){.n_threads = 1}, &err), 0);
    cr_assert_eq(fixed_block_open_shared(&block, &memory, TILES * TILE_BYTES, &ring.fd, &err), 0);
    ring.kind = memory.name;
    ring.base = block.base;
    ring.bytes = block.bytes;
}

static void close_all(void)
{
    link_ipc.close(in);
    link_ipc.close(out);
    (void)close(ring.fd);
    fixed_block_close(&block);
    exec_cpu.close(card);
    memory.close(&memory);
}

TestSuite(link_ring, .init = open_all, .fini = close_all, .timeout = 20);

static size_t n_descriptors(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}

static void service_both(void)
{
    cr_assert_eq(link_ipc.service(in, &err), 0, "%s", err.text);
    cr_assert_eq(link_ipc.service(out, &err), 0, "%s", err.text);
}

static void connect_both(const char *host, const struct link_settings *a,
                         const struct link_settings *b)
{
    cr_assert_eq(link_ipc.listen(&in, a, host, address, key, &err), 0, "%s", err.text);
    cr_assert_eq(link_ipc.connect(&out, b, address, key, &err), 0, "%s", err.text);
    while (!link_ipc.is_up(in) || !link_ipc.is_up(out))
        service_both();
}

/* A tile there and back to free, `n` times. */
static void check_rows(int n)
{
    static float rows[2 * ROW_VALUES], got[2 * ROW_VALUES];
    for (int i = 0; i < n; i++) {
        struct link_tile tile = {.kind = LINK_ROWS, .n_rows = 2, .step = (uint64_t)i, .data = rows};
        for (size_t k = 0; k < 2 * ROW_VALUES; k++)
            rows[k] = (float)(i * 1000) + (float)k;
        int rc;
        while ((rc = link_ipc.send(out, &tile, NULL, &err)) == EBB_EAGAIN)
            service_both();
        cr_assert_eq(rc, 0, "%s", err.text);
        while (link_ipc.peek(in, &tile) != 0)
            service_both();
        cr_assert_eq(tile.step, (uint64_t)i);
        cr_assert_eq(link_ipc.take(in, got, NULL, &err), 0);
        cr_assert_arr_eq(got, rows, sizeof rows);
    }
}

static void check_became(const char *wanted, const char *part_of_why)
{
    const char *why;
    cr_assert_str_eq(link_ipc.became(out, &why), wanted);
    cr_assert_str_eq(link_ipc.became(in, NULL), wanted);
    cr_assert(part_of_why == NULL ? why[0] == '\0' : strstr(why, part_of_why) != NULL, "%s", why);
    check_rows(50);
}

Test(link_ring, rows_lie_in_the_receivers_ring_and_nowhere_else)
{
    struct link_settings a = settings(0), b = settings(1);
    size_t before = n_descriptors();
    connect_both(NULL, &a, &b);
    memset(wire_memory, 0, sizeof wire_memory);
    check_became("ipc", NULL);
    for (size_t i = 0; i < sizeof wire_memory[0]; i++)
        cr_assert(wire_memory[0][i] == 0 && wire_memory[1][i] == 0);
    link_ipc.close(in);
    link_ipc.close(out);
    in = out = NULL;
    cr_assert_eq(n_descriptors(), before);
}

Test(link_ring, between_hosts_rows_go_over_the_socket)
{
    struct link_settings a = settings(0), b = settings(1);
    connect_both("127.0.0.1", &a, &b);
    check_became("socket", "another host");
}

Test(link_ring, from_another_kind_of_card_rows_go_over_the_socket)
{
    struct link_settings a = settings(0), b = settings(1);
    ring.kind = "cuda";
    connect_both(NULL, &a, &b);
    check_became("socket", "cuda card");
}

Test(link_ring, a_ring_of_another_shape_is_not_used)
{
    struct link_settings a = settings(0), b = settings(1);
    b.tile_rows = TILE_ROWS / 2;
    connect_both(NULL, &a, &b);
    check_became("socket", "tiles of");
}

Test(link_ring, either_side_may_have_no_ring_to_speak_of)
{
    struct link_settings a = settings(0), b = settings(1);
    a.ring = NULL;
    connect_both(NULL, &a, &b);
    check_became("socket", "offers no ring");
    link_ipc.close(in);
    link_ipc.close(out);
    a = settings(0);
    b.vmm = NULL;
    connect_both(NULL, &a, &b);
    check_became("socket", NULL);
}

Test(link_ring, a_receiver_that_takes_nothing_stops_the_sender_at_the_rings_end)
{
    struct link_settings a = settings(0), b = settings(1);
    static float rows[ROW_VALUES];
    int sent = 0;
    connect_both(NULL, &a, &b);
    for (int i = 0; i < 100; i++) {
        struct link_tile tile = {.kind = LINK_ROWS, .n_rows = 1, .data = rows};
        sent += link_ipc.send(out, &tile, NULL, &err) == 0;
        service_both();
    }
    cr_assert_eq(sent, TILES);
}

/* This test's end: */

struct hello {
    char greeting[8], key[32];
    uint64_t row_values;
};
struct answer {
    char greeting[8], kind[8];
    uint64_t bytes, tile_bytes, n_tiles;
};

static int dial(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    const char *name = address + strlen("unix:");
    struct hello hello = {.greeting = {'E', 'B', 'B', 'L', 'I', 'N', 'K', 'R'},
                          .row_values = ROW_VALUES};
    memcpy(hello.key, key, sizeof hello.key);
    memcpy(sa.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&sa,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
                 0);
    cr_assert_eq(write(fd, &hello, sizeof hello), (ssize_t)sizeof hello);
    return fd;
}

static int service_until_failure(struct link *l)
{
    int rc = 0;
    for (int i = 0; i < 100 && rc == 0; i++)
        rc = link_ipc.service(l, &err);
    return rc;
}

Test(link_ring, a_sender_that_breaks_the_format_ends_the_link)
{
    static const struct {
        char verdict;
        uint32_t magic, kind, epoch, row_first, n_rows, payload_bytes;
    } peers[] = {{'?', 0, 0, 0, 0, 0, 0},
                 {'Y', 0, LINK_ROWS, 0, 0, 1, ROW_BYTES},
                 {'Y', MAGIC, 7, 0, 0, 1, ROW_BYTES},
                 {'Y', MAGIC, LINK_ROWS, 0, 0, 0, 0},
                 {'Y', MAGIC, LINK_ROWS, 0, 0, TILE_ROWS + 1, ROW_BYTES * (TILE_ROWS + 1)},
                 {'Y', MAGIC, LINK_ROWS, 0, 0, 1, ROW_BYTES + 1},
                 {'Y', MAGIC, LINK_ROWS, 0, UINT32_MAX, 1, ROW_BYTES},
                 {'N', MAGIC, LINK_ROWS, 0, 0, TILE_ROWS + 1, ROW_BYTES * (TILE_ROWS + 1)}};
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        struct link_settings a = settings(0);
        struct {
            uint32_t words[6];
            uint64_t step;
        } frame = {{peers[i].magic, peers[i].kind, peers[i].epoch, peers[i].row_first,
                    peers[i].n_rows, peers[i].payload_bytes},
                   1};
        cr_assert_eq(link_ipc.listen(&in, &a, NULL, address, key, &err), 0, "%s", err.text);
        int fd = dial();
        cr_assert_eq(write(fd, &peers[i].verdict, 1), 1);
        cr_assert_eq(write(fd, &frame, sizeof frame), (ssize_t)sizeof frame);
        cr_assert_eq(service_until_failure(in), EBB_EPEER, "peer %zu", i);
        (void)close(fd);
        link_ipc.close(in);
        in = NULL;
    }
}

Test(link_ring, a_sender_that_goes_before_its_verdict_is_noticed)
{
    struct link_settings a = settings(0);
    cr_assert_eq(link_ipc.listen(&in, &a, NULL, address, key, &err), 0);
    (void)close(dial());
    cr_assert_eq(service_until_failure(in), EBB_EPEER);
}

/* A receiver's end: answers with the offer and n descriptors of it. */
static int answer(const struct answer *offer, size_t n_fds, int fd_sent)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    static int n_listeners;
    struct link_settings b = settings(1);
    struct hello hello;
    (void)snprintf(address, sizeof address, "unix:ebbtide-link-test-%d-%d", (int)getpid(),
                   n_listeners++);
    const char *name = address + strlen("unix:");
    memcpy(sa.sun_path + 1, name, strlen(name));
    int fd_listen = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd_listen, (struct sockaddr *)&sa,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
                 0);
    cr_assert_eq(listen(fd_listen, 1), 0);
    memset(key, 'a', 32);
    cr_assert_eq(link_ipc.connect(&out, &b, address, key, &err), 0, "%s", err.text);
    cr_assert_eq(link_ipc.service(out, &err), 0);
    int fd = accept(fd_listen, NULL, NULL);
    (void)close(fd_listen);
    cr_assert_eq(read(fd, &hello, sizeof hello), (ssize_t)sizeof hello);
    cr_assert_eq(memcmp(hello.greeting, "EBBLINKR", 8), 0);
    char control[CMSG_SPACE(8 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)offer, .iov_len = sizeof *offer};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (n_fds > 0) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
        for (size_t i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &fd_sent, sizeof fd_sent);
    }
    cr_assert_eq(sendmsg(fd, &m, 0), (ssize_t)sizeof *offer);
    return fd;
}

static struct answer honest(void)
{
    struct answer a = {.greeting = {'E', 'B', 'B', 'L', 'I', 'N', 'K', 'R'},
                       .bytes = ring.bytes,
                       .tile_bytes = TILE_BYTES,
                       .n_tiles = TILES};
    memcpy(a.kind, "host", 5);
    return a;
}

Test(link_ring, an_offer_that_lies_is_declined_and_leaves_nothing)
{
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    for (int i = 0; i < 8; i++) {
        struct answer a = honest();
        size_t before = n_descriptors();
        a.bytes = i == 0 ? a.bytes * 2 : i == 1 ? 0 : i == 2 ? UINT64_MAX : a.bytes;
        a.tile_bytes = i == 3 ? UINT64_MAX / 2 : a.tile_bytes;
        a.n_tiles = i == 4 ? TILES + 1 : a.n_tiles;
        if (i == 5)
            memset(a.kind, 'h', sizeof a.kind);
        int fd = answer(&a, i == 6 ? 0 : 1, i == 7 ? pipes[0] : ring.fd);
        while (!link_ipc.is_up(out))
            cr_assert_eq(link_ipc.service(out, &err), 0, "offer %d: %s", i, err.text);
        char verdict = 0;
        cr_assert_eq(read(fd, &verdict, 1), 1);
        cr_assert_eq(verdict, 'N', "offer %d", i);
        cr_assert_str_eq(link_ipc.became(out, NULL), "socket");
        link_ipc.close(out);
        out = NULL;
        (void)close(fd);
        cr_assert_eq(n_descriptors(), before, "offer %d", i);
    }
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

Test(link_ring, more_descriptors_than_one_are_not_kept)
{
    struct answer a = honest();
    size_t before = n_descriptors();
    int fd = answer(&a, 5, ring.fd);
    while (!link_ipc.is_up(out))
        cr_assert_eq(link_ipc.service(out, &err), 0, "%s", err.text);
    cr_assert_str_eq(link_ipc.became(out, NULL), "ipc");
    link_ipc.close(out);
    out = NULL;
    (void)close(fd);
    cr_assert_eq(n_descriptors(), before);
}

Test(link_ring, a_credit_for_nothing_ends_the_link)
{
    struct answer a = honest();
    int fd = answer(&a, 1, ring.fd);
    while (!link_ipc.is_up(out))
        cr_assert_eq(link_ipc.service(out, &err), 0, "%s", err.text);
    static float rows[ROW_VALUES];
    struct link_tile tile = {.kind = LINK_ROWS, .n_rows = 1, .data = rows};
    cr_assert_eq(link_ipc.send(out, &tile, NULL, &err), 0);
    cr_assert_eq(write(fd, "\0", 1), 1);
    cr_assert_eq(link_ipc.service(out, &err), 0, "one tile, one credit");
    cr_assert_eq(write(fd, "\0", 1), 1);
    cr_assert_eq(service_until_failure(out), EBB_EPEER);
    (void)close(fd);
}
