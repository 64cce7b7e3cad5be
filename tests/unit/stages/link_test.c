/* The promises of a link, held by the socket, by the ring that both ends map and by NCCL (tests/fake_nccl.c): rows arrive as they left, in order, with back
 * pressure; strangers and broken peers are turned away. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "stages/link.h"
#include "vmm/region.h"

#define ROW_VALUES 96
#define TILE_ROWS  8
#define TILES      3

static struct exec *card;
static struct exec_stream *stream;
static const struct link_driver *driver;
static struct vmm_driver memory; /* both ends' card */

/* A promise of all links. */
#define LINK_TEST(name)                                                                            \
    static void name(void);                                                                        \
    Test(link_socket, name)                                                                        \
    {                                                                                              \
        driver = &link_socket;                                                                     \
        name();                                                                                    \
    }                                                                                              \
    Test(link_ipc, name)                                                                           \
    {                                                                                              \
        driver = &link_ipc;                                                                        \
        name();                                                                                    \
    }                                                                                              \
    Test(link_nccl, name)                                                                          \
    {                                                                                              \
        driver = &link_nccl;                                                                       \
        name();                                                                                    \
    }                                                                                              \
    static void name(void)

static void open_exec(void)
{
    struct error err;
    cr_assert_eq(
        vmm_driver_host_open(&memory, &(struct vmm_host_settings){.name_space = "link-test"}, &err),
        0, "%s", err.text);
    cr_assert_eq(exec_cpu.open(&card, &(struct exec_settings){.n_threads = 1}, &err), 0, "%s",
                 err.text);
    cr_assert_eq(exec_cpu.stream_open(card, &stream, &err), 0, "%s", err.text);
}

static void close_exec(void)
{
    exec_cpu.stream_close(stream);
    exec_cpu.close(card);
    memory.close(&memory);
}

TestSuite(link_socket, .init = open_exec, .fini = close_exec, .timeout = 20);
TestSuite(link_ipc, .init = open_exec, .fini = close_exec, .timeout = 20);
TestSuite(link_nccl, .init = open_exec, .fini = close_exec, .timeout = 20);

struct pair {
    struct link *in, *out;
    void *memory[2];
    struct fixed_block block;
    struct link_ring ring, nccl_rings[2];
    char address[LINK_ADDRESS_MAX], key[LINK_KEY_MAX];
};

static struct link_settings settings(struct pair *p, int side, size_t row_values)
{
    struct link_settings s = {.exec = &exec_cpu,
                              .card = card,
                              .row_values = row_values,
                              .tile_rows = TILE_ROWS,
                              .tiles = TILES};
    p->memory[side] = malloc(link_memory_bytes(&s));
    s.memory = p->memory[side];
    if (driver == &link_ipc && row_values > 0 && side == 0) {
        struct error err;
        cr_assert_eq(
            fixed_block_open_shared(&p->block, &memory, link_memory_bytes(&s), &p->ring.fd, &err),
            0, "%s", err.text);
        p->ring.kind = memory.name;
        p->ring.base = p->block.base;
        p->ring.bytes = p->block.bytes;
        s.ring = &p->ring;
    }
    if (driver == &link_ipc && row_values > 0 && side == 1)
        s.vmm = &memory;
    if (driver == &link_nccl && row_values > 0) {
        p->nccl_rings[side] = (struct link_ring){
            .base = calloc(1, link_memory_bytes(&s)), .bytes = link_memory_bytes(&s), .fd = -1};
        s.ring = &p->nccl_rings[side];
        s.card_uuid = side == 0 ? "card-a" : "card-b";
    }
    return s;
}

static void service(struct pair *p)
{
    struct error err;
    cr_assert_eq(driver->service(p->in, &err), 0, "%s", err.text);
    cr_assert_eq(driver->service(p->out, &err), 0, "%s", err.text);
}

static void pair_up(struct pair *p, const char *host)
{
    struct error err;
    *p = (struct pair){0};
    struct link_settings in = settings(p, 0, ROW_VALUES), out = settings(p, 1, ROW_VALUES);
    cr_assert_eq(driver->listen(&p->in, &in, host, p->address, p->key, &err), 0, "%s", err.text);
    cr_assert_eq(driver->connect(&p->out, &out, p->address, p->key, &err), 0, "%s", err.text);
    while (!driver->is_up(p->in) || !driver->is_up(p->out))
        service(p);
}

static void pair_close(struct pair *p)
{
    driver->close(p->in);
    driver->close(p->out);
    free(p->memory[0]);
    free(p->memory[1]);
    free(p->nccl_rings[0].base);
    free(p->nccl_rings[1].base);
    fixed_block_close(&p->block);
    if (p->ring.base != NULL)
        (void)close(p->ring.fd);
}

static void fill(float *rows, uint64_t step, size_t n)
{
    for (size_t i = 0; i < n * ROW_VALUES; i++)
        rows[i] = (float)(step * 1000) + (float)i * 0.25f;
}

