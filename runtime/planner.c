/* runtime/planner.c - dynamic programming over the borders between cards (see planner.h).
 *
 * best[card][layer] are the kept ways to place layers layer.. on the cards card..; each is the size of the first card's
 * share and which way of the rest follows. A share grows layer by layer, so its sums do too. The table is the only
 * allocation and is freed before returning. When nothing fits, the same walk minimises the bytes that are missing, to name
 * the card that stands in the way.
 */
#include "runtime/planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

/* A CPU card: weights at what a few threads read, misses from the page cache at little less, hops over a socket. A CUDA
 * card: a consumer card's memory, misses over PCIe, hops through mapped memory. */
const struct planner_speed planner_speeds[2] = {
    [CARD_CPU] = {.layer_ns = 20000, .bytes_per_ns = 12, .miss_bytes_per_ns = 48, .hop_ns = 50000},
    [CARD_CUDA] = {.layer_ns = 15000,
                   .bytes_per_ns = 700,
                   .miss_bytes_per_ns = 22,
                   .hop_ns = 15000},
};

struct way {
    uint64_t cost, unevenness;
    uint32_t n_layers; /* of the first card */
    uint32_t rest;     /* which way of the cards after it */
};

struct ways {
    uint32_t n;
    struct way kept[PLANNER_KEPT];
};

/* Sums over a range of layers on one card. */
struct range {
    uint32_t n_layers, n_routed;
    uint64_t dense_bytes, kv_bytes, slot_bytes, ns;
    double miss_ns; /* if no expert at all were resident */
};

static uint64_t read_ns(double bytes, double bytes_per_ns)
{
    return (uint64_t)llround(bytes / bytes_per_ns);
}

static void range_add(struct range *r, const struct planner_model *m,
                      const struct planner_layer *layer, const struct planner_speed *speed)
{
    double routed = layer->slot_bytes > 0 ? (double)m->n_used * (double)layer->expert_bytes : 0;
    r->n_layers++;
    r->n_routed += layer->slot_bytes > 0;
    r->dense_bytes += layer->dense_bytes;
    r->kv_bytes += layer->kv_bytes;
    if (layer->slot_bytes > r->slot_bytes)
        r->slot_bytes = layer->slot_bytes;
    r->ns += speed->layer_ns + read_ns((double)layer->dense_bytes + routed, speed->bytes_per_ns);
    r->miss_ns += routed / speed->miss_bytes_per_ns;
}

static double mass_at(const struct planner_model *m, double n_resident)
{
    if (n_resident >= m->n_experts)
        return 1;
    if (m->mass == NULL)
        return n_resident / m->n_experts;
    uint32_t below = (uint32_t)n_resident;
    return m->mass[below] + (n_resident - below) * (m->mass[below + 1] - m->mass[below]);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return unit > 1 ? (bytes + unit - 1) / unit * unit : bytes;
}

/* The cache: segments of what is free beside the fixed blocks. */
static void cache_fit(struct planner_stage *s, const struct planner_model *m, const struct range *r,
                      uint64_t room)
{
    s->slots_full = (uint64_t)r->n_routed * m->n_experts;
    if (s->slots_full == 0)
        return;
    uint64_t per_segment = m->segment_bytes / r->slot_bytes;
    s->segment_is_small = per_segment == 0;
    if (s->segment_is_small) {
        s->fits = false;
        return;
    }
    uint64_t floor_slots = 2 * (uint64_t)m->n_used + 1;
    floor_slots = floor_slots < s->slots_full ? floor_slots : s->slots_full;
    uint64_t full = (s->slots_full + per_segment - 1) / per_segment;
    uint64_t floor = (floor_slots + per_segment - 1) / per_segment;
    uint64_t segments = room / m->segment_bytes < full ? room / m->segment_bytes : full;
    s->need_bytes += floor * m->segment_bytes;
    s->fits = s->fits && segments >= floor;
    s->cache_bytes = segments * m->segment_bytes;
    s->slots = segments * per_segment < s->slots_full ? segments * per_segment : s->slots_full;
}

/* What a whole cache leaves is workspace for long prompts. */
static void workspace_lend(struct planner_stage *s, const struct planner_model *m)
{
    if (s->slots_full == 0 || s->slots < s->slots_full || m->segment_bytes == 0)
        return;
    uint64_t wanted = (m->workspace_lent_bytes + m->segment_bytes - 1) / m->segment_bytes,
             left = s->left_bytes / m->segment_bytes,
             lent = (wanted < left ? wanted : left) * m->segment_bytes;
    s->workspace_bytes += lent;
    s->left_bytes -= lent;
}

