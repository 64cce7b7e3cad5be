/* runtime/plan_model.c - a model's tables, settings and cards as the planner's numbers (see plan_model.h).
 *
 * The formulas mirror stages/weights.c, stages/workspace.c, stages/kv.c, stages/links.c and the scratch of the CPU's kernels;
 * an end-to-end test holds them against what a stage says it holds. Sizes and split depend on each other: they are made in
 * turns until neither changes.
 */
#include "runtime/plan_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/launch.h"

#define MIB              (UINT64_C(1) << 20)
#define BLOB_ALIGN       256u
#define PART_ALIGN       64u
#define HEAD_ROWS        64u
#define SAMPLE_ROWS      4u
#define CANDIDATE_BYTES  16u
#define GROUP_BYTES      12u
#define KV_BLOCK_TOKENS  32u
#define LINK_TILE_ROWS   512u
#define LINK_TILES       4u
#define LINK_ID_BYTES    8u
#define CPU_GRANULARITY  4096u
#define CUDA_GRANULARITY (2 * MIB)
/* Kept on a CUDA card for NCCL: once, and for each neighbour. */
#define NCCL_BYTES      (448 * MIB)
#define NCCL_LINK_BYTES (64 * MIB)
#define TURNS_MAX       4
/* How unevenly tokens are routed: the k-th hottest expert of a layer gets a share like 1 / sqrt(k). */
#define ROUTING_SKEW 0.5

