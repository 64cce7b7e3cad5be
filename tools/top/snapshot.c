/* tools/top/snapshot.c - lines of answers into values. Pure: no system call, nothing allocated, every length bounded. */
#include "tools/top/snapshot.h"

#include <string.h>

const struct snapshot_key snapshot_keys[SNAPSHOT_NUMBERS] = {
    [STAT_TOTAL_MIB] = {"STAT", "total_mib"},
    [STAT_FREE_MIB] = {"STAT", "free_mib"},
    [STAT_FOREIGN_MIB] = {"STAT", "foreign_mib"},
    [STAT_RESERVE_MIB] = {"STAT", "reserve_mib"},
    [STAT_BASE_MIB] = {"STAT", "base_mib"},
    [STAT_SEGMENT_MIB] = {"STAT", "segment_mib"},
    [STAT_CACHE_MIB] = {"STAT", "cache_mib"},
    [STAT_CACHE_FULL_MIB] = {"STAT", "cache_full_mib"},
    [STAT_CACHE_FLOOR_MIB] = {"STAT", "cache_floor_mib"},
    [STAT_SLOTS] = {"STAT", "slots"},
    [STAT_SLOTS_FULL] = {"STAT", "slots_full"},
    [STAT_SLOTS_FLOOR] = {"STAT", "slots_floor"},
    [STAT_RESIDENT] = {"STAT", "resident"},
    [STAT_KV_BLOCKS] = {"STAT", "kv_blocks"},
    [STAT_KV_BLOCKS_FREE] = {"STAT", "kv_blocks_free"},
    [STAT_KV_BLOCKS_MAX] = {"STAT", "kv_blocks_max"},
    [STAT_KV_MIB] = {"STAT", "kv_mib"},
    [STAT_SEQUENCES] = {"STAT", "sequences"},
    [STAT_PROMPT_CHUNK] = {"STAT", "prompt_chunk"},
    [STAT_STEPS] = {"STAT", "steps"},
    [STAT_TOKENS] = {"STAT", "tokens"},
    [STAT_HITS] = {"STAT", "hits"},
    [STAT_LOOKUPS] = {"STAT", "lookups"},
    [STAT_PROMOTIONS] = {"STAT", "promotions"},
    [STAT_HEAT_RESIDENT] = {"STAT", "heat_resident"},
    [LEDGER_TOTAL] = {"LEDGER", "total"},
    [LEDGER_FREE] = {"LEDGER", "free"},
    [LEDGER_FOREIGN] = {"LEDGER", "foreign"},
    [LEDGER_UNEXPLAINED] = {"LEDGER", "unexplained"},
    [LEDGER_WEIGHTS] = {"LEDGER", "weights"},
    [LEDGER_KV] = {"LEDGER", "kv"},
    [LEDGER_CACHE] = {"LEDGER", "cache"},
    [LEDGER_WORKSPACE] = {"LEDGER", "workspace"},
    [LEDGER_STREAM] = {"LEDGER", "stream"},
    [LEDGER_LINK] = {"LEDGER", "link"},
    [LEDGER_BLAS] = {"LEDGER", "blas"},
    [LEDGER_CONTEXT] = {"LEDGER", "context"},
    [LEDGER_HOST_REGISTERED] = {"LEDGER", "host_registered"},
};

int64_t snapshot_number(const struct snapshot_card *card, enum snapshot_number which)
{
    return card->is_known[which] ? card->numbers[which] : -1;
}

/* Decoded, cut to what fits, and without what a terminal would take for more than a character. */
static void text_take(const struct message *m, const char *key, char *out, size_t capacity)
{
    char text[1024];
    size_t n_bytes = 0, n = 0;
    if (message_key(m, key) == NULL || message_text(m, key, text, sizeof text, &n_bytes, NULL) != 0)
        return;
    for (; n < n_bytes && n + 1 < capacity; n++)
        out[n] = (unsigned char)text[n] < 0x20 || (unsigned char)text[n] >= 0x7F ? '?' : text[n];
    out[n] = '\0';
}

/* The card that a line is about; NULL: it names none, or there are too many. */
static struct snapshot_card *card_of(struct snapshot *s, const struct message *m)
{
    uint64_t device = 0;
    if (message_u64(m, "device", 0, UINT32_MAX, &device, NULL) != 0)
        return NULL;
    for (size_t i = 0; i < s->n_cards; i++)
        if (s->cards[i].device == device)
            return &s->cards[i];
    if (s->n_cards == SNAPSHOT_CARDS_MAX) {
        s->n_left_out += strcmp(m->verb, "STAT") == 0;
        return NULL;
    }
    struct snapshot_card *card = &s->cards[s->n_cards++];
    memset(card, 0, sizeof *card);
    card->device = (uint32_t)device;
    card->hit_rate = card->steps_per_s = card->tokens_per_s = -1;
    return card;
}

