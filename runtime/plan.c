/* runtime/plan.c - a split's text into layer ranges, one per card.
 *
 * Pure: no allocation, no state. A plan is written only when all of it holds: every layer exactly once, in card order, and
 * no card without a layer.
 */
#include "runtime/plan.h"

#include <inttypes.h>
#include <string.h>

#include "protocol/message.h"

#define RANGE_BYTES_MAX 32

static void plan_even(struct plan *p, size_t n_cards, uint32_t n_layers)
{
    uint32_t share = n_layers / (uint32_t)n_cards, larger = n_layers % (uint32_t)n_cards, next = 0;
    for (size_t i = 0; i < n_cards; i++) {
        uint32_t size = share + (i < larger ? 1 : 0);
        p->stages[i].layer_first = next;
        p->stages[i].layer_last = next + size - 1;
        next += size;
    }
    p->n_stages = n_cards;
}

/* "4-7" or "4" of card i; `expected` is the layer it has to begin with. */
static int range_parse(const char *text, size_t i, uint32_t expected, uint32_t n_layers,
                       struct plan_stage *stage, struct error *err)
{
    char first_text[RANGE_BYTES_MAX];
    const char *dash = strchr(text, '-');
    size_t n_first = dash != NULL ? (size_t)(dash - text) : strlen(text);
    uint64_t first, last;
    (void)snprintf(first_text, sizeof first_text, "%.*s", (int)n_first, text);
    if (parse_u64(first_text, 0, UINT32_MAX, &first) != 0 ||
        parse_u64(dash != NULL ? dash + 1 : text, 0, UINT32_MAX, &last) != 0)
        return error_set(err, EBB_EINVAL,
                         "--split: card %zu: wanted a range of layers like 0-3, got '%s'", i, text);
    if (last < first)
        return error_set(err, EBB_EINVAL,
                         "--split: card %zu: range '%s': wanted the first layer before the last", i,
                         text);
    if (last >= n_layers)
        return error_set(err, EBB_ERANGE,
                         "--split: card %zu: range '%s': wanted layers 0 to %" PRIu32
                         ", got %" PRIu64,
                         i, text, n_layers - 1, last);
    if (first != expected)
        return error_set(err, EBB_EINVAL,
                         "--split: card %zu: range '%s': wanted it to begin at layer %" PRIu32
                         ", got %" PRIu64 " (%s)",
                         i, text, expected, first,
                         first > expected ? "a gap" : "layers given twice");
    stage->layer_first = (uint32_t)first;
    stage->layer_last = (uint32_t)last;
    return 0;
}

static int plan_manual(struct plan *p, const char *split, size_t n_cards, uint32_t n_layers,
                       struct error *err)
{
    uint32_t next = 0;
    size_t n_ranges = 1;
    for (const char *c = split; *c != '\0'; c++)
        n_ranges += *c == ',';
    if (n_ranges != n_cards)
        return error_set(err, EBB_EINVAL,
                         "--split: '%s': wanted one range for each of the %zu cards, got %zu",
                         split, n_cards, n_ranges);
    for (size_t i = 0; i < n_cards; i++) {
        char range[RANGE_BYTES_MAX];
        size_t n_bytes = strcspn(split, ",");
        int code;
        if (n_bytes >= sizeof range)
            return error_set(err, EBB_EINVAL,
                             "--split: card %zu: wanted a range of layers like 0-3, got '%.*s…'", i,
                             RANGE_BYTES_MAX - 1, split);
        memcpy(range, split, n_bytes);
        range[n_bytes] = '\0';
        code = range_parse(range, i, next, n_layers, &p->stages[i], err);
        if (code != 0)
            return code;
        next = p->stages[i].layer_last + 1;
        split += n_bytes + 1;
    }
    if (next != n_layers)
        return error_set(err, EBB_EINVAL,
                         "--split: the last range: wanted it to end at layer %" PRIu32
                         ", the model's last, got %" PRIu32,
                         n_layers - 1, next - 1);
    p->n_stages = n_cards;
    return 0;
}

int plan_make(struct plan *p, const char *split, size_t n_cards, uint32_t n_layers,
              struct error *err)
{
    struct plan plan = {0};
    int code = 0;
    if (n_cards == 0 || n_cards > CARDS_MAX)
        return error_set(err, EBB_EINVAL, "--cards: wanted 1 to %d cards, got %zu", CARDS_MAX,
                         n_cards);
    if (n_cards > n_layers)
        return error_set(err, EBB_EINVAL,
                         "--cards: wanted at most %" PRIu32
                         " cards, one per layer of the model, got %zu",
                         n_layers, n_cards);
    if (strcmp(split, "auto") == 0)
        plan_even(&plan, n_cards, n_layers);
    else
        code = plan_manual(&plan, split, n_cards, n_layers, err);
    if (code == 0)
        *p = plan;
    return code;
}
