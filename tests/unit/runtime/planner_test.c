/* The planner: exact against trying everything, golden plans for made-up models and cards, and clear words where nothing fits. */
#include "runtime/plan_report.h"
#include "runtime/planner.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define MIB        (UINT64_C(1) << 20)
#define GIB        (UINT64_C(1) << 30)
#define LAYERS_MAX 96

static struct error err;

/* A made-up model and the cards it is planned for. */
struct bench {
    struct planner_model m;
    struct planner_layer layers[LAYERS_MAX];
    double mass[257];
    struct planner_card cards[CARDS_MAX];
    size_t n_cards;
};

static void model_make(struct bench *b, uint32_t n_layers, uint32_t n_experts, uint64_t dense,
                       uint64_t kv, uint64_t expert, uint64_t segment)
{
    memset(b, 0, sizeof *b);
    for (uint32_t l = 0; l < n_layers; l++)
        b->layers[l] = (struct planner_layer){dense, kv, expert, expert};
    planner_mass_fill(b->mass, n_experts, 0.5);
    b->m = (struct planner_model){.n_layers = n_layers,
                                  .n_experts = n_experts,
                                  .n_used = n_experts >= 8 ? 8 : n_experts / 2,
                                  .layers = b->layers,
                                  .first_bytes = 4 * dense,
                                  .last_bytes = 4 * dense,
                                  .workspace_bytes = dense,
                                  .workspace_last_bytes = 2 * dense,
                                  .link_bytes = dense / 4,
                                  .segment_bytes = segment,
                                  .mass = b->mass};
}

static void card_add_to(struct bench *b, enum card_kind kind, uint64_t free_bytes,
                        uint64_t reserve_bytes)
{
    struct planner_card *c = &b->cards[b->n_cards];
    *c = (struct planner_card){.free_bytes = free_bytes,
                               .reserve_bytes = reserve_bytes,
                               .granularity = 4096,
                               .speed = planner_speeds[kind]};
    (void)snprintf(c->label, sizeof c->label, "%s:%zu", kind == CARD_CUDA ? "cuda" : "cpu",
                   b->n_cards++);
}

/* Numbers that repeat from run to run. */
static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *state >> 33;
}

/* The best split by trying each: cost, then evenness, then larger shares first. */
struct brute {
    const struct bench *b;
    uint32_t shares[4], best[4];
    uint64_t ns, unevenness, n_tried;
    bool found;
};

static bool shares_are_larger_first(const struct brute *x)
{
    for (size_t i = 0; i < x->b->n_cards; i++)
        if (x->shares[i] != x->best[i])
            return x->shares[i] > x->best[i];
    return false;
}

static void brute_try(struct brute *x, size_t card, uint32_t layer, uint64_t ns, uint64_t uneven)
{
    const struct bench *b = x->b;
    if (card == b->n_cards) {
        x->n_tried++;
        bool better = !x->found || ns < x->ns || (ns == x->ns && uneven < x->unevenness) ||
                      (ns == x->ns && uneven == x->unevenness && shares_are_larger_first(x));
        if (!better)
            return;
        x->found = true;
        x->ns = ns;
        x->unevenness = uneven;
        memcpy(x->best, x->shares, sizeof x->best);
        return;
    }
    uint32_t n_after = (uint32_t)(b->n_cards - card - 1), n_left = b->m.n_layers - layer;
    for (uint32_t n = n_after == 0 ? n_left : 1; n + n_after <= n_left; n++) {
        struct planner_stage s;
        planner_stage(&b->m, b->cards, b->n_cards, card, layer, layer + n - 1, &s);
        x->shares[card] = n;
        if (s.fits)
            brute_try(x, card + 1, layer + n, ns + s.ns, uneven + (uint64_t)n * n);
    }
}

