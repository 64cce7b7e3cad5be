/* tools/kit/receipts.c - receipts of VRAM and UNLEASE, as a person or a program wants them. */
#include "tools/kit/kit.h"

#include <unistd.h>

#include "protocol/vram.h"

static const struct kit_column receipt_columns[] = {
    {"card", "device", false, 0},
    {"place", NULL, true, 0},
    {"reserve MiB", "reserve_mib", false, 0},
    {"freed", "freed_mib", false, 0},
    {"free before", "before_mib", false, 0},
    {"free", "free_mib", false, 0},
    {"shortfall", "shortfall_mib", false, 0},
    {"cache", "cache_mib", false, 0},
    {"of", "cache_full_mib", false, 0},
    {"others", "foreign_mib", false, 0},
    {"ms", "us", false, 1000},
    {"reason", "reason", true, 0},
};

int kit_card_check(const char *text, struct error *err)
{
    uint64_t number;
    if (parse_u64(text, 0, UINT32_MAX, &number) != 0)
        return error_set(err, EBB_EINVAL, "the card: wanted its number, 0 is the first, got '%s'",
                         text);
    return 0;
}

int kit_shortfall_find(const struct kit_reply *r, bool *is_short, struct error *err)
{
    *is_short = false;
    for (size_t i = 0; i < r->n_lines; i++) {
        struct vram_receipt receipt;
        int code = vram_receipt_read(&r->messages[i], &receipt, err);
        if (code != 0)
            return code;
        *is_short = *is_short || receipt.shortfall_mib > 0;
    }
    return 0;
}

int kit_receipts_show(const struct kit_flags *f, struct kit_reply *r, struct error *err)
{
    bool is_short, as_lines = !f->json && (f->raw || isatty(STDOUT_FILENO) == 0);
    int code = kit_shortfall_find(r, &is_short, err);
    if (code != 0)
        return STATUS_FAILED;
    if (!as_lines)
        kit_places(f, r);
    if (f->json)
        code = kit_json_print(stdout, r, "receipts", err);
    else if (as_lines)
        kit_reply_print(stdout, r);
    else
        kit_table_print(stdout, r, receipt_columns,
                        sizeof receipt_columns / sizeof receipt_columns[0]);
    if (code != 0)
        return STATUS_FAILED;
    return is_short ? STATUS_SHORTFALL : STATUS_DONE;
}
