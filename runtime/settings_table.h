/* runtime/settings_table.h - one row per setting: what the parser, the defaults, --help and files of settings are made from.
 *
 * Private to settings*.c, config*.c and cmd_manual.c. A row's default is text that goes through the same setter as a flag, so the
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
    SETTING_LATER_MIB, /* MiB of every card but the first; `offset` is within struct card_setting */
};

struct setting {
    const char *key;   /* the flag without its dashes */
    const char *path;  /* in a file: "map.key"; NULL: the key with _ for - */
    bool flag_only;    /* no key of a file */
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
    const char *choices;       /* "auto|avx512" */
    int (*check)(const char *value,
                 struct error *err); /* text: what else must hold; says what was wanted */
    const char *help;
};

extern const struct setting settings_table[];
extern const size_t n_settings;

struct mib_list {
    size_t n;
    uint64_t values[CARDS_MAX];
};

/* What one source says of the cards' memory. It is placed when everything was read, because it may come before the cards. */
struct card_memory {
    struct mib_list vram, reserve;
    bool later_given;
    uint64_t reserve_later_mib;
};

/* Settings being read: the file first, then the flags, which win. */
struct draft {
    struct settings *s;
    struct card_memory file, flags;
    bool in_file; /* which of the two is being read */
    bool kv_given;
    bool own_vram[CARDS_MAX],
        own_reserve[CARDS_MAX]; /* the file gave the card its own; dropped with --cards */
    const char *path;           /* the file */
    uint32_t vram_line, reserve_line, later_line; /* where it gave the lists */
};

struct groups {
    const char *const *names; /* NULL: every group */
    size_t n;
};
bool group_is_in(const struct groups *groups, const char *name);

/* settings_value.c: one value. The error says "wanted ..., got ..."; whoever reads says where. Nothing is set then. */
int draft_set(struct draft *d, const struct setting *row, const char *value, struct error *err);
void setting_range(const struct setting *row, char *text, size_t capacity); /* "1..64", "a|b", "" */
void setting_wanted(const struct setting *row, char *text, size_t capacity);
/* The row's key in a file, "" for a flag without one. */
void setting_path(const struct setting *row, char *path, size_t capacity);
/* Every card's memory, by the flags, else its own of the file, else the file's lists. */
int draft_settle(struct draft *d, struct error *err);

/* config_read.c: the values of a YAML file into d; those of other groups are checked only. */
int config_read(struct draft *d, const char *path, const struct groups *groups, size_t *n_keys,
                struct error *err);

/* config_text.c: the whole file; *text is the caller's to free, also after a failure. */
int config_text_read(const char *path, char **text, size_t *n_bytes, struct error *err);

/* settings_cards.c */
/* Several stages on one CUDA card are told apart by memory alone: each has a share of its own. */
int cards_shared_check(const struct settings *s, struct error *err);
int cards_parse(struct settings *s, const char *list, struct error *err);
/* One more card, "cpu:0" or "cpu:0@host", at cards[*n]. Only a CUDA card may stand there already: cards_shared_check(). */
int card_add(struct card_setting *cards, size_t *n, const char *text, size_t n_bytes,
             struct error *err);
int host_check(const char *value, struct error *err);
int launch_check(const char *value, struct error *err);
int pin_check(const char *value, struct error *err);
int attach_check(const char *value, struct error *err);
int miss_threads_check(const char *value, struct error *err);
int miss_share_check(const char *value, struct error *err);
int plain_name_check(const char *value, struct error *err);
int ids_check(const char *value, struct error *err);
int biases_check(const char *value, struct error *err);
int logprobs_check(const char *value, struct error *err);