static void expect_exact(const struct bench *b, const char *what)
{
    struct planner_split best[PLANNER_KEPT];
    struct brute x = {.b = b};
    size_t n = 0;
    brute_try(&x, 0, 0, 0, 0);
    int code = planner_solve(&b->m, b->cards, b->n_cards, best, &n, &err);
    if (!x.found) {
        cr_assert_eq(code, EBB_ENOMEM, "%s: %d", what, code);
        return;
    }
    cr_assert_eq(code, 0, "%s: %s", what, err.text);
    cr_assert_eq(best[0].ns, x.ns, "%s: %zu layers, %zu cards: %zu ns, %zu by trying", what,
                 (size_t)b->m.n_layers, b->n_cards, (size_t)best[0].ns, (size_t)x.ns);
    uint32_t sum = 0;
    for (size_t i = 0; i < b->n_cards; i++) {
        cr_assert_eq(best[0].n_layers[i], x.best[i], "%s: card %zu", what, i);
        sum += best[0].n_layers[i];
    }
    cr_assert_eq(sum, b->m.n_layers, "every layer once");
    for (size_t i = 1; i < n; i++)
        cr_assert_leq(best[i - 1].ns, best[i].ns);
}

/* For every number of layers and cards: cards from ample to too small, of both kinds, layers that differ. */
Test(planner, equals_trying_everything_up_to_four_cards_and_twenty_four_layers)
{
    static struct bench b;
    uint64_t state = 7;
    for (uint32_t n_layers = 1; n_layers <= 24; n_layers++) {
        for (size_t n_cards = 1; n_cards <= 4 && n_cards <= n_layers; n_cards++) {
            for (int variant = 0; variant < 9; variant++) {
                uint64_t whole = (uint64_t)n_layers * (3 * MIB + 16 * MIB) + 24 * MIB;
                model_make(&b, n_layers, 16, MIB, 2 * MIB, MIB, 4 * MIB);
                for (uint32_t l = 0; variant % 3 == 1 && l < n_layers; l++) {
                    b.layers[l].dense_bytes = random_next(&state) % (4 * MIB);
                    b.layers[l].slot_bytes = random_next(&state) % 3 * MIB;
                    b.layers[l].expert_bytes = b.layers[l].slot_bytes;
                }
                for (size_t i = 0; i < n_cards; i++) {
                    uint64_t share = whole / n_cards;
                    uint64_t room =
                        variant < 3 ? 2 * whole : share / 2 + random_next(&state) % share;
                    enum card_kind kind = variant % 3 == 2 && i % 2 == 1 ? CARD_CUDA : CARD_CPU;
                    card_add_to(&b, kind, room, variant % 2 * (random_next(&state) % (share / 4)));
                }
                expect_exact(&b, variant < 3 ? "ample" : "tight");
            }
        }
    }
}

Test(planner, every_layer_is_placed_once_for_all_numbers_of_layers_and_cards)
{
    static struct bench b;
    for (uint32_t n_layers = 1; n_layers <= LAYERS_MAX; n_layers += n_layers < 12 ? 1 : 7) {
        for (size_t n_cards = 1; n_cards <= CARDS_MAX; n_cards += n_cards < 9 ? 1 : 11) {
            struct planner_split best[PLANNER_KEPT];
            uint32_t sum = 0, most = 0, least = UINT32_MAX;
            size_t n = 0;
            model_make(&b, n_layers, 16, MIB, 2 * MIB, MIB, 4 * MIB);
            for (size_t i = 0; i < n_cards; i++)
                card_add_to(&b, CARD_CPU, 8 * GIB, 0);
            int code = planner_solve(&b.m, b.cards, n_cards, best, &n, &err);
            if (n_cards > n_layers) {
                cr_assert_eq(code, EBB_EINVAL);
                continue;
            }
            cr_assert_eq(code, 0, "%s", err.text);
            for (size_t i = 0; i < n_cards; i++) {
                uint32_t size = best[0].n_layers[i];
                cr_assert_geq(size, 1);
                cr_assert(i == 0 || size <= best[0].n_layers[i - 1],
                          "the larger shares come first");
                sum += size;
                most = size > most ? size : most;
                least = size < least ? size : least;
            }
            cr_assert_eq(sum, n_layers);
            cr_assert_leq(most - least, 1, "equal cards that hold everything share evenly");
        }
    }
}

