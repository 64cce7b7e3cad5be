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
    DIM_MODEL,     /* d_model */
    DIM_VOCAB,     /* n_vocab */
    DIM_QUERIES,   /* n_heads * head_dim */
    DIM_KEYS,      /* n_kv_heads * head_dim */
    DIM_HEAD,      /* head_dim */
    DIM_FF,        /* d_ff */
    DIM_EXPERT,    /* d_expert */
    DIM_SHARED,    /* d_shared */
    DIM_N_EXPERTS, /* n_experts */
};

/* Which types the operation that reads the tensor can take. */
enum arch_storage {
    STORE_ANY,   /* a product or a table: whatever tensor_type_find() knows */
    STORE_FLOAT, /* F32, F16 or BF16: the router */
    STORE_F32    /* norms, biases */
};

/* Which models of the architecture have the tensor. */
enum arch_presence {
    IN_ALL,
    IN_SOME,   /* where the file has it */
    IN_DENSE,  /* without experts */
    IN_EXPERTS /* with experts */
};

struct arch_tensor {
    const char *name; /* in the file; of a layer: after "blk.<n>." */
    size_t view;      /* offset of its struct tensor_view in struct model or struct model_layer */
    enum arch_dim dims[4];
    enum arch_storage storage;
    enum arch_presence presence;
};

enum arch_experts { EXPERTS_NEVER, EXPERTS_MAYBE, EXPERTS_ALWAYS };

struct arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    enum arch_experts experts;
    bool experts_as_wide_as_ff; /* where the file does not say how wide an expert is */
    bool has_shared_expert;
    bool qk_norm_whole;
    bool rope_halves;        /* NeoX pairing */
    bool router_renormalise; /* unless expert_weights_norm says otherwise */
    const struct arch_tensor *layer_tensors;
    size_t n_layer_tensors;
};

/* What every architecture has beside its layers. */
extern const struct arch_tensor arch_model_tensors[];
extern const size_t arch_n_model_tensors;

/* The row of general.architecture. EBB_EFORMAT (no such key), EBB_EUNSUPPORTED (no such row;
 * names those there are). */
int arch_find(const struct arch **a, const struct gguf *g, struct error *err);

/* geometry.c: fills all of *m from the keys (and rope_freqs.weight), except n_vocab, which the
 * tensors say. On failure m->inv_freq may be set: it is the model's, which frees it. EBB_EFORMAT,
 * EBB_EUNSUPPORTED naming the key, EBB_ENOMEM. */
int arch_geometry(const struct arch *a, const struct gguf *g, struct model_geometry *m,
                  struct error *err);

/* The number that a dimension stands for. */
uint64_t arch_dim_value(enum arch_dim dim, const struct model_geometry *m);
