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
#define ANY     STORE_ANY, IN_ALL
#define F32     STORE_F32, IN_ALL
#define DENSE   STORE_ANY, IN_DENSE
#define EXPERTS STORE_ANY, IN_EXPERTS

const struct arch_tensor arch_model_tensors[] = {
    {"token_embd.weight",  OF_MODEL(token_embd),  {DIM_MODEL, DIM_VOCAB}, ANY},
    {"output_norm.weight", OF_MODEL(output_norm), {DIM_MODEL},            F32},
    {"output.weight",      OF_MODEL(output),      {DIM_MODEL, DIM_VOCAB}, STORE_ANY, IN_SOME},
};
const size_t arch_n_model_tensors = COUNT(arch_model_tensors);

/* What layers are put together from. */
#define ATTENTION                                                              \
    {"attn_norm.weight",   OF_LAYER(attn_norm), {DIM_MODEL},              F32}, \
    {"attn_q.weight",      OF_LAYER(q),         {DIM_MODEL, DIM_QUERIES}, ANY}, \
    {"attn_k.weight",      OF_LAYER(k),         {DIM_MODEL, DIM_KEYS},    ANY}, \
    {"attn_v.weight",      OF_LAYER(v),         {DIM_MODEL, DIM_KEYS},    ANY}, \
    {"attn_output.weight", OF_LAYER(o),         {DIM_QUERIES, DIM_MODEL}, ANY}, \
    {"ffn_norm.weight",    OF_LAYER(ffn_norm),  {DIM_MODEL},              F32}
#define QKV_BIASES(presence)                                                             \
    {"attn_q.bias",      OF_LAYER(q_bias), {DIM_QUERIES}, STORE_F32, presence}, \
    {"attn_k.bias",      OF_LAYER(k_bias), {DIM_KEYS},    STORE_F32, presence}, \
    {"attn_v.bias",      OF_LAYER(v_bias), {DIM_KEYS},    STORE_F32, presence}, \
    {"attn_output.bias", OF_LAYER(o_bias), {DIM_MODEL},   STORE_F32, IN_SOME}
#define HEAD_NORMS                                               \
    {"attn_q_norm.weight", OF_LAYER(q_norm), {DIM_HEAD}, F32}, \
    {"attn_k_norm.weight", OF_LAYER(k_norm), {DIM_HEAD}, F32}
#define WHOLE_NORMS                                                 \
    {"attn_q_norm.weight", OF_LAYER(q_norm), {DIM_QUERIES}, F32}, \
    {"attn_k_norm.weight", OF_LAYER(k_norm), {DIM_KEYS},    F32}
#define DENSE_FF                                                     \
    {"ffn_gate.weight", OF_LAYER(gate), {DIM_MODEL, DIM_FF}, DENSE}, \
    {"ffn_up.weight",   OF_LAYER(up),   {DIM_MODEL, DIM_FF}, DENSE}, \
    {"ffn_down.weight", OF_LAYER(down), {DIM_FF, DIM_MODEL}, DENSE}
#define ROUTED_EXPERTS                                                                               \
    {"ffn_gate_inp.weight",  OF_LAYER(router),    {DIM_MODEL, DIM_N_EXPERTS}, STORE_FLOAT, IN_EXPERTS}, \
    {"ffn_gate_exps.weight", OF_LAYER(gate_exps), {DIM_MODEL, DIM_EXPERT, DIM_N_EXPERTS}, EXPERTS},   \
    {"ffn_up_exps.weight",   OF_LAYER(up_exps),   {DIM_MODEL, DIM_EXPERT, DIM_N_EXPERTS}, EXPERTS},   \
    {"ffn_down_exps.weight", OF_LAYER(down_exps), {DIM_EXPERT, DIM_MODEL, DIM_N_EXPERTS}, EXPERTS}
#define SHARED_EXPERT                                                                  \
    {"ffn_gate_shexp.weight",     OF_LAYER(gate_shared),   {DIM_MODEL, DIM_SHARED}, ANY}, \
    {"ffn_up_shexp.weight",       OF_LAYER(up_shared),     {DIM_MODEL, DIM_SHARED}, ANY}, \
    {"ffn_down_shexp.weight",     OF_LAYER(down_shared),   {DIM_SHARED, DIM_MODEL}, ANY}, \
    {"ffn_gate_inp_shexp.weight", OF_LAYER(shared_router), {DIM_MODEL},             F32}

static const struct arch_tensor llama_layer[] = {
    ATTENTION, QKV_BIASES(IN_SOME), DENSE_FF, ROUTED_EXPERTS,
};
static const struct arch_tensor qwen2_layer[] = {ATTENTION, QKV_BIASES(IN_ALL), DENSE_FF};
static const struct arch_tensor qwen2moe_layer[] = {
    ATTENTION, QKV_BIASES(IN_ALL), ROUTED_EXPERTS, SHARED_EXPERT,
};
static const struct arch_tensor qwen3_layer[] = {
    ATTENTION, QKV_BIASES(IN_SOME), HEAD_NORMS, DENSE_FF,
};
static const struct arch_tensor qwen3moe_layer[] = {
    ATTENTION, QKV_BIASES(IN_SOME), HEAD_NORMS, ROUTED_EXPERTS,
};
static const struct arch_tensor olmoe_layer[] = {ATTENTION, WHOLE_NORMS, ROUTED_EXPERTS};

#define LAYER(tensors) .layer_tensors = tensors, .n_layer_tensors = COUNT(tensors)

static const struct arch table[] = {
    /* Llama, Mistral, SmolLM and their kin; with experts it is Mixtral */
    {.name = "llama", .experts = EXPERTS_MAYBE, .experts_as_wide_as_ff = true, .router_renormalise = true,
     LAYER(llama_layer)},
    {.name = "qwen2", .experts = EXPERTS_NEVER, .rope_halves = true, LAYER(qwen2_layer)},
    {.name = "qwen2moe", .experts = EXPERTS_ALWAYS, .has_shared_expert = true, .rope_halves = true,
     LAYER(qwen2moe_layer)},
    {.name = "qwen3", .experts = EXPERTS_NEVER, .rope_halves = true, LAYER(qwen3_layer)},
    {.name = "qwen3moe", .experts = EXPERTS_ALWAYS, .rope_halves = true, .router_renormalise = true,
     LAYER(qwen3moe_layer)},
    {.name = "olmoe", .experts = EXPERTS_ALWAYS, .experts_as_wide_as_ff = true, .qk_norm_whole = true,
     .rope_halves = true, LAYER(olmoe_layer)},
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
    case DIM_FF: return m->d_ff;
    case DIM_EXPERT: return m->d_expert;
    case DIM_SHARED: return m->d_shared;
    case DIM_N_EXPERTS: return m->n_experts;
    }
    return 0;
}
