/* tools/kit/attach.c - the warning that a reserve is too small for anybody: what another program needs just to attach to a card is
 * the engine's to know (vram.attach_mib, in its PLAN).
 */
#include <inttypes.h>

#include "protocol/vram.h"
#include "tools/kit/kit.h"

static void one_warn(const struct vram_receipt *receipt, const struct kit_reply *plan)
{
    for (size_t i = 0; i < plan->n_lines; i++) {
        uint64_t device, attach;
        if (message_u64(&plan->messages[i], "device", 0, UINT32_MAX, &device, NULL) != 0 ||
            message_u64(&plan->messages[i], "attach_mib", 0, UINT64_MAX, &attach, NULL) != 0 ||
            device != receipt->device || receipt->free_mib >= attach)
            continue;
        fprintf(stderr,
                "warning: card %" PRIu32 ": %" PRIu64
                " MiB are free; another program needs %" PRIu64 " just to attach\n",
                receipt->device, receipt->free_mib, attach);
    }
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
        one_warn(&receipt, &plan);
    }
    kit_reply_free(&plan);
}