/* Sends 200 steps while the receiver takes only sometimes. */
static void run_traffic(const char *host)
{
    struct pair p;
    pair_up(&p, host);
    static float rows[TILE_ROWS * ROW_VALUES], got[TILE_ROWS * ROW_VALUES],
        wanted[TILE_ROWS * ROW_VALUES];
    uint64_t sent = 0, taken = 0;
    bool refused = false;
    while (taken < 200) {
        struct error err;
        struct link_tile tile;
        uint32_t n = (uint32_t)(sent % TILE_ROWS) + 1;
        if (sent < 200) {
            fill(rows, sent, n);
            struct link_tile t = {.kind = LINK_ROWS,
                                  .epoch = 3,
                                  .row_first = 5,
                                  .n_rows = n,
                                  .step = sent,
                                  .data = rows};
            int rc = driver->send(p.out, &t, NULL, &err);
            cr_assert(rc == 0 || rc == EBB_EAGAIN, "%s", err.text);
            sent += rc == 0;
            refused |= rc == EBB_EAGAIN;
        }
        service(&p);
        if ((sent >= 60 || refused) && driver->peek(p.in, &tile) == 0) {
            cr_assert_eq(tile.step, taken);
            cr_assert_eq(tile.n_rows, taken % TILE_ROWS + 1);
            cr_assert(tile.epoch == 3 && tile.row_first == 5 && tile.kind == LINK_ROWS);
            fill(wanted, taken, tile.n_rows);
            cr_assert_eq(driver->take(p.in, got, stream, &err), 0);
            while (driver->peek(p.in, &tile) != 0 && sent == 200 && taken + 1 < 200)
                service(&p);
            struct exec_event *done;
            cr_assert_eq(exec_cpu.event_open(card, &done, &err), 0);
            exec_cpu.event_record(done, stream);
            while (exec_cpu.event_query(done) == 0)
                ;
            exec_cpu.event_close(done);
            cr_assert_arr_eq(got, wanted, (taken % TILE_ROWS + 1) * ROW_VALUES * sizeof(float));
            taken++;
        }
    }
    pair_close(&p);
}

LINK_TEST(rows_arrive_bit_for_bit_and_in_order_over_a_unix_socket)
{
    run_traffic(NULL);
}

LINK_TEST(rows_arrive_bit_for_bit_and_in_order_over_tcp)
{
    run_traffic("127.0.0.1");
}

LINK_TEST(a_sender_without_credit_is_told_to_come_back)
{
    struct pair p;
    pair_up(&p, NULL);
    static float rows[TILE_ROWS * ROW_VALUES];
    struct error err;
    int sent = 0, rc = 0;
    for (; sent < 100000 && rc == 0; sent++) {
        struct link_tile t = {
            .kind = LINK_ROWS, .n_rows = TILE_ROWS, .step = (uint64_t)sent, .data = rows};
        rc = driver->send(p.out, &t, NULL, &err);
        cr_assert_eq(driver->service(p.out, &err), 0);
    }
    cr_assert_eq(rc, EBB_EAGAIN, "a receiver that takes nothing must stop the sender");
    struct link_tile tile;
    while (driver->peek(p.in, &tile) != 0)
        service(&p);
    cr_assert_eq(driver->take(p.in, NULL, NULL, &err), 0);
    cr_assert_eq(tile.step, 0);
    pair_close(&p);
}

LINK_TEST(a_tile_beyond_the_agreed_size_is_refused)
{
    struct pair p;
    pair_up(&p, NULL);
    static float rows[(TILE_ROWS + 1) * ROW_VALUES];
    struct error err;
    struct link_tile t = {.kind = LINK_ROWS, .n_rows = TILE_ROWS + 1, .data = rows};
    cr_assert_eq(driver->send(p.out, &t, NULL, &err), EBB_EINVAL);
    t.n_rows = 0;
    cr_assert_eq(driver->send(p.out, &t, NULL, &err), EBB_EINVAL);
    pair_close(&p);
}

static int dial(const char *address)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    const char *name = address + strlen("unix:");
    memcpy(sa.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&sa,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
                 0);
    return fd;
}

LINK_TEST(a_stranger_is_turned_away_and_the_peer_still_gets_in)
{
    struct pair p = {0};
    struct error err;
    struct link_settings in = settings(&p, 0, ROW_VALUES), out = settings(&p, 1, ROW_VALUES);
    cr_assert_eq(driver->listen(&p.in, &in, NULL, p.address, p.key, &err), 0);
    int fd = dial(p.address);
    char junk[48] = "GET / HTTP/1.1\r\n\r\n";
    cr_assert_eq(write(fd, junk, sizeof junk), (ssize_t)sizeof junk);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(driver->service(p.in, &err), 0);
    cr_assert_not(driver->is_up(p.in));
    cr_assert_eq(read(fd, junk, 1), 0, "the stranger sees the end");
    close(fd);
    cr_assert_eq(driver->connect(&p.out, &out, p.address, p.key, &err), 0);
    while (!driver->is_up(p.out))
        service(&p);
    pair_close(&p);
}

