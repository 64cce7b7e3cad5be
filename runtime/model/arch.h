/* runtime/model/arch.h - what differs from one architecture to the next, as a table: one row each.
 *
 * A row says how the file names its parts (the metadata prefix), which tensors the model and every
 * layer have, with which shapes in terms of the geometry, and the switches of the forward pass.
 * geometry.c reads the keys, model.c finds and checks the tensors; both only follow the row. A new
 * architecture whose parts exist in struct model_layer is a new row.
 */
#pragma once
#include "runtime/model/gguf.h"
#include "runtime/model/model.h"

/* A dimension of a tensor, in the geometry's words. */
enum arch_dim {
    DIM_NONE,
    DIM_MODEL,    /* d_model */
    DIM_VOCAB,    /* n_vocab */
    DIM_QUERIES,  /* n_heads * head_dim */
    DIM_KEYS,     /* n_kv_heads * head_dim */
    DIM_HEAD,     /* head_dim */
    DIM_EXPERT,   /* d_expert */
    DIM_N_EXPERTS /* n_experts */
};

/* Which types the operation that reads the tensor can take. */
enum arch_storage {
    STORE_ANY,   /* a product or a table: whatever tensor_type_find() knows */
    STORE_FLOAT, /* F32 or F16: the router */
    STORE_F32    /* norms */
};

struct arch_tensor {
    const char *name; /* in the file; of a layer: after "blk.<n>." */
    size_t view;      /* offset of its struct tensor_view in struct model or struct model_layer */
    enum arch_dim dims[4];
    enum arch_storage storage;
    bool optional;
};

struct arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    bool has_experts;
    bool rope_halves;        /* NeoX pairing */
    bool router_renormalise; /* unless expert_weights_norm says otherwise */
    const struct arch_tensor *model_tensors;
    size_t n_model_tensors;
    const struct arch_tensor *layer_tensors;
    size_t n_layer_tensors;
};

/* The row of general.architecture. EBB_EFORMAT (no such key), EBB_EUNSUPPORTED (no such row;
 * names those there are). */
int arch_find(const struct arch **a, const struct gguf *g, struct error *err);

/* Fills all of *m from the keys, except n_vocab, which the tensors say. EBB_EFORMAT,
 * EBB_EUNSUPPORTED naming the key. */
int arch_geometry(const struct arch *a, const struct gguf *g, struct model_geometry *m,
                  struct error *err);

/* The number that a dimension stands for. */
uint64_t arch_dim_value(enum arch_dim dim, const struct model_geometry *m);
