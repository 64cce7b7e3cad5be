/* tools/comfy-handoff/hold.c - a reserve on the control socket, taken and given back. */
#include "tools/comfy-handoff/hold.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 120000
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

static void text_take(const struct message *m, const char *key, char out[static 256])
{
    size_t n = 0;
    if (message_text(m, key, out, 255, &n, NULL) != 0)
        n = 0;
    out[n] = '\0';
}

static void card_take(struct cards *cards, const struct message *m)
{
    uint64_t device = 0;
    if (cards->n == CARDS_MAX || message_u64(m, "device", 0, UINT32_MAX, &device, NULL) != 0)
        return;
    struct card *card = &cards->each[cards->n++];
    *card = (struct card){.device = (uint32_t)device};
    text_take(m, "name", card->name);
    text_take(m, "uuid", card->uuid);
    (void)message_u64(m, "reserve_mib", 0, UINT64_MAX, &card->reserve_mib, NULL);
}

/* Asks and reads up to the -DONE. Receipts' last one, cards and the lease's name are taken where they are wanted. */
static int converse(struct hold *h, const char *request, struct vram_receipt *receipt,
                    struct cards *cards, struct error *err)
{
    int code = client_ask(&h->channel, request, err);
    while (code == 0) {
        struct message m;
        struct error said = {0};
        const char *tag, *done;
        char *line;
        size_t n_bytes;
        code = client_wait_line(&h->channel, ANSWER_MS, &line, &n_bytes, err);
        if (code == 0)
            code = message_parse(&m, line, n_bytes, err);
        if (code != 0)
            break;
        if (message_error(&m, &tag, &said))
            return error_set(err, said.code, "the engine: %.400s", said.text);
        if (receipt != NULL && strcmp(m.verb, "VRAM") == 0)
            code = vram_receipt_read(&m, receipt, err);
        if (cards != NULL && strcmp(m.verb, "STAT") == 0)
            card_take(cards, &m);
        done = strstr(m.verb, "-DONE");
        if (done != NULL && done[5] == '\0') {
            const char *lease = message_key(&m, "lease");
            if (lease != NULL && tag_is_valid(lease))
                (void)snprintf(h->lease, sizeof h->lease, "%s", lease);
            return code;
        }
    }
    return code;
}

int hold_card_find(struct hold *h, const char *name, const char *uuid, uint32_t *device,
                   struct error *err)
{
    struct cards cards = {0};
    size_t n_found = 0, at = 0;
    char list[300] = "";
    int code = converse(h, "STAT", NULL, &cards, err);
    if (code != 0)
        return code;
    for (size_t i = 0; i < cards.n && uuid[0] != '\0'; i++)
        if (strcmp(cards.each[i].uuid, uuid) == 0) {
            *device = cards.each[i].device;
            return 0;
        }
    for (size_t i = 0; i < cards.n; i++) {
        size_t n = strlen(list);
        (void)snprintf(list + n, sizeof list - n, "%s%" PRIu32 " (%.60s)", n > 0 ? ", " : "",
                       cards.each[i].device, cards.each[i].name);
        if (cards.each[i].name[0] != '\0' && strstr(name, cards.each[i].name) != NULL) {
            n_found++;
            at = i;
        }
    }
    if (n_found == 1) {
        *device = cards.each[at].device;
        return 0;
    }
    return error_set(err, n_found > 1 ? EBB_EBUSY : EBB_ENOENT,
                     "ComfyUI's card '%.80s' is %s of the engine's: %.250s; say it with --device",
                     name, n_found > 1 ? "several" : "none", list);
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