/* 48 layers of 128 experts, 17 GiB in all: the shape of a 30 B model in four bits. */
static void big_model(struct bench *b)
{
    model_make(b, 48, 128, 20 * MIB, 16 * MIB, 2700 * 1024, 512 * MIB);
    b->m.first_bytes = 200 * MIB;
    b->m.last_bytes = 250 * MIB;
    b->m.workspace_bytes = 40 * MIB;
    b->m.workspace_last_bytes = 90 * MIB;
    b->m.link_bytes = 4 * MIB;
}

static const struct golden {
    const char *name;
    struct {
        enum card_kind kind;
        uint64_t free_mib, reserve_mib;
    } cards[8];
    const char *split;
} goldens[] = {
    /* clang-format off */
    {"one card that holds all", {{CARD_CUDA, 49152, 0}}, "0-47"},
    {"one card that holds half", {{CARD_CUDA, 12288, 512}}, "0-47"},
    {"two equal cards that hold all", {{CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}}, "0-23,24-47"},
    {"two equal cards that hold half", {{CARD_CUDA, 6144, 0}, {CARD_CUDA, 6144, 0}}, "0-20,21-47"},
    {"two uneven cards", {{CARD_CUDA, 24576, 0}, {CARD_CUDA, 8192, 0}}, "0-28,29-47"},
    {"two uneven cards, small first", {{CARD_CUDA, 8192, 0}, {CARD_CUDA, 24576, 0}}, "0-20,21-47"},
    {"a large reserve on the second", {{CARD_CUDA, 12288, 0}, {CARD_CUDA, 12288, 9000}}, "0-37,38-47"},
    {"a tiny reserve", {{CARD_CUDA, 12288, 1}, {CARD_CUDA, 12288, 2}}, "0-23,24-47"},
    {"a card that holds one layer only", {{CARD_CUDA, 49152, 0}, {CARD_CUDA, 1000, 0}}, "0-46,47-47"},
    {"nothing fits", {{CARD_CUDA, 900, 0}, {CARD_CUDA, 900, 0}}, "none fits"},
    {"a fast and a slow card", {{CARD_CUDA, 24576, 0}, {CARD_CPU, 65536, 0}}, "0-46,47-47"},
    {"a slow and a fast card", {{CARD_CPU, 65536, 0}, {CARD_CUDA, 24576, 0}}, "0-0,1-47"},
    {"a small fast and a slow card", {{CARD_CUDA, 8192, 256}, {CARD_CPU, 65536, 0}}, "0-46,47-47"},
    {"three equal cards", {{CARD_CUDA, 16384, 0}, {CARD_CUDA, 16384, 0}, {CARD_CUDA, 16384, 0}}, "0-15,16-31,32-47"},
    {"three uneven cards", {{CARD_CUDA, 16384, 500}, {CARD_CUDA, 8192, 1000}, {CARD_CUDA, 12288, 1000}}, "0-15,16-31,32-47"},
    {"four equal cards, tight", {{CARD_CUDA, 4096, 0}, {CARD_CUDA, 4096, 0}, {CARD_CUDA, 4096, 0}, {CARD_CUDA, 4096, 0}}, "0-10,11-23,24-36,37-47"},
    {"four uneven cards", {{CARD_CUDA, 3000, 0}, {CARD_CUDA, 6000, 0}, {CARD_CUDA, 4500, 0}, {CARD_CUDA, 8000, 0}}, "0-5,6-20,21-30,31-47"},
    {"five equal cards", {{CARD_CPU, 8192, 0}, {CARD_CPU, 8192, 0}, {CARD_CPU, 8192, 0}, {CARD_CPU, 8192, 0}, {CARD_CPU, 8192, 0}}, "0-9,10-19,20-29,30-38,39-47"},
    {"six, every other one small", {{CARD_CUDA, 6144, 0}, {CARD_CUDA, 2048, 0}, {CARD_CUDA, 6144, 0}, {CARD_CUDA, 2048, 0}, {CARD_CUDA, 6144, 0}, {CARD_CUDA, 2048, 0}}, "0-11,12-15,16-27,28-31,32-43,44-47"},
    {"seven equal cards", {{CARD_CUDA, 8192, 0}, {CARD_CUDA, 8192, 0}, {CARD_CUDA, 8192, 0}, {CARD_CUDA, 8192, 0}, {CARD_CUDA, 8192, 0}, {CARD_CUDA, 8192, 0}, {CARD_CUDA, 8192, 0}}, "0-6,7-13,14-20,21-27,28-34,35-41,42-47"},
    {"eight equal cards", {{CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}, {CARD_CUDA, 24576, 0}}, "0-5,6-11,12-17,18-23,24-29,30-35,36-41,42-47"},
    {"eight uneven cards", {{CARD_CUDA, 1500, 100}, {CARD_CUDA, 2200, 100}, {CARD_CUDA, 2900, 100}, {CARD_CUDA, 3600, 100}, {CARD_CUDA, 4300, 100}, {CARD_CUDA, 5000, 100}, {CARD_CUDA, 5700, 100}, {CARD_CUDA, 6400, 100}}, "0-2,3-6,7-12,13-19,20-26,27-33,34-40,41-47"},
    {"eight cards, the last reserve leaves little", {{CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 0}, {CARD_CUDA, 3000, 1900}}, "0-5,6-12,13-19,20-26,27-33,34-40,41-46,47-47"},
    /* clang-format on */
};