static uint64_t align(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* A row of quantised activations, or of the float kernels' placeholder. */
static uint64_t activation_bytes(uint64_t n, bool is_float)
{
    return is_float ? PART_ALIGN : align(n, PART_ALIGN) + 3 * align((n + 31) / 32 * 4, PART_ALIGN);
}

static uint64_t experts_scratch_bytes(const struct model_geometry *g, uint64_t rows, bool is_float)
{
    uint64_t pairs = rows * g->n_experts_used, plain = align(4 * (uint64_t)g->d_expert, PART_ALIGN),
             quantised = activation_bytes(g->d_expert, false);
    uint64_t plan =
        align(pairs * 4, PART_ALIGN) + align((uint64_t)g->n_experts * GROUP_BYTES, PART_ALIGN);
    if (is_float)
        return plan + align(pairs * g->d_expert * 4, PART_ALIGN);
    return plan + pairs * (plain > quantised ? plain : quantised);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Rows that a layer has buffers of its own for; of a model without routed experts, all. */
static uint64_t rows_base(const struct model_geometry *g, const struct sizes *z)
{
    return larger(g->n_experts > 0 ? z->chunk_min : z->chunk, z->n_sequences);
}

/* What a layer needs for so many rows at once. */
static uint64_t layer_bytes(const struct model_geometry *g, uint64_t rows, bool is_float)
{
    uint64_t d = g->d_model, heads = (uint64_t)g->n_heads * g->head_dim,
             keys = (uint64_t)g->n_kv_heads * g->head_dim, width = larger(g->d_ff, g->d_shared),
             used = g->n_experts_used;
    uint64_t floats[] = {d,     keys,  keys,
                         heads, /* and q, below */
                         width, width, g->d_shared > 0 ? d : 0};
    uint64_t routed[] = {g->n_experts, used, used, used * d};
    uint64_t bytes =
        align(rows * activation_bytes(larger(larger(d, heads), width), is_float), BLOB_ALIGN) +
        align((rows * heads + 2 * keys) * 4, BLOB_ALIGN);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        bytes += align(rows * floats[i] * 4, BLOB_ALIGN);
    for (size_t i = 0; g->n_experts > 0 && i < sizeof routed / sizeof routed[0]; i++)
        bytes += align(rows * routed[i] * 4, BLOB_ALIGN);
    if (g->n_experts > 0)
        bytes += align(experts_scratch_bytes(g, rows, is_float), BLOB_ALIGN);
    return bytes;
}

static uint64_t workspace_bytes(const struct model_geometry *g, const struct sizes *z,
                                bool is_float, bool is_last)
{
    uint64_t rows = larger(z->chunk, z->n_sequences), base = rows_base(g, z), d = g->d_model,
             head_rows = base < HEAD_ROWS ? base : HEAD_ROWS;
    uint64_t bytes = layer_bytes(g, base, is_float) + align(rows * d * 4, BLOB_ALIGN) +
                     align(rows * g->n_rot * 4, BLOB_ALIGN);
    if (is_last)
        bytes += align(head_rows * d * 4, BLOB_ALIGN) +
                 align(head_rows * g->n_vocab * 4, BLOB_ALIGN) +
                 align((uint64_t)SAMPLE_ROWS * g->n_vocab * CANDIDATE_BYTES, BLOB_ALIGN);
    return bytes;
}

/* What the layers' buffers take in the pool while they hold a whole chunk. */
static uint64_t workspace_lent_bytes(const struct model_geometry *g, const struct sizes *z,
                                     bool is_float)
{
    uint64_t rows = larger(z->chunk, z->n_sequences);
    return rows > rows_base(g, z) ? layer_bytes(g, rows, is_float) : 0;
}

static uint64_t tile_rows(const struct sizes *z)
{
    uint64_t rows = larger(z->chunk, z->n_sequences);
    return rows < LINK_TILE_ROWS ? rows : LINK_TILE_ROWS;
}

static uint64_t ring_bytes(const struct model_geometry *g, const struct sizes *z)
{
    return LINK_TILES * tile_rows(z) * larger(4 * (uint64_t)g->d_model, LINK_ID_BYTES);
}

static uint64_t link_bytes(const struct model_geometry *g, const struct sizes *z)
{
    return 2 * ring_bytes(g, z) + 2 * LINK_TILES * tile_rows(z) * LINK_ID_BYTES;
}

static void layer_fill(struct planner_layer *out, const struct model *m, uint32_t index,
                       uint64_t kv_positions, const struct sizes *z)
{
    const struct model_layer *l = &m->layers[index];
    const struct tensor_view *experts[] = {&l->gate_exps, &l->up_exps, &l->down_exps};
    *out = (struct planner_layer){.dense_bytes = sizing_layer_bytes(m, index)};
    out->kv_bytes = kv_positions * 2 *
                    sizing_kv_bytes(z, (uint64_t)m->geometry.n_kv_heads * m->geometry.head_dim);
    for (size_t i = 0; l->router.data != NULL && i < 3; i++) {
        uint64_t bytes = experts[i]->bytes / larger(m->geometry.n_experts, 1);
        out->expert_bytes += bytes;
        out->slot_bytes += align(bytes, BLOB_ALIGN);
    }
}

int plan_input_open(struct plan_input *in, const struct model *m, const struct settings *s,
                    const struct sizes *z, struct error *err)
{
    const struct model_geometry *g = &m->geometry;
    bool is_float = s->kernels != NULL && strcmp(s->kernels, "float") == 0,
         is_tied = m->output.data == m->token_embd.data;
    uint64_t positions = align(z->kv_tokens, KV_BLOCK_TOKENS);
    *in = (struct plan_input){.layers = calloc(g->n_layers, sizeof *in->layers),
                              .mass = calloc((size_t)g->n_experts + 1, sizeof *in->mass)};
    if (in->layers == NULL || in->mass == NULL) {
        plan_input_close(in);
        return error_set(err, EBB_ENOMEM, "no memory to plan %" PRIu32 " layers", g->n_layers);
    }
    for (uint32_t l = 0; l < g->n_layers; l++)
        layer_fill(&in->layers[l], m, l, positions, z);
    planner_mass_fill(in->mass, g->n_experts, ROUTING_SKEW);
    uint64_t head = align(m->output.bytes, BLOB_ALIGN);
    in->model = (struct planner_model){
        .n_layers = g->n_layers,
        .n_experts = g->n_experts,
        .n_used = g->n_experts_used,
        .layers = in->layers,
        .first_bytes = align(m->token_embd.bytes, BLOB_ALIGN),
        .last_bytes = align(m->output_norm.bytes, BLOB_ALIGN) + head,
        .shared_bytes = is_tied ? head : 0,
        .workspace_bytes = workspace_bytes(g, z, is_float, false),
        .workspace_last_bytes = workspace_bytes(g, z, is_float, true),
        .workspace_lent_bytes = workspace_lent_bytes(g, z, is_float),
        .link_bytes = link_bytes(g, z),
        .ring_bytes = ring_bytes(g, z),
        .segment_bytes = z->segment_mib * MIB,
        .mass = in->mass,
    };
    return 0;
}

void plan_input_close(struct plan_input *in)
{
    free(in->layers);
    free(in->mass);
    *in = (struct plan_input){0};
}

static bool link_is(const struct settings *s, const char *kind)
{
    return strcmp(s->link != NULL ? s->link : "auto", kind) == 0;
}

static bool cards_are_gpus_of_one_host(const struct settings *s)
{
    for (size_t i = 0; i < s->n_cards; i++)
        if (s->cards[i].kind != CARD_CUDA || strcmp(s->cards[i].host, s->cards[0].host) != 0)
            return false;
    return s->n_cards > 1;
}

bool plan_link_is_ipc(const struct settings *s)
{
    return link_is(s, "ipc") || (link_is(s, "auto") && cards_are_gpus_of_one_host(s));
}

static bool link_is_nccl(const struct settings *s)
{
    return link_is(s, "nccl");
}

const char *plan_link_word(const struct settings *s)
{
    return link_is_nccl(s) ? "nccl" : plan_link_is_ipc(s) ? "ipc" : "socket";
}

void plan_card(struct planner_card *out, const struct settings *s, const struct card_setting *card,
               uint64_t free_mib, uint64_t reserve_mib)
{
    bool by_nccl = link_is_nccl(s) && card->kind == CARD_CUDA;
    *out = (struct planner_card){
        .free_bytes = free_mib * MIB,
        .reserve_bytes = reserve_mib * MIB,
        .granularity = card->kind == CARD_CUDA ? CUDA_GRANULARITY : CPU_GRANULARITY,
        .has_ring = plan_link_is_ipc(s),
        .tiles_on_host = card->kind == CARD_CUDA,
        .nccl_bytes = by_nccl ? NCCL_BYTES : 0,
        .nccl_link_bytes = by_nccl ? NCCL_LINK_BYTES : 0,
        .speed = planner_speeds[card->kind],
    };
    card_label(card, out->label, sizeof out->label);
}

static uint64_t room_bytes(const struct planner_card *c)
{
    return c->free_bytes > c->reserve_bytes ? c->free_bytes - c->reserve_bytes : 0;
}

static bool cards_are_equal(const struct planner_card *cards, size_t n_cards)
{
    for (size_t i = 1; i < n_cards; i++)
        if (room_bytes(&cards[i]) != room_bytes(&cards[0]))
            return false;
    return true;
}

/* Where the turns begin: shares as the rooms are, a layer each at least. */
static void plan_by_room(struct plan *p, const struct planner_card *cards, size_t n_cards,
                         uint32_t n_layers)
{
    double whole = 0, before = 0;
    uint32_t next = 0;
    for (size_t i = 0; i < n_cards; i++)
        whole += (double)room_bytes(&cards[i]);
    p->n_stages = n_cards;
    for (size_t i = 0; i < n_cards; i++) {
        before += (double)room_bytes(&cards[i]);
        uint32_t end = whole > 0 ? (uint32_t)(before / whole * n_layers + 0.5) : next + 1;
        uint32_t most = n_layers - (uint32_t)(n_cards - 1 - i);
        end = end <= next ? next + 1 : end;
        end = end > most || i + 1 == n_cards ? most : end;
        p->stages[i] = (struct plan_stage){next, end - 1};
        next = end;
    }
}

static void plan_of(struct plan *p, const struct planner_split *split, size_t n_cards)
{
    uint32_t next = 0;
    p->n_stages = n_cards;
    for (size_t i = 0; i < n_cards; i++) {
        p->stages[i] = (struct plan_stage){next, next + split->n_layers[i] - 1};
        next += split->n_layers[i];
    }
}

static bool plan_is_same(const struct plan *a, const struct plan *b)
{
    for (size_t i = 0; i < a->n_stages; i++)
        if (a->stages[i].layer_last != b->stages[i].layer_last)
            return false;
    return true;
}

/* Sizes for the plan, the plan for the sizes, until neither changes. */
static int plan_auto(struct plan *p, struct sizes *z, const struct settings *s,
                     const struct model *m, const struct planner_card *cards,
                     const uint64_t *total_mib, uint32_t attempt, struct error *err)
{
    int code = 0;
    if (cards_are_equal(cards, s->n_cards))
        code = plan_make(p, "auto", s->n_cards, m->geometry.n_layers, err);
    else
        plan_by_room(p, cards, s->n_cards, m->geometry.n_layers);
    for (int turn = 0; turn < TURNS_MAX && code == 0; turn++) {
        struct planner_split splits[PLANNER_KEPT];
        struct plan_input in;
        struct plan next;
        struct sizes sizes;
        size_t n;
        code = sizing_choose(&sizes, s, m, p, total_mib, attempt, err);
        if (code == 0)
            code = plan_input_open(&in, m, s, &sizes, err);
        if (code != 0)
            return code;
        code = planner_solve(&in.model, cards, s->n_cards, splits, &n, err);
        plan_input_close(&in);
        if (code != 0)
            return turn == 0 ? code : 0; /* what fitted the turn before stays */
        plan_of(&next, &splits[0], s->n_cards);
        bool settled = plan_is_same(p, &next);
        *p = next;
        *z = sizes;
        if (settled)
            break;
    }
    return code;
}

int plan_choose(struct plan *p, struct sizes *z, const struct settings *s, const struct model *m,
                const struct planner_card *cards, const uint64_t *total_mib, uint32_t *attempt,
                struct error *err)
{
    struct plan plan;
    struct error first = {0}, why = {0};
    int code = plan_make(&plan, s->split, s->n_cards, m->geometry.n_layers, err);
    if (code != 0)
        return code;
    if (strcmp(s->split, "auto") != 0) {
        code = sizing_choose(z, s, m, &plan, total_mib, *attempt, err);
        if (code == 0)
            *p = plan;
        return code;
    }
    for (uint32_t i = *attempt; i < PLANS_MAX; i++) {
        code = plan_auto(&plan, z, s, m, cards, total_mib, i, &why);
        if (code == 0) {
            *p = plan;
            *attempt = i;
            return 0;
        }
        if (first.code == 0)
            first = why;
        if (code != EBB_ENOMEM)
            break;
    }
    if (err != NULL)
        *err = first;
    return first.code;
}
