/* A stage's file of spans: whole lines, appended to what is there, counted where there is no room. */
#include "stages/trace.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/ebbtide-trace-XXXXXX";
static struct error err;
static struct trace t;

static void make_path(void)
{
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    (void)close(fd);
}

static void remove_path(void)
{
    (void)unlink(path);
}

static size_t lines_of(const char *verb)
{
    char line[1024];
    size_t n = 0;
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        cr_expect_eq(line[strlen(line) - 1], '\n');
        n += strncmp(line, verb, strlen(verb)) == 0;
    }
    (void)fclose(f);
    return n;
}

Test(trace, what_is_off_takes_spans_and_does_nothing)
{
    struct trace off = {0};
    trace_span(&off, TRACE_CONTROL, 1, 2, "name=step");
    trace_flush(&off);
    trace_close(&off);
    cr_assert_not(trace_is_on(&off));
}

Test(trace, a_second_life_appends_to_the_first, .init = make_path, .fini = remove_path)
{
    for (int life = 0; life < 2; life++) {
        cr_assert_eq(trace_open(&t, path, "STAGE stage=0\n", &err), 0, "%s", err.text);
        trace_span(&t, TRACE_VRAM, 5, 9, "name=VRAM reserve_mib=%d", 7);
        trace_close(&t);
    }
    cr_expect_eq(lines_of("STAGE stage=0\n"), 2);
    cr_expect_eq(lines_of("SPAN track=vram at=5 us=4 name=VRAM reserve_mib=7\n"), 2);
    cr_expect_eq(lines_of("LOST spans=0\n"), 2);
}

Test(trace, what_has_no_room_in_the_file_is_counted, .init = make_path, .fini = remove_path)
{
    size_t n = TRACE_FILE_MAX / 40;
    char lost[64];
    struct stat status;
    cr_assert_eq(trace_open(&t, path, "STAGE stage=0\n", &err), 0, "%s", err.text);
    for (size_t i = 0; i < n; i++)
        trace_span(&t, TRACE_COMPUTE, i, i + 1, "name=layers step=%zu", i);
    size_t n_lost = t.n_lost;
    trace_close(&t);
    cr_expect_gt(n_lost, 0);
    cr_expect_eq(lines_of("SPAN"), n - n_lost);
    (void)snprintf(lost, sizeof lost, "LOST spans=%zu\n", n_lost);
    cr_expect_eq(lines_of(lost), 1);
    cr_expect_eq(stat(path, &status), 0);
    cr_expect_leq(status.st_size, TRACE_FILE_MAX + 64);
}

Test(trace, a_file_that_cannot_be_is_refused)
{
    cr_expect_eq(trace_open(&t, "/no/such/folder/trace", "STAGE stage=0\n", &err), EBB_EIO);
    cr_expect_not_null(strstr(err.text, "/no/such/folder/trace"));
    cr_expect_not(trace_is_on(&t));
}