Test(planner, golden_plans_for_one_to_eight_cards)
{
    static struct bench b;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        struct planner_split best[PLANNER_KEPT];
        char split[CARDS_MAX * 12] = "none fits";
        size_t n = 0;
        big_model(&b);
        for (size_t c = 0; c < 8 && goldens[i].cards[c].free_mib > 0; c++)
            card_add_to(&b, goldens[i].cards[c].kind, goldens[i].cards[c].free_mib * MIB,
                        goldens[i].cards[c].reserve_mib * MIB);
        if (planner_solve(&b.m, b.cards, b.n_cards, best, &n, &err) == 0)
            plan_split_text(&best[0], b.n_cards, split, sizeof split);
        cr_expect_str_eq(split, goldens[i].split, "%s: %s, wanted %s", goldens[i].name, split,
                         goldens[i].split);
    }
}

Test(planner, what_does_not_fit_names_the_card_what_it_has_and_what_is_needed)
{
    static struct bench b;
    struct planner_split best[PLANNER_KEPT];
    size_t n = 77;
    big_model(&b);
    card_add_to(&b, CARD_CPU, 24576 * MIB, 0);
    card_add_to(&b, CARD_CPU, 812 * MIB, 700 * MIB);
    cr_assert_eq(planner_solve(&b.m, b.cards, 2, best, &n, &err), EBB_ENOMEM);
    cr_expect_eq(n, 0);
    cr_expect(strstr(err.text, "card 1 (cpu:1): 812 MiB free, reserve 700: 112 MiB left for layers "
                               "47-47, which need 892 at least") != NULL,
              "%s", err.text);
    cr_expect(strstr(err.text, "lacks 780 MiB in all") != NULL, "%s", err.text);
}

Test(planner, a_segment_smaller_than_an_expert_is_told)
{
    static struct bench b;
    struct planner_split best[PLANNER_KEPT];
    size_t n;
    model_make(&b, 4, 16, MIB, MIB, 2 * MIB, MIB);
    card_add_to(&b, CARD_CPU, GIB, 0);
    cr_assert_eq(planner_solve(&b.m, b.cards, 1, best, &n, &err), EBB_ENOMEM);
    cr_expect(strstr(err.text, "set a larger --segment-mib") != NULL, "%s", err.text);
}

