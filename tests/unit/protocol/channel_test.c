/* tests/unit/protocol/channel_test.c - lines over real pipes, with a peer that is slow, silent or
 * gone. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/channel.h"

static struct error err;

/* A channel that writes into a pipe whose reading end is *reader; it reads nothing. */
static struct channel writing_channel(int *reader, size_t queue_max)
{
    struct channel c;
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    *reader = ends[0];
    cr_assert_eq(channel_open(&c, -1, ends[1], false, queue_max, &err), 0);
    return c;
}

static struct channel reading_channel(int *writer)
{
    struct channel c;
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    *writer = ends[1];
    cr_assert_eq(channel_open(&c, ends[0], -1, false, 0, &err), 0);
    return c;
}

/* The i-th line of a stream whose lines differ in length and content. */
static size_t make_line(char *out, unsigned i)
{
    size_t n = (size_t)sprintf(out, "T a%u %u text=", i, i), n_text = i * 37 % 300;

    memset(out + n, 'a' + (int)(i % 26), n_text);
    out[n + n_text] = '\n';
    return n + n_text + 1;
}

Test(channel, loses_and_mixes_nothing_with_a_slow_reader)
{
    enum { N_LINES = 5000 };
    int reader;
    struct channel c = writing_channel(&reader, 0);
    char line[512], wanted[512], got[700];
    unsigned n_sent = 0;
    struct line_reader r;
    unsigned n_got = 0;

    cr_assert_eq(line_reader_open(&r, NULL), 0);
    while (n_got < N_LINES) {
        for (int burst = 0; burst < 40 && n_sent < N_LINES; burst++)
            cr_assert_eq(channel_send(&c, line, make_line(line, n_sent++)), 0);
        ssize_t n = read(reader, got, n_sent < N_LINES ? 97 : sizeof got);
        char *where, *text;
        size_t n_text;
        cr_assert_gt(n, 0);
        cr_assert_geq(line_reader_room(&r, &where), (size_t)n);
        memcpy(where, got, (size_t)n);
        line_reader_fed(&r, (size_t)n);
        while (line_reader_next(&r, &text, &n_text) == LINE_READY) {
            size_t n_wanted = make_line(wanted, n_got++);
            cr_assert_eq(n_text + 1, n_wanted);
            cr_assert_eq(memcmp(text, wanted, n_text), 0);
        }
        cr_assert_eq(channel_flush(&c), 0);
    }
    cr_assert_not(channel_wants_write(&c));
    line_reader_close(&r);
    channel_close(&c);
    close(reader);
}

Test(channel, drops_a_peer_that_stops_reading_when_its_queue_is_full)
{
    enum { QUEUE = 10000 };
    int reader, rc = 0;
    struct channel c = writing_channel(&reader, QUEUE);
    char line[512];
    unsigned n = 0;

    while (n < 100000 && (rc = channel_send(&c, line, make_line(line, n))) == 0) {
        n++;
        cr_assert_leq(c.queue_end - c.queue_start, QUEUE);
        cr_assert_leq(c.queue_capacity, 2 * QUEUE);
    }
    cr_assert_eq(rc, EBB_EGONE);
    cr_assert_gt(n, 100);
    channel_close(&c);
    close(reader);
}

Test(channel, queue_starts_small_and_grows_only_as_needed)
{
    int reader;
    struct channel c = writing_channel(&reader, 0);

    cr_assert_eq(c.queue_capacity, 0);
    cr_assert_eq(channel_send(&c, "PONG a\n", 7), 0);
    cr_assert_leq(c.queue_capacity, 4096);
    cr_assert_eq(c.queue_max, CHANNEL_QUEUE_BYTES_DEFAULT);
    channel_close(&c);
    close(reader);
}