static void numbers_take(struct snapshot_card *card, const struct message *m)
{
    for (size_t i = 0; i < SNAPSHOT_NUMBERS; i++)
        if (strcmp(snapshot_keys[i].verb, m->verb) == 0 &&
            message_i64(m, snapshot_keys[i].key, INT64_MIN / 2, INT64_MAX / 2, &card->numbers[i],
                        NULL) == 0)
            card->is_known[i] = true;
}

static void heat_take(struct snapshot_card *card, const struct message *m)
{
    const char *text = message_key(m, "heat_layers");
    card->n_heats = 0;
    while (text != NULL && *text != '\0' && card->n_heats < SNAPSHOT_LAYERS_MAX) {
        char number[8];
        uint64_t value;
        size_t n = strcspn(text, ",");
        (void)snprintf(number, sizeof number, "%.*s", n < 8 ? (int)n : 7, text);
        if (parse_u64(number, 0, 1000, &value) != 0) {
            card->n_heats = 0;
            return;
        }
        card->heat[card->n_heats++] = (uint16_t)value;
        text += n + (text[n] == ',');
    }
}

static void lease_take(struct snapshot *s, const struct message *m)
{
    static const char *const known[] = {"name", "lease", "device", "reserve_mib"};
    if (s->n_leases == SNAPSHOT_LEASES_MAX)
        return;
    struct snapshot_lease *lease = &s->leases[s->n_leases++];
    memset(lease, 0, sizeof *lease);
    lease->device = lease->reserve_mib = -1;
    text_take(m, "lease", lease->name, sizeof lease->name);
    text_take(m, "name", lease->name, sizeof lease->name);
    (void)message_i64(m, "device", 0, UINT32_MAX, &lease->device, NULL);
    (void)message_i64(m, "reserve_mib", 0, INT64_MAX, &lease->reserve_mib, NULL);
    for (size_t i = m->n_bare; i < m->n_fields; i++) {
        size_t n = strlen(lease->rest);
        bool is_shown = false;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            is_shown = is_shown || strcmp(known[k], m->fields[i].key) == 0;
        if (!is_shown)
            (void)snprintf(lease->rest + n, sizeof lease->rest - n, "%s%s=%s", n > 0 ? " " : "",
                           m->fields[i].key, m->fields[i].value);
    }
    for (char *c = lease->rest; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F)
            *c = '?';
}

void snapshot_take(struct snapshot *s, const struct message *m)
{
    struct snapshot_card *card;
    if (strcmp(m->verb, "LEASES") == 0) {
        lease_take(s, m);
        return;
    }
    if (strcmp(m->verb, "LEASES-DONE") == 0)
        s->leases_known = true;
    if (strcmp(m->verb, "STAT") != 0 && strcmp(m->verb, "LEDGER") != 0 &&
        strcmp(m->verb, "PLAN") != 0)
        return;
    card = card_of(s, m);
    if (card == NULL)
        return;
    numbers_take(card, m);
    text_take(m, "layers", card->layers, sizeof card->layers);
    if (strcmp(m->verb, "PLAN") == 0)
        text_take(m, "card", card->place, sizeof card->place);
    if (strcmp(m->verb, "STAT") == 0) {
        text_take(m, "name", card->name, sizeof card->name);
        text_take(m, "kind", card->kind, sizeof card->kind);
        text_take(m, "uuid", card->uuid, sizeof card->uuid);
        text_take(m, "state", card->state, sizeof card->state);
        heat_take(card, m);
    }
}

/* What a counter grew by; below 0: not known. */
static double growth(const struct snapshot_card *now, const struct snapshot_card *then,
                     enum snapshot_number which)
{
    int64_t a = snapshot_number(then, which), b = snapshot_number(now, which);
    return a < 0 || b < a ? -1 : (double)(b - a);
}

void snapshot_rates(struct snapshot *s, const struct snapshot *before, double seconds)
{
    s->tokens_per_s = -1;
    for (size_t i = 0; i < s->n_cards; i++) {
        struct snapshot_card *card = &s->cards[i];
        card->hit_rate = card->steps_per_s = card->tokens_per_s = -1;
        for (size_t k = 0; before != NULL && seconds > 0 && k < before->n_cards; k++) {
            const struct snapshot_card *then = &before->cards[k];
            if (then->device != card->device)
                continue;
            double lookups = growth(card, then, STAT_LOOKUPS), hits = growth(card, then, STAT_HITS);
            double steps = growth(card, then, STAT_STEPS), tokens = growth(card, then, STAT_TOKENS);
            card->hit_rate = lookups > 0 && hits >= 0 && hits <= lookups ? hits / lookups : -1;
            card->steps_per_s = steps < 0 ? -1 : steps / seconds;
            card->tokens_per_s = tokens < 0 ? -1 : tokens / seconds;
        }
        if (card->tokens_per_s > s->tokens_per_s)
            s->tokens_per_s = card->tokens_per_s;
    }
}
