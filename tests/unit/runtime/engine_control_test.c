/* Commands beside generation: STOP, VRAM, STAT, connections, the control socket, ends. */
#include "bench.h"
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct bench b;
static int32_t prompts[8][2100];

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

Test(control, stop_ends_a_request_in_its_prompt_and_in_its_decode_at_once)
{
    bench_init(&b, 2, "--slow-us 3000");
    b.s.chunk = 16;
    bench_start(&b);
    bench_generate(&b, "long", 10, 100, 1900, prompts[0], "");
    (void)bench_wait(&b, 0, "PP long ");
    double began = seconds();
    bench_send(&b, "STOP long");
    (void)bench_wait(&b, 0, "DONE long cancel generated=0 ");
    cr_assert_lt(seconds() - began, 0.5);
    bench_generate(&b, "x", 1000, 200, 10, prompts[0], "");
    size_t at = 0;
    for (int i = 0; i < 5; i++)
        at = bench_wait(&b, at, "T x ") + 1;
    bench_send(&b, "STOP x");
    bench_send(&b, "STOP x");
    (void)bench_wait(&b, 0, "DONE x cancel ");
    (void)bench_wait(&b, 0, "ERR x gone ");
    bench_generate(&b, "after", 5, 300, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE after length ");
    bench_expect(&b, "after", prompts[0], 10, 5);
    cr_assert_eq(bench_end(&b), 0);
}

Test(control, a_decode_goes_on_beside_a_long_prompt)
{
    bench_init(&b, 1, "--slow-us 1000");
    b.s.chunk = 16;
    bench_start(&b);
    bench_generate(&b, "d", 1000, 100, 4, prompts[0], "");
    (void)bench_wait(&b, 0, "T d ");
    bench_generate(&b, "p", 1, 500, 1600, prompts[1], "");
    size_t first = bench_wait(&b, 0, "PP p 16 "), last = bench_wait(&b, 0, "PP p 1600 "), n = 0;
    for (size_t i = first; i < last; i++)
        n += strncmp(b.lines[i], "T d ", 4) == 0;
    cr_assert_gt(n, 90u, "100 chunks, %zu tokens between", n);
    bench_send(&b, "STOP d");
    (void)bench_wait(&b, 0, "DONE d ");
    cr_assert_eq(bench_end(&b), 0);
}

Test(control, vram_answers_come_in_command_order_and_whole)
{
    bench_init(&b, 3, "--slow-us 20000");
    b.s.cards[1].reserve_mib = 5;
    bench_start(&b);
    bench_send(&b, "VRAM 100");
    bench_send(&b, "VRAM 200 1");
    bench_send(&b, "VRAM -1");
    bench_send(&b, "VRAM 1001 0");
    bench_send(&b, "VRAM 7 3");
    bench_send(&b, "VRAM - 1");
    bench_send(&b, "PLAN");
    bench_send(&b, "PING early");
    size_t at = bench_wait(&b, 0, "VRAM device=0 reserve_mib=100 ");
    cr_assert_lt(bench_wait(&b, 0, "PONG early"), at, "PING does not wait behind a VRAM");
    cr_assert_eq(bench_wait(&b, at, "VRAM device=1 reserve_mib=100 "), at + 1);
    cr_assert_eq(bench_wait(&b, at, "VRAM device=2 reserve_mib=100 "), at + 2);
    cr_assert_eq(bench_wait(&b, at, "VRAM-DONE cards=3 freed_mib=295 shortfall_mib=0"), at + 3);
    cr_assert_eq(bench_wait(&b, at, "VRAM device=1 reserve_mib=200 "), at + 4);
    cr_assert_eq(bench_wait(&b, at, "VRAM-DONE cards=1 freed_mib=100 "), at + 5);
    cr_assert_eq(bench_wait(&b, at + 6, "ERR - bad-value "), at + 6);
    cr_assert_eq(bench_wait(&b, at + 7, "ERR - out-of-range "), at + 7);
    cr_assert_eq(bench_wait(&b, at + 8, "ERR - not-found "), at + 8);
    cr_assert_eq(bench_wait(&b, at, "VRAM device=1 reserve_mib=5 "), at + 9);
    cr_assert_eq(bench_wait(&b, at, "VRAM-DONE cards=1 freed_mib=-195 "), at + 10);
    cr_assert_eq(bench_wait(&b, at, "PLAN device=0 "), at + 11);
    (void)bench_wait(&b, at, "PLAN-DONE");
    cr_assert_eq(bench_end(&b), 0);
}

Test(control, a_reserve_above_one_cards_total_changes_no_card)
{
    bench_init(&b, 2, "");
    bench_start(&b);
    bench_send(&b, "VRAM 5000");
    (void)bench_wait(&b, 0, "ERR - out-of-range ");
    bench_send(&b, "STAT");
    size_t at = bench_wait(&b, 0, "STAT device=0 ");
    cr_assert_eq(bench_number(b.lines[at], "reserve_mib"), 0);
    at = bench_wait(&b, at, "STAT device=1 ");
    cr_assert_eq(bench_number(b.lines[at], "reserve_mib"), 0);
    cr_assert_str_eq(b.lines[bench_wait(&b, at, "STAT-DONE")], "STAT-DONE");
    bench_send(&b, "STAT 1");
    cr_assert_eq(bench_wait(&b, at + 2, "STAT device=1 "), at + 2);
    bench_send(&b, "LEDGER 0");
    (void)bench_wait(&b, at, "LEDGER device=0 ");
    (void)bench_wait(&b, at, "LEDGER-DONE");
    bench_send(&b, "STAT 2");
    (void)bench_wait(&b, at, "ERR - not-found ");
    cr_assert_eq(bench_end(&b), 0);
}

static void connect_to(struct channel *c, const char *path)
{
    struct error err;
    cr_assert_eq(client_connect(c, path, &err), 0, "%s", err.text);
}

static char *wait_line(struct channel *c, const char *start)
{
    char *line;
    size_t n;
    struct error err;
    do
        cr_assert_eq(client_wait_line(c, 10000, &line, &n, &err), 0, "no %s: %s", start, err.text);
    while (strncmp(line, start, strlen(start)) != 0);
    return line;
}

static void with_socket(struct bench *bench, uint32_t n_cards, const char *options, char *path,
                        size_t capacity)
{
    temp_path(path, capacity, "control.sock");
    bench_init(bench, n_cards, options);
    free(bench->s.control);
    bench->s.control = strdup(path);
}

Test(control, a_lost_connection_cancels_its_requests)
{
    char path[100];
    struct channel c;
    struct error err;
    with_socket(&b, 1, "--slow-us 1000", path, sizeof path);
    b.s.parallel = 1;
    bench_start(&b);
    connect_to(&c, path);
    cr_assert_eq(client_ask(&c, "GEN x 2000 ids=1,2,3", &err), 0);
    (void)wait_line(&c, "T x ");
    bench_generate(&b, "waits", 3, 100, 10, prompts[0], "");
    channel_close(&c);
    double began = seconds();
    (void)bench_wait(&b, 0, "DONE waits length ");
    cr_assert_lt(seconds() - began, 1.0);
    cr_assert_eq(bench_end(&b), 0);
    cr_assert_neq(access(path, F_OK), 0, "the socket is unlinked");
}

Test(control, a_half_closed_connection_still_gets_its_answers)
{
    char path[100];
    struct channel c;
    struct error err;
    with_socket(&b, 1, "--slow-us 1000", path, sizeof path);
    bench_start(&b);
    connect_to(&c, path);
    cr_assert_eq(client_ask(&c, "GEN x 30 ids=1,2,3\nVRAM 7\nSTAT", &err), 0);
    cr_assert_eq(shutdown(c.fd_in, SHUT_WR), 0);
    (void)wait_line(&c, "VRAM-DONE");
    (void)wait_line(&c, "DONE x length generated=30 ");
    char *line;
    size_t n;
    cr_assert_eq(client_wait_line(&c, 5000, &line, &n, &err), EBB_EGONE);
    channel_close(&c);
    cr_assert_eq(bench_end(&b), 0);
}

Test(control, a_reader_that_stops_reading_is_dropped_and_others_go_on)
{
    static char line[61000];
    char path[100];
    struct channel c;
    with_socket(&b, 1, "", path, sizeof path);
    bench_start(&b);
    connect_to(&c, path);
    memcpy(line, "PING ", 5);
    memset(line + 5, 'x', 60000);
    line[60005] = '\n';
    c.queue_max = 64u << 20;
    bool dropped = false;
    for (int i = 0; i < 200; i++) /* 12 MB of answers that nobody reads */
        dropped = dropped || channel_send(&c, line, 60006) == EBB_EGONE;
    for (int i = 0; i < 500 && !dropped; i++) {
        dropped = channel_flush(&c) == EBB_EGONE;
        bench_send(&b, "PING %d", i);
        (void)bench_wait(&b, 0, "PONG %d", i);
        (void)usleep(5000);
    }
    cr_assert(dropped);
    channel_close(&c);
    bench_generate(&b, "x", 5, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "DONE x length ");
    cr_assert_eq(bench_end(&b), 0);
}

Test(control, the_socket_is_the_owners_alone_and_a_live_one_is_respected)
{
    static struct bench second;
    char path[100];
    struct stat st;
    with_socket(&b, 1, "", path, sizeof path);
    bench_start(&b);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    bench_init(&second, 1, "");
    free(second.s.control);
    second.s.control = strdup(path);
    bench_launch(&second);
    cr_assert_eq(bench_join(&second), EBB_EBUSY);
    cr_assert_not_null(strstr(second.err.text, "another engine answers"), "%s", second.err.text);
    cr_assert(client_socket_is_live(path));
    cr_assert_eq(bench_end(&b), 0);
}

static int n_children(pid_t parent)
{
    char command[120];
    int n = -1;
    (void)snprintf(command, sizeof command, "ps -o pid= --ppid %d | grep -vw $$ | wc -l",
                   (int)parent);
    FILE *p = popen(command, "re");
    cr_assert_not_null(p);
    cr_assert_eq(fscanf(p, "%d", &n), 1);
    (void)pclose(p);
    return n;
}

static void serve_until_killed(const char *path)
{
    struct engine *e;
    struct error err;
    bench_init(&b, 2, "");
    free(b.s.control);
    b.s.control = strdup(path);
    if (engine_open(&e, &b.s, NULL, &err) == 0)
        (void)engine_loop(e, &err);
    _exit(1);
}

Test(control, nothing_survives_a_killed_coordinator)
{
    char path[100];
    int children[8], n = 0, status;
    temp_path(path, sizeof path, "control.sock");
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    if (pid == 0)
        serve_until_killed(path);
    (void)usleep(500000);
    cr_assert(client_socket_is_live(path));
    char command[80];
    (void)snprintf(command, sizeof command, "ps -o pid= --ppid %d", (int)pid);
    FILE *p = popen(command, "re");
    while (n < 8 && fscanf(p, "%d", &children[n]) == 1)
        n++;
    (void)pclose(p);
    cr_assert_eq(n, 3); /* two stages and the socket's guard */
    cr_assert_eq(kill(pid, SIGKILL), 0);
    (void)waitpid(pid, &status, 0);
    int left = n;
    for (int i = 0; i < 100 && (left > 0 || access(path, F_OK) == 0); i++) {
        (void)usleep(10000);
        while (waitpid(-1, &status, WNOHANG) > 0)
            ; /* they are ours now */
        left = 0;
        for (int j = 0; j < n; j++)
            left += kill(children[j], 0) == 0;
    }
    cr_assert_eq(left, 0);
    cr_assert_neq(access(path, F_OK), 0, "the socket file is still there");
}

Test(control, a_stale_socket_is_replaced)
{
    char path[100], moved[120];
    with_socket(&b, 1, "", path, sizeof path);
    bench_start(&b);
    (void)snprintf(moved, sizeof moved, "%s.old", path);
    cr_assert_eq(rename(path, moved), 0); /* what a killed engine without a guard leaves */
    cr_assert_eq(bench_end(&b), 0);
    cr_assert_eq(rename(moved, path), 0);
    bench_init(&b, 1, "");
    free(b.s.control);
    b.s.control = strdup(path);
    bench_start(&b);
    cr_assert(client_socket_is_live(path));
    cr_assert_eq(bench_end(&b), 0);
}

Test(control, end_of_input_finishes_what_runs)
{
    bench_init(&b, 1, "--slow-us 1000");
    bench_start(&b);
    bench_generate(&b, "x", 50, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "T x ");
    cr_assert_eq(shutdown(b.c.fd_in, SHUT_WR), 0);
    (void)bench_wait(&b, 0, "DONE x length generated=50 ");
    cr_assert_eq(bench_join(&b), 0);
}

Test(control, end_of_input_cancels_where_that_was_asked_for)
{
    bench_init(&b, 1, "--slow-us 1000");
    b.s.on_eof = ON_EOF_CANCEL;
    bench_start(&b);
    bench_generate(&b, "x", 5000, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "T x ");
    cr_assert_eq(shutdown(b.c.fd_in, SHUT_WR), 0);
    (void)bench_wait(&b, 0, "DONE x cancel ");
    cr_assert_eq(bench_join(&b), 0);
}

Test(control, a_stop_from_outside_ends_all_within_a_second)
{
    bench_init(&b, 4, "--slow-us 1000");
    bench_start(&b);
    bench_generate(&b, "x", 5000, 100, 10, prompts[0], "");
    (void)bench_wait(&b, 0, "T x ");
    double began = seconds();
    bench_stop(&b);
    (void)bench_wait(&b, 0, "DONE x cancel ");
    cr_assert_eq(bench_join(&b), 0);
    cr_assert_lt(seconds() - began, 1.0);
    cr_assert_eq(n_children(getpid()), 0);
}

Test(control, bad_lines_are_answered_and_nothing_else_is_lost)
{
    static char line[70002];
    bench_init(&b, 1, "");
    bench_start(&b);
    memset(line, 'x', 70000);
    line[70000] = '\n';
    (void)channel_send(&b.c, "PING a\r\n\n", 9);
    for (size_t at = 0; at < 70001;
         at += 10000) { /* the channel refuses long lines, the wire does not */
        size_t n = 70001 - at < 10000 ? 70001 - at : 10000;
        for (size_t done = 0; done < n;) {
            ssize_t w = write(b.c.fd_out, line + at + done, n - done);
            if (w > 0)
                done += (size_t)w;
            else
                (void)usleep(1000);
        }
    }
    bench_send(&b, "vram 1");
    bench_send(&b, "PING b");
    size_t at = bench_wait(&b, 0, "PONG a");
    cr_assert_eq(bench_wait(&b, at, "ERR - line-too-long "), at + 1);
    cr_assert_eq(bench_wait(&b, at, "ERR - unknown-verb "), at + 2);
    cr_assert_eq(bench_wait(&b, at, "PONG b"), at + 3);
    cr_assert_eq(bench_end(&b), 0);
}
