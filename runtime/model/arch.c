/* runtime/model/arch.c - the table of architectures.
 *
 * Constant data and two look-ups; nothing is owned. Names of tensors and architectures as
 * ggml-org/ggml docs/gguf.md and the files in use have them.
 */
#include "runtime/model/arch.h"
#include <string.h>
#include "runtime/model/show.h"

#define COUNT(array)    (sizeof(array) / sizeof(array)[0])
#define OF_MODEL(field) offsetof(struct model, field)
#define OF_LAYER(field) offsetof(struct model_layer, field)

/* Tables read best as tables. */
/* clang-format off */
#define ANY   STORE_ANY, false
#define F32   STORE_F32, false
#define FLOAT STORE_FLOAT, false

static const struct arch_tensor embedding_and_head[] = {
    {"token_embd.weight",  OF_MODEL(token_embd),  {DIM_MODEL, DIM_VOCAB}, ANY},
    {"output_norm.weight", OF_MODEL(output_norm), {DIM_MODEL},            F32},
    {"output.weight",      OF_MODEL(output),      {DIM_MODEL, DIM_VOCAB}, STORE_ANY, true},
};

/* Attention with an RMS norm on every head of q and k, then routed experts. */
static const struct arch_tensor qwen3moe_layer[] = {
    {"attn_norm.weight",     OF_LAYER(attn_norm), {DIM_MODEL},                            F32},
    {"attn_q.weight",        OF_LAYER(q),         {DIM_MODEL, DIM_QUERIES},               ANY},
    {"attn_k.weight",        OF_LAYER(k),         {DIM_MODEL, DIM_KEYS},                  ANY},
    {"attn_v.weight",        OF_LAYER(v),         {DIM_MODEL, DIM_KEYS},                  ANY},
    {"attn_output.weight",   OF_LAYER(o),         {DIM_QUERIES, DIM_MODEL},               ANY},
    {"attn_q_norm.weight",   OF_LAYER(q_norm),    {DIM_HEAD},                             F32},
    {"attn_k_norm.weight",   OF_LAYER(k_norm),    {DIM_HEAD},                             F32},
    {"ffn_norm.weight",      OF_LAYER(ffn_norm),  {DIM_MODEL},                            F32},
    {"ffn_gate_inp.weight",  OF_LAYER(router),    {DIM_MODEL, DIM_N_EXPERTS},             FLOAT},
    {"ffn_gate_exps.weight", OF_LAYER(gate_exps), {DIM_MODEL, DIM_EXPERT, DIM_N_EXPERTS}, ANY},
    {"ffn_up_exps.weight",   OF_LAYER(up_exps),   {DIM_MODEL, DIM_EXPERT, DIM_N_EXPERTS}, ANY},
    {"ffn_down_exps.weight", OF_LAYER(down_exps), {DIM_EXPERT, DIM_MODEL, DIM_N_EXPERTS}, ANY},
};

static const struct arch table[] = {
    {
        .name = "qwen3moe", .has_experts = true, .rope_halves = true, .router_renormalise = true,
        .model_tensors = embedding_and_head, .n_model_tensors = COUNT(embedding_and_head),
        .layer_tensors = qwen3moe_layer, .n_layer_tensors = COUNT(qwen3moe_layer),
    },
};
/* clang-format on */

int arch_find(const struct arch **a, const struct gguf *g, struct error *err)
{
    struct gguf_string name;
    char shown[SHOWN_BYTES], known[128] = "";
    int rc = gguf_text(g, "general.architecture", &name, err);
    if (rc != 0)
        return rc == EBB_ENOENT
                   ? error_set(err, EBB_EFORMAT,
                               "%s: metadata key general.architecture: wants a name, got none",
                               show_path(gguf_path(g)))
                   : rc;
    for (size_t i = 0, at = 0; i < COUNT(table); i++) {
        if (strlen(table[i].name) == name.n_bytes &&
            memcmp(table[i].name, name.bytes, name.n_bytes) == 0) {
            *a = &table[i];
            return 0;
        }
        if (at < sizeof known)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i == 0 ? "" : ", ",
                                   table[i].name);
    }
    return error_set(err, EBB_EUNSUPPORTED,
                     "%s: metadata key general.architecture: wants one of %s, got \"%s\"",
                     show_path(gguf_path(g)), known, show_name(name, shown));
}

uint64_t arch_dim_value(enum arch_dim dim, const struct model_geometry *m)
{
    switch (dim) {
    case DIM_NONE: return 1;
    case DIM_MODEL: return m->d_model;
    case DIM_VOCAB: return m->n_vocab;
    case DIM_QUERIES: return (uint64_t)m->n_heads * m->head_dim;
    case DIM_KEYS: return (uint64_t)m->n_kv_heads * m->head_dim;
    case DIM_HEAD: return m->head_dim;
    case DIM_EXPERT: return m->d_expert;
    case DIM_N_EXPERTS: return m->n_experts;
    }
    return 0;
}
