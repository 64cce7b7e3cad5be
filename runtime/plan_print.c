/* runtime/plan_print.c - a plan as a table, and as JSON (see plan_report.h). Writes, decides nothing. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "runtime/plan_report.h"

#define MIB (UINT64_C(1) << 20)

struct cell {
    char text[40];
};

/* "11.4": MiB, one digit after the point below a thousand. */
static struct cell mib(uint64_t bytes)
{
    struct cell c;
    double value = (double)bytes / (double)MIB;
    (void)snprintf(c.text, sizeof c.text, value < 1000 ? "%.1f" : "%.0f", value);
    return c;
}

static struct cell pair(uint64_t a, const char *between, uint64_t b)
{
    struct cell c;
    (void)snprintf(c.text, sizeof c.text, "%" PRIu64 "%s%" PRIu64, a, between, b);
    return c;
}

static uint64_t free_after(const struct plan_report *r, size_t card)
{
    return r->stages[card].left_bytes + r->cards[card].reserve_bytes;
}

static bool is_low(const struct plan_report *r, size_t card)
{
    return free_after(r, card) < plan_low_mib(r->total_mib[card]) * MIB;
}

/* The value of --reserve-mib that ends every LOW of this plan. */
static void reserves_text(const struct plan_report *r, char *text, size_t capacity)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_cards && n < capacity; i++) {
        uint64_t reserve = r->cards[i].reserve_bytes / MIB;
        if (is_low(r, i))
            reserve = plan_low_mib(r->total_mib[i]);
        n += (size_t)snprintf(text + n, capacity - n, "%s%" PRIu64, i > 0 ? "," : "", reserve);
    }
}

static void print_table(FILE *out, const struct plan_report *r)
{
    fprintf(out, "%-16s %7s %9s %9s %9s %7s %9s %9s %9s %9s %11s %8s %9s\n", "card (MiB)", "layers",
            "dense", "KV", "workspace", "link", "cache", "reserve", "left", "of", "experts",
            "misses", "ms/token");
    for (size_t i = 0; i < r->n_cards; i++) {
        const struct planner_stage *s = &r->stages[i];
        fprintf(out, "%-16s %7s %9s %9s %9s %7s %9s %9s %9s %9" PRIu64 " %11s %8.2f %9.3f\n",
                r->cards[i].label, pair(s->layer_first, "-", s->layer_last).text,
                mib(s->dense_bytes).text, mib(s->kv_bytes).text, mib(s->workspace_bytes).text,
                mib(s->link_bytes).text, mib(s->cache_bytes).text,
                mib(r->cards[i].reserve_bytes).text, mib(s->left_bytes).text, r->total_mib[i],
                s->slots_full > 0 ? pair(s->slots, "/", s->slots_full).text : "none", s->misses,
                (double)s->ns / 1e6);
    }
}

static void print_low(FILE *out, const struct plan_report *r)
{
    char reserves[CARDS_MAX * 12];
    reserves_text(r, reserves, sizeof reserves);
    for (size_t i = 0; i < r->n_cards; i++)
        if (is_low(r, i))
            fprintf(out,
                    "LOW: card %zu (%s): %s MiB of %" PRIu64 " will be free; to keep %" PRIu64
                    ", set --reserve-mib %s\n",
                    i, r->cards[i].label, mib(free_after(r, i)).text, r->total_mib[i],
                    plan_low_mib(r->total_mib[i]), reserves);
}

/* Less than another program needs to come at all is no hand-over: told where a reserve promises one. */
static bool is_below_attach(const struct plan_report *r, size_t card)
{
    return r->cards[card].reserve_bytes > 0 &&
           free_after(r, card) < card_attach_mib(r->s, &r->s->cards[card], 0) * MIB;
}

static void print_attach(FILE *out, const struct plan_report *r)
{
    for (size_t i = 0; i < r->n_cards; i++)
        if (is_below_attach(r, i))
            fprintf(out,
                    "ATTACH: card %zu (%s): %s MiB will be free; another program needs %" PRIu64
                    " just to attach (vram.attach_mib)\n",
                    i, r->cards[i].label, mib(free_after(r, i)).text,
                    card_attach_mib(r->s, &r->s->cards[i], 0));
}