Test(channel, survives_a_peer_that_is_gone_whatever_sigpipe_is_set_to)
{
    int reader;
    struct channel c = writing_channel(&reader, 0);
    sigset_t pending;

    cr_assert_neq(signal(SIGPIPE, SIG_DFL), SIG_ERR);
    close(reader);
    cr_assert_eq(channel_send(&c, "PONG a\n", 7), EBB_EGONE);
    cr_assert_not(channel_wants_write(&c));
    cr_assert_eq(channel_send(&c, "PONG a\n", 7), EBB_EGONE);
    sigpending(&pending);
    cr_assert_eq(sigismember(&pending, SIGPIPE), 0);
    channel_close(&c);
}

Test(channel, refuses_to_send_what_is_no_line)
{
    int reader;
    struct channel c = writing_channel(&reader, 0);
    static char text[LINE_BYTES_MAX + 2];

    cr_assert_eq(channel_send(&c, "PONG a", 6), EBB_EINVAL);
    cr_assert_eq(channel_send(&c, "", 0), EBB_EINVAL);
    cr_assert_eq(channel_send(&c, text, (size_t)EBB_ELINE_TOO_LONG), EBB_ELINE_TOO_LONG);
    memset(text, 'x', sizeof text);
    text[LINE_BYTES_MAX] = '\n';
    cr_assert_eq(channel_send(&c, text, LINE_BYTES_MAX + 1), EBB_ELINE_TOO_LONG);
    cr_assert_not(channel_wants_write(&c));
    channel_close(&c);
    close(reader);
}

Test(channel, says_again_then_lines_then_the_end)
{
    int writer;
    struct channel c = reading_channel(&writer);
    char *line;
    size_t n;

    cr_assert_eq(channel_read(&c, &err), EBB_EAGAIN);
    cr_assert_eq(write(writer, "PING a\r\nPING", 12), 12);
    cr_assert_eq(channel_read(&c, &err), 0);
    cr_assert_eq(channel_next(&c, &line, &n), LINE_READY);
    cr_assert_str_eq(line, "PING a");
    cr_assert_eq(channel_next(&c, &line, &n), LINE_NEED_MORE);
    cr_assert_eq(write(writer, " b\nQUIT", 7), 7);
    close(writer);
    cr_assert_eq(channel_read(&c, &err), 0);
    cr_assert_not(c.at_end);
    cr_assert_eq(channel_read(&c, &err), EBB_EGONE);
    cr_assert(c.at_end);
    cr_assert_eq(channel_next(&c, &line, &n), LINE_READY);
    cr_assert_str_eq(line, "PING b");
    cr_assert_eq(channel_next(&c, &line, &n), LINE_READY);
    cr_assert_str_eq(line, "QUIT");
    cr_assert_eq(n, 4);
    cr_assert_eq(channel_next(&c, &line, &n), LINE_NEED_MORE);
    cr_assert_eq(channel_read(&c, &err), EBB_EGONE);
    channel_close(&c);
}

Test(channel, tells_a_line_of_70000_bytes_once_and_goes_on)
{
    int writer, n_long = 0;
    struct channel c = reading_channel(&writer);
    char *line, *text = malloc(70000);
    size_t n, at = 0;
    enum line_status status = LINE_NEED_MORE;

    memset(text, 'x', 70000);
    while (at < 70000) {
        size_t piece = 70000 - at < 30000 ? 70000 - at : 30000;
        cr_assert_eq(write(writer, text + at, piece), (ssize_t)piece);
        at += piece;
        while (channel_read(&c, &err) == 0)
            while ((status = channel_next(&c, &line, &n)) != LINE_NEED_MORE)
                n_long += status == LINE_TOO_LONG;
    }
    cr_assert_eq(write(writer, "\nPING a\n", 8), 8);
    cr_assert_eq(channel_read(&c, &err), 0);
    cr_assert_eq(channel_next(&c, &line, &n), LINE_READY);
    cr_assert_str_eq(line, "PING a");
    cr_assert_eq(n_long, 1);
    free(text);
    channel_close(&c);
    close(writer);
}

