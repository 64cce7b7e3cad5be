/* runtime/config_card.h - the keys that a card has in a file of settings: a small table, and a card being read.
 *
 * Private to config*.c. A card may also be written as plain text, cpu:0 or cpu:0@host; then it has none of these.
 */
#pragma once
#include "runtime/nearest.h"
#include "runtime/settings.h"

enum {
    CONFIG_CARD_NAME,
    CONFIG_CARD_HOST,
    CONFIG_CARD_VRAM,
    CONFIG_CARD_RESERVE,
    CONFIG_CARD_LAUNCH,
    CONFIG_CARD_PIN,
    CONFIG_CARD_KEYS
};

struct config_card_key {
    const char *key, *wanted, *help;
    bool is_text;
    const char *sample; /* a value to show */
};
extern const struct config_card_key config_card_keys[CONFIG_CARD_KEYS];

struct config_card {
    struct card_setting setting; /* without kind and ordinal, which the name says */
    char name[256], host[256];
    bool has_vram, has_reserve;
};

/* The key's number, or -1 with the nearest. */
int config_card_find(const char *key, struct nearest *nearest);
/* "wanted ..., got ..." in err; the card is as it was then. */
int config_card_set(struct config_card *card, size_t key, const char *value, struct error *err);
/* The whole card at cards[*n], if no other is the same. */
int config_card_add(const struct config_card *card, struct card_setting *cards, size_t *n,
                    struct error *err);