static void print_best(FILE *out, const struct plan_report *r)
{
    char text[CARDS_MAX * 12];
    fputs("\nWhy: the least time per token of one sequence, at assumed speeds; then the evenest\n",
          out);
    for (size_t i = 0; i < r->n_best; i++) {
        const struct planner_split *b = &r->best[i];
        plan_split_text(b, r->n_cards, text, sizeof text);
        fprintf(out, "  --split %-32s %9.3f ms  %+8.3f ms\n", text, (double)b->ns / 1e6,
                ((double)b->ns - (double)r->best[0].ns) / 1e6);
    }
    if (r->n_best == PLANNER_KEPT)
        fputs("  (others cost as much or more)\n", out);
}

void plan_report_print(FILE *out, const struct plan_report *r)
{
    const struct model_geometry *g = &r->m->geometry;
    const struct sizes *z = &r->sizes;
    fprintf(out,
            "%s: %" PRIu32 " layers, %" PRIu32 " experts, %" PRIu32
            " of them a token\ncontext %" PRIu32 ", KV for %" PRIu32
            " positions, segments of %" PRIu64 " MiB, chunks of %" PRIu32 " rows\n\n",
            r->s->model, g->n_layers, g->n_experts, g->n_experts_used, z->context, z->kv_tokens,
            z->segment_mib, z->chunk);
    print_table(out, r);
    fprintf(out, "\nExpected: %.3f ms a token for one sequence, at assumed speeds\n",
            (double)r->ns / 1e6);
    print_low(out, r);
    print_attach(out, r);
    if (r->s->why)
        print_best(out, r);
}

static json_t *card_json(const struct plan_report *r, size_t i)
{
    const struct planner_stage *s = &r->stages[i];
    json_t *card = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:b}", "card",
        r->cards[i].label, "layer_first", (json_int_t)s->layer_first, "layer_last",
        (json_int_t)s->layer_last, "total_mib", (json_int_t)r->total_mib[i], "dense_bytes",
        (json_int_t)s->dense_bytes, "kv_bytes", (json_int_t)s->kv_bytes, "workspace_bytes",
        (json_int_t)s->workspace_bytes, "link_bytes", (json_int_t)s->link_bytes, "cache_bytes",
        (json_int_t)s->cache_bytes, "reserve_bytes", (json_int_t)r->cards[i].reserve_bytes,
        "left_bytes", (json_int_t)s->left_bytes, "experts_resident", (json_int_t)s->slots,
        "experts", (json_int_t)s->slots_full, "misses_per_token", s->misses, "ns_per_token",
        (json_int_t)s->ns, "low", is_low(r, i));
    if (card != NULL && is_below_attach(r, i))
        (void)json_object_set_new(
            card, "attach_mib_wanted",
            json_integer((json_int_t)card_attach_mib(r->s, &r->s->cards[i], 0)));
    if (card != NULL && is_low(r, i))
        (void)json_object_set_new(card, "reserve_mib_wanted",
                                  json_integer((json_int_t)plan_low_mib(r->total_mib[i])));
    return card;
}

int plan_report_json(FILE *out, const struct plan_report *r, struct error *err)
{
    char split[CARDS_MAX * 12];
    json_t *cards = json_array(), *best = json_array();
    for (size_t i = 0; i < r->n_cards; i++)
        (void)json_array_append_new(cards, card_json(r, i));
    for (size_t i = 0; i < r->n_best; i++) {
        plan_split_text(&r->best[i], r->n_cards, split, sizeof split);
        (void)json_array_append_new(best, json_pack("{s:s, s:I}", "split", split, "ns_per_token",
                                                    (json_int_t)r->best[i].ns));
    }
    json_t *whole = json_pack(
        "{s:s%, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "model", r->s->model, strlen(r->s->model),
        "context", (json_int_t)r->sizes.context, "kv_tokens", (json_int_t)r->sizes.kv_tokens,
        "segment_mib", (json_int_t)r->sizes.segment_mib, "chunk", (json_int_t)r->sizes.chunk,
        "n_layers", (json_int_t)r->m->geometry.n_layers, "ns_per_token", (json_int_t)r->ns, "cards",
        cards, "best", best);
    int code = whole != NULL && json_dumpf(whole, out, JSON_INDENT(2)) == 0 && fputc('\n', out) > 0
                   ? 0
                   : error_set(err, EBB_EIO, "the plan cannot be written as JSON");
    json_decref(whole);
    return code;
}