Test(channel, that_is_not_drained_says_again_instead_of_reading_nowhere)
{
    int writer, n_reads = 0;
    struct channel c = reading_channel(&writer);
    char text[1000], *line;
    size_t n, n_lines = 0, n_written = 0;

    memset(text, 'x', sizeof text);
    text[999] = '\n';
    cr_assert_eq(fcntl(writer, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 400; i++) {
        ssize_t wrote = n_written < 300000 ? write(writer, text, sizeof text) : 0;
        n_written += wrote > 0 ? (size_t)wrote : 0;
        n_reads += channel_read(&c, &err) == 0;
    }
    while (channel_next(&c, &line, &n) != LINE_NEED_MORE || channel_read(&c, &err) == 0)
        n_lines += line != NULL && n == 999;
    cr_assert_gt(n_reads, 0);
    cr_assert_gt(n_lines, n_written / 1000 / 2);
    channel_close(&c);
    close(writer);
}

Test(channel, carries_both_directions_on_one_socket)
{
    struct channel a, b;
    int ends[2];
    char *line;
    size_t n;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    cr_assert_eq(channel_open(&a, ends[0], ends[0], false, 0, &err), 0);
    cr_assert_eq(channel_open(&b, ends[1], ends[1], false, 0, &err), 0);
    cr_assert_eq(channel_send(&a, "PING x\n", 7), 0);
    cr_assert_eq(channel_read(&b, &err), 0);
    cr_assert_eq(channel_next(&b, &line, &n), LINE_READY);
    cr_assert_eq(channel_send(&b, "PONG x\n", 7), 0);
    cr_assert_eq(channel_read(&a, &err), 0);
    cr_assert_eq(channel_next(&a, &line, &n), LINE_READY);
    cr_assert_str_eq(line, "PONG x");
    channel_close(&a);
    cr_assert_eq(channel_read(&b, &err), EBB_EGONE);
    channel_close(&b);
    cr_assert_eq(fcntl(ends[0], F_GETFD), -1);
    cr_assert_eq(fcntl(ends[1], F_GETFD), -1);
}

Test(channel, borrowed_descriptors_stay_open_and_blocking_as_they_were)
{
    struct channel c;
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(channel_open(&c, ends[0], ends[1], true, 0, &err), 0);
    cr_assert_neq(fcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);
    cr_assert_neq(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
    channel_close(&c);
    cr_assert_eq(fcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);
    cr_assert_eq(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
    cr_assert_eq(channel_open(&c, ends[0], 4000, true, 0, &err), EBB_EIO);
    cr_assert_eq(fcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);
    close(ends[0]);
    close(ends[1]);
}

Test(channel, error_line_is_clean_and_reads_back)
{
    static struct message m;
    struct error said, given;
    int reader;
    struct channel c = writing_channel(&reader, 0);
    char text[1024];
    const char *tag;
    ssize_t n;

    error_set(&given, EBB_ERANGE, "GEN: top_k wants 1 to 9, got \"=%s\"\x01 \xE2\x86", "→");
    cr_assert_eq(channel_send_error(&c, "a1", &given), 0);
    n = read(reader, text, sizeof text);
    cr_assert_gt(n, 0);
    cr_assert_eq(text[n - 1], '\n');
    text[n - 1] = '\0';
    cr_assert_str_eq(text, "ERR a1 out-of-range GEN: top_k wants 1 to 9, got \"=→\"  ??");
    cr_assert_eq(message_parse(&m, text, (size_t)n - 1, &err), 0);
    cr_assert(message_error(&m, &tag, &said));
    cr_assert_str_eq(tag, "a1");
    cr_assert_eq(said.code, EBB_ERANGE);

    cr_assert_eq(channel_send_error(&c, "no tag", &(struct error){.code = EBB_EBUSY}), 0);
    n = read(reader, text, sizeof text);
    text[n] = '\0';
    cr_assert_str_eq(text, "ERR - busy\n");

    memset(given.text, 'x', sizeof given.text - 1);
    given.text[sizeof given.text - 1] = '\0';
    cr_assert_eq(channel_send_error(&c, NULL, &given), 0);
    channel_close(&c);
    close(reader);
}
