/* runtime/model/model.h - what a model file says: geometry, the tensors of every layer, all checked, all mapped.
 *
 * A model is a read-only memory mapping of a GGUF file (gguf.h) plus pointers into it. Opening checks every count, length,
 * offset, alignment, dimension and type that is used later; so whoever holds a struct model reads tensors without checks.
 * Nothing is copied: a tensor's bytes are the page cache's. Threads: read-only after open. Lifetime: tensors and names
 * live as long as the model.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/tensor_type.h"
#include "protocol/error.h"

struct gguf; /* gguf.h: metadata by key, tensors by name */

struct tensor_view {
    const char *name;
    uint32_t type;    /* enum tensor_type, known to tensor_type_find() */
    uint32_t n_dims;  /* 1..4 */
    uint64_t dims[4]; /* GGUF order: dims[0] is the row length (fastest); unused ones are 1 */
    const void *data; /* NULL: the model has no such tensor */
    size_t bytes;
};

struct model_geometry {
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, n_vocab, context_max;
    uint32_t n_rot; /* rotated dimensions of a head, even, <= head_dim */
    float rms_eps;
    double rope_base;
    bool rope_halves; /* NeoX pairing */
    double *
        inv_freq; /* owned by the model, [n_rot / 2]: with the file's scaling (linear, YaRN, rope_freqs) in it */
    float rope_scale;      /* cosines and sines are multiplied by it (YaRN's attention factor); 1 */
    float attention_scale; /* of q k; 1 / sqrt(head_dim) unless the file says otherwise */
    bool qk_norm_whole;    /* q_norm, k_norm run over the whole projection, not head by head */
    uint32_t d_ff;         /* width of dense layers' feed-forward, 0 = none */
    uint32_t n_experts, n_experts_used, d_expert; /* 0 experts: dense */
    uint32_t d_shared;                            /* width of the shared expert, 0 = none */
    bool router_renormalise;
    float router_scale;
};

struct model_layer {
    struct tensor_view attn_norm, q, k, v, o, q_norm, k_norm, ffn_norm;
    struct tensor_view q_bias, k_bias, v_bias, o_bias; /* F32 vectors */
    struct tensor_view gate, up, down;                 /* dense feed-forward */
    struct tensor_view router; /* a layer with one has routed experts instead */
    struct tensor_view gate_exps, up_exps,
        down_exps; /* [n_experts] matrices behind one another: dims {in, out, n_experts} */
    struct tensor_view gate_shared, up_shared, down_shared; /* the shared expert */
    struct tensor_view
        shared_router; /* F32 [d_model]: its output is times sigmoid(shared_router . x); absent: times 1 */
};

struct model {
    struct gguf *gguf; /* owned; of a split file the first part, which opens the others */
    char architecture[32];
    struct model_geometry geometry;
    struct tensor_view token_embd, output_norm,
        output;                 /* output = token_embd where the file ties them */
    struct model_layer *layers; /* owned [n_layers] */
    uint64_t
        fingerprint; /* of header bytes, tensor table and file size: equal for the same file on two hosts */
};

/* Opens, maps, checks. EBB_ENOENT, EBB_EIO, EBB_EFORMAT (err: file, field, wanted, got), EBB_EUNSUPPORTED (architecture or a
 * needed tensor's type, by name), EBB_ENOMEM. */
int model_open(struct model **m, const char *path, struct error *err);
void model_close(struct model *m); /* NULL is fine */

/* Matrix e of an expert tensor: its first byte and its size. e < n_experts. */
static inline const void *model_expert(const struct tensor_view *t, uint32_t e, size_t *bytes)
{
    *bytes = t->bytes / (size_t)t->dims[2];
    return (const unsigned char *)t->data + *bytes * e;
}