static void stage_fill(struct planner_stage *s, const struct planner_model *m,
                       const struct planner_card *cards, size_t n_cards, size_t card,
                       const struct range *r)
{
    const struct planner_card *c = &cards[card];
    bool first = card == 0, last = card + 1 == n_cards;
    uint64_t dense = r->dense_bytes + (first ? m->first_bytes : 0) + (last ? m->last_bytes : 0);
    if (first && last)
        dense -= m->shared_bytes;
    s->dense_bytes = round_up(dense, c->granularity);
    s->kv_bytes = round_up(r->kv_bytes, c->granularity);
    s->workspace_bytes =
        round_up(last ? m->workspace_last_bytes : m->workspace_bytes, c->granularity);
    uint64_t ring = first || !c->has_ring ? 0 : m->ring_bytes;
    uint64_t others = c->tiles_on_host ? 0 : m->link_bytes - ring;
    s->link_bytes =
        n_cards > 1 ? round_up(ring, c->granularity) + round_up(others, c->granularity) : 0;
    if (c->nccl_bytes > 0 && n_cards > 1) {
        uint64_t ways = first || last ? 1 : 2;
        s->link_bytes += c->nccl_bytes + ways * c->nccl_link_bytes +
                         round_up(ways * m->ring_bytes, c->granularity);
    }
    s->need_bytes = s->dense_bytes + s->kv_bytes + s->workspace_bytes + s->link_bytes;
    uint64_t given = c->free_bytes > c->reserve_bytes ? c->free_bytes - c->reserve_bytes : 0;
    s->fits = s->need_bytes <= given;
    uint64_t room = s->fits ? given - s->need_bytes : 0;
    cache_fit(s, m, r, room);
    s->left_bytes = room - s->cache_bytes;
    workspace_lend(s, m);
    double missed = r->n_routed > 0 ? 1 - mass_at(m, (double)s->slots / r->n_routed) : 0;
    s->misses = missed * m->n_used * r->n_routed;
    s->ns = r->ns + (uint64_t)llround(missed * r->miss_ns) + (first ? 0 : c->speed.hop_ns);
    if (last)
        s->ns += read_ns((double)m->last_bytes, c->speed.bytes_per_ns);
}

void planner_stage(const struct planner_model *m, const struct planner_card *cards, size_t n_cards,
                   size_t card, uint32_t first, uint32_t last, struct planner_stage *out)
{
    struct range r = {0};
    for (uint32_t l = first; l <= last; l++)
        range_add(&r, m, &m->layers[l], &cards[card].speed);
    *out = (struct planner_stage){.layer_first = first, .layer_last = last};
    stage_fill(out, m, cards, n_cards, card, &r);
}

static uint64_t missing_bytes(const struct planner_card *c, const struct planner_stage *s)
{
    uint64_t wanted = s->need_bytes + c->reserve_bytes;
    return wanted > c->free_bytes ? wanted - c->free_bytes : 0;
}

static bool way_is_better(const struct way *a, const struct way *b)
{
    if (a->cost != b->cost)
        return a->cost < b->cost;
    if (a->unevenness != b->unevenness)
        return a->unevenness < b->unevenness;
    if (a->n_layers != b->n_layers)
        return a->n_layers > b->n_layers;
    return a->rest < b->rest;
}

static void way_offer(struct ways *w, const struct way *way)
{
    if (w->n == PLANNER_KEPT && !way_is_better(way, &w->kept[PLANNER_KEPT - 1]))
        return;
    uint32_t at = w->n < PLANNER_KEPT ? w->n++ : PLANNER_KEPT - 1;
    for (; at > 0 && way_is_better(way, &w->kept[at - 1]); at--)
        w->kept[at] = w->kept[at - 1];
    w->kept[at] = *way;
}

struct search {
    const struct planner_model *m;
    const struct planner_card *cards;
    size_t n_cards;
    bool by_missing;   /* minimise the bytes that lack, not time */
    struct ways *best; /* [n_cards][n_layers + 1] */
};

static struct ways *best_at(const struct search *s, size_t card, uint32_t layer)
{
    return &s->best[card * ((size_t)s->m->n_layers + 1) + layer];
}

/* Every share of `card` that begins at `first` and leaves the later cards a layer each. */
static void shares_try(const struct search *s, size_t card, uint32_t first)
{
    uint32_t n_after = (uint32_t)(s->n_cards - card - 1);
    struct ways *ways = best_at(s, card, first);
    struct range r = {0};
    for (uint32_t l = first; l + n_after < s->m->n_layers; l++) {
        struct planner_stage stage = {0};
        range_add(&r, s->m, &s->m->layers[l], &s->cards[card].speed);
        if (n_after == 0 && l + 1 < s->m->n_layers)
            continue; /* the last card takes all that is left */
        stage_fill(&stage, s->m, s->cards, s->n_cards, card, &r);
        if (!s->by_missing && !stage.fits)
            continue;
        struct way way = {
            .cost = s->by_missing ? missing_bytes(&s->cards[card], &stage) : stage.ns,
            .unevenness = (uint64_t)r.n_layers * r.n_layers,
            .n_layers = r.n_layers,
        };
        if (n_after == 0) {
            way_offer(ways, &way);
            continue;
        }
        const struct ways *rest = best_at(s, card + 1, l + 1);
        for (uint32_t i = 0; i < rest->n; i++) {
            struct way whole = way;
            whole.cost += rest->kept[i].cost;
            whole.unevenness += rest->kept[i].unevenness;
            whole.rest = i;
            way_offer(ways, &whole);
        }
    }
}

