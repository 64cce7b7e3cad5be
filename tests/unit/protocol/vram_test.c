/* tests/unit/protocol/vram_test.c - what a VRAM line asks for, and the receipt. */
#include <criterion/criterion.h>
#include <string.h>
#include "protocol/vram.h"

static struct message m;
static struct error err;
static char buffer[1024];

static int request(const char *text, struct vram_request *out)
{
    strcpy(buffer, text);
    cr_assert_eq(message_parse(&m, buffer, strlen(text), &err), 0);
    return vram_request_parse(&m, 2, out, &err);
}

Test(vram, a_number_in_the_first_place_is_the_reserve_and_a_dash_the_starts)
{
    static const struct {
        const char *line;
        struct vram_request wanted;
    } cases[] = {
        {"VRAM", {.to_start = true, .every_card = true}},
        {"VRAM -", {.to_start = true, .every_card = true}},
        {"VRAM 1", {.reserve_mib = 1, .every_card = true}},
        {"VRAM 0", {.reserve_mib = 0, .every_card = true}},
        {"VRAM 12000 1", {.reserve_mib = 12000, .device = 1}},
        {"VRAM - 0", {.to_start = true, .device = 0}},
        {"VRAM 17592186044415 0", {.reserve_mib = 17592186044415, .device = 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct vram_request got = {.device = 99};
        cr_assert_eq(request(cases[i].line, &got), 0, "%s", err.text);
        cr_assert_eq(got.to_start, cases[i].wanted.to_start, "%s", cases[i].line);
        cr_assert_eq(got.every_card, cases[i].wanted.every_card, "%s", cases[i].line);
        cr_assert(got.to_start || got.reserve_mib == cases[i].wanted.reserve_mib);
        cr_assert(got.every_card || got.device == cases[i].wanted.device);
    }
}

Test(vram, a_lease_has_one_term_and_may_have_a_name)
{
    struct vram_request got;
    cr_assert_eq(request("VRAM 12000 1", &got), 0);
    cr_assert(got.term == LEASE_NONE && got.lease[0] == '\0');
    cr_assert_eq(request("VRAM 12000 1 for=600 lease=comfy.1", &got), 0, "%s", err.text);
    cr_assert(got.term == LEASE_TIME && got.seconds == 600 && got.device == 1 && !got.every_card);
    cr_assert_str_eq(got.lease, "comfy.1");
    cr_assert_eq(request("VRAM - pid=2147483647", &got), 0, "%s", err.text);
    cr_assert(got.term == LEASE_PROCESS && got.pid == 2147483647 && got.to_start);
    cr_assert_str_eq(got.lease, "");
    cr_assert_eq(request("VRAM - conn=1 lease=x", &got), 0, "%s", err.text);
    cr_assert(got.term == LEASE_CONNECTION && got.every_card && got.to_start);
    cr_assert_eq(request("VRAM 1 for=2592000", &got), 0, "%s", err.text);
}

Test(vram, a_bad_request_is_refused_by_name_and_nothing_is_filled)
{
    static const struct {
        const char *line;
        int rc;
        const char *says;
    } cases[] = {
        {"VRAM -1", EBB_EINVAL, "\"-1\""},
        {"VRAM 1.5", EBB_EINVAL, "\"1.5\""},
        {"VRAM 12000MiB", EBB_EINVAL, "without a unit"},
        {"VRAM +1", EBB_EINVAL, "\"+1\""},
        {"VRAM all", EBB_EINVAL, "\"all\""},
        {"VRAM 17592186044416", EBB_ERANGE, "17592186044415"},
        {"VRAM 99999999999999999999999", EBB_ERANGE, "at most"},
        {"VRAM 1 2", EBB_ENOENT, "no device 2"},
        {"VRAM - 99999999999999999999999", EBB_ENOENT, "no device"},
        {"VRAM 1 -", EBB_EINVAL, "\"-\""},
        {"VRAM 1 cpu:0", EBB_EINVAL, "\"cpu:0\""},
        {"VRAM 1 -1", EBB_EINVAL, "\"-1\""},
        {"VRAM 1 2 3", EBB_EINVAL, "\"3\""},
        {"VRAM 1 for=5 pid=5", EBB_EINVAL, "for= and pid="},
        {"VRAM 1 conn=1 for=5", EBB_EINVAL, "for= and conn="},
        {"VRAM for=5", EBB_EINVAL, "wants its reserve"},
        {"VRAM conn=1 lease=x", EBB_EINVAL, "wants its reserve"},
        {"VRAM 1 lease=x", EBB_EINVAL, "for=, pid= or conn=1"},
        {"VRAM 1 for=5 lease=", EBB_EINVAL, "lease="},
        {"VRAM 1 for=5 lease=a/b", EBB_EINVAL, "a/b"},
        {"VRAM 1 for=0", EBB_ERANGE, "for wants 1 to"},
        {"VRAM 1 for=2592001", EBB_ERANGE, "2592000"},
        {"VRAM 1 for=5s", EBB_EINVAL, "5s"},
        {"VRAM 1 pid=0", EBB_ERANGE, "pid wants"},
        {"VRAM 1 pid=2147483648", EBB_ERANGE, "pid wants"},
        {"VRAM 1 conn=2", EBB_ERANGE, "conn wants"},
        {"VRAM -1 for=5", EBB_EINVAL, "\"-1\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct vram_request got = {.device = 99, .reserve_mib = 99};
        cr_assert_eq(request(cases[i].line, &got), cases[i].rc, "%s: %s", cases[i].line, err.text);
        cr_assert_not_null(strstr(err.text, cases[i].says), "%s: %s", cases[i].line, err.text);
        cr_assert(got.device == 99 && got.reserve_mib == 99);
    }
}

static const struct vram_receipt example = {.device = 1,
                                            .reserve_mib = 12000,
                                            .cache_mib = 12288,
                                            .cache_full_mib = 16384,
                                            .slots = 6624,
                                            .slots_full = 8832,
                                            .before_mib = 8292,
                                            .free_mib = 12388,
                                            .freed_mib = 4096,
                                            .shortfall_mib = 0,
                                            .foreign_mib = 305,
                                            .prompt_chunk = 4096,
                                            .wait_us = 900,
                                            .us = 3140,
                                            .reason = "ok"};

Test(receipt, is_written_as_the_protocol_says)
{
    int n = vram_receipt_write(&example, buffer, sizeof buffer);

    cr_assert_eq(n, (int)strlen(buffer));
    cr_assert_str_eq(buffer, "VRAM device=1 reserve_mib=12000 cache_mib=12288 cache_full_mib=16384 "
                             "slots=6624 slots_full=8832 "
                             "before_mib=8292 free_mib=12388 freed_mib=4096 shortfall_mib=0 "
                             "foreign_mib=305 prompt_chunk=4096 "
                             "wait_us=900 us=3140 reason=ok\n");
    for (size_t capacity = 0; capacity < (size_t)n; capacity++)
        cr_assert_eq(vram_receipt_write(&example, buffer, capacity), EBB_ELINE_TOO_LONG);
}

static void same(const struct vram_receipt *a, const struct vram_receipt *b)
{
    cr_assert_eq(a->device, b->device);
    cr_assert_eq(a->reserve_mib, b->reserve_mib);
    cr_assert_eq(a->cache_mib, b->cache_mib);
    cr_assert_eq(a->cache_full_mib, b->cache_full_mib);
    cr_assert_eq(a->slots, b->slots);
    cr_assert_eq(a->slots_full, b->slots_full);
    cr_assert_eq(a->before_mib, b->before_mib);
    cr_assert_eq(a->free_mib, b->free_mib);
    cr_assert_eq(a->freed_mib, b->freed_mib);
    cr_assert_eq(a->shortfall_mib, b->shortfall_mib);
    cr_assert_eq(a->foreign_mib, b->foreign_mib);
    cr_assert_eq(a->prompt_chunk, b->prompt_chunk);
    cr_assert_eq(a->wait_us, b->wait_us);
    cr_assert_eq(a->us, b->us);
    cr_assert_str_eq(a->reason, b->reason);
}

Test(receipt, reads_back_as_it_was_and_ignores_what_is_new)
{
    struct vram_receipt receipts[] = {example, example}, got;

    receipts[1].freed_mib = -4096;
    receipts[1].us = UINT64_MAX;
    receipts[1].device = UINT32_MAX;
    strcpy(receipts[1].reason, "foreign");
    for (size_t i = 0; i < 2; i++) {
        int n = vram_receipt_write(&receipts[i], buffer, sizeof buffer);
        strcpy(buffer + n - 1, " moon=full");
        cr_assert_eq(message_parse(&m, buffer, strlen(buffer), &err), 0);
        cr_assert_eq(vram_receipt_read(&m, &got, &err), 0, "%s", err.text);
        same(&got, &receipts[i]);
    }
}

Test(receipt, that_is_not_whole_or_not_true_is_refused)
{
    struct vram_receipt got = {.device = 99};
    int n = vram_receipt_write(&example, buffer, sizeof buffer);

    buffer[n - 1 - (int)strlen(" reason=ok")] = '\0';
    cr_assert_eq(message_parse(&m, buffer, strlen(buffer), &err), 0);
    cr_assert_eq(vram_receipt_read(&m, &got, &err), EBB_EINVAL);
    cr_assert_eq(err.code, EBB_EINVAL);

    (void)vram_receipt_write(&example, buffer, sizeof buffer);
    *strchr(buffer, '2') = 'x';
    buffer[n - 1] = '\0';
    cr_assert_eq(message_parse(&m, buffer, strlen(buffer), &err), 0);
    cr_assert_eq(vram_receipt_read(&m, &got, &err), EBB_EINVAL);

    strcpy(buffer, "VRAM-DONE cards=1");
    cr_assert_eq(message_parse(&m, buffer, strlen(buffer), &err), 0);
    cr_assert_eq(vram_receipt_read(&m, &got, &err), EBB_EINVAL);
    cr_assert_eq(got.device, 99);
}
