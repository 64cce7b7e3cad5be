/* tools/make-model/geometry.h - the shapes that a model can be made in, by name, and the mixes of types.
 *
 * Shapes are facts of the published models (their config.json); the names that begin with "tiny" are small ones of the
 * same architectures, for tests. Constant data.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/tensor_type.h"
#include "protocol/error.h"

enum shape_norms { NORMS_NONE, NORMS_HEAD, NORMS_WHOLE }; /* of q and k */

struct shape {
    const char *name, *architecture; /* the latter as general.architecture has it */
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, n_vocab, context;
    uint32_t d_ff; /* what the file says of dense layers; no tensor has it */
    uint32_t n_experts, n_experts_used, d_expert;
    double rope_base, rms_eps;
    enum shape_norms qk_norms;
};

/* Which type a tensor has. "Special" are the values' projection and the experts' down matrices of half of the layers,
 * and the output: what a mix keeps at more bits. */
struct type_mix {
    const char *name;
    uint32_t type, special; /* enum tensor_type */
    uint32_t file_type;     /* general.file_type, as ggml-org/ggml docs/gguf.md numbers them */
};

/* EBB_ENOENT names what there is; EBB_EUNSUPPORTED: a model whose architecture is not computed. */
int shape_find(const struct shape **s, const char *name, struct error *err);
int type_mix_find(const struct type_mix **m, const char *name, struct error *err);

/* The i-th of each, NULL behind the last. */
const struct shape *shape_at(size_t i);
const struct type_mix *type_mix_at(size_t i);