static void way_follow(const struct search *s, uint32_t index, struct planner_split *out)
{
    uint32_t layer = 0;
    const struct way *whole = &best_at(s, 0, 0)->kept[index];
    *out = (struct planner_split){.ns = whole->cost, .unevenness = whole->unevenness};
    for (size_t card = 0; card < s->n_cards; card++) {
        const struct way *way = &best_at(s, card, layer)->kept[index];
        out->n_layers[card] = way->n_layers;
        layer += way->n_layers;
        index = way->rest;
    }
}

static int search_run(struct search *s, struct planner_split *splits, size_t *n, struct error *err)
{
    s->best = calloc(s->n_cards * ((size_t)s->m->n_layers + 1), sizeof *s->best);
    if (s->best == NULL)
        return error_set(err, EBB_ENOMEM, "no memory to plan %" PRIu32 " layers over %zu cards",
                         s->m->n_layers, s->n_cards);
    for (size_t card = s->n_cards; card-- > 0;)
        for (uint32_t first = (uint32_t)card; first < s->m->n_layers; first++)
            if (card > 0 || first == 0)
                shares_try(s, card, first);
    *n = best_at(s, 0, 0)->n;
    for (uint32_t i = 0; i < *n; i++)
        way_follow(s, i, &splits[i]);
    free(s->best);
    return 0;
}

int planner_refuse(const struct planner_card *card, size_t index, const struct planner_stage *stage,
                   const char *advice, struct error *err)
{
    uint64_t free_mib = card->free_bytes / MIB, reserve_mib = card->reserve_bytes / MIB;
    if (stage->segment_is_small)
        return error_set(err, EBB_ENOMEM,
                         "card %zu (%s): an expert of layers %" PRIu32 "-%" PRIu32
                         " does not fit into a segment; set a larger --segment-mib",
                         index, card->label, stage->layer_first, stage->layer_last);
    return error_set(
        err, EBB_ENOMEM,
        "card %zu (%s): %" PRIu64 " MiB free, reserve %" PRIu64 ": %" PRIu64
        " MiB left for layers %" PRIu32 "-%" PRIu32 ", which need %" PRIu64 " at least%s%s%s%s",
        index, card->label, free_mib, reserve_mib,
        free_mib > reserve_mib ? free_mib - reserve_mib : 0, stage->layer_first, stage->layer_last,
        (stage->need_bytes + MIB - 1) / MIB, card->holders[0] != '\0' ? "; " : "", card->holders,
        card->holders[0] != '\0' ? " - free it" : "", advice);
}

/* No split fits: the one that lacks least, and the card of it that lacks most. */
static int nothing_fits(struct search *s, struct planner_split *splits, struct error *err)
{
    struct planner_stage stage, worst = {0};
    uint64_t most = 0, in_all = 0;
    size_t n = 0, worst_card = 0;
    uint32_t layer = 0;
    char advice[200];
    s->by_missing = true;
    int code = search_run(s, splits, &n, err);
    if (code != 0)
        return code;
    for (size_t card = 0; card < s->n_cards; card++) {
        uint32_t last = layer + splits[0].n_layers[card] - 1;
        planner_stage(s->m, s->cards, s->n_cards, card, layer, last, &stage);
        uint64_t missing = missing_bytes(&s->cards[card], &stage);
        if (!stage.fits && (worst.need_bytes == 0 || missing > most)) {
            worst = stage;
            worst_card = card;
            most = missing;
        }
        in_all += missing;
        layer = last + 1;
    }
    (void)snprintf(advice, sizeof advice,
                   "; no split fits, the nearest lacks %" PRIu64
                   " MiB in all - free memory, add a card, or set a smaller reserve, context or "
                   "--kv-tokens",
                   (in_all + MIB - 1) / MIB);
    return planner_refuse(&s->cards[worst_card], worst_card, &worst, advice, err);
}

int planner_solve(const struct planner_model *m, const struct planner_card *cards, size_t n_cards,
                  struct planner_split *splits, size_t *n, struct error *err)
{
    struct search s = {.m = m, .cards = cards, .n_cards = n_cards};
    *n = 0;
    if (n_cards == 0 || n_cards > CARDS_MAX || n_cards > m->n_layers)
        return error_set(err, EBB_EINVAL,
                         "--cards: wanted 1 to %" PRIu32
                         " cards, at most one per layer of the model, got %zu",
                         m->n_layers < CARDS_MAX ? m->n_layers : CARDS_MAX, n_cards);
    int code = search_run(&s, splits, n, err);
    return code == 0 && *n == 0 ? nothing_fits(&s, splits, err) : code;
}

void planner_mass_fill(double *mass, uint32_t n_experts, double skew)
{
    mass[0] = 0;
    for (uint32_t k = 1; k <= n_experts; k++)
        mass[k] = mass[k - 1] + pow(k, -skew);
    for (uint32_t k = 1; k <= n_experts; k++)
        mass[k] /= mass[n_experts];
}
