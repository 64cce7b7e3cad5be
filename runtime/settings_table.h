/* runtime/settings_table.h - one row per setting: what the parser, the defaults and --help are made from.
 *
 * Private to settings*.c and settings_help.c. A row's default is text that goes through the same setter as a flag, so the
 * default that help shows and the one that holds cannot differ.
 */
#pragma once
#include "runtime/settings.h"

enum setting_type {
    SETTING_TEXT,         /* char *, owned */
    SETTING_CHOICE,       /* char *, one of `choices` */
    SETTING_CHOICE_INDEX, /* an enum whose values count through `choices` from 0 */
    SETTING_U32,
    SETTING_U64,
    SETTING_F64,
    SETTING_BOOL,  /* a flag without a value, or =true, =false */
    SETTING_CARDS, /* the list of cards itself */
    SETTING_CARD_MIB, /* MiB: one for every card, or one per card; `offset` is within struct card_setting */
};

struct setting {
    const char *key;   /* the flag without its dashes */
    char letter;       /* the short flag, 0: none */
    const char *group; /* which commands have it */
    enum setting_type type;
    size_t offset;          /* of the member in struct settings */
    const char *value_name; /* of the value in help */
    const char
        *default_value; /* NULL: not set at start, or computed (then default_words says how) */
    const char *default_words; /* what help shows in place of default_value */
    uint64_t min, max;         /* SETTING_U32, _U64, _CARD_MIB */
    double real_min, real_max; /* SETTING_F64 */
    const char *choices;       /* "auto|avx2" */
    int (*check)(const char *value,
                 struct error *err); /* text: what else must hold; says what was wanted */
    const char *help;
};

extern const struct setting settings_table[];
extern const size_t n_settings;

/* settings_cards.c */
int cards_parse(struct settings *s, const char *list, struct error *err);
int launch_check(const char *value, struct error *err);
int plain_name_check(const char *value, struct error *err);
int ids_check(const char *value, struct error *err);
