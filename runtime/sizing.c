/* runtime/sizing.c - the decisions of bring-up.
 *
 * KV: context * parallel where it takes no more than a quarter of what the tightest card has left
 * beside its dense weights; else the largest that does, one context at least. It may grow to
 * context * parallel. Segments: 512 MiB
 * unless a card cannot hold two of them beside the rest; then the largest power of two of which
 * about eight fit, but never less than an expert takes. The workspace is only guessed here (rows of every buffer that a step needs); the
 * guess decides nothing but these two roundings.
 */
#include "runtime/sizing.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB             (UINT64_C(1) << 20)
#define CONTEXT_DEFAULT 8192u
#define SEGMENT_DEFAULT 512u
#define DONORS          8u /* ended sequences that stages may keep beside the live ones */
#define CHUNK_CPU       64u
#define CHUNK_CUDA      1024u
#define KV_SHARE        4u
#define SEGMENTS_WANTED 8u
#define TENSOR_ALIGN    256u

/* A tensor as the stage lays it out; 0 for one that the model does not have. */
static uint64_t tensor_bytes(const struct tensor_view *t)
{
    return t->data != NULL ? (t->bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN : 0;
}

uint64_t sizing_layer_bytes(const struct model *m, uint32_t layer)
{
    const struct model_layer *l = &m->layers[layer];
    const struct tensor_view *views[] = {
        &l->attn_norm, &l->q,           &l->k,         &l->v,           &l->o,
        &l->q_norm,    &l->k_norm,      &l->q_bias,    &l->k_bias,      &l->v_bias,
        &l->o_bias,    &l->ffn_norm,    &l->gate,      &l->up,          &l->down,
        &l->router,    &l->gate_shared, &l->up_shared, &l->down_shared, &l->shared_router};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++)
        bytes += tensor_bytes(views[i]);
    return bytes;
}

uint64_t sizing_dense_bytes(const struct model *m, const struct plan *plan, uint32_t stage)
{
    const struct plan_stage *p = &plan->stages[stage];
    uint64_t bytes = 0;
    for (uint32_t l = p->layer_first; l <= p->layer_last; l++)
        bytes += sizing_layer_bytes(m, l);
    bool is_first = stage == 0, is_last = stage + 1 == plan->n_stages;
    if (is_first)
        bytes += tensor_bytes(&m->token_embd);
    if (is_last)
        bytes += tensor_bytes(&m->output_norm);
    if (is_last && !(is_first && m->output.data == m->token_embd.data))
        bytes += tensor_bytes(&m->output);
    return bytes;
}

/* Of the largest expert, in MiB, rounded up: no segment may be smaller. */
static uint64_t slot_mib(const struct model *m)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < m->geometry.n_layers; l++) {
        const struct model_layer *layer = &m->layers[l];
        uint64_t n = m->geometry.n_experts;
        if (layer->router.data == NULL || n == 0)
            continue;
        uint64_t bytes = layer->gate_exps.bytes / n + layer->up_exps.bytes / n +
                         layer->down_exps.bytes / n + 3 * (uint64_t)TENSOR_ALIGN;
        most = bytes > most ? bytes : most;
    }
    return (most + MIB - 1) / MIB;
}

/* q8_0: a byte a value and a half float to 32 of them. */
uint64_t sizing_kv_bytes(const struct sizes *z, uint64_t n_values)
{
    if (strcmp(z->kv, "q8_0") == 0)
        return n_values + n_values / 32 * 2;
    return n_values * (strcmp(z->kv, "f32") == 0 ? 4 : 2);
}

static const char *kv_name(const struct settings *s)
{
    bool is_float = s->kernels != NULL && strcmp(s->kernels, "float") == 0;
    bool is_quants = s->kv != NULL && strcmp(s->kv, "q8_0") == 0;
    if (is_quants)
        return "q8_0";
    return is_float || (s->kv != NULL && strcmp(s->kv, "f32") == 0) ? "f32" : "f16";
}

