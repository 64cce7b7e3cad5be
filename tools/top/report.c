/* tools/top/report.c - a snapshot as JSON. Owns nothing that outlives the call. */
#include "tools/top/report.h"

#include <jansson.h>
#include <string.h>

static int rate_add(json_t *object, const char *key, double value)
{
    return json_object_set_new(object, key, value < 0 ? json_null() : json_real(value));
}

static int text_add(json_t *object, const char *key, const char *text)
{
    return text[0] == '\0' ? 0 : json_object_set_new(object, key, json_string(text));
}

static int heat_add(json_t *object, const struct snapshot_card *card)
{
    json_t *list = json_array();
    int failed = 0;
    for (size_t i = 0; i < card->n_heats; i++)
        failed |= json_array_append_new(list, json_integer(card->heat[i]));
    return failed | json_object_set_new(object, "heat_layers", list);
}

/* NULL: out of memory. */
static json_t *card_object(const struct snapshot_card *card)
{
    json_t *object = json_object(), *ledger = json_object();
    int failed = json_object_set_new(object, "device", json_integer(card->device));
    failed |= text_add(object, "place", card->place) | text_add(object, "name", card->name);
    failed |= text_add(object, "kind", card->kind) | text_add(object, "state", card->state);
    failed |= text_add(object, "layers", card->layers) | text_add(object, "uuid", card->uuid);
    for (size_t i = 0; i < SNAPSHOT_NUMBERS; i++)
        if (card->is_known[i])
            failed |=
                json_object_set_new(strcmp(snapshot_keys[i].verb, "STAT") == 0 ? object : ledger,
                                    snapshot_keys[i].key, json_integer(card->numbers[i]));
    if (card->n_heats > 0)
        failed |= heat_add(object, card);
    failed |= rate_add(object, "hit_rate", card->hit_rate);
    failed |= rate_add(object, "steps_per_s", card->steps_per_s);
    failed |= rate_add(object, "tokens_per_s", card->tokens_per_s);
    failed |= json_object_set_new(object, "ledger", ledger);
    if (failed == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *lease_object(const struct snapshot_lease *lease)
{
    json_t *object = json_object();
    int failed = text_add(object, "name", lease->name);
    if (lease->device >= 0)
        failed |= json_object_set_new(object, "device", json_integer(lease->device));
    if (lease->reserve_mib >= 0)
        failed |= json_object_set_new(object, "reserve_mib", json_integer(lease->reserve_mib));
    failed |= text_add(object, "until", lease->rest);
    if (failed == 0)
        return object;
    json_decref(object);
    return NULL;
}

int report_write(FILE *out, const struct snapshot *s, double interval_s, struct error *err)
{
    json_t *document = json_object(), *cards = json_array(), *leases = json_array();
    int failed = text_add(document, "engine", s->engine);
    failed |= json_object_set_new(document, "interval_s", json_real(interval_s));
    failed |= rate_add(document, "tokens_per_s", s->tokens_per_s);
    for (size_t i = 0; i < s->n_cards; i++)
        failed |= json_array_append_new(cards, card_object(&s->cards[i]));
    for (size_t i = 0; i < s->n_leases; i++)
        failed |= json_array_append_new(leases, lease_object(&s->leases[i]));
    failed |= json_object_set_new(document, "cards", cards);
    failed |= json_object_set_new(document, "leases",
                                  s->leases_known ? json_incref(leases) : json_null());
    json_decref(leases);
    if (failed == 0)
        failed = json_dumpf(document, out, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(document);
    fputc('\n', out);
    if (failed != 0)
        return error_set(err, EBB_ENOMEM, "the answer could not be written as JSON");
    return fflush(out) == 0 ? 0 : error_set(err, EBB_EIO, "the answer could not be written");
}