Test(planner, a_card_holds_whole_segments_and_counts_what_misses)
{
    static struct bench b;
    struct planner_stage s;
    model_make(&b, 4, 16, MIB, MIB, MIB, 4 * MIB);
    b.m.mass = NULL; /* uniform */
    /* fixed: 4 dense + 4 first + 4 last + 4 kv + 2 workspace = 18 MiB; 35 - 18 = 17: 4 segments of 4 slots, 1 MiB left */
    card_add_to(&b, CARD_CPU, 40 * MIB, 5 * MIB);
    b.m.n_used = 4;
    planner_stage(&b.m, b.cards, 1, 0, 0, 3, &s);
    cr_assert(s.fits);
    cr_expect_eq(s.dense_bytes, 12 * MIB);
    cr_expect_eq(s.kv_bytes, 4 * MIB);
    cr_expect_eq(s.workspace_bytes, 2 * MIB);
    cr_expect_eq(s.link_bytes, 0);
    cr_expect_eq(s.cache_bytes, 16 * MIB);
    cr_expect_eq(s.left_bytes, MIB);
    cr_expect_eq(s.slots, 16);
    cr_expect_eq(s.slots_full, 64);
    cr_expect_float_eq(s.misses, 4 * 4 * 0.75, 1e-9);
    cr_expect_eq(s.need_bytes, (18 + 12) * MIB, "the floor is nine slots, three segments");
    b.cards[0].free_bytes = 34 * MIB; /* 11 MiB: two segments only */
    planner_stage(&b.m, b.cards, 1, 0, 0, 3, &s);
    cr_expect_not(s.fits);
}

Test(planner, what_a_whole_cache_leaves_is_workspace_of_long_prompts)
{
    static struct bench b;
    struct planner_stage s;
    model_make(&b, 4, 16, MIB, MIB, MIB, 4 * MIB);
    b.m.n_used = 4;
    b.m.workspace_lent_bytes = 6 * MIB; /* two segments */
    /* fixed 18 MiB, a whole cache 64 */
    const uint64_t extra[] = {0, 3, 4, 7, 8, 20}, lent[] = {0, 0, 4, 4, 8, 8};
    card_add_to(&b, CARD_CPU, 0, 5 * MIB);
    for (size_t i = 0; i < 6; i++) {
        b.cards[0].free_bytes = (5 + 18 + 64 + extra[i]) * MIB;
        planner_stage(&b.m, b.cards, 1, 0, 0, 3, &s);
        cr_expect_eq(s.slots, s.slots_full);
        cr_expect_eq(s.workspace_bytes, (2 + lent[i]) * MIB, "%zu", i);
        cr_expect_eq(s.left_bytes, (extra[i] - lent[i]) * MIB, "%zu", i);
        cr_expect_eq(s.need_bytes, (18 + 12) * MIB, "it is needed by nobody");
    }
    b.cards[0].free_bytes = (5 + 18 + 60) * MIB;
    planner_stage(&b.m, b.cards, 1, 0, 0, 3, &s);
    cr_expect_eq(s.workspace_bytes, 2 * MIB, "experts come first");
}

Test(planner, what_is_kept_for_nccl_stands_in_the_links_of_a_card)
{
    struct bench b;
    struct planner_stage with, without;
    model_make(&b, 6, 0, MIB, 0, 0, MIB);
    b.m.ring_bytes = MIB / 8;
    for (int i = 0; i < 3; i++)
        card_add_to(&b, CARD_CUDA, GIB, 0);
    for (uint32_t card = 0; card < 3; card++) {
        uint64_t ways = card == 1 ? 2 : 1;
        b.cards[card].nccl_bytes = b.cards[card].nccl_link_bytes = 0;
        planner_stage(&b.m, b.cards, 3, card, 2 * card, 2 * card + 1, &without);
        b.cards[card].nccl_bytes = 100 * MIB;
        b.cards[card].nccl_link_bytes = 10 * MIB;
        planner_stage(&b.m, b.cards, 3, card, 2 * card, 2 * card + 1, &with);
        cr_expect_eq(with.link_bytes - without.link_bytes,
                     100 * MIB + ways * (10 * MIB + b.m.ring_bytes), "card %u", card);
        cr_expect_eq(with.need_bytes - without.need_bytes, with.link_bytes - without.link_bytes);
    }
}

