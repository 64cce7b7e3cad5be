/* tools/comfy-handoff/hold.c - a reserve on the control socket, taken and given back. */
#include "tools/comfy-handoff/hold.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "tools/kit/kit.h"

#define CARDS_MAX 64

struct card {
    uint32_t device;
    uint64_t reserve_mib;
    char name[256], uuid[256];
};

struct cards {
    size_t n;
    struct card each[CARDS_MAX];
};

int hold_open(struct hold *h, const char *control, const char *name, struct error *err)
{
    int code;
    memset(h, 0, sizeof *h);
    code = client_find(control, name, h->path, sizeof h->path, err);
    if (code == 0)
        code = client_connect(&h->channel, h->path, err);
    h->is_open = code == 0;
    return code;
}

static void hold_close(struct hold *h)
{
    if (h->is_open)
        channel_close(&h->channel);
    h->is_open = h->is_held = false;
}

static void card_take(struct cards *cards, const struct message *m)
{
    uint64_t device = 0;
    if (cards->n == CARDS_MAX || message_u64(m, "device", 0, UINT32_MAX, &device, NULL) != 0)
        return;
    struct card *card = &cards->each[cards->n++];
    *card = (struct card){.device = (uint32_t)device};
    message_text_take(m, "name", card->name, sizeof card->name);
    message_text_take(m, "uuid", card->uuid, sizeof card->uuid);
    (void)message_u64(m, "reserve_mib", 0, UINT64_MAX, &card->reserve_mib, NULL);
}

/* Receipts' last one, cards and the lease's name are taken where they are wanted. */
static int converse(struct hold *h, const char *request, struct vram_receipt *receipt,
                    struct cards *cards, struct error *err)
{
    struct kit_reply reply;
    struct message done;
    int code = kit_ask_over(&h->channel, request, &reply, err) == STATUS_DONE ? 0 : err->code;
    for (size_t i = 0; code == 0 && i < reply.n_lines; i++) {
        if (receipt != NULL)
            code = vram_receipt_read(&reply.messages[i], receipt, err);
        if (cards != NULL)
            card_take(cards, &reply.messages[i]);
    }
    if (code == 0 && message_parse(&done, reply.done, strlen(reply.done), NULL) == 0) {
        const char *lease = message_key(&done, "lease");
        if (lease != NULL && tag_is_valid(lease))
            (void)snprintf(h->lease, sizeof h->lease, "%s", lease);
    }
    kit_reply_free(&reply);
    return code;
}

/* NVML's "GPU-1b2c…" and CUDA's "1b2c…" are the same. */
static bool uuid_is_same(const char *a, const char *b)
{
    a += strncasecmp(a, "GPU-", 4) == 0 ? 4 : 0;
    b += strncasecmp(b, "GPU-", 4) == 0 ? 4 : 0;
    return *a != '\0' && strcasecmp(a, b) == 0;
}

int hold_card_find(struct hold *h, const char *name, const char *uuid, uint32_t *device,
                   struct error *err)
{
    struct cards cards = {0};
    size_t n_found = 0, at = 0;
    char list[300] = "";
    bool by_uuid = uuid[0] != '\0';
    int code = converse(h, "STAT", NULL, &cards, err);
    if (code != 0)
        return code;
    for (size_t i = 0; i < cards.n; i++)
        by_uuid = by_uuid && cards.each[i].uuid[0] != '\0';
    for (size_t i = 0; i < cards.n; i++) {
        const struct card *card = &cards.each[i];
        size_t n = strlen(list);
        (void)snprintf(list + n, sizeof list - n, "%s%" PRIu32 " (%.60s%s%.48s)", n > 0 ? ", " : "",
                       card->device, card->name, by_uuid ? " " : "", by_uuid ? card->uuid : "");
        if (by_uuid ? uuid_is_same(card->uuid, uuid)
                    : card->name[0] != '\0' && strstr(name, card->name) != NULL) {
            at = n_found++ == 0 ? i : at;
        }
    }
    if (n_found == 1 || (n_found > 0 && by_uuid)) {
        *device = cards.each[at].device;
        return 0;
    }
    return error_set(err, n_found > 1 ? EBB_EBUSY : EBB_ENOENT,
                     "ComfyUI's card '%.80s%s%.48s' is %s of the engine's: %.250s; say it with "
                     "--device",
                     name, by_uuid ? " " : "", by_uuid ? uuid : "",
                     n_found > 1 ? "several" : "none", list);
}

int hold_take(struct hold *h, uint32_t device, uint64_t reserve_mib, struct vram_receipt *receipt,
              struct error *err)
{
    char line[160];
    struct cards cards = {0};
    int code;
    h->device = device;
    (void)snprintf(line, sizeof line, "VRAM %" PRIu64 " %" PRIu32 " conn=1 lease=comfy-%ld",
                   reserve_mib, device, (long)getpid());
    memset(receipt, 0, sizeof *receipt);
    code = converse(h, line, receipt, NULL, err);
    h->is_held = h->is_lease = code == 0;
    if (code != EBB_EUNSUPPORTED && code != EBB_EUNKNOWN_KEY)
        return code;
    code = converse(h, "STAT", NULL, &cards, err);
    for (size_t i = 0; i < cards.n; i++)
        if (cards.each[i].device == device)
            h->reserve_before_mib = cards.each[i].reserve_mib;
    if (reserve_mib < h->reserve_before_mib)
        reserve_mib = h->reserve_before_mib;
    (void)snprintf(line, sizeof line, "VRAM %" PRIu64 " %" PRIu32, reserve_mib, device);
    if (code == 0)
        code = converse(h, line, receipt, NULL, err);
    h->is_held = code == 0;
    if (code == 0)
        err->code = 0;
    return code;
}

int hold_give_back(struct hold *h, struct vram_receipt *receipt, struct error *err)
{
    char line[160];
    int code = 0;
    if (h->is_held) {
        if (h->is_lease)
            (void)snprintf(line, sizeof line, "UNLEASE %s", h->lease);
        else
            (void)snprintf(line, sizeof line, "VRAM %" PRIu64 " %" PRIu32, h->reserve_before_mib,
                           h->device);
        code = converse(h, line, receipt, NULL, err);
    }
    hold_close(h);
    return code;
}
