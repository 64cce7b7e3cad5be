/* runtime/model/inspect.h - what a model file holds, as far as it can be read: also of a file that model_open() refuses.
 *
 * Only the container has to be good. Numbers are taken from the model where it opens, else from the keys by their usual
 * names, and are then only what the file says; 0 = it does not say. Lifetime: an inspection owns its tables and no mapping.
 */
#pragma once
#include "runtime/model/gguf.h"
#include "runtime/model/model.h"

enum inspect_group {
    GROUP_EMBEDDING,
    GROUP_ATTENTION,
    GROUP_FEED_FORWARD,
    GROUP_EXPERTS,
    GROUP_SHARED,
    GROUP_ROUTER,
    GROUP_NORMS,
    GROUP_HEAD,
    GROUP_OTHER,
    GROUP_COUNT
};

#define INSPECT_TYPES_MAX    12
#define INSPECT_PROBLEMS_MAX 16

struct inspect_type {
    uint32_t type;
    bool is_computed; /* tensor_type_find() knows it */
    char name[32];    /* "Q4_K", or "type 77" */
    uint64_t n_tensors, bytes;
};

struct inspect_layer {
    uint64_t dense_bytes, expert_bytes; /* experts: the routed ones */
};

struct inspection {
    size_t n_parts;
    uint64_t file_bytes, n_parameters;
    char architecture[64], name[96]; /* printable ASCII; empty: the file does not say */
    struct model_geometry geometry;  /* inv_freq is NULL */
    bool is_tied;
    struct inspect_group_types {
        struct inspect_type types[INSPECT_TYPES_MAX]; /* further ones are counted with the last */
        size_t n_types;
    } groups[GROUP_COUNT];
    struct inspect_layer *layers; /* owned [n_layers]: as many as tensors name */
    uint32_t n_layers;
    uint64_t embedding_bytes, head_bytes,
        rest_bytes; /* beside the layers; head_bytes with the last norm, 0 where tied */
    char tokenizer[32], pretokenizer[64];
    uint64_t n_tokens;
    char template_name[32];
    bool template_is_known, is_supported;
    char problems[INSPECT_PROBLEMS_MAX][480]; /* what is not supported, and why: a line each */
    size_t n_problems;
};

/* What one card of an even split would hold. */
struct inspect_share {
    uint32_t layer_first, layer_last; /* inclusive */
    uint64_t dense_bytes, expert_bytes;
    uint64_t kv_bytes; /* of 1,000 tokens in F16; 0: the file does not say */
};

/* EBB_ENOENT, EBB_EIO, EBB_EFORMAT, EBB_EUNSUPPORTED (of the container), EBB_ENOMEM. */
int inspect_open(struct inspection *x, const char *path, struct error *err);
void inspect_close(struct inspection *x);

/* The share with these layers; the first card has the embedding, the last the head (or the embedding again, where it is tied
 * and another card's). */
struct inspect_share inspect_share(const struct inspection *x, uint32_t layer_first,
                                   uint32_t layer_last);

const char *inspect_group_name(enum inspect_group group);