Test(planner, the_hottest_experts_count_for_more_than_their_number)
{
    double mass[17];
    planner_mass_fill(mass, 16, 0.5);
    cr_expect_eq(mass[0], 0);
    cr_expect_float_eq(mass[16], 1, 1e-12);
    for (int k = 1; k < 16; k++) {
        cr_expect_gt(mass[k], k / 16.0);
        cr_expect_lt(mass[k] - mass[k - 1], k > 1 ? mass[k - 1] - mass[k - 2] : 1);
    }
    planner_mass_fill(mass, 16, 0);
    cr_expect_float_eq(mass[4], 0.25, 1e-12);
}

/* Of the demo model, for cards that are not here. */
static struct plan_report *report(struct settings *s, struct model *m, const char *cards,
                                  const char *vram, const char *split, int *code)
{
    static struct plan_report r;
    char *argv[] = {"--cards", (char *)cards, "--vram-mib", (char *)vram, "--split", (char *)split};
    char *bare[6];
    size_t n_bare;
    settings_default(s);
    cr_assert_eq(settings_parse(s, 6, argv, bare, &n_bare, &err), 0, "%s", err.text);
    *code = plan_report_make(&r, s, m, &err);
    return &r;
}

Test(planner, plans_are_made_from_files_without_any_hardware)
{
    static const struct {
        const char *cards, *vram, *split, *wanted;
    } rows[] = {
        {"cpu:0", "64", "auto", "0-7"},
        {"cuda:0,cuda:1", "64", "auto", "0-3,4-7"},
        {"cuda:0,cuda:1,cuda:2", "64", "auto", "0-2,3-5,6-7"},
        {"cpu:0@far,cpu:1@far,cuda:5", "64", "0-0,1-5,6-7", "0-0,1-5,6-7"},
        {"cuda:0,cuda:1,cuda:2,cuda:3,cuda:4,cuda:5,cuda:6,cuda:7", "64", "auto",
         "0-0,1-1,2-2,3-3,4-4,5-5,6-6,7-7"},
    };
    struct model *m;
    cr_assert_eq(model_open(&m, EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf", &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct planner_split split = {0};
        struct settings s;
        char text[CARDS_MAX * 12];
        int code;
        const struct plan_report *r =
            report(&s, m, rows[i].cards, rows[i].vram, rows[i].split, &code);
        cr_assert_eq(code, 0, "%s: %s", rows[i].cards, err.text);
        for (size_t c = 0; c < r->n_cards; c++)
            split.n_layers[c] = r->plan.stages[c].layer_last - r->plan.stages[c].layer_first + 1;
        plan_split_text(&split, r->n_cards, text, sizeof text);
        cr_expect_str_eq(text, rows[i].wanted);
        settings_free(&s);
    }
    model_close(m);
}

Test(planner, a_split_that_does_not_fit_is_refused_with_one_that_does)
{
    struct model *m;
    struct settings s;
    int code;
    cr_assert_eq(model_open(&m, EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf", &err), 0);
    (void)report(&s, m, "cpu:0@far,cpu:1@far", "7,24", "0-5,6-7", &code);
    cr_expect_eq(code, EBB_ENOMEM);
    cr_expect(
        strstr(err.text, "card 0 (cpu:0@far): 7 MiB free, reserve 0: 7 MiB left for layers 0-5") !=
            NULL,
        "%s", err.text);
    char *better = strstr(err.text, "--split ");
    cr_assert_not_null(better, "%s", err.text);
    char split[64];
    (void)snprintf(split, sizeof split, "%s", better + strlen("--split "));
    settings_free(&s);
    (void)report(&s, m, "cpu:0@far,cpu:1@far", "7,24", split, &code);
    cr_expect_eq(code, 0, "%s was advised: %s", split, err.text);
    settings_free(&s);
    (void)report(&s, m, "cuda:0,cuda:1", "0", "auto", &code);
    cr_expect_eq(code, EBB_EINVAL);
    cr_expect(strstr(err.text, "say it with --vram-mib") != NULL, "%s", err.text);
    settings_free(&s);
    model_close(m);
}