LINK_TEST(rows_of_another_width_are_a_mismatch_by_name)
{
    struct pair p = {0};
    struct error err = {0};
    struct link_settings in = settings(&p, 0, ROW_VALUES), out = settings(&p, 1, ROW_VALUES / 2);
    cr_assert_eq(driver->listen(&p.in, &in, NULL, p.address, p.key, &err), 0);
    cr_assert_eq(driver->connect(&p.out, &out, p.address, p.key, &err), 0);
    int rc = 0;
    for (int i = 0; i < 100 && rc == 0; i++) {
        (void)driver->service(p.out, &err);
        rc = driver->service(p.in, &err);
    }
    cr_assert_eq(rc, EBB_EMISMATCH);
    cr_assert_not_null(strstr(err.text, "96"));
    pair_close(&p);
}

/* Everything that a frame can say wrong, after a good greeting. */
LINK_TEST(a_frame_that_cannot_be_ends_the_link_and_nothing_else)
{
    static const struct {
        uint32_t magic, kind, epoch, row_first, n_rows, payload_bytes;
        uint64_t step;
    } frames[] = {
        {0, 1, 0, 0, 1, ROW_VALUES * 4, 0},
        {0x4c424245u, 3, 0, 0, 1, ROW_VALUES * 4, 0},
        {0x4c424245u, 1, 0, 0, 0, 0, 0},
        {0x4c424245u, 1, 0, 0, TILE_ROWS + 1, ROW_VALUES * 4 * (TILE_ROWS + 1), 0},
        {0x4c424245u, 1, 0, 0, 1, ROW_VALUES * 4 - 1, 0},
        {0x4c424245u, 1, 0, UINT32_MAX, 1, ROW_VALUES * 4, 0},
        {0x4c424245u, 1, 0, 0, UINT32_MAX, UINT32_MAX, 0},
        {0x4c424245u, 2, 0, 0, 1, ROW_VALUES * 4, 0},
    };
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        struct pair p = {0};
        struct error err = {0};
        struct link_settings in = settings(&p, 0, ROW_VALUES);
        cr_assert_eq(driver->listen(&p.in, &in, NULL, p.address, p.key, &err), 0);
        int fd = dial(p.address);
        struct {
            char greeting[8], key[32];
            uint64_t row_values;
        } hello = {.row_values = ROW_VALUES};
        memcpy(hello.greeting, "EBBLINK1", 8);
        memcpy(hello.key, p.key, 32);
        cr_assert_eq(write(fd, &hello, sizeof hello), (ssize_t)sizeof hello);
        while (!driver->is_up(p.in))
            cr_assert_eq(driver->service(p.in, &err), 0);
        cr_assert_eq(write(fd, &frames[i], sizeof frames[i]), (ssize_t)sizeof frames[i]);
        int rc = 0;
        for (int k = 0; k < 100 && rc == 0; k++)
            rc = driver->service(p.in, &err);
        cr_assert_eq(rc, EBB_EPEER, "frame %zu", i);
        close(fd);
        pair_close(&p);
    }
}

LINK_TEST(a_dead_peer_is_noticed_on_both_sides)
{
    struct error err;
    struct pair p;
    pair_up(&p, NULL);
    driver->close(p.out);
    cr_assert_eq(driver->service(p.in, &err), EBB_EPEER);
    p.out = NULL;
    pair_close(&p);
    pair_up(&p, NULL);
    driver->close(p.in);
    cr_assert_eq(driver->service(p.out, &err), EBB_EPEER);
    p.in = NULL;
    pair_close(&p);
}

LINK_TEST(ids_travel_on_a_link_without_rows)
{
    struct pair p = {0};
    struct error err;
    struct link_settings in = settings(&p, 0, 0), out = settings(&p, 1, 0);
    struct link_id ids[3] = {{0, 17}, {4, 99}, {5, 4095}};
    struct link_tile tile = {.kind = LINK_IDS, .epoch = 1, .n_rows = 3, .step = 42, .data = ids};
    cr_assert_eq(driver->listen(&p.in, &in, NULL, p.address, p.key, &err), 0);
    cr_assert_eq(driver->connect(&p.out, &out, p.address, p.key, &err), 0);
    while (!driver->is_up(p.in) || !driver->is_up(p.out))
        service(&p);
    cr_assert_eq(driver->send(p.out, &tile, NULL, &err), 0);
    while (driver->peek(p.in, &tile) != 0)
        service(&p);
    cr_assert(tile.kind == LINK_IDS && tile.step == 42 && tile.n_rows == 3);
    cr_assert_arr_eq(tile.data, ids, sizeof ids);
    cr_assert_eq(driver->take(p.in, NULL, NULL, &err), 0);
    pair_close(&p);
}
