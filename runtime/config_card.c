/* runtime/config_card.c - one card of a file of settings (see config_card.h). Pure; the words are the settings' own. */
#include "runtime/config_card.h"

#include <inttypes.h>
#include <string.h>

#include "protocol/message.h"
#include "runtime/settings_table.h"

#define MIB_MAX (UINT64_C(1) << 30)

const struct config_card_key config_card_keys[CONFIG_CARD_KEYS] = {
    [CONFIG_CARD_NAME] = {"card", "a card such as cpu:0", "which card: cpu:0, cuda:1, cpu:0@host",
                          true, "cuda:0"},
    [CONFIG_CARD_HOST] = {"host", "a host such as box.local", "where it is, as in cpu:0@host", true,
                          "box.local"},
    [CONFIG_CARD_VRAM] = {"vram_mib", "a whole number, 0..1073741824",
                          "memory it may use, in place of vram_mib below", false, "24576"},
    [CONFIG_CARD_RESERVE] = {"reserve_mib", "a whole number, 0..1073741824",
                             "memory left free on it, in place of vram.reserve_mib below", false,
                             "512"},
    [CONFIG_CARD_LAUNCH] = {"launch", "a command such as {stage}",
                            "how its stage is started, in place of launch below", true,
                            "\"ssh {host} {stage}\""},
    [CONFIG_CARD_PIN] = {"pin", "none, cores, numa or processors such as 0-7,16",
                         "where its threads keep to, in place of pin below", true, "0-7"},
};

int config_card_find(const char *key, struct nearest *nearest)
{
    for (int i = 0; i < CONFIG_CARD_KEYS; i++) {
        if (strcmp(config_card_keys[i].key, key) == 0)
            return i;
        nearest_offer(nearest, key, config_card_keys[i].key);
    }
    return -1;
}

static int mib_set(const char *value, uint64_t *mib, bool *has, struct error *err)
{
    int code = parse_u64(value, 0, MIB_MAX, mib);
    if (code != 0)
        return error_set(err, code, "wanted a whole number from 0 to %" PRIu64 ", got '%.128s'",
                         MIB_MAX, value);
    *has = true;
    return 0;
}

static int short_text_set(char *to, size_t capacity, const char *value, struct error *err)
{
    if (strlen(value) >= capacity)
        return error_set(err, EBB_ERANGE, "wanted at most %zu bytes, got %zu", capacity - 1,
                         strlen(value));
    memcpy(to, value, strlen(value) + 1);
    return 0;
}

int config_card_set(struct config_card *card, size_t key, const char *value, struct error *err)
{
    struct card_setting *s = &card->setting;
    int code = 0;
    switch (key) {
    case CONFIG_CARD_NAME: return short_text_set(card->name, sizeof card->name, value, err);
    case CONFIG_CARD_HOST:
        code = host_check(value, err);
        return code != 0 ? code : short_text_set(card->host, sizeof card->host, value, err);
    case CONFIG_CARD_VRAM: return mib_set(value, &s->vram_mib, &card->has_vram, err);
    case CONFIG_CARD_RESERVE: return mib_set(value, &s->reserve_mib, &card->has_reserve, err);
    case CONFIG_CARD_PIN:
        code = pin_check(value, err);
        return code != 0 ? code : short_text_set(s->pin, sizeof s->pin, value, err);
    default:
        code = launch_check(value, err);
        return code != 0 ? code : short_text_set(s->launch, sizeof s->launch, value, err);
    }
}

int config_card_add(const struct config_card *card, struct card_setting *cards, size_t *n,
                    struct error *err)
{
    char name[600];
    if (card->name[0] == '\0')
        return error_set(err, EBB_EINVAL, "wanted the key card (cpu:0), got a card without it");
    if (card->host[0] != '\0' && strchr(card->name, '@') != NULL)
        return error_set(err, EBB_EINVAL, "wanted one host, got %s and host: %s", card->name,
                         card->host);
    (void)snprintf(name, sizeof name, "%s%s%s", card->name, card->host[0] != '\0' ? "@" : "",
                   card->host);
    if (strchr(name, ',') != NULL)
        return error_set(err, EBB_EINVAL, "wanted one card, got '%s'", name);
    int code = card_add(cards, n, name, strlen(name), err);
    if (code != 0)
        return code;
    struct card_setting *s = &cards[*n - 1];
    s->vram_mib = card->setting.vram_mib;
    s->reserve_mib = card->setting.reserve_mib;
    memcpy(s->launch, card->setting.launch, sizeof s->launch);
    memcpy(s->pin, card->setting.pin, sizeof s->pin);
    return 0;
}
