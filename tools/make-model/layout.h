/* tools/make-model/layout.h - a whole model file before its weights: header, metadata, table, and what fills each tensor.
 *
 * What makes the weights usable though they are random. Matrices have a standard deviation of 1 / sqrt(inputs), so a
 * normed input gives outputs of about 1 and the residual stream grows with the square root of the layers: finite in all
 * of them. The output's is 3 / sqrt(d_model): logits spread by about 3, neither flat nor decided. Norms lie around 1.
 *
 * Routing is skewed as real models' is. In every layer the experts have a rank, shuffled; rank r (from 1) is to be among
 * the chosen for a share of the tokens that falls like (r + 4)^-0.8, at most 0.45, all shares together n_used. An expert's
 * logit over normed inputs is about normal with the length of its router row as standard deviation, so the row's length
 * is set to put that share above a threshold of 2.5. What the skew does not imitate: that neighbouring tokens, or layers,
 * like the same experts.
 *
 * Ownership: a layout owns all it points to. Threads: read-only after open.
 */
#pragma once
#include "tools/make-model/bytes.h"
#include "tools/make-model/fill.h"
#include "tools/make-model/geometry.h"

struct layout_settings {
    struct shape shape;
    const struct type_mix *mix;
    uint64_t seed;
    const char *tokenizer; /* a file to copy the vocabulary of; NULL: one is made */
};

struct layout_tensor {
    char name[64];
    uint32_t type, n_dims;
    uint64_t dims[3];
    size_t offset, bytes; /* offset in the data section */
    struct fill fill;
    float *row_scale; /* owned; of a router, [n_experts] */
};

struct layout {
    struct layout_settings settings;
    struct layout_tensor *tensors; /* owned [n_tensors] */
    size_t n_tensors, n_capacity;
    struct bytes header; /* all before the data section, padded */
    size_t file_bytes;
};

/* EBB_EUNSUPPORTED (a row that is not a whole number of the type's blocks), EBB_ENOMEM, or what the vocabulary said; on
 * failure nothing is left. */
int layout_open(struct layout *l, const struct layout_settings *settings, struct error *err);
void layout_close(struct layout *l); /* also of a zeroed one */
