/* tools/kit/attach.c - the warning that a reserve is too small for anybody: what another program needs just to attach to a card is
 * the engine's to know (vram.attach_mib, in its PLAN).
 */
#include "protocol/vram.h"
#include "tools/kit/kit.h"

static uint64_t attach_mib(const struct kit_reply *plan, uint32_t device)
{
    for (size_t i = 0; i < plan->n_lines; i++) {
        uint64_t of, attach;
        if (message_u64(&plan->messages[i], "device", 0, UINT32_MAX, &of, NULL) == 0 &&
            message_u64(&plan->messages[i], "attach_mib", 0, UINT64_MAX, &attach, NULL) == 0 &&
            of == device)
            return attach;
    }
    return 0;
}

uint64_t kit_attach_mib(struct channel *c, uint32_t device)
{
    struct kit_reply plan;
    uint64_t mib =
        kit_ask_over(c, "PLAN", &plan, NULL) == STATUS_DONE ? attach_mib(&plan, device) : 0;
    kit_reply_free(&plan);
    return mib;
}

void kit_attach_warn(const struct kit_flags *f, const struct kit_reply *r)
{
    struct kit_reply plan = {0};
    struct vram_receipt receipt;
    bool asked = false;
    for (size_t i = 0; i < r->n_lines; i++) {
        if (vram_receipt_read(&r->messages[i], &receipt, NULL) != 0 || receipt.reserve_mib == 0)
            continue;
        if (!asked && kit_ask(f, "PLAN", &plan, NULL) != STATUS_DONE)
            break;
        asked = true;
        uint64_t attach = attach_mib(&plan, receipt.device);
        if (receipt.free_mib < attach)
            fprintf(stderr, "warning: " KIT_ATTACH_WORDS "\n", receipt.device, receipt.free_mib,
                    attach);
    }
    kit_reply_free(&plan);
}
