/* runtime/settings_cards.c - the settings whose text has a form of its own: cards, the launch template, names, ids.
 *
 * Pure checks of text. A card's host ends up unquoted in a shell's command line by way of the launch template, so its
 * letters are few, none of them the shell's, and it never begins with a dash.
 */
#include "runtime/settings_table.h"

#include <string.h>

#include "protocol/message.h"
#include "protocol/pin.h"

#define ORDINAL_MAX 4095

static const char letters_of_a_name[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
static const char letters_of_a_host[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:@";

static int card_kind_find(const char *name, size_t n_bytes, enum card_kind *kind)
{
    static const char *const names[] = {[CARD_CPU] = "cpu", [CARD_CUDA] = "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == n_bytes && memcmp(names[i], name, n_bytes) == 0) {
            *kind = (enum card_kind)i;
            return 0;
        }
    }
    return EBB_EINVAL;
}

static bool host_is_valid(const char *host)
{
    return host[0] != '\0' && host[0] != '-' && host[strspn(host, letters_of_a_host)] == '\0' &&
           strlen(host) < sizeof((struct card_setting *)NULL)->host;
}

int host_check(const char *value, struct error *err)
{
    if (!host_is_valid(value))
        return error_set(err, EBB_EINVAL, "wanted a host such as box.local, got '%.128s'", value);
    return 0;
}

/* "cpu:0" or "cpu:0@host"; text is a copy that may be cut. */
static int card_parse(struct card_setting *card, char *text)
{
    char *host = strchr(text, '@');
    char *ordinal = strchr(text, ':');
    uint64_t number;
    memset(card, 0, sizeof *card);
    if (ordinal == NULL || (host != NULL && ordinal > host))
        return EBB_EINVAL;
    if (host != NULL) {
        *host++ = '\0';
        if (!host_is_valid(host))
            return EBB_EINVAL;
        memcpy(card->host, host, strlen(host) + 1);
    }
    *ordinal++ = '\0';
    if (card_kind_find(text, strlen(text), &card->kind) != 0 ||
        parse_u64(ordinal, 0, ORDINAL_MAX, &number) != 0)
        return EBB_EINVAL;
    card->ordinal = (uint32_t)number;
    return 0;
}

static bool card_is_same(const struct card_setting *a, const struct card_setting *b)
{
    return a->kind == b->kind && a->ordinal == b->ordinal && strcmp(a->host, b->host) == 0;
}

int cards_shared_check(const struct settings *s, struct error *err)
{
    for (size_t i = 0; i < s->n_cards; i++)
        for (size_t k = 0; k < s->n_cards; k++)
            if (i != k && card_is_same(&s->cards[i], &s->cards[k]) && s->cards[i].vram_mib == 0)
                return error_set(err, EBB_EINVAL,
                                 "cards %zu and %zu are both cuda:%u: each wants its own share of "
                                 "that card's memory (vram-mib), got 0 for card %zu",
                                 i < k ? i : k, i < k ? k : i, s->cards[i].ordinal, i);
    return 0;
}

int card_add(struct card_setting *cards, size_t *n, const char *card, size_t n_bytes,
             struct error *err)
{
    char text[192];
    int shown = (int)(n_bytes < sizeof text - 1 ? n_bytes : sizeof text - 1);
    if (*n == CARDS_MAX)
        return error_set(err, EBB_ERANGE, "wanted at most %d cards, got more", CARDS_MAX);
    (void)snprintf(text, sizeof text, "%.*s", shown, card);
    if (n_bytes >= sizeof text || card_parse(&cards[*n], text) != 0)
        return error_set(err, EBB_EINVAL,
                         "wanted auto or a list like cpu:0,cpu:1,cuda:0,cpu:0@host "
                         "(numbers up to %d), got '%.*s' as card %zu",
                         ORDINAL_MAX, shown, card, *n);
    for (size_t i = 0; i < *n; i++)
        if (card_is_same(&cards[i], &cards[*n]) && cards[i].kind == CARD_CPU)
            return error_set(err, EBB_EINVAL,
                             "wanted every card once, got '%.*s' as card %zu and %zu", shown, card,
                             i, *n);
    (*n)++;
    return 0;
}

/* Replaces the cards of s; on failure they stay as they were. */
int cards_parse(struct settings *s, const char *list, struct error *err)
{
    struct card_setting cards[CARDS_MAX] = {0};
    size_t n_cards = 0;
    s->cards_auto = strcmp(list, "auto") == 0;
    for (const char *cursor = s->cards_auto ? "cpu:0" : list;; cursor++) {
        size_t n_bytes = strcspn(cursor, ",");
        int code = card_add(cards, &n_cards, cursor, n_bytes, err);
        if (code != 0)
            return code;
        cursor += n_bytes;
        if (*cursor == '\0')
            break;
    }
    memcpy(s->cards, cards, n_cards * sizeof cards[0]);
    s->n_cards = n_cards;
    return 0;
}

/* A slip like {hots} is told; braces of the shell's own, as in ${HOME} and { a; b; }, are left to it. */
int launch_check(const char *value, struct error *err)
{
    static const char *const fields[] = {"{stage}", "{host}", "{card}"};
    if (value[strspn(value, " ")] == '\0')
        return error_set(err, EBB_EINVAL, "wanted a command such as {stage}, got nothing");
    for (const char *brace = strchr(value, '{'); brace != NULL; brace = strchr(brace + 1, '{')) {
        size_t n_word = strspn(brace + 1, "abcdefghijklmnopqrstuvwxyz");
        bool is_field =
            n_word > 0 && brace[1 + n_word] == '}' && (brace == value || brace[-1] != '$');
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
            is_field = is_field && strncmp(brace, fields[i], strlen(fields[i])) != 0;
        if (is_field)
            return error_set(err, EBB_EINVAL,
                             "wanted the fields {stage}, {host}, {card}, got '%.*s'",
                             (int)n_word + 2, brace);
    }
    return 0;
}

int pin_check(const char *value, struct error *err)
{
    struct pin pin;
    return pin_parse(&pin, value, err);
}

/* About what a CUDA client takes of a card for its context alone; more where there are more multiprocessors. */
#define CUDA_ATTACH_MIB 305

int attach_check(const char *value, struct error *err)
{
    uint64_t mib;
    if (strcmp(value, "auto") == 0 || parse_u64(value, 0, (uint64_t)1 << 30, &mib) == 0)
        return 0;
    return error_set(err, EBB_EINVAL, "wanted auto or a whole number of MiB, got '%.64s'", value);
}

uint64_t card_attach_mib(const struct settings *s, const struct card_setting *card,
                         uint64_t context_mib)
{
    uint64_t mib = context_mib > CUDA_ATTACH_MIB ? context_mib : CUDA_ATTACH_MIB;
    if (card->kind != CARD_CUDA)
        mib = 0;
    if (s->attach_mib != NULL)
        (void)parse_u64(s->attach_mib, 0, (uint64_t)1 << 30, &mib);
    return mib;
}

static int auto_or_check(const char *value, uint64_t max, struct error *err)
{
    uint64_t n;
    if (strcmp(value, "auto") == 0 || parse_u64(value, 0, max, &n) == 0)
        return 0;
    return error_set(err, EBB_EINVAL, "wanted auto or a number from 0 to %llu, got '%.64s'",
                     (unsigned long long)max, value);
}

int miss_threads_check(const char *value, struct error *err)
{
    return auto_or_check(value, 1024, err);
}

int miss_share_check(const char *value, struct error *err)
{
    return auto_or_check(value, 100, err);
}

int plain_name_check(const char *value, struct error *err)
{
    size_t n_bytes = strlen(value);
    if (n_bytes == 0 || n_bytes > 64 || value[0] == '.' || value[0] == '-' ||
        value[strspn(value, letters_of_a_name)] != '\0')
        return error_set(err, EBB_EINVAL,
                         "wanted 1 to 64 of A-Z a-z 0-9 . _ - (not . or - first), got '%s'", value);
    return 0;
}

int ids_check(const char *value, struct error *err)
{
    const char *cursor = value;
    struct error why = {0};
    int32_t id;
    int got = ids_next(&cursor, INT32_MAX, &id, &why);
    if (got == 0)
        return error_set(err, EBB_EINVAL, "wanted token ids like 1,2,3, got none");
    while (got > 0)
        got = ids_next(&cursor, INT32_MAX, &id, &why);
    if (got < 0)
        return error_set(err, got, "wanted token ids like 1,2,3, got '%.64s': %s", value, why.text);
    return 0;
}

int biases_check(const char *value, struct error *err)
{
    struct logit_bias biases[LOGIT_BIAS_MAX];
    struct error why = {0};
    size_t n;
    int code = biases_read(value, INT32_MAX, biases, &n, &why);
    return code == 0 ? 0
                     : error_set(err, code, "wanted biases like 5:-1.5,7:2, got '%.64s': %s", value,
                                 why.text);
}

int logprobs_check(const char *value, struct error *err)
{
    uint64_t n;
    int code = parse_u64(value, 0, 20, &n);
    return code == 0
               ? 0
               : error_set(err, code, "wanted a whole number from 0 to 20, got '%.64s'", value);
}
