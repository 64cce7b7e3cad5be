/* stages/weights.h - the dense weights of a stage: copies on the card of every tensor of its layers that is not an expert, the token
 * embedding on the first stage, the final norm and the output head on the last.
 *
 * One block of card memory for life. Opening makes the memory and lays the tensors out; weights_next() then hands out the copies to be
 * made, so that loading can go on in pieces while the stage answers lines.
 */
#pragma once
#include "runtime/model/model.h"
#include "vmm/region.h"

struct weight { /* a matrix or vector on the card, as the file stores it */
    uint32_t type;
    const void *data; /* NULL: the model has none */
};

struct layer_weights {
    struct weight attn_norm, q, k, v, o, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias, ffn_norm;
    struct weight gate, up, down, router, gate_shared, up_shared, down_shared, shared_router;
};

struct weight_copy {
    void *to;
    const void *from; /* in the model's mapping */
    size_t bytes;
};

struct weights {
    struct fixed_block memory;
    struct weight token_embd, output_norm, output;
    struct layer_weights *layers; /* owned [layer_last - layer_first + 1] */
    struct weight_copy *copies;   /* owned */
    size_t n_copies, next;
    size_t copy_bytes; /* of all copies */
};

int weights_open(struct weights *w, struct vmm_driver *driver, const struct model *model,
                 uint32_t layer_first, uint32_t layer_last, struct error *err);
void weights_close(struct weights *w);
/* The next copy to make, or NULL when all were handed out. */
const struct weight_copy *weights_next(struct weights *w);