static uint64_t kv_token_bytes(const struct model *m, const struct plan *plan, uint32_t stage,
                               const struct sizes *z)
{
    const struct plan_stage *p = &plan->stages[stage];
    uint64_t n_layers = p->layer_last - p->layer_first + 1u;
    return n_layers * 2 *
           sizing_kv_bytes(z, (uint64_t)m->geometry.n_kv_heads * m->geometry.head_dim);
}

static uint64_t workspace_guess(const struct model *m, const struct plan *plan, uint32_t stage,
                                uint32_t chunk)
{
    const struct model_geometry *g = &m->geometry;
    uint64_t row =
        4u * (uint64_t)g->d_model + 3u * (uint64_t)g->n_heads * g->head_dim + g->n_experts;
    row += (uint64_t)g->n_experts_used * (g->d_model + 3u * (uint64_t)g->d_expert);
    uint64_t head =
        stage + 1 == plan->n_stages ? (chunk < 64 ? chunk : 64) * (uint64_t)g->n_vocab : 0;
    return 4 * (row * chunk + head) + 2 * MIB;
}

/* What a card has left beside dense weights, workspace and its start's reserve. */
static uint64_t left_bytes(const struct settings *s, const struct model *m, const struct plan *plan,
                           uint64_t total_mib, uint32_t stage, uint32_t chunk)
{
    uint64_t total = total_mib * MIB, taken = s->cards[stage].reserve_mib * MIB;
    taken += sizing_dense_bytes(m, plan, stage) + workspace_guess(m, plan, stage, chunk);
    return total > taken ? total - taken : 0;
}

static uint32_t kv_choose(const struct settings *s, const struct model *m, const struct plan *plan,
                          const uint64_t *total_mib, const struct sizes *z)
{
    uint64_t tokens = (uint64_t)z->context * s->parallel;
    for (uint32_t i = 0; i < plan->n_stages; i++) {
        uint64_t share = left_bytes(s, m, plan, total_mib[i], i, z->chunk) / KV_SHARE;
        uint64_t fits = share / kv_token_bytes(m, plan, i, z);
        tokens = fits < tokens ? fits : tokens;
    }
    if (tokens < z->context)
        tokens = z->context;
    return tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
}

static uint64_t segment_choose(const struct settings *s, const struct model *m,
                               const struct plan *plan, const uint64_t *total_mib,
                               const struct sizes *z)
{
    uint64_t segment = SEGMENT_DEFAULT, least = slot_mib(m);
    for (uint32_t i = 0; i < plan->n_stages; i++) {
        uint64_t left = left_bytes(s, m, plan, total_mib[i], i, z->chunk);
        uint64_t kv = z->kv_tokens * kv_token_bytes(m, plan, i, z);
        left = (left > kv ? left - kv : 0) / MIB;
        if (left >= 2 * (uint64_t)SEGMENT_DEFAULT)
            continue;
        while (segment > 1 && segment * SEGMENTS_WANTED > left)
            segment /= 2;
    }
    return segment > least ? segment : least;
}

static int context_choose(struct sizes *z, const struct settings *s, const struct model *m,
                          struct error *err)
{
    uint32_t most = m->geometry.context_max;
    z->context = s->context != 0 ? s->context : most < CONTEXT_DEFAULT ? most : CONTEXT_DEFAULT;
    if (z->context > most)
        return error_set(err, EBB_ERANGE,
                         "--context %" PRIu32 ": the model was made for %" PRIu32 " positions",
                         z->context, most);
    if (s->kv_tokens_max != 0 && s->kv_tokens_max < s->kv_tokens)
        return error_set(err, EBB_ERANGE,
                         "--kv-tokens-max %" PRIu32 " is less than --kv-tokens %" PRIu32,
                         s->kv_tokens_max, s->kv_tokens);
    uint32_t held = s->kv_tokens_max != 0 ? s->kv_tokens_max : s->kv_tokens;
    if (held != 0 && held < z->context) {
        if (s->context != 0)
            return error_set(err, EBB_ERANGE,
                             "--kv-tokens%s %" PRIu32
                             " is less than one sequence of --context %" PRIu32,
                             s->kv_tokens_max != 0 ? "-max" : "", held, s->context);
        z->context = held;
    }
    if (z->context < 2)
        return error_set(err, EBB_ERANGE,
                         "a context of %" PRIu32
                         " positions holds no prompt and a token; 2 at least",
                         z->context);
    return 0;
}

static uint32_t larger_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Each attempt takes one step: a long chunk that was not asked for comes first, down to a CPU card's
 * (in sizing_choose(), as what KV is chosen by it follows); then half the KV, one context of it, and
 * a quarter of the chunk's rows. A KV size that was asked for stays. */
static int shrink(struct sizes *z, const struct settings *s, uint32_t attempt, struct error *err)
{
    for (uint32_t step = 1; step <= attempt; step++) {
        if (s->kv_tokens == 0 && z->kv_tokens > z->context)
            z->kv_tokens =
                step == 1 && z->kv_tokens / 2 > z->context ? z->kv_tokens / 2 : z->context;
        else if (z->chunk > 1)
            z->chunk = z->chunk / 4 > 0 ? z->chunk / 4 : 1;
        else
            return error_set(err, EBB_EAGAIN, "nothing is left to make smaller");
    }
    return 0;
}

/* A CUDA card's products want many rows to a weight; a step waits for its slowest card, so one CPU
 * card in the run is enough for few. */
static uint32_t chunk_choose(const struct settings *s)
{
    size_t n_cuda = 0;
    for (size_t i = 0; i < s->n_cards; i++)
        n_cuda += s->cards[i].kind == CARD_CUDA;
    return n_cuda > 0 && n_cuda == s->n_cards ? CHUNK_CUDA : CHUNK_CPU;
}

int sizing_choose(struct sizes *z, const struct settings *s, const struct model *m,
                  const struct plan *plan, const uint64_t *total_mib, uint32_t attempt,
                  struct error *err)
{
    *z = (struct sizes){.chunk = s->chunk > 0 ? s->chunk : chunk_choose(s)};
    int code = context_choose(z, s, m, err);
    if (code != 0)
        return code;
    z->kv = kv_name(s);
    if (strcmp(z->kv, "q8_0") == 0 && m->geometry.head_dim % 32 != 0)
        return error_set(err, EBB_EUNSUPPORTED,
                         "--kv q8_0: wants heads of a multiple of 32 values, the model has heads "
                         "of %" PRIu32,
                         m->geometry.head_dim);
    z->n_sequences = s->parallel + DONORS;
    for (; attempt > 0 && s->chunk == 0 && z->chunk > CHUNK_CPU; attempt--)
        z->chunk /= 4;
    if (z->chunk > z->context)
        z->chunk = z->context;
    z->kv_tokens = s->kv_tokens != 0 ? s->kv_tokens : kv_choose(s, m, plan, total_mib, z);
    if (s->kv_tokens_max != 0 && z->kv_tokens > s->kv_tokens_max)
        z->kv_tokens = s->kv_tokens_max;
    code = shrink(z, s, attempt, err);
    z->chunk_min = larger_of(CHUNK_CPU, z->n_sequences);
    z->chunk_min = z->chunk_min < z->chunk ? z->chunk_min : z->chunk;
    uint64_t most = s->kv_tokens_max != 0 ? s->kv_tokens_max : (uint64_t)z->context * s->parallel;
    most = most < z->kv_tokens ? z->kv_tokens : most;
    z->kv_tokens_max = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
    if (code == 0)
        z->segment_mib =
            s->segment_mib != 0 ? s->segment_mib : segment_choose(s, m, plan, total_mib, z);
    return code;
}

uint64_t sizing_available_mib(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "MemAvailable:", 13) == 0)
            kib = strtoull(line + 13, NULL, 10);
    if (file != NULL)
        (void)fclose(file);
    return kib / 1024;
}

uint64_t sizing_vram_mib(const struct settings *s, const struct card_setting *card,
                         uint64_t available_mib)
{
    size_t n_cards = 0;
    if (card->vram_mib != 0 || card->kind != CARD_CPU)
        return card->vram_mib;
    for (size_t i = 0; i < s->n_cards; i++)
        n_cards += s->cards[i].kind == CARD_CPU && strcmp(s->cards[i].host, card->host) == 0;
    if (n_cards < 2 || card->host[0] != '\0')
        return 0;
    return available_mib * 4 / 5 / n_cards;
}
